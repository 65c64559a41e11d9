//! Plays a prompt: a conversation in which the model answers every turn.

use crate::backend::Backend;
use crate::cmd::draft::Setup;
use crate::cmd::load::Language;
use crate::cmd::prompt;
use crate::engine::{Finish, Limits, Outcome, Session};
use crate::sample::Sampler;
use crate::spec::Tally;
use crate::spec::tally::Times;
use crate::text::{Message, TextStream};
use crate::tree::{Node, Token};
use anyhow::Result;
use std::cell::RefCell;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::time::Duration;

/// One way to decode, with a session of its own.
pub struct Contender<B: Backend> {
    /// What it is called.
    pub name: String,
    /// What it drafts with, if anything.
    pub setup: Option<Setup>,
    session: Session<B>,
    rounds: Rc<RefCell<Vec<Round>>>,
}

/// A round as it happened.
#[derive(Clone, Debug)]
pub struct Round {
    /// The tree.
    pub nodes: Vec<Node>,
    /// For each node the drafter that guessed it first.
    pub owners: Vec<u8>,
    /// The anchor and the accepted nodes.
    pub path: Vec<u8>,
    /// The tokens it gave.
    pub tokens: Vec<Token>,
    /// How long it took.
    pub times: Times,
}

/// An answer.
#[derive(Debug)]
pub struct Turn {
    /// Its tokens, without the end token.
    pub ids: Vec<Token>,
    /// Tokens of the prompt that had to be evaluated for it.
    pub prefilled: usize,
    /// Time of that.
    pub prefill: Duration,
    /// The rest.
    pub outcome: Outcome,
    /// Its rounds.
    pub rounds: Vec<Round>,
}

/// A conversation.
#[derive(Debug)]
pub struct Run {
    /// Its turns. There are fewer than the prompt's if they do not fit the context.
    pub turns: Vec<Turn>,
}

impl Run {
    /// Time of decoding.
    pub fn time(&self) -> Duration {
        self.turns.iter().map(|turn| turn.outcome.time).sum()
    }

    /// Tokens of all answers.
    pub fn tokens(&self) -> usize {
        self.turns.iter().map(|turn| turn.ids.len()).sum()
    }

    /// What became of all drafts.
    pub fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.turns.iter().for_each(|turn| sum.add(&turn.outcome.tally));
        sum
    }

    /// Where this text parts from another one, in words.
    pub fn difference(&self, plain: &Run) -> Option<String> {
        for (i, (own, other)) in self.turns.iter().zip(&plain.turns).enumerate() {
            let turn = i + 1;
            if let Some(at) = (0..own.ids.len().max(other.ids.len())).find(|&at| own.ids.get(at) != other.ids.get(at)) {
                let said = |ids: &[Token]| ids.get(at).map_or("nothing".into(), |id| id.to_string());
                let (own, other) = (said(&own.ids), said(&other.ids));
                return Some(format!("turn {turn}: token {} is {own}, plain decoding gives {other}", at + 1));
            }
            let (own, other) = (own.outcome.finish, other.outcome.finish);
            if own != other {
                return Some(format!("turn {turn}: it ends with {own:?}, plain decoding with {other:?}"));
            }
        }
        let (own, other) = (self.turns.len(), plain.turns.len());
        (own != other).then(|| format!("it has {own} turns, plain decoding {other}"))
    }
}

impl<B: Backend> Contender<B> {
    /// With the drafters that `session` has, those of `setup`.
    pub fn new(name: String, setup: Option<Setup>, mut session: Session<B>) -> Self {
        let rounds: Rc<RefCell<Vec<Round>>> = Rc::default();
        let told = rounds.clone();
        session.watch(Some(Box::new(move |round| {
            told.borrow_mut().push(Round {
                nodes: round.draft.tree().nodes().to_vec(),
                owners: round.draft.sketch.owners.clone(),
                path: round.verdict.path.iter().map(|&node| node as u8).collect(),
                tokens: round.verdict.tokens.clone(),
                times: round.times,
            });
        })));
        Self { name, setup, session, rounds }
    }

    /// Positions that fit.
    pub fn capacity(&self) -> usize {
        self.session.capacity()
    }

    /// Bytes of memory that its drafters take.
    pub fn memory(&self) -> u64 {
        self.session.drafters().iter().map(|drafter| drafter.memory()).sum()
    }

