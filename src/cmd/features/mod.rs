//! `features`: what a model computes over texts, in files that heads are trained from. `models/FEATURES.md` is the format.
//!
//! # Which row belongs to which token
//!
//! Row *i* is computed by the pass that reads token *i*, after tokens 0 to *i* of its text. It predicts token *i* + 1 of the
//! same text: the pair is (h_i, x_(i+1)), and the last row of a text has none. Nothing is shifted in the file.
//!
//! Rows are those that drafters see while the model writes ([`crate::spec::Features`]), bit for bit before they are rounded
//! to f16, whatever chunks the text was evaluated in (law 1): heads learn from the quantised target that they will run on.
//!
//! All input is read, checked and made tokens of before the model runs, so that a bad line is found at once and the size
//! of every shard is known before its first row.

pub mod rows;
pub mod shard;
pub mod texts;

use super::interrupt::Interrupt;
use super::load::{self, Language, Opened};
use super::place::{self, OnPlace, Place};
use super::report::{Report, Unit};
use super::{Usage, input, template};
use crate::backend::Backend;
use crate::cli::{FeaturesArgs, ReportArgs, Taps};
use crate::engine::CHUNK;
use crate::gguf::Gguf;
use crate::model::{self, Input, Model, State};
use crate::spec::sidecar::Fingerprint;
use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use rows::{NotFinite, Rows};
use serde_json::Value;
use sha2::{Digest, Sha256};
use shard::{Facts, Shard};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Instant;
use texts::Text;

/// Runs the command.
pub fn run(args: &FeaturesArgs) -> Result<()> {
    place::choose(&args.model, &report(args), args)
}

impl OnPlace for &FeaturesArgs {
    fn run(self, place: &impl Place) -> Result<()> {
        compute(self, place)
    }
}

fn report(args: &FeaturesArgs) -> Report {
    Report::new(&ReportArgs { stats: None, quiet: args.quiet, verbose: 0 })
}

fn compute(args: &FeaturesArgs, place: &impl Place) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let report = report(args);
    let template = template::choice(&args.template)?;
    let is_stdin = args.input.as_os_str() == "-";
    let name = if is_stdin { "stdin".into() } else { args.input.display().to_string() };
    let bytes = if is_stdin { input::all(io::stdin().lock()) } else { read(&args.input) };
    let bytes = bytes.with_context(|| name.clone())?;
    std::fs::create_dir_all(&args.output).with_context(|| args.output.display().to_string())?;

    let (opened, mut language) = load::all(&args.model, place, &report)?;
    template.install(&mut language);
    if opened.context < texts::LEAST {
        bail!(Usage(format!("-c {}: a text has at least {} tokens", opened.context, texts::LEAST)));
    }
    let taps = layers(&args.taps, opened.model.config().layers)?;
    let facts = facts(args, &opened, &language, &taps, &bytes)?;
    let found = shard::find(&args.output, &facts)?;
    let mut all = texts::read(&bytes, &name, &language, opened.context, args.limit_tokens, &report)?;
    drop(bytes);
    ensure!(!all.is_empty(), "{name}: found no text of at least {} tokens", texts::LEAST);
    all.retain(|text| text.line > found.last);

    let mut state = opened.model.state(opened.context, CHUNK, opened.kv)?;
    state.tap(&opened.model, taps.iter().copied())?;
    let todo: usize = all.iter().map(|text| text.tokens.len()).sum();
    let work = Work { model: &opened.model, taps: &taps, name: &name, interrupt: &interrupt };
    let bar = report.bar("features", todo as u64, Unit::Work);
    let (started, mut clamped, mut shards) = (Instant::now(), Clamped::default(), found.shards);
    interrupt.watch();
    for texts in cut(&all, args.shard_tokens) {
        let width = opened.model.config().width;
        let mut shard = Shard::create(&args.output, shards, texts, &facts, width, taps.len())?;
        for text in texts {
            if !work.write(text, &mut state, &mut shard, &mut clamped, &bar)? {
                drop(shard);
                return interrupt.unwatch();
            }
        }
        shard.finish()?;
        shards += 1;
    }
    interrupt.unwatch()?;
    bar.finish_and_clear();

    if clamped.values > 0 {
        let Clamped { values, line } = clamped;
        report.warn(format_args!(
            "{name}: {values} values beyond f16 were written as 65504 or -65504, first in line {line}"
        ));
    }
    let (folder, speed) = (args.output.display(), todo as f64 / started.elapsed().as_secs_f64());
    let tokens = found.tokens + todo as u64;
    match all.len() {
        0 => report.note(format_args!("{folder}: all is there, {tokens} tokens in {shards} shards")),
        n => report.note(format_args!(
            "{folder}: {tokens} tokens in {shards} shards; of this run {todo} tokens of {n} texts, {speed:.1} tokens/s"
        )),
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    input::all(File::open(path)?)
}

/// The layers to read, of a model that has `count`.
fn layers(taps: &Taps, count: usize) -> Result<Vec<usize>> {
    match taps {
        Taps::Auto => {
            let layers = [2, count / 2, count.saturating_sub(3)];
            let ascend = layers.is_sorted_by(|a, b| a < b);
            ensure!(ascend, "--taps auto: a model of {count} layers has no three such layers: name them or say none");
            Ok(layers.to_vec())
        }
        Taps::Layers(layers) => {
            let beyond = layers.iter().find(|&&layer| layer > count);
            ensure!(beyond.is_none(), "--taps: found layer {}, the model has {count}", beyond.unwrap_or(&0));
            Ok(layers.clone())
        }
    }
}

