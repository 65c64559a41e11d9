//! How fast a shape runs, beside what the device could do.

use super::super::bound::Cost;
use super::super::plan::Decoding;
use super::super::{Bench, median, time};
use super::Scratch;
use super::shapes::{Mix, Shape};
use crate::backend::cuda::Cuda;
use crate::backend::rates::Rates;
use crate::backend::{Backend, KvType};
use crate::engine::CHUNK;
use crate::model::{Input, Rows};
use crate::tree::DraftTree;
use anyhow::Result;
use std::fmt::Write;

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Lengths of prompts.
    pub prefill: &'static [usize],
    /// Depths to decode at, and how many tokens.
    pub depths: &'static [usize],
    /// Tokens to decode.
    pub tokens: usize,
    /// Rows of a pass.
    pub widths: &'static [usize],
    /// Repetitions.
    pub repetitions: usize,
}

/// Guesses of a round, and how many come true.
const FORCED: [(usize, usize); 3] = [(4, 2), (8, 4), (16, 7)];

/// Tables for people.
pub fn check(device: &Cuda, rates: &Rates, shape: &Shape, mix: Mix, size: &Size, scratch: &Scratch) -> Result<String> {
    let deepest = size.depths.iter().chain(size.prefill).copied().max().unwrap_or(0);
    let context = deepest.max(super::super::WIDTH_DEPTH) + size.tokens + 2 * DraftTree::MAX;
    let model = scratch.load(device, &shape.file(mix, context))?;
    let state = model.state(context, CHUNK, KvType::F16)?;
    let cost = Cost::of(&model, KvType::F16, false);
    let gigabytes = model.weight_bytes() as f64 / 1e9;
    let mut bench = Bench { model: &model, state, repetitions: size.repetitions, cost, rates };
    bench.fill(CHUNK.min(deepest.max(1)))?;
    bench.state.truncate(0);
    bench.decode(4)?;

    let mut out = format!("### {} in {}: {gigabytes:.3} GB of weights a token\n\n", shape.name, mix.name());
    out += "| what | | ms | tokens/s | GB/s | GOP/s | % of bound | bound by |\n|---|---|---|---|---|---|---|---|\n";
    let mut line = |what: &str, n: usize, tok_s: f64, speed: &super::super::bound::Speed| {
        let super::super::bound::Speed { ms, gb_s, gop_s, percent, bound, .. } = speed;
        let bound = bound.name();
        let _ =
            writeln!(out, "| {what} | {n} | {ms:.3} | {tok_s:.1} | {gb_s:.1} | {gop_s:.0} | {percent:.1} | {bound} |");
    };
    for p in bench.prefills(size.prefill)? {
        line("prefill", p.tokens, p.tok_s, &p.speed);
    }
    let decodings: Vec<Decoding> = size.depths.iter().map(|&depth| Decoding { depth, tokens: size.tokens }).collect();
    for d in bench.decodes(&decodings)? {
        line("decode at depth", d.depth, d.tok_s, &d.speed);
    }
    let widths = bench.widths(size.widths)?;
    for w in &widths {
        line("rows", w.rows, w.tok_s, &w.speed);
    }
    if let Some(one) = widths.iter().find(|w| w.rows == 1) {
        let times = widths.iter().map(|w| format!("{} rows {:.2}x", w.rows, w.speed.ms / one.speed.ms));
        let _ = writeln!(out, "\nover one row: {}", times.collect::<Vec<_>>().join(", "));
    }
    let forced = FORCED.iter().filter(|(rows, _)| size.widths.iter().any(|width| width >= rows));
    for &(rows, kept) in forced {
        let (ms, tok_s) = forced_rounds(&mut bench, rows, kept)?;
        let _ = writeln!(out, "\nrounds of {rows} rows of which {kept} are kept: {ms:.3} ms, {tok_s:.1} tokens/s");
    }
    let (queued, whole) = queueing(&mut bench)?;
    let share = 100.0 * queued / whole;
    let _ =
        writeln!(out, "\none row: the CPU gives the device its work in {queued:.3} of {whole:.3} ms ({share:.1} %)");
    Ok(out)
}

/// Milliseconds of a round of `rows` rows that always keeps `kept` of them, and the tokens a second that makes.
fn forced_rounds(bench: &mut Bench<'_, Cuda>, rows: usize, kept: usize) -> Result<(f64, f64)> {
    let path: Vec<usize> = (0..kept).collect();
    let depth = super::super::WIDTH_DEPTH;
    bench.fill(depth)?;
    let mut times = vec![];
    for _ in 0..4 * bench.repetitions {
        bench.state.truncate(depth);
        times.push(time(|| {
            bench.verify(rows)?;
            bench.state.commit(&path)
        })?);
    }
    let seconds = median(&mut times);
    Ok((seconds * 1e3, kept as f64 / seconds))
}

/// Milliseconds until a pass over one row has been queued, and until it is done.
fn queueing(bench: &mut Bench<'_, Cuda>) -> Result<(f64, f64)> {
    bench.fill(super::super::WIDTH_DEPTH)?;
    let (mut queued, mut whole) = (vec![], vec![]);
    for _ in 0..8 * bench.repetitions {
        let tree = DraftTree::new(bench.token(0), 1);
        let mut until = 0.0;
        whole.push(time(|| {
            let model = bench.model;
            until = time(|| model.forward(&mut bench.state, Input::Tree(&tree), Rows::None).map(|_| ()))?;
            model.backend().wait();
            Ok(())
        })?);
        queued.push(until);
    }
    Ok((1e3 * median(&mut queued), 1e3 * median(&mut whole)))
}
