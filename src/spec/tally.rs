//! What became of drafts: counts of the tokens guessed, by what happened to them.

use super::Verdict;
use super::round::Draft;
use std::time::Duration;

/// Where the time of a round goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Drafting.
    pub draft: Duration,
    /// The model's pass.
    pub verify: Duration,
    /// Choosing tokens.
    pub sample: Duration,
}

/// Counts over some rounds. `drafted == accepted + rejected + discarded`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Nodes of all trees, anchors not counted.
    pub drafted: usize,
    /// Nodes that the target agreed with and that became text, or its end.
    pub accepted: usize,
    /// Nodes that the target did not agree with, or that hung below one.
    pub rejected: usize,
    /// Nodes that the target agreed with beyond the end of the text.
    pub discarded: usize,
    /// Entry *n*: rounds that gave *n* tokens, the end token included.
    pub tokens_per_round: Vec<usize>,
    /// Entry *d* - 1: depth *d*.
    pub depths: Vec<Depth>,
    /// Entry *g*: rounds whose tree was *g* deep.
    pub rounds_by_depth: Vec<usize>,
    /// Entry *n*: what drafter number *n* was the first to guess.
    pub drafters: Vec<Guesses>,
    /// Time of all rounds by what it went to.
    pub times: Times,
    /// Milliseconds of every round, its tokens put out.
    pub round_ms: Vec<f32>,
    /// Why a drafter's logits could not be drawn from, the first time that happened.
    pub fault: Option<String>,
}

/// How a drafter's guesses fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// All of them.
    pub drafted: usize,
    /// Those accepted.
    pub accepted: usize,
}

/// How guesses fared at some depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Rounds that got here with a guess to check.
    pub offered: usize,
    /// Those of them with a right one.
    pub accepted: usize,
}

impl Tally {
    /// Adds a round of which `used` tokens became text or ended it.
    pub fn round(&mut self, draft: &Draft, verdict: &Verdict, used: usize, times: Times, whole: Duration) {
        let nodes = draft.tree().nodes();
        let drafted = nodes.len() - 1;
        let agreed = verdict.path.len() - 1;
        let accepted = agreed.min(used);
        self.drafted += drafted;
        self.accepted += accepted;
        self.rejected += drafted - agreed;
        self.discarded += agreed - accepted;
        *entry(&mut self.tokens_per_round, used) += 1;
        let depth = nodes.iter().map(|node| node.depth).max().unwrap_or(0);
        *entry(&mut self.rounds_by_depth, depth.into()) += 1;
        for (depth, &node) in verdict.path.iter().enumerate() {
            if draft.tree().children(node).next().is_some() {
                let depth_below = entry(&mut self.depths, depth);
                depth_below.offered += 1;
                depth_below.accepted += usize::from(depth < agreed);
            }
        }
        draft.sketch.owners[1..].iter().for_each(|&owner| entry(&mut self.drafters, owner.into()).drafted += 1);
        for &node in &verdict.path[1..=accepted] {
            entry(&mut self.drafters, draft.sketch.owners[node].into()).accepted += 1;
        }
        self.times.add(&times);
        self.round_ms.push(whole.as_secs_f32() * 1e3);
        if self.fault.is_none() {
            self.fault.clone_from(&draft.fault);
        }
    }

    /// Adds other rounds.
    pub fn add(&mut self, other: &Tally) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.discarded += other.discarded;
        add_counts(&mut self.tokens_per_round, &other.tokens_per_round);
        add_counts(&mut self.rounds_by_depth, &other.rounds_by_depth);
        for (i, depth) in other.depths.iter().enumerate() {
            let sum = entry(&mut self.depths, i);
            sum.offered += depth.offered;
            sum.accepted += depth.accepted;
        }
        for (i, guesses) in other.drafters.iter().enumerate() {
            let sum = entry(&mut self.drafters, i);
            sum.drafted += guesses.drafted;
            sum.accepted += guesses.accepted;
        }
        self.times.add(&other.times);
        self.round_ms.extend(&other.round_ms);
        if self.fault.is_none() {
            self.fault.clone_from(&other.fault);
        }
    }

    /// Tokens a round on average.
    pub fn tokens_a_round(&self) -> Option<f64> {
        let (mut rounds, mut tokens) = (0, 0);
        self.tokens_per_round.iter().enumerate().for_each(|(n, &some)| {
            rounds += some;
            tokens += n * some;
        });
        (rounds > 0).then(|| tokens as f64 / rounds as f64)
    }

    /// Share of the places with a guess where one was right.
    pub fn acceptance(&self) -> Option<f64> {
        let (offered, accepted) =
            self.depths.iter().fold((0, 0), |(o, a), depth| (o + depth.offered, a + depth.accepted));
        (offered > 0).then(|| accepted as f64 / offered as f64)
    }

    /// Tokens a round that [`Tally::acceptance`] *a* gives if it is the same everywhere: `(1 - a^(g+1)) / (1 - a)` for a
    /// draft *g* deep, averaged over the drafts there were (Leviathan et al., equation 1).
    pub fn expectation(&self) -> Option<f64> {
        let a = self.acceptance()?;
        let rounds: usize = self.rounds_by_depth.iter().sum();
        let geometric = |depth: usize| (0..=depth).map(|d| a.powi(d as i32)).sum::<f64>();
        let sum: f64 = self.rounds_by_depth.iter().enumerate().map(|(depth, &n)| n as f64 * geometric(depth)).sum();
        (rounds > 0).then(|| sum / rounds as f64)
    }
}

