//! What became of drafts, in figures.

use crate::cmd::draft::Setup;
use crate::spec::{Accept, Tally};
use serde::Serialize;
use std::time::Duration;

/// An account of some rounds. `drafted` is the sum of `accepted`, `rejected` and `discarded`; the four times are all of
/// the time.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    /// Passes of the model.
    pub rounds: usize,
    /// Tokens guessed.
    pub drafted: usize,
    /// Guesses that became text, or ended it.
    pub accepted: usize,
    /// Guesses that the model did not agree with.
    pub rejected: usize,
    /// Guesses it agreed with beyond the end of the text.
    pub discarded: usize,
    /// Tokens that the rounds gave, end tokens included.
    pub emitted: usize,
    /// `emitted` by `rounds`.
    pub tokens_per_round_mean: Option<f64>,
    /// The closed form beside it: what the measured acceptance would give if it were the same at all depths
    /// ([`Tally::expectation`]).
    pub expected_tokens_per_round: Option<f64>,
    /// Entry *n*: rounds that gave *n* tokens, the end token included.
    pub tokens_per_round: Vec<usize>,
    /// Entry *d* - 1: guesses *d* tokens ahead.
    pub by_depth: Vec<AtDepth>,
    /// How long a round takes.
    pub round_ms: Option<Percentiles>,
    /// Seconds of drafting.
    pub draft_s: f64,
    /// Seconds of the model's passes.
    pub verify_s: f64,
    /// Seconds of picking tokens.
    pub sample_s: f64,
    /// Seconds of everything else: commits, decoding, output.
    pub other_s: f64,
    /// Why a drafter's logits could not be drawn from, the first time that happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// How guesses fared at a depth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtDepth {
    /// Rounds that got here with a guess to check.
    pub offered: usize,
    /// Those of them with a right one.
    pub accepted: usize,
}

/// The median, and what one in twenty exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f32,
    /// What one in twenty exceeds.
    pub p95: f32,
}

impl Account {
    /// Of the rounds in `tally`, which took `time`.
    pub fn new(tally: &Tally, time: Duration) -> Self {
        let counts = || tally.tokens_per_round.iter().enumerate();
        let by_depth = tally.depths.iter().map(|d| AtDepth { offered: d.offered, accepted: d.accepted });
        let [draft_s, verify_s, sample_s] =
            [tally.times.draft, tally.times.verify, tally.times.sample].map(|time| time.as_secs_f64());
        let mut sorted = tally.round_ms.clone();
        sorted.sort_by(f32::total_cmp);
        Self {
            rounds: counts().map(|(_, &rounds)| rounds).sum(),
            drafted: tally.drafted,
            accepted: tally.accepted,
            rejected: tally.rejected,
            discarded: tally.discarded,
            emitted: counts().map(|(n, &rounds)| n * rounds).sum(),
            tokens_per_round_mean: tally.tokens_a_round(),
            expected_tokens_per_round: tally.expectation(),
            tokens_per_round: tally.tokens_per_round.clone(),
            by_depth: by_depth.collect(),
            round_ms: percentile(&sorted, 0.5)
                .zip(percentile(&sorted, 0.95))
                .map(|(p50, p95)| Percentiles { p50, p95 }),
            draft_s,
            verify_s,
            sample_s,
            other_s: (time.as_secs_f64() - draft_s - verify_s - sample_s).max(0.0),
            fault: tally.fault.clone(),
        }
    }

    /// Share of the guesses that became text.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Share of the time that went to drafting.
    pub fn draft_share(&self) -> Option<f64> {
        let whole = self.draft_s + self.verify_s + self.sample_s + self.other_s;
        (whole > 0.0).then(|| self.draft_s / whole)
    }

    /// The line for people.
    pub fn line(&self) -> String {
        format!(
            "draft   {} rounds, {:.2} tokens a round, {} of {} guesses accepted ({:.1} %), {:.2} % of the time drafting",
            self.rounds,
            self.tokens_per_round_mean.unwrap_or(0.0),
            self.accepted,
            self.drafted,
            100.0 * self.acceptance().unwrap_or(0.0),
            100.0 * self.draft_share().unwrap_or(0.0),
        )
    }
}