    /// Plays a conversation. `None` if it was interrupted.
    pub fn play(
        &mut self,
        language: &Language,
        asked: &[String],
        sampler: &mut Sampler,
        max_tokens: Option<usize>,
        interrupted: impl Fn() -> bool,
    ) -> Result<Option<Run>> {
        self.session.clear()?;
        let (mut messages, mut turns) = (vec![], vec![]);
        for text in asked {
            messages.push(Message::new("user", text));
            let tokens = tokens(language, &messages)?;
            if tokens.len() >= self.capacity() {
                break;
            }
            let Some(turn) = self.answer(language, &tokens, sampler, max_tokens, &interrupted)? else {
                return Ok(None);
            };
            messages.push(Message::new("assistant", &text_of(language, &turn.ids)));
            turns.push(turn);
        }
        Ok(Some(Run { turns }))
    }

    /// Answers a prompt that begins, most likely, with what the session has.
    fn answer(
        &mut self,
        language: &Language,
        tokens: &[Token],
        sampler: &mut Sampler,
        max_tokens: Option<usize>,
        interrupted: impl Fn() -> bool,
    ) -> Result<Option<Turn>> {
        let session = &mut self.session;
        let started = std::time::Instant::now();
        let common = session.tokens().iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let common = common.min(tokens.len() - 1);
        session.rewind(common)?;
        let read = session.prefill(&tokens[common..], |_| if interrupted() { Break(()) } else { Continue(()) })?;
        if read.is_break() {
            return Ok(None);
        }
        let prefill = started.elapsed();
        self.rounds.borrow_mut().clear();
        let mut ids = vec![];
        let limits = Limits { max_tokens, ends: language.tokenizer.end_tokens(), begun: 0 };
        let outcome = session.generate(sampler, limits, interrupted, |token| {
            ids.push(token);
            Ok(Continue(()))
        })?;
        if outcome.finish == Finish::Interrupted {
            return Ok(None);
        }
        let rounds = self.rounds.take();
        Ok(Some(Turn { ids, prefilled: tokens.len() - common, prefill, outcome, rounds }))
    }
}

/// A conversation up to where the model is to answer. Without a template the messages are put one after the other.
pub fn tokens(language: &Language, messages: &[Message]) -> Result<Vec<Token>> {
    if let Some(tokens) = prompt::chat(language, messages, &prompt::Extra::new())? {
        return Ok(tokens);
    }
    let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    prompt::raw(language, &texts.join("\n\n"))
}

/// Tokens as people see them.
pub fn text_of(language: &Language, ids: &[Token]) -> String {
    let mut stream = TextStream::new(&language.tokenizer, &[], false);
    let text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text + &stream.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(turns: &[(&[Token], Finish)]) -> Run {
        let turn = |&(ids, finish): &(&[Token], Finish)| Turn {
            ids: ids.to_vec(),
            prefilled: 1,
            prefill: Duration::ZERO,
            outcome: Outcome {
                finish,
                tokens: ids.len(),
                rounds: ids.len(),
                tally: Tally::default(),
                time: Duration::from_millis(5),
            },
            rounds: vec![],
        };
        Run { turns: turns.iter().map(turn).collect() }
    }

    #[test]
    fn any_difference_is_found_and_named() {
        use Finish::{End, Length};
        let plain = run(&[(&[1, 2, 3], End), (&[4, 5], Length)]);
        assert_eq!((plain.tokens(), plain.time()), (5, Duration::from_millis(10)));
        for (turns, want) in [
            (&[(&[1, 2, 3][..], End), (&[4, 5][..], Length)][..], None),
            (&[(&[1, 9, 3], End), (&[4, 5], Length)], Some("turn 1: token 2 is 9, plain decoding gives 2")),
            (&[(&[1, 2, 3], End), (&[4], Length)], Some("turn 2: token 2 is nothing, plain decoding gives 5")),
            (&[(&[1, 2, 3, 7], End)], Some("turn 1: token 4 is 7, plain decoding gives nothing")),
            (&[(&[1, 2, 3], Length)], Some("turn 1: it ends with Length, plain decoding with End")),
            (&[(&[1, 2, 3], End)], Some("it has 1 turns, plain decoding 2")),
        ] {
            assert_eq!(run(turns).difference(&plain).as_deref(), want);
        }
    }
}