impl Times {
    fn add(&mut self, other: &Times) {
        self.draft += other.draft;
        self.verify += other.verify;
        self.sample += other.sample;
    }
}

fn add_counts(sums: &mut Vec<usize>, counts: &[usize]) {
    counts.iter().enumerate().for_each(|(i, n)| *entry(sums, i) += n);
}

/// Entry `i`, made where it is missing.
fn entry<T: Clone + Default>(list: &mut Vec<T>, i: usize) -> &mut T {
    if list.len() <= i {
        list.resize(i + 1, T::default());
    }
    &mut list[i]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::DraftTree;

    fn draft(tree: DraftTree, owners: Vec<u8>) -> Draft {
        let mut draft = Draft::of(tree);
        draft.sketch.owners = owners;
        draft
    }

    #[test]
    fn every_node_is_counted_once() {
        let mut tree = DraftTree::new(0, 64);
        let a = tree.push(0, 1, 0.0).unwrap();
        let b = tree.push(a, 2, 0.0).unwrap();
        tree.push(0, 3, 0.0).unwrap();
        let draft_of_three = draft(tree, vec![0, 0, 1, 1]);
        let verdict = Verdict { path: vec![0, a, b], tokens: vec![1, 2, 9] };
        let ms = Duration::from_millis;
        let times = Times { draft: ms(1), verify: ms(2), sample: ms(3) };
        let mut sum = Tally::default();
        for (used, accepted, discarded) in [(3, 2, 0), (2, 2, 0), (1, 1, 1)] {
            let mut tally = Tally::default();
            tally.round(&draft_of_three, &verdict, used, times, ms(7));
            assert_eq!((tally.drafted, tally.accepted, tally.rejected, tally.discarded), (3, accepted, 1, discarded));
            assert_eq!(tally.tokens_per_round[used], 1);
            assert_eq!(tally.depths, [Depth { offered: 1, accepted: 1 }; 2]);
            sum.add(&tally);
        }
        sum.round(&draft_of_three, &Verdict { path: vec![0], tokens: vec![7] }, 1, times, ms(8));
        assert_eq!(sum.drafted, sum.accepted + sum.rejected + sum.discarded);
        assert_eq!((sum.accepted, sum.discarded, sum.tokens_per_round), (5, 1, vec![0, 2, 1, 1]));
        assert_eq!(sum.depths, [Depth { offered: 4, accepted: 3 }, Depth { offered: 3, accepted: 3 }]);
        let by_drafter = [Guesses { drafted: 4, accepted: 3 }, Guesses { drafted: 8, accepted: 2 }];
        assert_eq!((sum.drafters, sum.rounds_by_depth), (by_drafter.to_vec(), vec![0, 0, 4]));
        assert_eq!(sum.times, Times { draft: ms(4), verify: ms(8), sample: ms(12) });
        assert_eq!(sum.round_ms, [7.0, 7.0, 7.0, 8.0]);
    }

    #[test]
    fn the_closed_form_is_that_of_chains() {
        assert_eq!(Tally::default().expectation(), None);
        // Eight of ten right, drafts of four: 1 + 0.8 + 0.64 + 0.512 + 0.4096; half the rounds without a draft.
        let depths = vec![Depth { offered: 10, accepted: 8 }];
        let tally = Tally { depths, rounds_by_depth: vec![5, 0, 0, 0, 5], ..Tally::default() };
        assert!((tally.expectation().unwrap() - (1.0 + 3.3616) / 2.0).abs() < 1e-12);
    }
}
