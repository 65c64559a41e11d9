//! Where the answers are in a conversation that is over: which of its tokens a model is to write itself.
//!
//! A template does not say what of its text is an answer. But up to an answer a conversation reads as the prompt for that
//! answer does, so the answer starts where the two part: at the latest where the prompt ends, earlier where the first of
//! the answer's text shares a token with the end of the prompt, or where the template puts something in prompts (an
//! empty block of thoughts) that it leaves out of old turns. It ends with the first token that ends answers, which is part
//! of it: a model has to write that too. Templates that know no such token end it where the turn ends.

use super::template::{ChatTemplate, System, folded};
use super::{Message, Tokenizer};
use crate::tree::Token;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value as Json};
use std::ops::Range;

/// A conversation as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// All of it, the last turn ended, nothing begun after it.
    pub tokens: Vec<Token>,
    /// Its answers, in order.
    pub answers: Vec<Range<usize>>,
    /// What became of the system message.
    pub system: System,
}

impl ChatTemplate {
    /// The conversation as it stands, with the places of the assistant's messages. System messages that the template
    /// refuses are treated as [`ChatTemplate::prompt`] does.
    pub fn conversation(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        extra: &Map<String, Json>,
    ) -> Result<Conversation> {
        ensure!(!messages.is_empty(), "found no messages");
        let is_answer = |message: &Message| message.role == "assistant";
        let first = messages.iter().position(is_answer).unwrap_or(messages.len());
        ensure!(first > 0, "message 0 is an answer: a conversation starts with what it answers");
        let system = self.prompt(tokenizer, &messages[..first], extra)?.system;
        let rewritten = folded(messages).filter(|_| system == System::Folded);
        // How many messages less there are, for their numbers.
        let less = usize::from(rewritten.is_some());
        let messages = rewritten.as_deref().unwrap_or(messages);
        let encode = |count: usize, prompt| self.encode(tokenizer, &messages[..count], prompt, extra);

        let tokens = encode(messages.len(), false)?;
        let mut starts = vec![];
        for (i, _) in messages.iter().enumerate().filter(|(_, message)| is_answer(message)) {
            let start = shared(&encode(i, true)?, &tokens);
            // The last token of the turns before may end only whole conversations, or share the answer's first text.
            ensure!(
                start + 1 >= encode(i, false)?.len(),
                "message {}: the chat template changes what is before the answer once it is there, so the answer cannot be told apart",
                i + less
            );
            starts.push((i, start));
        }
        let nexts = starts.iter().skip(1).map(|&(_, start)| start).chain([tokens.len()]);
        let answers = starts.iter().zip(nexts).map(|(&(i, start), next)| {
            let turn = encode(i + 1, false)?;
            let known = shared(&turn, &tokens);
            // Else the template writes old turns otherwise than the last, and only an end token can tell.
            let stands = known >= start && known + 1 >= turn.len();
            let answer = start..start.max(if stands { known } else { next });
            let end = tokens[answer.clone()].iter().position(|token| tokenizer.end_tokens().contains(token));
            match end {
                Some(at) => Ok(start..start + at + 1),
                None if stands => Ok(answer),
                None => bail!("message {}: the end of the answer is not to be found", i + less),
            }
        });
        let answers = answers.collect::<Result<_>>().context("messages")?;
        Ok(Conversation { tokens, answers, system })
    }
}

/// How many tokens both begin with.
fn shared(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
