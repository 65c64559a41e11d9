//! From what a user wrote to the tokens the model starts from.

use super::load::Language;
use crate::text::{Message, System};
use crate::tree::Token;
use anyhow::{Result, bail};
use serde_json::{Map, Value};
use std::sync::atomic::Ordering;

/// A text as it is: special texts are parsed, BOS is put in front where the model wants one. An empty text is BOS alone.
pub fn raw(language: &Language, text: &str) -> Result<Vec<Token>> {
    let tokenizer = &language.tokenizer;
    let tokens = tokenizer.with_bos(tokenizer.encode(text, true)?);
    match tokenizer.bos() {
        _ if !tokens.is_empty() => Ok(tokens),
        Some(bos) => Ok(vec![bos]),
        None => bail!("the prompt is empty and the model has no BOS to start from"),
    }
}

/// What a template is told beside the messages.
pub type Extra = Map<String, Value>;

/// Messages in the model's chat template, ready for the answer; `extra` goes before what flags say. `None` when the
/// model has no template. What a template does not do with a system message is said once.
pub fn chat(language: &Language, messages: &[Message], extra: &Extra) -> Result<Option<Vec<Token>>> {
    let template = match &language.template {
        Ok(None) => return Ok(None),
        Ok(Some(template)) => template,
        Err(error) => {
            bail!("{error:#}: without the template (raw) or with another (--chat-template) the model can still be used")
        }
    };
    let mut variables = language.variables.clone();
    variables.extend(extra.clone());
    let prompt = template.prompt(&language.tokenizer, messages, &variables)?;
    let notice = match prompt.system {
        System::AsIs => None,
        System::Folded => {
            Some("the chat template takes no system message: it is put in front of the first user message")
        }
        System::LeftOut => Some("the chat template leaves the system message out: the model does not see it"),
    };
    if let Some(notice) = notice.filter(|_| !language.told.swap(true, Ordering::Relaxed)) {
        language.report.warn(notice);
    }
    Ok(Some(prompt.tokens))
}

/// Whether a text written by the user names BOS although the model gets one anyway, or twice.
pub fn doubles_bos(language: &Language, raw: &str) -> Result<bool> {
    let tokenizer = &language.tokenizer;
    let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos()) else { return Ok(false) };
    Ok(tokenizer.encode(raw, true)?.contains(&bos))
}

/// The tokens as text, control tokens shown: what the model really sees.
pub fn shown(language: &Language, tokens: &[Token]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&t| language.tokenizer.piece(t)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
