//! A session: the one generation loop.
//!
//! Between steps `context.len() == cache.len() + 1`: the last token of the context, the *anchor*, has not been run yet.
//! A step lets the drafters grow a tree from the anchor (without one, it is the anchor alone), runs it, walks down it as
//! far as the sampler's picks go, makes that path context, and takes the last pick as the next anchor. So plain decoding
//! is speculation with an empty draft, and there is no second loop.

#![forbid(unsafe_code)]

mod resume;

use crate::backend::{Backend, KvType};
use crate::model::{Few, Input, Logits, Model, Rows, State};
use crate::sample::{History, Needs, Sampler};
use crate::spec::round::{Draft, Setting};
use crate::spec::tally::Times;
use crate::spec::verify::Keyed;
use crate::spec::{Accept, Budget, Drafter, Features, Nodes, Round, Tally, Verdict, rejection, typical, walk};
use crate::tree::Token;
use anyhow::{Context, Result, ensure};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens a prompt is evaluated by at a time.
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
    /// Tokens at the end of the context that already belong to the text: what a grammar has seen of it.
    pub begun: usize,
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

/// One round as it happened.
pub struct Witnessed<'a> {
    /// What was guessed, and by whom.
    pub draft: &'a Draft,
    /// What was kept of it.
    pub verdict: &'a Verdict,
    /// How long it took.
    pub times: Times,
}

/// Told about every round before its tokens are emitted.
pub type Witness = Box<dyn FnMut(&Witnessed<'_>)>;

/// A text in the making: the model, its cache, and the tokens so far.
pub struct Session<B: Backend> {
    model: Arc<Model<B>>,
    state: State<B>,
    context: Vec<Token>,
    /// Tokens picked since the session began; the key of the sampler's noise, so it never goes back.
    ordinal: u64,
    drafters: Vec<Box<dyn Drafter<B>>>,
    budget: Budget,
    accept: Accept,
    witness: Option<Witness>,
    /// Tokens of the context that the drafters were told about.
    observed: usize,
}

/// How a session drafts and what it accepts.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Guesses per round.
    pub nodes: Nodes,
    /// The rule.
    pub accept: Accept,
}

impl<B: Backend> Session<B> {
    /// An empty session for up to `context` positions.
    pub fn new(model: Arc<Model<B>>, context: usize, kv: KvType) -> Result<Self> {
        let state = model.state(context, CHUNK, kv)?;
        Ok(Self {
            model,
            state,
            context: vec![],
            ordinal: 0,
            drafters: vec![],
            budget: Budget::new(Nodes::Fixed(0), 0),
            accept: Accept::Exact,
            witness: None,
            observed: 0,
        })
    }

    /// Lets `drafters`, which must be new, fill the trees, in this order.
    pub fn set_drafters(&mut self, drafters: Vec<Box<dyn Drafter<B>>>, plan: Plan) -> Result<()> {
        self.state.tap(&self.model, drafters.iter().filter_map(|drafter| drafter.taps()).flatten().copied())?;
        // Without guesses there is nothing to accept, and the text is to be that of no drafter at all.
        self.accept = if drafters.is_empty() { Accept::Exact } else { plan.accept };
        self.budget = Budget::new(plan.nodes, drafters.len());
        self.drafters = drafters;
        self.observed = 0;
        Ok(())
    }

    /// The drafters.
    pub fn drafters(&self) -> &[Box<dyn Drafter<B>>] {
        &self.drafters
    }

