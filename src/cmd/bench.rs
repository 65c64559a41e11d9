//! `bench`: how fast a model runs here.
//!
//! Three measurements, each the median of its repetitions, after one pass of each kind to warm up. *Prefill* evaluates a prompt of
//! so many tokens, chunked as `run` does, and ends with logits of its last row. *Decode* takes one token at a time on top of a context of
//! some depth, as the generation loop does, the choice of a token left out. *Widths* verifies trees of so many
//! nodes in one pass, logits of all rows, at a context of 256: what a draft of that size costs over none.
//!
//! Tokens are pseudo-random: nothing here depends on what they say. With `--prompts` it is [`trial`] that runs.

use super::report::Report;
use super::{Usage, load, trial};
use crate::backend::Backend;
use crate::cli::BenchArgs;
use crate::engine::CHUNK;
use crate::model::{Input, Model, Rows, State};
use crate::tree::{DraftTree, Token};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::{self, Write};
use std::time::Instant;

/// Context that batch widths are timed at.
const WIDTH_DEPTH: usize = 256;

/// Passes of each batch width in one repetition: one pass is short.
const PASSES: usize = 5;

/// Repetitions when nothing is said.
const REPETITIONS: u16 = 3;

#[derive(Serialize)]
struct Figures {
    model: String,
    isa: &'static str,
    threads: usize,
    weight_bytes: u64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
    widths: Vec<Width>,
}

#[derive(Serialize)]
struct Prefill {
    tokens: usize,
    tok_s: f64,
}

#[derive(Serialize)]
struct Decode {
    depth: usize,
    tok_s: f64,
    /// Weights read, in 10^9 bytes a second.
    gb_s: f64,
}

#[derive(Serialize)]
struct Width {
    rows: usize,
    ms: f64,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    if let Some(file) = &args.prompts {
        return trial::run(args, file);
    }
    check(args)?;
    let opened = load::model(&args.model, &Report::default())?;
    let positions = positions(args, opened.context)?;
    let model = &*opened.model;
    let state = model.state(positions, CHUNK, opened.kv)?;
    let mut bench = Bench { model, state, repetitions: args.repetitions.unwrap_or(REPETITIONS).into() };
    bench.warm_up(args)?;
    let figures = Figures {
        model: args.model.model.display().to_string(),
        isa: opened.backend().isa().name(),
        threads: opened.backend().threads(),
        weight_bytes: model.weight_bytes(),
        prefill: bench.prefills(&args.prefill)?,
        decode: bench.decodes(&args.depth, args.decode)?,
        widths: bench.widths(&args.widths)?,
    };
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string(&figures)?)?,
        false => figures.print(&mut out)?,
    }
    out.flush()?;
    Ok(())
}

/// Refuses what no model can be asked.
fn check(args: &BenchArgs) -> Result<()> {
    let zero = |name: &str| Usage(format!("{name} has 0, at least 1 is needed"));
    if args.decode == 0 {
        bail!(zero("--decode"));
    }
    if args.prefill.contains(&0) {
        bail!(zero("--prefill"));
    }
    if let Some(n) = args.widths.iter().find(|n| !(1..=DraftTree::MAX).contains(n)) {
        bail!(Usage(format!("--widths has {n}, it takes 1 to {} rows", DraftTree::MAX)));
    }
    Ok(())
}

/// The positions that are needed, if they fit the context.
fn positions(args: &BenchArgs, context: usize) -> Result<usize> {
    let prefill = args.prefill.iter().map(|&n| (format!("--prefill {n}"), Some(n)));
    let decode =
        args.depth.iter().map(|&n| (format!("--depth {n} --decode {}", args.decode), n.checked_add(args.decode)));
    let widths = args.widths.iter().map(|&n| (format!("--widths {n}"), Some(WIDTH_DEPTH + n)));
    prefill.chain(decode).chain(widths).try_fold(1, |most, (what, need)| {
        let fits = need.filter(|&n| n <= context);
        let need = need.map_or("too many".into(), |n| n.to_string());
        let fits = fits.with_context(|| format!("{what} needs {need} positions, the context has {context}: see -c"))?;
        Ok(most.max(fits))
    })
}

/// A model with a session, and tokens to feed it.
struct Bench<'a, B: Backend> {
    model: &'a Model<B>,
    state: State<B>,
    repetitions: usize,
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
            self.model.forward(&mut self.state, Input::Tree(&tree), Rows::All)?;
            self.state.commit(&[0])?;
        }
        Ok(())
    }

    /// One pass over a tree of `rows` nodes, none of which is kept: a chain, which reads the most of the cache.
    fn verify(&mut self, rows: usize) -> Result<()> {
        let mut tree = DraftTree::new(self.token(0), rows);
        for i in 1..rows {
            tree.push(i - 1, self.token(i), 0.0);
        }
        self.model.forward(&mut self.state, Input::Tree(&tree), Rows::All)?;
        Ok(())
    }

    fn warm_up(&mut self, args: &BenchArgs) -> Result<()> {
        if let Some(n) = args.prefill.iter().max() {
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
            all.push(Prefill { tokens, tok_s: tokens as f64 / median(&mut times) });
        }
        Ok(all)
    }

    fn decodes(&mut self, depths: &[usize], tokens: usize) -> Result<Vec<Decode>> {
        let mut all = vec![];
        for &depth in depths {
            self.fill(depth)?;
            let mut times = vec![];
            for _ in 0..self.repetitions {
                self.state.truncate(depth);
                times.push(time(|| self.decode(tokens))?);
            }
            let tok_s = tokens as f64 / median(&mut times);
            all.push(Decode { depth, tok_s, gb_s: tok_s * self.model.weight_bytes() as f64 / 1e9 });
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
        Ok(widths.iter().zip(&mut times).map(|(&rows, times)| Width { rows, ms: median(times) * 1e3 }).collect())
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

impl Figures {
    /// The tables people read.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let megabytes = self.weight_bytes as f64 / 1e6;
        writeln!(out, "{}: {megabytes:.1} MB of weights a token, {}, {} threads", self.model, self.isa, self.threads)?;
        if !self.prefill.is_empty() {
            writeln!(out, "\n{:>8} {:>10} {:>10}", "prefill", "tokens", "tok/s")?;
            for p in &self.prefill {
                writeln!(out, "{:>8} {:>10} {:>10.1}", "", p.tokens, p.tok_s)?;
            }
        }
        if !self.decode.is_empty() {
            writeln!(out, "\n{:>8} {:>10} {:>10} {:>10}", "decode", "depth", "tok/s", "GB/s")?;
            for d in &self.decode {
                writeln!(out, "{:>8} {:>10} {:>10.1} {:>10.2}", "", d.depth, d.tok_s, d.gb_s)?;
            }
        }
        if let Some(one) = self.widths.iter().min_by_key(|w| w.rows) {
            let over = format!("x {} row{}", one.rows, if one.rows == 1 { "" } else { "s" });
            writeln!(out, "\n{:>8} {:>10} {:>10} {:>10}", "batch", "rows", "ms", over)?;
            for w in &self.widths {
                writeln!(out, "{:>8} {:>10} {:>10.2} {:>10.2}", "", w.rows, w.ms, w.ms / one.ms)?;
            }
        }
        Ok(())
    }
}
