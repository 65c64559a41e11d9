//! `bench`: how fast a model runs here, and how fast it could.
//!
//! First the machine is measured: how fast it reads and multiplies ([`crate::backend::rates`]). Then three kinds of things,
//! each the median of its repetitions, after one pass of each kind to warm up, and beside the bound (`bound`). *Prefill* evaluates a prompt of
//! so many tokens, chunked as `run` does, and ends with logits of its last row. *Decode* takes one token at a time on top of a context of
//! some depth, as the generation loop does, the choice of a token left out. *Widths* verifies trees of so many
//! nodes in one pass, logits of all rows, at a context of 256: what a draft of that size costs over none.
//!
//! With `--profile` the model is loaded once more, on a backend with a clock, and whole steps are looked into (`profile`).
//!
//! Tokens are pseudo-random: nothing here depends on what they say. With `--against` it is `against` that runs, with
//! `--prompts` it is [`trial`].

mod against;
mod bound;
#[cfg(feature = "cuda")]
pub mod check;
mod figures;
mod plan;
mod profile;

use super::place::{self, OnPlace, Place};
use super::report::Report;
use super::{Usage, load, print, trial};
use crate::backend::Backend;
use crate::backend::rates::Rates;
use crate::backend::timed::Timed;
use crate::cli::{Activations, BenchArgs, ModelArgs, ReportArgs};
use crate::engine::CHUNK;
use crate::gguf::Gguf;
use crate::model::{Config, Input, Model, Rows, State};
use crate::tree::{DraftTree, Token};
use anyhow::{Context, Result, bail};
use bound::{Cost, Speed};
use figures::{Decode, Figures, Machine, Prefill, Width};
use plan::{Decoding, Plan};
use std::time::{Duration, Instant};

/// Context that batch widths are timed at.
const WIDTH_DEPTH: usize = 256;

/// Passes of each batch width in one repetition: one pass is short.
const PASSES: usize = 5;

/// Repetitions when nothing is said.
const REPETITIONS: u16 = 3;

/// Milliseconds that each rate of the machine is measured for when nothing is said.
const RATE_TIME: u16 = 80;

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    if let Some(file) = &args.prompts {
        return trial::run(args, file);
    }
    check(args)?;
    let report = Report::default();
    if let Some(command) = &args.against {
        return against::run(args, command, &report);
    }
    place::choose(&args.model, &report, args)
}

impl OnPlace for &BenchArgs {
    fn run(self, place: &impl Place) -> Result<()> {
        measure(self, place)
    }
}

fn measure(args: &BenchArgs, place: &impl Place) -> Result<()> {
    let report = Report::default();
    let mut plan = Plan::of(args);
    let model_args = with_room(&args.model, plan.positions())?;
    let opened = load::model(&model_args, place, &report)?;
    plan.fit(opened.context, &report)?;
    let (model, backend) = (&*opened.model, opened.backend());
    // Half of what is left: the session takes its share afterwards, when this memory is free again.
    let room = opened.free().map_or(u64::MAX, |free| free / 2);
    let rates = backend.rates(room, Duration::from_millis(args.rate_time.unwrap_or(RATE_TIME).into()))?;
    let state = model.state(plan.positions(), CHUNK, opened.kv)?;
    let widened = args.model.activations == Activations::F32;
    let cost = Cost::of(model, opened.kv, widened);
    let repetitions = args.repetitions.unwrap_or(REPETITIONS).into();
    let mut bench = Bench { model, state, repetitions, cost, rates: &rates };
    bench.warm_up(&plan)?;
    let mut figures = Figures {
        model: args.model.model.display().to_string(),
        device: opened.description.device.clone(),
        isa: opened.description.isa.clone(),
        threads: opened.description.threads,
        place: opened.description.to_string(),
        weight_bytes: model.weight_bytes(),
        machine: Machine::of(&rates),
        prefill: bench.prefills(&plan.prefill)?,
        decode: bench.decodes(&plan.decode)?,
        widths: bench.widths(&plan.widths)?,
        profile: vec![],
    };
    if !plan.profile.is_empty() {
        let Bench { state, cost, .. } = bench;
        // Weights and cache make room for those that come now.
        drop((state, opened));
        let silent = Report::new(&ReportArgs { stats: None, quiet: true, verbose: 0 });
        let opened = load::model_on(&model_args, place, &silent, |backend| Timed::new(backend, widened))?;
        let state = opened.model.state(plan.positions(), CHUNK, opened.kv)?;
        let mut bench = Bench { model: &*opened.model, state, repetitions, cost, rates: &rates };
        figures.profile = bench.profiles(&plan.profile)?;
    }
    print(&figures, args.json, |out| figures.print(out))
}

/// Refuses what no model can be asked.
fn check(args: &BenchArgs) -> Result<()> {
    let zero = |name: &str| Usage(format!("{name} has 0, at least 1 is needed"));
    if args.decode == Some(0) {
        bail!(zero("--decode"));
    }
    if args.prefill.contains(&0) {
        bail!(zero("--prefill"));
    }
    for (name, rows) in [("--widths", &args.widths), ("--profile", &args.profile)] {
        if let Some(n) = rows.iter().find(|n| !(1..=DraftTree::MAX).contains(n)) {
            bail!(Usage(format!("{name} has {n}, it takes 1 to {} rows", DraftTree::MAX)));
        }
    }
    Ok(())
}

