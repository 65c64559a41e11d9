//! Where the time of a step goes: every op of it beside the least time that its work could take.
//!
//! A step is a pass over a tree of so many rows at a context of [`WIDTH_DEPTH`], the choice of a token by every row with
//! the default options of sampling, and the commit of all of them, as the generation loop does when every guess is right.
//! The model runs on a [`Timed`] backend. Of all steps the middle half by time counts, averaged: so the lines add up to the whole. What
//! no op took is *between ops*: allocations, loops, and looking at the clock.
//!
//! Work is counted as in [`super::bound`]; weights, keys and values are read as fast as the whole pass can read its bytes. Ops
//! other than products and attention are held against reading and writing their activations as fast as the smallest buffer is read. The
//! bound of the step is the sum, because one op ends before the next begins.

use super::bound::{Cost, Pass};
use super::{Bench, WIDTH_DEPTH, time};
use crate::backend::Backend;
use crate::backend::rates::Rates;
use crate::backend::timed::{Spent, Timed, Work};
use crate::model::{Input, Rows};
use crate::sample::{History, SampleParams, Sampler};
use anyhow::Result;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Instant;

/// Steps of each kind in one repetition.
const STEPS: usize = 12;

/// Steps over so many rows.
#[derive(Serialize)]
pub struct Profile {
    /// Their rows.
    rows: usize,
    /// Context before them.
    depth: usize,
    /// Milliseconds of a step.
    ms: f64,
    /// Milliseconds at least.
    bound_ms: f64,
    /// The bound's share of the time, in percent.
    percent: f64,
    /// In the order of the step.
    ops: Vec<Op>,
    /// Milliseconds that are no op's.
    between_ms: f64,
    /// Milliseconds of all but products and attention.
    rest_ms: f64,
    /// Milliseconds that choosing takes at temperature 0, instead of `pick`.
    greedy_ms: f64,
}

/// All calls of one kind.
#[derive(Serialize)]
struct Op {
    op: String,
    calls: u64,
    ms: f64,
    /// Share of the step in percent.
    share: f64,
    /// Bytes of weights, keys and values.
    bytes: u64,
    /// Bytes of activations.
    activations: u64,
    operations: u64,
    bound_ms: f64,
    percent: f64,
}

/// One step, in seconds.
struct Step {
    whole: f64,
    ops: Vec<Spent>,
    pick: f64,
    greedy: f64,
}

impl<B: Backend> Bench<'_, Timed<B>> {
    /// All kinds take turns, as in the other tables.
    pub fn profiles(&mut self, rows: &[usize]) -> Result<Vec<Profile>> {
        self.fill(WIDTH_DEPTH)?;
        let vocab = self.model.config().vocab;
        let greedy = SampleParams { temp: 0.0, ..SampleParams::default() };
        let mut usual = Sampler::new(SampleParams::default(), 0, vocab, |_| vec![])?;
        let mut greedy = Sampler::new(greedy, 0, vocab, |_| vec![])?;
        let mut steps: Vec<Vec<Step>> = rows.iter().map(|_| vec![]).collect();
        for _ in 0..self.repetitions * STEPS {
            for (&rows, steps) in rows.iter().zip(&mut steps) {
                steps.push(self.step(rows, &mut usual, &mut greedy)?);
            }
        }
        Ok(rows.iter().zip(steps).map(|(&rows, steps)| profile(rows, vocab, steps, &self.cost, self.rates)).collect())
    }

    fn step(&mut self, rows: usize, usual: &mut Sampler, greedy: &mut Sampler) -> Result<Step> {
        let (tree, path) = (self.tree(rows), (0..rows).collect::<Vec<_>>());
        self.model.backend().take();
        let started = Instant::now();
        let logits = self.model.forward(&mut self.state, Input::Tree(&tree), Rows::All)?;
        let pick = time(|| choose(usual, &logits, rows))?;
        self.state.commit(&path)?;
        let whole = started.elapsed().as_secs_f64();
        let ops = self.model.backend().take();
        let greedy = time(|| choose(greedy, &logits, rows))?;
        self.state.truncate(WIDTH_DEPTH);
        self.state.reuse(logits);
        Ok(Step { whole, ops, pick, greedy })
    }
}