/// The least of `sorted` that at least this share of them does not exceed.
pub fn percentile(sorted: &[f32], share: f64) -> Option<f32> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// What became of a command's drafts.
#[derive(Clone, Debug, Serialize)]
pub struct DraftStats {
    /// The drafters, with all their options.
    pub drafters: Vec<String>,
    /// Tokens they may guess a round.
    pub draft_max: usize,
    /// Whether a controller chooses how many of them.
    pub auto: bool,
    /// Rule of acceptance.
    pub accept: &'static str,
    /// Whether the rule keeps the model's distribution.
    pub lossless: bool,
    /// The rounds.
    #[serde(flatten)]
    pub account: Account,
    /// The drafters' shares, in their order. A guess of several is the first one's.
    pub by_drafter: Vec<ByDrafter>,
}

/// What one drafter did.
#[derive(Clone, Debug, Serialize)]
pub struct ByDrafter {
    /// Tokens it was the first to guess.
    pub drafted: usize,
    /// Those of them that were accepted.
    pub accepted: usize,
    /// Bytes of memory it takes beyond what the model takes.
    pub memory_bytes: u64,
}

impl DraftStats {
    /// Of the rounds in `tally`, which took `time`. `memory` are the bytes that each drafter takes.
    pub fn new(setup: &Setup, tally: &Tally, time: Duration, memory: &[u64]) -> Self {
        let by_drafter = (0..setup.drafters.len()).map(|i| {
            let guesses = tally.drafters.get(i).copied().unwrap_or_default();
            let memory_bytes = memory.get(i).copied().unwrap_or(0);
            ByDrafter { drafted: guesses.drafted, accepted: guesses.accepted, memory_bytes }
        });
        Self {
            by_drafter: by_drafter.collect(),
            drafters: setup.drafters.clone(),
            draft_max: setup.nodes.most(),
            auto: setup.nodes.is_auto(),
            accept: setup.accept.name(),
            lossless: setup.accept != Accept::Typical,
            account: Account::new(tally, time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Nodes;
    use crate::spec::tally::{Depth, Guesses, Times};

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<f32> = (1..=100).map(|n| n as f32).collect();
        for (sorted, share, want) in [
            (&[][..], 0.5, None),
            (&[3.0], 0.95, Some(3.0)),
            (&[1.0, 2.0], 0.5, Some(1.0)),
            (&[1.0, 2.0, 3.0], 0.5, Some(2.0)),
            (&hundred, 0.95, Some(95.0)),
            (&hundred, 1.0, Some(100.0)),
            (&hundred, 0.0, Some(1.0)),
        ] {
            assert_eq!(percentile(sorted, share), want, "{sorted:?} {share}");
        }
    }

    #[test]
    fn sums_are_those_of_the_tally() {
        let ms = Duration::from_millis;
        let tally = Tally {
            drafted: 9,
            accepted: 5,
            rejected: 3,
            discarded: 1,
            tokens_per_round: vec![0, 2, 0, 2],
            depths: vec![Depth { offered: 4, accepted: 2 }, Depth { offered: 2, accepted: 2 }],
            drafters: vec![Guesses { drafted: 9, accepted: 5 }],
            times: Times { draft: ms(1), verify: ms(20), sample: ms(3) },
            round_ms: vec![8.0, 2.0, 9.0, 1.0],
            ..Tally::default()
        };
        let drafters = vec!["a".into(), "b".into()];
        let setup = Setup { drafters, nodes: Nodes::Auto(7), accept: Accept::Rejection };
        let stats = DraftStats::new(&setup, &tally, ms(40), &[11, 12]);
        assert_eq!((stats.draft_max, stats.auto, stats.accept, stats.lossless), (7, true, "rejection", true));
        let account = &stats.account;
        assert_eq!((account.rounds, account.emitted, account.tokens_per_round_mean), (4, 8, Some(2.0)));
        assert_eq!(account.round_ms, Some(Percentiles { p50: 2.0, p95: 9.0 }));
        assert!((account.other_s - 0.016).abs() < 1e-12 && account.draft_share() == Some(0.025));
        let by: Vec<_> = stats.by_drafter.iter().map(|d| (d.drafted, d.accepted, d.memory_bytes)).collect();
        assert_eq!(by, [(9, 5, 11), (0, 0, 12)]);
        let json = serde_json::to_value(&stats).unwrap();
        assert_eq!(json["by_depth"][1]["offered"], 2, "the account is flat");
        assert!(json.get("fault").is_none());
    }
}
