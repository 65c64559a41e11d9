//! `perplexity`: how well a model predicts a text, windowed as llama.cpp's tool does it.
//!
//! The whole text is tokenised, special texts as plain text, with BOS in front where the model wants one. It is cut into
//! windows of `-c` tokens that do not overlap; what does not fill a window is left out. Each window is a context of its own, its first
//! token replaced by BOS where the model wants one. Tokens that follow positions `c / 2 .. c - 1` are scored, `c - c / 2
//! - 1` a window, so that each has at least half a window before it. The perplexity is exp of their mean negative log-probability.
//!
//! llama.cpp insists on two windows of text; here one is enough.

use super::place::{self, OnPlace, Place};
use super::report::{Report, Unit};
use super::{Usage, input, load, print};
use crate::backend::Backend;
use crate::cli::{PerplexityArgs, ReportArgs, TextArgs};
use crate::model::{Input, Model, Rows, State};
use crate::tree::{DraftTree, Token};
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use std::io::Write;

/// Window where `-c` does not say.
const WINDOW: usize = 512;

/// Rows whose logits are held at a time.
const ROWS: usize = DraftTree::MAX;

/// What comes out.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Outcome {
    /// exp of the mean negative log-probability.
    ppl: f64,
    /// Its standard error.
    uncertainty: f64,
    /// Windows scored.
    chunks: usize,
    /// Tokens scored.
    tokens: usize,
    /// Tokens in a window.
    ctx: usize,
}

/// Runs the command.
pub fn run(args: &PerplexityArgs) -> Result<()> {
    place::choose(&args.model, &report(args), args)
}

impl OnPlace for &PerplexityArgs {
    fn run(self, place: &impl Place) -> Result<()> {
        measure(self, place)
    }
}

fn report(args: &PerplexityArgs) -> Report {
    Report::new(&ReportArgs { stats: None, quiet: args.quiet, verbose: 0 })
}

fn measure(args: &PerplexityArgs, place: &impl Place) -> Result<()> {
    let limit = match args.chunks {
        -1 => None,
        n if n > 0 => Some(usize::try_from(n)?),
        n => bail!(Usage(format!("--chunks {n}: at least 1 window, or -1 for all"))),
    };
    let report = report(args);
    let text = input::read(&TextArgs { file: Some(args.file.clone()), ..TextArgs::default() })?;
    let (opened, language) = load::all(&args.model, place, &report)?;
    let tokenizer = &language.tokenizer;
    let window = args.model.ctx_size.map_or(opened.context.min(WINDOW), |_| opened.context);
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let tokens = tokenizer.with_bos(tokenizer.encode(&text, false)?);
    let windows = windows(&tokens, window, limit, bos).with_context(|| args.file.display().to_string())?;

    let mut state = opened.model.state(window, ROWS, opened.kv)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(load::threads(&args.model)).build()?;
    let bar = report.bar("perplexity", (windows.len() * window) as u64, Unit::Tokens);
    let mut total = Score::default();
    for cut in &windows {
        score(&opened.model, &mut state, cut, &pool, &mut total)?;
        bar.inc(window as u64);
        bar.set_message(format!("perplexity {:.4}", total.perplexity()));
    }
    bar.finish_and_clear();

    let (chunks, ctx) = (windows.len(), window);
    let it = Outcome { ppl: total.perplexity(), uncertainty: total.uncertainty(), chunks, tokens: total.tokens, ctx };
    let Outcome { ppl, uncertainty, tokens, .. } = it;
    print(&it, args.json, |out| {
        writeln!(out, "perplexity {ppl:.4} +/- {uncertainty:.4}, {tokens} tokens scored in {chunks} windows of {ctx}")
    })
}

/// Cuts `tokens` into at most `limit` windows of `window`, each starting with `bos` where there is one.
fn windows(tokens: &[Token], window: usize, limit: Option<usize>, bos: Option<Token>) -> Result<Vec<Vec<Token>>> {
    ensure!(window >= 3, "a window of {window} tokens scores none: -c must be at least 3");
    ensure!(
        tokens.len() >= window,
        "the text has {} tokens, a window needs {window}: a longer text or a smaller -c is needed",
        tokens.len()
    );
    let cut = tokens.chunks_exact(window).take(limit.unwrap_or(usize::MAX));
    Ok(cut.map(|w| bos.into_iter().chain(w[usize::from(bos.is_some())..].iter().copied()).collect()).collect())
}

/// Sums of what is scored.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    tokens: usize,
    /// Of negative log-probabilities, and of their squares.
    sum: f64,
    squares: f64,
}

impl Score {
    fn add(&mut self, nll: f64) {
        self.tokens += 1;
        self.sum += nll;
        self.squares += nll * nll;
    }

    fn perplexity(&self) -> f64 {
        (self.sum / self.tokens as f64).exp()
    }

    /// Standard error of the perplexity: that of the mean, carried through exp.
    fn uncertainty(&self) -> f64 {
        let n = self.tokens as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        self.perplexity() * (variance / (n - 1.0).max(1.0)).sqrt()
    }
}

/// Scores the second half of one window.
fn score<B: Backend>(
    model: &Model<B>,
    state: &mut State<B>,
    window: &[Token],
    pool: &rayon::ThreadPool,
    total: &mut Score,
) -> Result<()> {
    let first = window.len() / 2;
    state.truncate(0);
    for chunk in window[..first].chunks(state.max_rows()) {
        model.forward(state, Input::Chain(chunk), Rows::None)?;
    }
    // The last token is only predicted.
    for from in (first..window.len() - 1).step_by(ROWS) {
        let end = (from + ROWS).min(window.len() - 1);
        let logits = model.forward(state, Input::Chain(&window[from..end]), Rows::All)?;
        let next = &window[from + 1..=end];
        let rows: Vec<&[f32]> = logits.chunks_exact(logits.len() / next.len()).collect();
        let each: Vec<f64> =
            pool.install(|| rows.par_iter().zip(next).map(|(row, &token)| surprise(row, token)).collect());
        for (i, nll) in each.into_iter().enumerate() {
            ensure!(
                nll.is_finite(),
                "the logits after position {} of a window give no probability: NaN or infinite",
                from + i
            );
            total.add(nll);
        }
    }
    Ok(())
}

/// Negative log-probability of `token`: ln(sum of exp of all logits) minus its own.
fn surprise(logits: &[f32], token: Token) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum();
    f64::from(top) + sum.ln() - f64::from(logits[token as usize])
}