    /// Has every round told to `witness` from now on.
    pub fn watch(&mut self, witness: Option<Witness>) {
        self.witness = witness;
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
    pub fn clear(&mut self) -> Result<()> {
        self.ordinal = 0;
        self.rewind(0)
    }

    /// As [`Session::clear`] before `tokens` are to be read, but keeps what it has of their beginning: the number of
    /// tokens that need not be read again.
    pub fn restart(&mut self, tokens: &[Token]) -> Result<usize> {
        self.ordinal = 0;
        self.keep_common(tokens)
    }

    /// Forgets all tokens from number `len` on. The noise goes on: what comes instead is drawn anew.
    pub fn rewind(&mut self, len: usize) -> Result<()> {
        self.context.truncate(len);
        self.state.truncate(len.saturating_sub(1));
        if self.observed > len {
            self.observed = len;
            let kept = &self.context[..len];
            self.drafters.iter_mut().try_for_each(|drafter| drafter.rewind(kept))?;
        }
        Ok(())
    }

    /// Tells the drafters about the context up to token number `end`.
    fn observe(&mut self, end: usize) -> Result<()> {
        let news = &self.context[self.observed..end];
        self.observed = end;
        self.drafters.iter_mut().try_for_each(|drafter| drafter.observe(news))
    }

    /// Shows the drafters `rows` of the last pass, whose tokens are context from number `first` on, once they know the token
    /// after them, which there is: the anchor at the latest. Rows before number `fresh` were computed before: they are for
    /// those that lack them.
    fn show(&mut self, first: usize, rows: &[usize], fresh: usize) -> Result<()> {
        self.observe(self.observed.max(first + rows.len() + 1))?;
        let hidden = self.state.hidden();
        for drafter in &mut self.drafters {
            let Some(layers) = drafter.taps() else { continue };
            let from = drafter.lacks().unwrap_or(fresh).min(fresh).max(first);
            let Some(rows @ [_, ..]) = rows.get(from - first..) else { continue };
            let taps: Option<Vec<_>> = layers.iter().map(|&layer| self.state.tapped(layer)).collect();
            let taps = taps.context("a drafter reads layers that it did not name at first")?;
            drafter.see(&Features { first: from, rows, hidden, taps: &taps })?;
        }
        Ok(())
    }

    /// Appends `tokens` and evaluates all but the last, chunk by chunk. `progress` is told within each chunk, twice
    /// a layer, how many are done, and ends the evaluation with `Break`; then nothing of `tokens` remains.
    pub fn prefill(
        &mut self,
        tokens: &[Token],
        progress: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let capacity = self.capacity();
        let need = self.context.len() + tokens.len();
        ensure!(
            need < capacity,
            "the prompt has {need} tokens, which leaves no room in the context of {capacity}: a shorter prompt or a larger -c is needed"
        );
        let old = self.context.len();
        self.context.extend_from_slice(tokens);
        let flow = self.evaluate(progress)?;
        if flow.is_break() {
            self.rewind(old)?;
        }
        Ok(flow)
    }

    /// Evaluates what has not been of the context, the last token aside, and again what drafters lack the rows of.
    /// `progress` is told how many new tokens are done. After a `Break` some is left to be evaluated.
    fn evaluate(&mut self, mut progress: impl FnMut(usize) -> ControlFlow<()>) -> Result<ControlFlow<()>> {
        let (fresh, end) = (self.state.len(), self.context.len().saturating_sub(1));
        self.observe(self.observed.max(self.context.len().min(fresh + 1)))?;
        let readers = self.drafters.iter().filter(|drafter| drafter.taps().is_some());
        let start = readers.filter_map(|drafter| drafter.lacks()).fold(fresh, usize::min);
        // The same bits come to stand where they stood.
        self.state.truncate(start);
        for from in (start..end).step_by(CHUNK) {
            let to = end.min(from + CHUNK);
            let chunk = Input::Chain(&self.context[from..to]);
            let mut go_on = || progress(from.saturating_sub(fresh)).is_continue();
            let began = Instant::now();
            if self.model.forward_while(&mut self.state, chunk, Rows::None, &mut go_on)?.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            // Nothing is read of it, so a device may still be at it: it is timed, and told how far it is.
            self.model.backend().wait();
            // What a tree's pass adds to that is the head of every row.
            self.budget.learn_prompt(to - from, began.elapsed().mul_f64(self.model.with_head()));
            self.show(from, &(0..to - from).collect::<Vec<_>>(), fresh)?;
            let mut awake = self.drafters.iter_mut().enumerate().filter(|&(i, _)| !self.budget.is_resting(i));
            awake.try_for_each(|(_, drafter)| drafter.prepare())?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Generates until something ends it. `emit` sees every token but the end token, in order, and may end the text.
    /// `interrupted` is asked twice a layer of each pass.
    pub fn generate(
        &mut self,
        sampler: &mut Sampler,
        limits: Limits<'_>,
        interrupted: impl Fn() -> bool,
        mut emit: impl FnMut(Token) -> Result<ControlFlow<()>>,
    ) -> Result<Outcome> {
        let started = Instant::now();
        let (mut tokens, mut rounds, mut tally) = (0, 0, Tally::default());
        let from = self.context.len().saturating_sub(limits.begun);
        let asked = |_| if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let ready = self.evaluate(asked)?.is_continue();
        self.budget.begin();
        let finish = loop {
            if !ready {
                break Finish::Interrupted;
            }
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
            let (began, cached) = (Instant::now(), self.state.len());
            let Some((draft, verdict, mut times)) = self.step(sampler, from, room, &interrupted)? else {
                break Finish::Interrupted;
            };
            rounds += 1;
            if let Some(witness) = &mut self.witness {
                witness(&Witnessed { draft: &draft, verdict: &verdict, times });
            }
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
            // Drops what was accepted past the end. An end token is not made context, so the token before it is the
            // anchor again.
            self.state.truncate(self.context.len().saturating_sub(1));
            let telling = Instant::now();
            self.show(cached, &verdict.path[..self.state.len() - cached], cached)?;
            times.draft += telling.elapsed();
            let whole = began.elapsed();
            tally.round(&draft, &verdict, used, times, whole);
            self.budget.learn(&draft, &verdict.tokens[..used], times, whole);
            if let Some(finish) = finish {
                break finish?;
            }
        };
        Ok(Outcome { finish, tokens, rounds, tally, time: started.elapsed() })
    }

    /// One round: a tree, a pass, a verdict, a commit. Picks at most `room` tokens, at least one. What is generated begins
    /// at `from` in the context. `None` when interrupted.
    fn step(
        &mut self,
        sampler: &mut Sampler,
        from: usize,
        room: usize,
        interrupted: &impl Fn() -> bool,
    ) -> Result<Option<(Draft, Verdict, Times)>> {
        let started = Instant::now();
        let draft = self.draft(sampler, from, room)?;
        let drafted = Instant::now();
        let go_on = &mut || !interrupted();
        let tree = Input::Tree(draft.tree());
        // The other rules ask for whole distributions.
        let needs = sampler.needs().filter(|_| self.accept == Accept::Exact);
        let few = needs.map(|needs| {
            let (ordinal, nodes) = (self.ordinal, draft.tree().nodes());
            move |b: &B, logits: &B::Mat| match needs {
                Needs::Largest(k) => b.largest(logits, k),
                Needs::Drawn { temp, seed } => {
                    let ordinals: Vec<u64> = nodes.iter().map(|node| ordinal + u64::from(node.depth)).collect();
                    b.drawn(logits, temp, seed, &ordinals)
                }
            }
        });
        let few = few.as_ref().map(|few| -> Few<'_, B> { few });
        let Some(logits) = self.model.forward_for(&mut self.state, tree, few, go_on)? else {
            return Ok(None);
        };
        let verified = Instant::now();
        let verdict = self.verify(sampler, from, &draft, &logits)?;
        let times = Times { draft: drafted - started, verify: verified - drafted, sample: verified.elapsed() };
        if let Logits::All(logits) = logits {
            self.state.reuse(logits);
        }
        self.state.commit(&verdict.path)?;
        Ok(Some((draft, verdict, times)))
    }

    /// What is kept of a draft, given the target's logits.
    fn verify(&self, sampler: &mut Sampler, from: usize, draft: &Draft, logits: &Logits) -> Result<Verdict> {
        let (tree, context, ordinal) = (draft.tree(), &self.context, self.ordinal);
        let depth = |node: usize| u64::from(tree.nodes()[node].depth);
        let logits = match logits {
            Logits::All(logits) => logits,
            Logits::Few(rows) => {
                return walk(tree, |node| sampler.pick_among(&rows[node], ordinal + depth(node)));
            }
        };
        let row = |node: usize| {
            let vocab = logits.len() / tree.nodes().len();
            &logits[node * vocab..(node + 1) * vocab]
        };
        let path = |node| -> Vec<Token> { tree.path(node)[1..].iter().map(|&n| tree.nodes()[n].token).collect() };
        let mut chance = Keyed { noise: sampler.noise(), ordinal };
        let mut distribution = |node| {
            let history = History { committed: context, path: &path(node), start: from };
            sampler.distribution(row(node), history, ordinal + depth(node))
        };
        match self.accept {
            Accept::Rejection => rejection::rejection(draft, distribution, &mut chance),
            Accept::Typical => typical::typical(tree, &mut distribution, &mut chance),
            Accept::Exact => walk(tree, |node| {
                let history = History { committed: context, path: &path(node), start: from };
                sampler.pick(row(node), history, ordinal + depth(node))
            }),
        }
    }

    /// The anchor and what the drafters guess below it. A walk picks no more tokens than the tree has nodes, so a tree of
    /// `room` nodes can overrun neither the caller's limit nor the context.
    fn draft(&mut self, sampler: &mut Sampler, from: usize, room: usize) -> Result<Draft> {
        ensure!(!self.context.is_empty(), "the prompt is empty");
        debug_assert_eq!(self.context.len(), self.state.len() + 1);
        self.observe(self.context.len())?;
        let setting = Setting {
            context: &self.context,
            start: from,
            room,
            ordinal: self.ordinal,
            accept: self.accept,
            drafters: self.drafters.len(),
        };
        let mut round = Round::new(setting, sampler, &mut self.budget);
        for (i, drafter) in self.drafters.iter_mut().enumerate() {
            if round.turn(i) {
                drafter.draft(&mut round)?;
            }
        }
        Ok(round.finish())
    }
}