/// A token for each of the rows.
fn choose(sampler: &mut Sampler, logits: &[f32], rows: usize) -> Result<()> {
    for (row, ordinal) in logits.chunks(logits.len() / rows).zip(0..) {
        sampler.pick(row, History::default(), ordinal)?;
    }
    Ok(())
}

/// The least seconds for `work` of `pass`.
fn least(work: &Work, pass: &Pass, rates: &Rates) -> f64 {
    let reading = work.bytes as f64 / rates.read(pass.bytes).all + work.near as f64 / rates.reads[0].rate.all;
    let multiplying = work.int8 as f64 / rates.int8.all + work.float as f64 / rates.f32.all;
    reading.max(multiplying)
}

fn profile(rows: usize, vocab: usize, mut steps: Vec<Step>, cost: &Cost, rates: &Rates) -> Profile {
    let pass = cost.pass(WIDTH_DEPTH, rows, rows);
    steps.sort_by(|a, b| a.whole.total_cmp(&b.whole));
    let middle = &steps[steps.len() / 4..steps.len() - steps.len() / 4];
    let mean = |seconds: &dyn Fn(&Step) -> f64| middle.iter().map(seconds).sum::<f64>() / middle.len() as f64;
    let whole = mean(&|step| step.whole);
    let op = |name: String, calls: u64, work: Work, seconds: f64| {
        let least = least(&work, &pass, rates);
        Op {
            op: name,
            calls,
            ms: seconds * 1e3,
            share: 100.0 * seconds / whole,
            bytes: work.bytes,
            activations: work.near,
            operations: work.int8 + work.float,
            bound_ms: least * 1e3,
            percent: 100.0 * least / seconds.max(1e-9), // the clock may not have moved
        }
    };
    // Steps of a kind run the same ops in the same order.
    let kinds = middle[0].ops.iter().enumerate();
    let mut ops: Vec<Op> = kinds
        .map(|(i, spent)| op(spent.name(), spent.calls, spent.work, mean(&|step| step.ops[i].time.as_secs_f64())))
        .collect();
    let logits = Work { near: (4 * rows * vocab) as u64, ..Work::default() };
    ops.push(op("pick".into(), rows as u64, logits, mean(&|step| step.pick)));
    let bound_ms = ops.iter().map(|op| op.bound_ms).sum();
    let (ms, taken) = (whole * 1e3, ops.iter().map(|op| op.ms).sum::<f64>());
    let is_heavy = |op: &&Op| op.op == "attend" || op.op.starts_with("linear");
    let heavy_ms = ops.iter().filter(is_heavy).map(|op| op.ms).sum::<f64>();
    let greedy_ms = 1e3 * mean(&|step| step.greedy);
    Profile {
        rows,
        depth: WIDTH_DEPTH,
        ms,
        bound_ms,
        percent: 100.0 * bound_ms / ms,
        ops,
        between_ms: ms - taken,
        rest_ms: ms - heavy_ms,
        greedy_ms,
    }
}

impl Profile {
    /// The table people read.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rows, depth, ms, .. } = self;
        let title = format!("{rows} row{} at depth {depth}", if *rows == 1 { "" } else { "s" });
        writeln!(
            out,
            "\n{:>8} {title:<28} {:>6} {:>10} {:>10} {:>10} {:>11}",
            "profile", "calls", "ms", "% of step", "bound ms", "% of bound"
        )?;
        for Op { op, calls, ms, share, bound_ms, percent, .. } in &self.ops {
            writeln!(out, "{:>8} {op:<28} {calls:>6} {ms:>10.3} {share:>10.1} {bound_ms:>10.3} {percent:>11.1}", "")?;
        }
        let mut line = |what: &str, part: f64| {
            writeln!(out, "{:>8} {what:<28} {:>6} {part:>10.3} {:>10.1}", "", "", 100.0 * part / ms)
        };
        line("between ops", self.between_ms)?;
        line("(all but linear, attend)", self.rest_ms)?;
        line("(pick at --temp 0)", self.greedy_ms)?;
        writeln!(
            out,
            "{:>8} {:<28} {:>6} {ms:>10.3} {:>10.1} {:>10.3} {:>11.1}",
            "", "step", "", 100.0, self.bound_ms, self.percent
        )
    }
}
