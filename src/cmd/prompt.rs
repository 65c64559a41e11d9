//! From what a user wrote to the tokens the model starts from.

use super::load::Language;
use crate::text::Message;
use crate::tree::Token;
use anyhow::{Result, anyhow, bail};
use serde_json::Map;

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

/// Messages in the model's chat template, ready for the answer. `None` when the model has no template.
pub fn chat(language: &Language, messages: &[Message]) -> Result<Option<Vec<Token>>> {
    match &language.template {
        Ok(None) => Ok(None),
        Ok(Some(template)) => template.encode(&language.tokenizer, messages, true, &Map::new()).map(Some),
        Err(error) => Err(anyhow!("{error:#}: without the template (raw) the model can still be used")),
    }
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
