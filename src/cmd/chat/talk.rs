//! Answering: from a conversation to the next answer on stdout.
//!
//! Every turn renders the whole conversation, and evaluates what the session does not have: usually the newest message.
//! So the ids are always those of the whole, even where a template changes what it said before.

use super::turns::{Turn, Turns};
use crate::backend::Backend;
use crate::cmd::answer::Answer;
use crate::cmd::interrupt::Interrupt;
use crate::cmd::load::Language;
use crate::cmd::paint::Paint;
use crate::cmd::prompt::{self, Extra};
use crate::cmd::report::Report;
use crate::cmd::stats::Stats;
use crate::engine::{Finish, Limits, Session};
use crate::sample::Sampler;
use crate::text::TextStream;
use crate::tree::Token;
use anyhow::{Result, bail};
use std::ops::ControlFlow::{Break, Continue};

/// All that an answer is made of.
pub struct Talk<'a, B: Backend> {
    /// Tokenizer and template.
    pub language: &'a Language,
    /// What has been evaluated.
    pub session: Session<B>,
    /// How tokens are chosen.
    pub sampler: Sampler,
    /// What has been said.
    pub turns: Turns,
    /// What the template is told beside it.
    pub extra: Extra,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// Tokens of an answer, when limited.
    pub max_tokens: Option<usize>,
    /// What it cost so far.
    pub stats: Stats,
    /// Colours of guesses, where they are asked for.
    pub paint: Option<Paint>,
    /// Watched when an answer begins.
    pub interrupt: &'a Interrupt,
    /// Where notices go.
    pub report: Report,
}

impl<B: Backend> Talk<'_, B> {
    /// Answers `message`, which becomes a turn; not when it was interrupted before there was any text. Then, and on an
    /// error, it is as if it had not been said, and the answer is false.
    pub fn answer(&mut self, message: &str) -> Result<bool> {
        let Talk { language, interrupt, report, .. } = *self;
        let tokenizer = &language.tokenizer;
        let mut stream = TextStream::new(tokenizer, &self.stops.clone(), false);
        let (mut said, mut text) = (vec![], String::new());
        let mut out: Option<Answer> = None;
        let mut within = 0; // turns forgotten in the midst of the answer, told when its last line has ended
        interrupt.watch();
        let finish = loop {
            let Some((skip, tokens)) = self.fit(message, &said)? else {
                if !said.is_empty() {
                    break Finish::Context;
                }
                let (alone, most) = (self.render(self.turns.remembered(), message)?.len(), self.session.capacity());
                bail!(
                    "the message takes {alone} tokens, which leaves no room in the context of {most}: a shorter one or a larger -c is needed"
                );
            };
            self.turns.forget(skip);
            match said.is_empty() {
                true if skip > 0 => self.tell_forgotten(skip),
                true => {}
                false => within += skip,
            }
            report.detail(2, format_args!("prompt: {:?}", prompt::shown(language, &tokens)));
            let Some(read) = prompt::read(&mut self.session, &tokens, interrupt, &report)? else {
                break Finish::Interrupted;
            };
            report.detail(1, format_args!("{} of {} tokens evaluated before", read.reused, tokens.len()));
            report.detail(2, format_args!("prompt ids: {:?}", self.session.tokens()));
            let out = out.get_or_insert_with(|| Answer::new(prompt::ends_in_thought(language, &tokens)));
            let paint = &mut self.paint;
            paint.iter_mut().filter(|_| said.is_empty()).for_each(Paint::begin);
            let max_tokens = self.max_tokens.map(|max| max - said.len());
            let limits = Limits { max_tokens, ends: tokenizer.end_tokens(), begun: said.len() };
            let emit = |token| {
                said.push(token);
                let piece = stream.push(token);
                text += &piece;
                match paint {
                    None => out.write(&piece)?,
                    Some(paint) => out.write_painted(&piece, &paint.token(&piece, stream.held()))?,
                }
                Ok(if stream.stopped() { Break(()) } else { Continue(()) })
            };
            let outcome = self.session.generate(&mut self.sampler, limits, || interrupt.asked(), emit)?;
            self.stats.add_reused(read.reused);
            self.stats.add(tokens.len(), read.time, &outcome);
            if outcome.finish != Finish::Context {
                break outcome.finish;
            }
        };
        let rest = stream.finish();
        text += &rest;
        if let Some(mut out) = out {
            match &mut self.paint {
                None => out.write(&rest)?,
                Some(paint) => out.write_painted(&rest, &paint.text(&rest))?,
            }
            out.end()?;
        }
        report.detail(2, format_args!("answer ids: {said:?}"));
        match finish {
            Finish::Interrupted if text.is_empty() => {
                report.note("interrupted: the message is taken back");
                return Ok(false);
            }
            Finish::Interrupted => report.note("interrupted: the answer stays as it is"),
            Finish::Context => {
                report.note(format_args!("the context of {} is full: the answer is cut short", self.session.capacity()))
            }
            _ => {}
        }
        if within > 0 {
            self.tell_forgotten(within);
        }
        self.turns.push(Turn { message: message.to_owned(), answer: text });
        Ok(true)
    }

    /// The tokens to go on from, and how many of the oldest turns are to be forgotten for them: as few as leave room for
    /// an answer, which is a quarter of the context or what is left of the limit of tokens if that is less. Without any,
    /// whatever room there is must do; `None` when there is none.
    fn fit(&self, message: &str, said: &[Token]) -> Result<Option<(usize, Vec<Token>)>> {
        let capacity = self.session.capacity();
        let left = self.max_tokens.map_or(usize::MAX, |max| max - said.len());
        let room = left.min(capacity / 4).max(1);
        let turns = self.turns.remembered();
        for skip in 0..=turns {
            let mut tokens = self.render(skip, message)?;
            tokens.extend(said);
            let need = tokens.len() + if skip < turns { room } else { 1 };
            if need <= capacity {
                return Ok(Some((skip, tokens)));
            }
        }
        Ok(None)
    }

    fn render(&self, skip: usize, message: &str) -> Result<Vec<Token>> {
        let messages = self.turns.messages(skip, message);
        let tokens = prompt::chat(self.language, &messages, &self.extra)?;
        tokens.ok_or_else(|| anyhow::anyhow!("the model has no chat template"))
    }

    fn tell_forgotten(&self, turns: usize) {
        let these = if turns == 1 { "turn is".to_owned() } else { format!("{turns} turns are") };
        self.report
            .note(format_args!("the context of {} is full: the oldest {these} forgotten", self.session.capacity()));
    }
}