/// `args` with a context of `positions`, as far as the model's own goes, when none was asked for.
fn with_room(args: &ModelArgs, positions: usize) -> Result<ModelArgs> {
    let mut args = args.clone();
    if args.ctx_size.is_none() {
        let config = Config::read(&Gguf::open(&args.model)?).with_context(|| args.model.display().to_string())?;
        args.ctx_size = Some(positions.min(config.context));
    }
    Ok(args)
}

/// A model with a session, and tokens to feed it.
struct Bench<'a, B: Backend> {
    model: &'a Model<B>,
    state: State<B>,
    repetitions: usize,
    cost: Cost,
    rates: &'a Rates,
}

impl<B: Backend> Bench<'_, B> {
    /// Token number `i`: anything, but always the same.
    fn token(&self, i: usize) -> Token {
        ((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as Token % self.model.config().vocab as Token
    }

    /// A context of exactly `n` tokens, logits of its last row included.
    fn fill(&mut self, n: usize) -> Result<()> {
        self.state.truncate(0);
        let tokens: Vec<Token> = (0..n).map(|i| self.token(i)).collect();
        for chunk in tokens.chunks(CHUNK) {
            let ends = self.state.len() + chunk.len() == n;
            let rows = if ends { Rows::Last } else { Rows::None };
            self.model.forward(&mut self.state, Input::Chain(chunk), rows)?;
        }
        Ok(())
    }

    /// Decodes `n` tokens on top of what is there.
    fn decode(&mut self, n: usize) -> Result<()> {
        for _ in 0..n {
            let tree = DraftTree::new(self.token(self.state.len()), 1);
            let logits = self.model.forward(&mut self.state, Input::Tree(&tree), Rows::All)?;
            self.state.reuse(logits);
            self.state.commit(&[0])?;
        }
        Ok(())
    }

    /// A tree of `rows` nodes: a chain, which reads the most of the cache.
    fn tree(&self, rows: usize) -> DraftTree {
        let mut tree = DraftTree::new(self.token(0), rows);
        for i in 1..rows {
            tree.push(i - 1, self.token(i), 0.0);
        }
        tree
    }

    /// One pass over a tree of `rows` nodes, none of which is kept.
    fn verify(&mut self, rows: usize) -> Result<()> {
        let tree = self.tree(rows);
        let logits = self.model.forward(&mut self.state, Input::Tree(&tree), Rows::All)?;
        self.state.reuse(logits);
        Ok(())
    }

    fn warm_up(&mut self, plan: &Plan) -> Result<()> {
        if let Some(n) = plan.prefill.iter().max() {
            self.fill(*n.min(&CHUNK))?;
        }
        self.state.truncate(0);
        self.decode(1)
    }

    fn prefills(&mut self, lengths: &[usize]) -> Result<Vec<Prefill>> {
        let mut all = vec![];
        for &tokens in lengths {
            let mut times = vec![];
            for _ in 0..self.repetitions {
                times.push(time(|| self.fill(tokens))?);
            }
            let seconds = median(&mut times);
            let passes = (0..tokens).step_by(CHUNK).map(|base| {
                let rows = CHUNK.min(tokens - base);
                self.cost.pass(base, rows, usize::from(base + rows == tokens))
            });
            let speed = Speed::of(passes, seconds, 1, self.rates);
            all.push(Prefill { tokens, tok_s: tokens as f64 / seconds, speed });
        }
        Ok(all)
    }

    fn decodes(&mut self, decodings: &[Decoding]) -> Result<Vec<Decode>> {
        let mut all = vec![];
        for &Decoding { depth, tokens } in decodings {
            self.fill(depth)?;
            let mut times = vec![];
            for _ in 0..self.repetitions {
                self.state.truncate(depth);
                times.push(time(|| self.decode(tokens))?);
            }
            let seconds = median(&mut times);
            let passes = (0..tokens).map(|i| self.cost.pass(depth + i, 1, 1));
            let speed = Speed::of(passes, seconds, tokens, self.rates);
            all.push(Decode { depth, tokens, tok_s: tokens as f64 / seconds, speed });
        }
        Ok(all)
    }

    /// All widths take turns, so that a machine that slows down meanwhile slows all of them.
    fn widths(&mut self, widths: &[usize]) -> Result<Vec<Width>> {
        if widths.is_empty() {
            return Ok(vec![]);
        }
        self.fill(WIDTH_DEPTH)?;
        let mut times = vec![vec![]; widths.len()];
        for _ in 0..self.repetitions * PASSES {
            for (&rows, times) in widths.iter().zip(&mut times) {
                times.push(time(|| self.verify(rows))?);
            }
        }
        let figures = widths.iter().zip(&mut times).map(|(&rows, times)| {
            let seconds = median(times);
            let speed = Speed::of([self.cost.pass(WIDTH_DEPTH, rows, rows)], seconds, 1, self.rates);
            Width { rows, tok_s: rows as f64 / seconds, speed }
        });
        Ok(figures.collect())
    }
}

/// Seconds that `f` takes.
fn time(f: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    f()?;
    Ok(started.elapsed().as_secs_f64())
}

/// The middle value, of an even number the mean of the middle two.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}
