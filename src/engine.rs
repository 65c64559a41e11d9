//! A session: the one generation loop.
//!
//! Between steps `context.len() == cache.len() + 1`: the last token of the context, the *anchor*, has not been run yet.
//! A step runs a tree that grows from the anchor (without a drafter, the anchor alone), walks down it as far as the
//! sampler's picks go, makes that path context, and takes the last pick as the next anchor. So plain decoding is
//! speculation with an empty draft, and there is no second loop.

#![forbid(unsafe_code)]

use crate::backend::{Backend, KvType};
use crate::model::{Input, Model, Rows, State};
use crate::sample::{History, Sampler};
use crate::spec::walk;
use crate::tree::{DraftTree, Token};
use anyhow::{Result, ensure};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens a prompt is evaluated by at a time, and so the longest one waits for an interrupt to be seen.
pub const CHUNK: usize = 256;

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn.
    End,
    /// The caller's `emit` said so (a stop string).
    Stopped,
    /// The caller's limit of tokens.
    Length,
    /// The context is full.
    Context,
    /// The caller's `interrupted` said so.
    Interrupted,
}

impl Finish {
    /// The word for it in statistics and answers.
    pub fn reason(self) -> &'static str {
        match self {
            Finish::End | Finish::Stopped => "stop",
            Finish::Length | Finish::Context => "length",
            Finish::Interrupted => "interrupted",
        }
    }
}

/// What bounds a generation.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Tokens, when limited; the context limits them anyway.
    pub max_tokens: Option<usize>,
    /// Tokens that end the text; they are not emitted.
    pub ends: &'a [Token],
}

/// How a generation went.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens emitted.
    pub tokens: usize,
    /// Passes of the model.
    pub rounds: usize,
    /// Time it took.
    pub time: Duration,
}

/// A text in the making: the model, its cache, and the tokens so far.
pub struct Session<B: Backend> {
    model: Arc<Model<B>>,
    state: State<B>,
    context: Vec<Token>,
    /// Tokens picked since the session began; the key of the sampler's noise, so it never goes back.
    ordinal: u64,
}

impl<B: Backend> Session<B> {
    /// An empty session for up to `context` positions.
    pub fn new(model: Arc<Model<B>>, context: usize, kv: KvType) -> Result<Self> {
        let state = model.state(context, CHUNK, kv)?;
        Ok(Self { model, state, context: Vec::new(), ordinal: 0 })
    }

    /// All tokens so far.
    pub fn tokens(&self) -> &[Token] {
        &self.context
    }

    /// Positions that fit.
    pub fn capacity(&self) -> usize {
        self.state.context()
    }

    /// Forgets everything, as if the session were new.
    pub fn clear(&mut self) {
        self.state.truncate(0);
        self.context.clear();
        self.ordinal = 0;
    }

    /// Appends `tokens` and evaluates all but the last, chunk by chunk. `progress` is told how many are done before each
    /// chunk and ends the evaluation with `Break`; then nothing of `tokens` remains.
    pub fn prefill(
        &mut self,
        tokens: &[Token],
        mut progress: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let capacity = self.capacity();
        let need = self.context.len() + tokens.len();
        ensure!(
            need < capacity,
            "the prompt has {need} tokens, which leaves no room in the context of {capacity}: a shorter prompt or a larger -c is needed"
        );
        let old = self.context.len();
        self.context.extend_from_slice(tokens);
        let start = self.state.len();
        let end = self.context.len().saturating_sub(1);
        for from in (start..end).step_by(CHUNK) {
            if progress(from - start).is_break() {
                self.context.truncate(old);
                self.state.truncate(old.saturating_sub(1));
                return Ok(ControlFlow::Break(()));
            }
            let chunk = &self.context[from..end.min(from + CHUNK)];
            self.model.forward(&mut self.state, Input::Chain(chunk), Rows::None)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Generates until something ends it. `emit` sees every token but the end token, in order, and may end the text.
    pub fn generate(
        &mut self,
        sampler: &mut Sampler,
        limits: Limits<'_>,
        interrupted: impl Fn() -> bool,
        mut emit: impl FnMut(Token) -> Result<ControlFlow<()>>,
    ) -> Result<Outcome> {
        let started = Instant::now();
        let (mut tokens, mut rounds) = (0, 0);
        let finish = loop {
            if limits.max_tokens.is_some_and(|max| tokens >= max) {
                break Finish::Length;
            }
            if self.context.len() >= self.capacity() {
                break Finish::Context;
            }
            if interrupted() {
                break Finish::Interrupted;
            }
            let room = limits.max_tokens.map_or(usize::MAX, |max| max - tokens);
            let picked = self.step(sampler, room)?;
            rounds += 1;
            let mut finish = None;
            for token in picked {
                self.ordinal += 1;
                if limits.ends.contains(&token) {
                    finish = Some(Finish::End);
                } else {
                    tokens += 1;
                    self.context.push(token);
                    if emit(token)?.is_break() {
                        finish = Some(Finish::Stopped);
                    }
                }
                if finish.is_some() {
                    break;
                }
            }
            if let Some(finish) = finish {
                // Drops what was accepted past the end. An end token is not made context, so the token before it is
                // the anchor again.
                self.state.truncate(self.context.len().saturating_sub(1));
                break finish;
            }
        };
        Ok(Outcome { finish, tokens, rounds, time: started.elapsed() })
    }

    /// One round: a tree, a pass, a walk, a commit. Gives the tokens picked, at most `room` of them.
    fn step(&mut self, sampler: &mut Sampler, room: usize) -> Result<Vec<Token>> {
        let (&anchor, _) = self.context.split_last().ok_or_else(|| anyhow::anyhow!("the prompt is empty"))?;
        let budget = room.min(self.capacity() - self.state.len()).min(1);
        let tree = DraftTree::new(anchor, budget);
        let logits = self.model.forward(&mut self.state, Input::Tree(&tree), Rows::All)?;
        let vocab = logits.len() / tree.nodes().len();
        let (context, first) = (&self.context, self.ordinal);
        let mut path = Vec::new();
        let verdict = walk(&tree, |node| {
            let depth = u64::from(tree.nodes()[node].depth);
            if depth > 0 {
                path.push(tree.nodes()[node].token);
            }
            let history = History { committed: context, path: &path };
            sampler.pick(&logits[node * vocab..(node + 1) * vocab], history, first + depth)
        })?;
        self.state.commit(&verdict.path)?;
        Ok(verdict.tokens)
    }
}
