//! What a run cost: three lines for people, a fourth when it drafted, one JSON object for programs.

pub mod draft;

use super::draft::Setup;
use super::load::Opened;
use super::memory::{self, size};
use super::report::Report;
use crate::backend::Backend;
use crate::cli::StatsTarget;
use crate::engine::{Finish, Outcome, Session};
use crate::spec::Tally;
use anyhow::{Context, Result};
use clap::ValueEnum;
use draft::DraftStats;
use serde::Serialize;
use std::fs::File;
use std::io::{Write, stderr};
use std::path::Path;
use std::time::Duration;

/// Counts and times. Rates are `None` where nothing was timed.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// The model file.
    pub model: String,
    /// What it runs on: `cpu`, or the kind and number of a device.
    pub device: String,
    /// Instruction set.
    pub isa: String,
    /// Threads of the CPU.
    pub threads: usize,
    /// Positions of the context.
    pub context: usize,
    /// Type of the KV cache.
    pub kv_type: String,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
    /// Seed of all randomness.
    pub seed: u64,
    /// Requests answered, errors included (`batch`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<usize>,
    /// Requests that were errors (`batch`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<usize>,
    /// Tokens of prompts.
    pub prompt_tokens: usize,
    /// Those of them that had been evaluated before (`chat`, or with a prompt cache).
    pub reused_tokens: usize,
    /// Tokens generated, end tokens not counted.
    pub generated_tokens: usize,
    /// Seconds until the model was ready.
    pub load_s: f64,
    /// Seconds of evaluating prompts, but for their last tokens.
    pub prefill_s: f64,
    /// Seconds of generating.
    pub decode_s: f64,
    /// Prompt tokens evaluated per second.
    pub prefill_tok_s: Option<f64>,
    /// Tokens generated per second.
    pub decode_tok_s: Option<f64>,
    /// Weights read per second while generating, in 10^9 bytes.
    pub decode_gb_s: Option<f64>,
    /// Passes of the model while generating.
    pub rounds: usize,
    /// The most memory the process had at a time.
    pub peak_rss_bytes: Option<u64>,
    /// `stop`, `length` or `interrupted` (`run`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<&'static str>,
    /// What became of drafts, where there were drafters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftStats>,
    #[serde(skip)]
    place: String,
    #[serde(skip)]
    drafting: Option<Setup>,
    #[serde(skip)]
    tally: Tally,
    #[serde(skip)]
    decode: Duration,
    #[serde(skip)]
    drafter_memory: Vec<u64>,
    #[serde(skip)]
    prefilled: usize,
    #[serde(skip)]
    answers: usize,
    #[serde(skip)]
    weight_bytes: u64,
    #[serde(skip)]
    finish: Option<Finish>,
}

impl Stats {
    /// Nothing done yet. `load` is the time it took to get ready.
    pub fn new<B: Backend>(
        path: &Path,
        opened: &Opened<B>,
        seed: u64,
        drafting: Option<Setup>,
        load: Duration,
    ) -> Self {
        let kv_type = opened.kv.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
        let description = &opened.description;
        let why = opened.why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        Self {
            model: path.display().to_string(),
            device: description.device.clone(),
            isa: description.isa.clone(),
            threads: description.threads,
            context: opened.context,
            kv_type,
            kv_bytes: opened.model.config().kv_shape(opened.context, opened.kv).bytes() as u64,
            seed,
            requests: None,
            errors: None,
            prompt_tokens: 0,
            reused_tokens: 0,
            generated_tokens: 0,
            load_s: load.as_secs_f64(),
            prefill_s: 0.0,
            decode_s: 0.0,
            prefill_tok_s: None,
            decode_tok_s: None,
            decode_gb_s: None,
            rounds: 0,
            peak_rss_bytes: None,
            stop_reason: None,
            draft: None,
            place: format!("{description}{why}"),
            drafting,
            tally: Tally::default(),
            decode: Duration::ZERO,
            drafter_memory: vec![],
            prefilled: 0,
            answers: 0,
            weight_bytes: opened.model.weight_bytes(),
            finish: None,
        }
    }

    /// It drafts with others too.
    pub fn add_drafting(&mut self, setup: Option<Setup>) {
        match (&mut self.drafting, setup) {
            (Some(all), Some(more)) => {
                all.drafters.extend(more.drafters);
                all.drafters.dedup();
            }
            (all, more) => *all = all.take().or(more),
        }
    }

    /// From now on it drafts otherwise.
    pub fn set_drafting(&mut self, drafting: Option<Setup>) {
        self.drafting = drafting;
    }

    /// What it drafts with, for people.
    pub fn drafters(&self) -> String {
        self.drafting.as_ref().map_or("none".into(), |setup| setup.drafters.join(" "))
    }

    /// Adds a prompt some tokens of which had been evaluated before; its answer is to follow.
    pub fn add_reused(&mut self, tokens: usize) {
        self.reused_tokens += tokens;
    }

