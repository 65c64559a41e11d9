//! The figures of a trial: sums by row of the table and set, and what follows from them.

use super::play::{Contender, Run};
use super::prompts::Prompt;
use crate::backend::Backend;
use crate::cmd::stats::draft::{Account, percentile};
use crate::spec::{Accept, Nodes, Tally};
use crate::tree::DraftTree;
use serde::Serialize;
use std::time::Duration;

/// All of it.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// What was asked for.
    #[serde(flatten)]
    pub setting: Setting,
    /// The sets; the first is plain decoding.
    pub sets: Vec<SetInfo>,
    /// The rows of the table.
    pub rows: Vec<Row>,
    /// All of them together.
    pub overall: Row,
    /// What passes cost by the number of rows, as it happened, whatever the context.
    pub widths: Vec<Width>,
}

/// Where and how prompts were played.
#[derive(Debug, Serialize)]
pub struct Setting {
    /// The model file.
    pub model: String,
    /// What it runs on: `cpu`, or the kind and number of a device.
    pub device: String,
    /// Instruction set.
    pub isa: String,
    /// Threads.
    pub threads: usize,
    /// All of that for people.
    pub place: String,
    /// Positions of the contexts.
    pub context: usize,
    /// Type of the KV caches.
    pub kv_type: String,
    /// The file of prompts.
    pub file: String,
    /// Prompts played.
    pub prompts: usize,
    /// Prompts that do not fit the context.
    pub left_out: usize,
    /// Temperature.
    pub temperature: f32,
    /// Seed of all randomness.
    pub seed: u64,
    /// Tokens of an answer, at most; -1 for no limit.
    pub n_predict: i64,
    /// Times that each prompt was played.
    pub repetitions: usize,
}

/// A set of drafters.
#[derive(Debug, Serialize)]
pub struct SetInfo {
    /// What it is called.
    pub name: String,
    /// Its drafters, with all their options.
    pub drafters: Vec<String>,
    /// Guesses a round, at most.
    pub draft_max: usize,
    /// Whether a controller chooses how many of them.
    pub auto: bool,
    /// The rule of acceptance.
    pub accept: &'static str,
    /// Whether it promises the plain text, token by token.
    pub same_text: bool,
    /// Prompts whose text was not the plain one.
    pub differing: usize,
    /// Bytes of memory that the drafters take.
    pub memory_bytes: u64,
}

impl SetInfo {
    /// Of a contender that gave so many `differing` texts.
    pub fn of<B: Backend>(contender: &Contender<B>, differing: usize, greedy: bool) -> Self {
        let setup = contender.setup.as_ref();
        let accept = setup.map_or(Accept::Exact, |setup| setup.accept);
        let nodes = setup.map_or(Nodes::Fixed(0), |setup| setup.nodes);
        Self {
            name: contender.name.clone(),
            drafters: setup.map_or(vec![], |setup| setup.drafters.clone()),
            draft_max: nodes.most(),
            auto: nodes.is_auto(),
            accept: accept.name(),
            same_text: accept == Accept::Exact || greedy,
            differing,
            memory_bytes: contender.memory(),
        }
    }
}

/// One row of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What it is called.
    pub category: String,
    /// Prompts played.
    pub prompts: usize,
    /// Figures of each set.
    pub sets: Vec<Figures>,
}

/// How a set did on the prompts of a row.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Tokens generated, end tokens not counted.
    pub tokens: usize,
    /// Prompt tokens evaluated.
    pub prefill_tokens: usize,
    /// Seconds of that.
    pub prefill_s: f64,
    /// Seconds of generating.
    pub decode_s: f64,
    /// Tokens generated per second.
    pub tok_s: Option<f64>,
    /// Plain decoding's time per token by this one's.
    pub ratio_total: Option<f64>,
    /// The median of the same over prompts.
    pub ratio_median: Option<f64>,
    /// Share of the guesses that became text.
    pub acceptance: Option<f64>,
    /// Share of the time of generating that went to drafting.
    pub draft_share: Option<f64>,
    /// The rounds.
    #[serde(flatten)]
    pub account: Account,
}

/// What a pass of so many rows costs.
#[derive(Debug, Serialize)]
pub struct Width {
    /// Nodes of the tree.
    pub rows: usize,
    /// Passes.
    pub count: usize,
    /// One in ten takes no longer.
    pub ms_p10: f32,
    /// The median.
    pub ms_p50: f32,
    /// One in ten takes longer.
    pub ms_p90: f32,
}

/// The sums of a set on a row.
#[derive(Clone, Default)]
struct Sums {
    tokens: usize,
    prefilled: usize,
    prefill: Duration,
    decode: Duration,
    tally: Tally,
    /// For each prompt the ratio to plain decoding.
    ratios: Vec<f64>,
}

struct RowSums {
    category: String,
    prompts: usize,
    sets: Vec<Sums>,
}

