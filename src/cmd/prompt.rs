//! From what a user wrote to the tokens the model starts from.

use super::interrupt::Interrupt;
use super::load::Language;
use super::report::{Report, Unit};
use crate::backend::Backend;
use crate::cli::Think;
use crate::engine::{CHUNK, Session};
use crate::text::{ChatTemplate, Conversation, Message, System};
use crate::tree::Token;
use anyhow::{Result, bail};
use serde_json::{Map, Value};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a template is told beside the messages.
pub type Extra = Map<String, Value>;

/// The template's variables that `--think` asks for.
pub fn extra(think: Option<Think>) -> Extra {
    think.iter().map(|&think| ("enable_thinking".to_owned(), Value::Bool(think == Think::On))).collect()
}

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

/// Messages in the model's chat template, ready for the answer; `extra` goes before what flags say. `None` when the
/// model has no template. What a template does not do with a system message is said once.
pub fn chat(language: &Language, messages: &[Message], extra: &Extra) -> Result<Option<Vec<Token>>> {
    let Some(template) = template(language)? else { return Ok(None) };
    let prompt = template.prompt(&language.tokenizer, messages, &variables(language, extra))?;
    tell_system(language, prompt.system);
    Ok(Some(prompt.tokens))
}

/// The same of a conversation that is over.
pub fn conversation(language: &Language, messages: &[Message], extra: &Extra) -> Result<Option<Conversation>> {
    let Some(template) = template(language)? else { return Ok(None) };
    let conversation = template.conversation(&language.tokenizer, messages, &variables(language, extra))?;
    tell_system(language, conversation.system);
    Ok(Some(conversation))
}

fn template(language: &Language) -> Result<Option<&ChatTemplate>> {
    match &language.template {
        Ok(template) => Ok(template.as_ref()),
        Err(error) => {
            bail!("{error:#}: without the template (raw) or with another (--chat-template) the model can still be used")
        }
    }
}

fn variables(language: &Language, extra: &Extra) -> Extra {
    let mut variables = language.variables.clone();
    variables.extend(extra.clone());
    variables
}

fn tell_system(language: &Language, system: System) {
    let notice = match system {
        System::AsIs => None,
        System::Folded => {
            Some("the chat template takes no system message: it is put in front of the first user message")
        }
        System::LeftOut => Some("the chat template leaves the system message out: the model does not see it"),
    };
    if let Some(notice) = notice.filter(|_| !language.told.swap(true, Ordering::Relaxed)) {
        language.report.warn(notice);
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

/// Whether a prompt ends within a block of thoughts that the answer goes on with.
pub fn ends_in_thought(language: &Language, tokens: &[Token]) -> bool {
    let last = &tokens[tokens.len().saturating_sub(8)..];
    shown(language, last).trim_end().ends_with("<think>")
}

/// What reading a prompt came to.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Tokens that had been evaluated before.
    pub reused: usize,
    /// Time it took.
    pub time: Duration,
}

/// Makes `tokens` all that `session` has, ready for the answer, and evaluates what it has not yet. `None` when
/// interrupted: then the session has the beginning of them that it had before.
pub fn read<B: Backend>(
    session: &mut Session<B>,
    tokens: &[Token],
    interrupt: &Interrupt,
    report: &Report,
) -> Result<Option<Read>> {
    let started = Instant::now();
    let reused = session.keep_common(tokens)?;
    let news = &tokens[reused..];
    let bar = (news.len() > 2 * CHUNK).then(|| report.bar("reading the prompt", news.len() as u64, Unit::Tokens));
    let read = session.prefill(news, |done| {
        bar.iter().for_each(|bar| bar.set_position(done as u64));
        if interrupt.asked() { Break(()) } else { Continue(()) }
    })?;
    bar.iter().for_each(|bar| bar.finish_and_clear());
    Ok(read.is_continue().then(|| Read { reused, time: started.elapsed() }))
}