/// What all shards of the run say of themselves.
fn facts<B: Backend>(
    args: &FeaturesArgs,
    opened: &Opened<B>,
    language: &Language,
    taps: &[usize],
    input: &[u8],
) -> Result<Facts> {
    let Fingerprint { architecture, width, vocab, tokenizer, vocab_hash } =
        Fingerprint::of(opened.model.config(), &language.tokenizer);
    let model = args.model.model.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let taps: Vec<String> = taps.iter().map(usize::to_string).collect();
    let sum: String = Sha256::digest(input).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut facts = vec![
        ("format", "foretoken-features-1".to_owned()),
        ("taps", taps.join(",")),
        ("model", model),
        ("model_fingerprint", format!("{:016x}", Gguf::open(&args.model.model)?.fingerprint())),
        ("architecture", architecture),
        ("hidden_size", width.to_string()),
        ("vocab_size", vocab.to_string()),
        ("vocab_hash", vocab_hash),
        ("tokenizer", tokenizer),
    ];
    if let Ok(Some(template)) = &language.template {
        facts.push(("chat_template_hash", template.hash().to_owned()));
    }
    if !language.variables.is_empty() {
        facts.push(("template_args", serde_json::to_string(&language.variables)?));
    }
    facts.push(("context", opened.context.to_string()));
    facts.push(("input", sum));
    Ok(facts.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect())
}

/// Cuts `texts` into shards of at most `most` tokens, but for those of one text that is longer.
fn cut(texts: &[Text], most: u64) -> impl Iterator<Item = &[Text]> {
    let mut rest = texts;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fits = rest.iter().take_while(|text| {
            sum += text.tokens.len() as u64;
            sum <= most
        });
        let count = fits.count().max(1);
        rest.split_off(..count) // nothing of nothing
    })
}

/// How many values did not fit into f16, and the line of the first.
#[derive(Default)]
struct Clamped {
    values: u64,
    line: u64,
}

/// What it takes to compute rows.
struct Work<'a, B: Backend> {
    model: &'a Model<B>,
    taps: &'a [usize],
    name: &'a str,
    interrupt: &'a Interrupt,
}

impl<B: Backend> Work<'_, B> {
    /// Writes the rows of `text`; false when interrupted.
    fn write(
        &self,
        text: &Text,
        state: &mut State<B>,
        shard: &mut Shard,
        clamped: &mut Clamped,
        bar: &ProgressBar,
    ) -> Result<bool> {
        let backend = self.model.backend();
        let mut rows = Rows::default();
        state.truncate(0);
        for chunk in text.tokens.chunks(CHUNK) {
            let first = state.len();
            let go_on = &mut || !self.interrupt.asked();
            if self.model.forward_while(state, Input::Chain(chunk), model::Rows::None, go_on)?.is_none() {
                return Ok(false);
            }
            let hidden = backend.read(state.hidden())?;
            let tapped = self.taps.iter().filter_map(|&layer| state.tapped(layer));
            let tapped: Vec<Vec<f32>> = tapped.map(|rows| backend.read(rows)).collect::<Result<_>>()?;
            rows.set(self.model.config().width, &hidden, &tapped).map_err(|error| self.explain(error, text, first))?;
            if clamped.values == 0 && rows.clamped > 0 {
                clamped.line = text.line;
            }
            clamped.values += rows.clamped;
            shard.push(&rows)?;
            bar.inc(chunk.len() as u64);
        }
        Ok(true)
    }

    fn explain(&self, error: anyhow::Error, text: &Text, first: usize) -> anyhow::Error {
        let Some(&NotFinite { row, tap }) = error.downcast_ref() else { return error };
        let what = tap.map_or("the hidden row".into(), |tap| format!("what enters layer {}", self.taps[tap]));
        error.context(format!("{}: line {}: {what} at token {}", self.name, text.line, first + row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eagle_s_layers_are_two_the_middle_and_three_from_the_end() {
        for (count, want) in
            [(30, Some([2, 15, 27])), (32, Some([2, 16, 29])), (7, Some([2, 3, 4])), (6, None), (2, None), (0, None)]
        {
            assert_eq!(layers(&Taps::Auto, count).ok(), want.map(|layers| layers.to_vec()), "{count}");
        }
        assert_eq!(layers(&Taps::Layers(vec![2, 0]), 2).unwrap(), [2, 0]);
        assert!(layers(&Taps::Layers(vec![3]), 2).is_err());
    }

    #[test]
    fn shards_hold_whole_texts() {
        for (lengths, want) in [
            (&[3, 3, 4, 1][..], &[2, 2][..]),
            (&[6, 1], &[1, 1]),
            (&[7, 7], &[1, 1]),
            (&[2, 2, 2, 2, 2], &[3, 2]),
            (&[], &[]),
        ] {
            let text = |&n: &usize| Text { line: 1, tokens: vec![0; n], weights: vec![1; n] };
            let texts: Vec<Text> = lengths.iter().map(text).collect();
            let got: Vec<usize> = cut(&texts, 6).map(<[Text]>::len).collect();
            assert_eq!(got, want, "{lengths:?}");
        }
    }
}
