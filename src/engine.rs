//! A session: the one generation loop.
//!
//! Between steps `context.len() == cache.len() + 1`: the last token of the context, the *anchor*, has not been run yet.
//! A step lets the drafters grow a tree from the anchor (without one, it is the anchor alone), runs it, walks down it as
//! far as the sampler's picks go, makes that path context, and takes the last pick as the next anchor. So plain decoding
//! is speculation with an empty draft, and there is no second loop.

#![forbid(unsafe_code)]

use crate::backend::{Backend, KvType};
use crate::model::{Input, Model, Rows, State};
use crate::sample::{History, Sampler};
use crate::spec::{Drafter, Tally, Verdict, walk};
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
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens emitted.
    pub tokens: usize,
    /// Passes of the model.
    pub rounds: usize,
    /// What became of the drafts.
    pub tally: Tally,
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
    drafters: Vec<Box<dyn Drafter>>,
    /// Guesses per round, at most.
    draft_max: usize,
    /// Tokens of the context that the drafters were told about.
    observed: usize,
}

impl<B: Backend> Session<B> {
    /// An empty session for up to `context` positions.
    pub fn new(model: Arc<Model<B>>, context: usize, kv: KvType) -> Result<Self> {
        let state = model.state(context, CHUNK, kv)?;
        let (drafters, context) = (Vec::new(), Vec::new());
        Ok(Self { model, state, context, ordinal: 0, drafters, draft_max: 0, observed: 0 })
    }

    /// Lets `drafters` fill trees of up to `draft_max` guesses, in this order. They must be new or reset.
    pub fn set_drafters(&mut self, drafters: Vec<Box<dyn Drafter>>, draft_max: usize) {
        self.draft_max = if drafters.is_empty() { 0 } else { draft_max };
        self.drafters = drafters;
        self.observed = 0;
    }

    /// All tokens so far.
    pub fn tokens(&self) -> &[Token] {
        &self.context
    }

    /// Tokens whose keys and values are cached: between generations all but the last.
    pub fn cached(&self) -> usize {
        self.state.len()
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
        self.observed = 0;
        self.drafters.iter_mut().for_each(|drafter| drafter.reset());
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
        let (mut tokens, mut rounds, mut tally) = (0, 0, Tally::default());
        let finish = loop {
            if limits.max_tokens.is_some_and(|max| tokens >= max) {
                break Finish::Length;
            }
            let left = self.capacity().saturating_sub(self.context.len());
            if left == 0 {
                break Finish::Context;
            }
            if interrupted() {
                break Finish::Interrupted;
            }
            let room = limits.max_tokens.map_or(left, |max| left.min(max - tokens));
            let (tree, verdict) = self.step(sampler, room, &mut tally)?;
            rounds += 1;
            let (mut used, mut finish) = (0, None);
            for &token in &verdict.tokens {
                used += 1;
                self.ordinal += 1;
                if limits.ends.contains(&token) {
                    finish = Some(Ok(Finish::End));
                } else {
                    tokens += 1;
                    self.context.push(token);
                    finish = match emit(token) {
                        Ok(ControlFlow::Continue(())) => None,
                        Ok(ControlFlow::Break(())) => Some(Ok(Finish::Stopped)),
                        Err(error) => Some(Err(error)),
                    };
                }
                if finish.is_some() {
                    break;
                }
            }
            tally.round(&tree, &verdict, used);
            if let Some(finish) = finish {
                // Drops what was accepted past the end. An end token is not made context, so the token before it is
                // the anchor again.
                self.state.truncate(self.context.len().saturating_sub(1));
                break finish?;
            }
        };
        Ok(Outcome { finish, tokens, rounds, tally, time: started.elapsed() })
    }

    /// One round: a tree, a pass, a walk, a commit. Picks at most `room` tokens, at least one.
    fn step(&mut self, sampler: &mut Sampler, room: usize, tally: &mut Tally) -> Result<(DraftTree, Verdict)> {
        let started = Instant::now();
        let tree = self.draft(room)?;
        let drafted = Instant::now();
        let logits = self.model.forward(&mut self.state, Input::Tree(&tree), Rows::All)?;
        let verified = Instant::now();
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
        tally.sampling += verified.elapsed();
        self.state.commit(&verdict.path)?;
        tally.drafting += drafted - started;
        tally.verifying += verified - drafted;
        Ok((tree, verdict))
    }

    /// The anchor and what the drafters guess below it. A walk picks no more tokens than the tree has nodes, so a tree of
    /// `room` nodes can overrun neither the caller's limit nor the context.
    fn draft(&mut self, room: usize) -> Result<DraftTree> {
        let &anchor = self.context.last().ok_or_else(|| anyhow::anyhow!("the prompt is empty"))?;
        debug_assert_eq!(self.context.len(), self.state.len() + 1);
        let budget = room.min(self.draft_max + 1);
        let mut tree = DraftTree::new(anchor, budget);
        let news = &self.context[self.observed..];
        for drafter in &mut self.drafters {
            drafter.observe(news)?;
            if budget > 1 {
                drafter.draft(&self.context, &mut tree)?;
            }
        }
        self.observed = self.context.len();
        Ok(tree)
    }
}