/// Nodes that are kept of all trees together, to bound the page.
const KEPT_NODES: usize = 200_000;

/// A conversation whose trees are kept: number of its set, prompt, run.
pub struct Trace {
    /// Number of its row.
    pub row: usize,
    /// Number of its set.
    pub set: usize,
    /// The prompt.
    pub prompt: Prompt,
    /// What happened.
    pub run: Run,
}

/// Where runs are entered.
pub struct Ledger {
    rows: Vec<RowSums>,
    overall: RowSums,
    /// Entry *n*: milliseconds of passes over *n* rows.
    widths: Vec<Vec<f32>>,
    traces: Vec<Trace>,
    /// For each row the nodes that may still be kept.
    room: Vec<usize>,
}

impl Ledger {
    /// For so many `sets`, the first of which is plain decoding.
    pub fn new(rows: Vec<String>, sets: usize) -> Self {
        let sums = |category| RowSums { category, prompts: 0, sets: vec![Sums::default(); sets] };
        Self {
            room: vec![KEPT_NODES / rows.len().max(1); rows.len()],
            rows: rows.into_iter().map(sums).collect(),
            overall: sums("overall".into()),
            widths: vec![vec![]; DraftTree::MAX + 1],
            traces: vec![],
        }
    }

    /// Prompts entered.
    pub fn prompts(&self) -> usize {
        self.overall.prompts
    }

    /// The conversations that were kept.
    pub fn traces(&self) -> &[Trace] {
        &self.traces
    }

    /// Enters a prompt's runs, one a set.
    pub fn add(&mut self, prompt: &Prompt, runs: Vec<Run>) {
        let row = self.rows.iter().position(|row| row.category == prompt.row).expect("rows are those of the prompts");
        self.rows[row].add(&runs);
        self.overall.add(&runs);
        let rounds = || runs.iter().flat_map(|run| &run.turns).flat_map(|turn| &turn.rounds);
        rounds().for_each(|round| self.widths[round.nodes.len()].push(round.times.verify.as_secs_f32() * 1e3));
        let nodes = rounds().map(|round| round.nodes.len()).sum();
        if let Some(left) = self.room[row].checked_sub(nodes) {
            self.room[row] = left;
            let drafted = runs.into_iter().enumerate().skip(1);
            self.traces.extend(drafted.map(|(set, run)| Trace { row, set, prompt: prompt.clone(), run }));
        }
    }

    /// What it comes to.
    pub fn summary(&mut self, setting: Setting, sets: Vec<SetInfo>) -> Summary {
        let widths = self.widths.iter_mut().enumerate().filter_map(|(rows, times)| {
            times.sort_by(f32::total_cmp);
            let at = |share| percentile(times, share);
            Some(Width { rows, count: times.len(), ms_p10: at(0.1)?, ms_p50: at(0.5)?, ms_p90: at(0.9)? })
        });
        let widths = widths.collect();
        Summary {
            setting,
            sets,
            rows: self.rows.iter().map(RowSums::figures).collect(),
            overall: self.overall.figures(),
            widths,
        }
    }
}

impl RowSums {
    fn add(&mut self, runs: &[Run]) {
        self.prompts += 1;
        let plain = seconds_per_token(runs[0].time(), runs[0].tokens());
        for (sums, run) in self.sets.iter_mut().zip(runs) {
            let time = run.time();
            sums.tokens += run.tokens();
            sums.prefilled += run.turns.iter().map(|turn| turn.prefilled).sum::<usize>();
            sums.prefill += run.turns.iter().map(|turn| turn.prefill).sum::<Duration>();
            sums.decode += time;
            sums.tally.add(&run.tally());
            let own = seconds_per_token(time, run.tokens());
            sums.ratios.extend(plain.zip(own).map(|(plain, own)| plain / own));
        }
    }

    fn figures(&self) -> Row {
        let plain = seconds_per_token(self.sets[0].decode, self.sets[0].tokens);
        let sets = self.sets.iter().map(|sums| {
            let account = Account::new(&sums.tally, sums.decode);
            let own = seconds_per_token(sums.decode, sums.tokens);
            Figures {
                tokens: sums.tokens,
                prefill_tokens: sums.prefilled,
                prefill_s: sums.prefill.as_secs_f64(),
                decode_s: sums.decode.as_secs_f64(),
                tok_s: own.map(f64::recip),
                ratio_total: plain.zip(own).map(|(plain, own)| plain / own),
                ratio_median: median(&sums.ratios),
                acceptance: account.acceptance(),
                draft_share: account.draft_share(),
                account,
            }
        });
        Row { category: self.category.clone(), prompts: self.prompts, sets: sets.collect() }
    }
}

fn seconds_per_token(time: Duration, tokens: usize) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| time.as_secs_f64() / tokens as f64)
}

/// The middle value, of an even number the mean of the middle two.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    (n > 0).then(|| (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0)
}