    /// Adds one answer.
    pub fn add(&mut self, prompt_tokens: usize, prefill: Duration, outcome: &Outcome) {
        self.prompt_tokens += prompt_tokens;
        self.answers += 1;
        self.prefilled = self.prompt_tokens.saturating_sub(self.reused_tokens + self.answers);
        self.prefill_s += prefill.as_secs_f64();
        self.generated_tokens += outcome.tokens;
        self.decode += outcome.time;
        self.decode_s = self.decode.as_secs_f64();
        self.rounds += outcome.rounds;
        self.tally.add(&outcome.tally);
        let rate = |n: f64, s: f64| (n > 0.0 && s > 0.0).then(|| n / s);
        self.prefill_tok_s = rate(self.prefilled as f64, self.prefill_s);
        self.decode_tok_s = rate(self.generated_tokens as f64, self.decode_s);
        self.decode_gb_s = rate(self.rounds as f64 * self.weight_bytes as f64 / 1e9, self.decode_s);
        self.finish = Some(outcome.finish);
    }

    /// Asks the drafters how much memory they take by now.
    pub fn weigh<B: Backend>(&mut self, session: &Session<B>) {
        self.drafter_memory = session.drafters().iter().map(|drafter| drafter.memory()).collect();
    }

    /// Says it on stderr, and as JSON where asked to.
    pub fn tell(mut self, report: &Report, sink: Option<Sink>) -> Result<()> {
        self.peak_rss_bytes = memory::peak();
        let (tally, memory) = (&self.tally, &self.drafter_memory);
        self.draft = self.drafting.as_ref().map(|setup| DraftStats::new(setup, tally, self.decode, memory));
        if self.requests.is_none() {
            self.stop_reason = self.finish.map(Finish::reason);
        }
        if let Some(fault) = &self.tally.fault {
            report.warn(format_args!("a drafter's guesses were lost: {fault}"));
        }
        self.lines().iter().for_each(|line| report.note(line));
        sink.map_or(Ok(()), |sink| sink.write(&self))
    }

    fn lines(&self) -> Vec<String> {
        let per_second = |rate: Option<f64>, unit: &str| rate.map_or(String::new(), |r| format!(", {r:.1} {unit}"));
        let reused = match self.reused_tokens {
            0 => String::new(),
            n => format!(" ({n} of them known)"),
        };
        let prompt = format!(
            "prompt  {} tokens{reused}, {:.3} s{}",
            self.prompt_tokens,
            self.prefill_s,
            per_second(self.prefill_tok_s, "tok/s")
        );
        let ended = match (self.requests, self.finish) {
            (Some(requests), _) => format!(", {requests} requests, {} errors", self.errors.unwrap_or(0)),
            (_, None) => String::new(),
            (_, Some(Finish::End)) => ", ended by the model".into(),
            (_, Some(Finish::Stopped)) => ", ended by a stop string".into(),
            (_, Some(Finish::Length)) => ", ended by -n".into(),
            (_, Some(Finish::Context)) => format!(", ended because the context of {} is full", self.context),
            (_, Some(Finish::Interrupted)) => ", interrupted".into(),
        };
        let decode = format!(
            "decode  {} tokens, {:.3} s{}{}{ended}",
            self.generated_tokens,
            self.decode_s,
            per_second(self.decode_tok_s, "tok/s"),
            per_second(self.decode_gb_s, "GB/s of weights"),
        );
        let memory = self.peak_rss_bytes.map_or(String::new(), |bytes| format!("{} of memory at most, ", size(bytes)));
        let whole = format!(
            "whole   load {:.3} s, {memory}{} of KV cache for {} positions, {}",
            self.load_s,
            size(self.kv_bytes),
            self.context,
            self.place
        );
        let draft = self.draft.as_ref().map(|draft| draft.account.line());
        [prompt, decode].into_iter().chain(draft).chain([whole]).collect()
    }
}

/// Where JSON goes. A file is opened before the work, not after it, so that one that cannot be written costs nothing.
pub enum Sink {
    /// stderr.
    Stderr,
    /// A file and its name.
    File(File, String),
}

impl Sink {
    /// Opens what `--stats` names.
    pub fn open(target: Option<&StatsTarget>) -> Result<Option<Self>> {
        Ok(match target {
            None => None,
            Some(StatsTarget::Stderr) => Some(Self::Stderr),
            Some(StatsTarget::File(path)) => {
                let name = format!("--stats: {}", path.display());
                Some(Self::File(File::create(path).with_context(|| name.clone())?, name))
            }
        })
    }

    fn write(self, stats: &Stats) -> Result<()> {
        let json = serde_json::to_string(stats)?;
        match self {
            Self::Stderr => {
                let _ = writeln!(stderr(), "{json}");
                Ok(())
            }
            Self::File(mut file, name) => writeln!(file, "{json}").context(name),
        }
    }
}
