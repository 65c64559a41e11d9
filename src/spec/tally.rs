//! What became of drafts: counts of the tokens guessed, by what happened to them.

use super::Verdict;
use crate::tree::DraftTree;
use std::time::Duration;

/// Counts over some rounds. `drafted == accepted + rejected + discarded`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Time of drafting.
    pub drafting: Duration,
    /// Time of the model's passes.
    pub verifying: Duration,
    /// Time of picking tokens.
    pub sampling: Duration,
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
    pub fn round(&mut self, tree: &DraftTree, verdict: &Verdict, used: usize) {
        let drafted = tree.nodes().len() - 1;
        let agreed = verdict.path.len() - 1;
        let accepted = agreed.min(used);
        self.drafted += drafted;
        self.accepted += accepted;
        self.rejected += drafted - agreed;
        self.discarded += agreed - accepted;
        *entry(&mut self.tokens_per_round, used) += 1;
        for (depth, &node) in verdict.path.iter().enumerate() {
            if tree.nodes()[node + 1..].iter().any(|n| n.parent == node) {
                let depth_below = entry(&mut self.depths, depth);
                depth_below.offered += 1;
                depth_below.accepted += usize::from(depth < agreed);
            }
        }
    }

    /// Adds other rounds.
    pub fn add(&mut self, other: &Tally) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.discarded += other.discarded;
        for (n, rounds) in other.tokens_per_round.iter().enumerate() {
            *entry(&mut self.tokens_per_round, n) += rounds;
        }
        for (i, depth) in other.depths.iter().enumerate() {
            let sum = entry(&mut self.depths, i);
            sum.offered += depth.offered;
            sum.accepted += depth.accepted;
        }
        self.drafting += other.drafting;
        self.verifying += other.verifying;
        self.sampling += other.sampling;
    }
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

    #[test]
    fn every_node_is_counted_once() {
        let mut tree = DraftTree::new(0, 64);
        let a = tree.push(0, 1, 0.0).unwrap();
        let b = tree.push(a, 2, 0.0).unwrap();
        tree.push(0, 3, 0.0).unwrap();
        let verdict = Verdict { path: vec![0, a, b], tokens: vec![1, 2, 9] };
        let mut sum = Tally::default();
        for (used, accepted, discarded) in [(3, 2, 0), (2, 2, 0), (1, 1, 1)] {
            let mut tally = Tally::default();
            tally.round(&tree, &verdict, used);
            assert_eq!((tally.drafted, tally.accepted, tally.rejected, tally.discarded), (3, accepted, 1, discarded));
            assert_eq!(tally.tokens_per_round[used], 1);
            assert_eq!(tally.depths, [Depth { offered: 1, accepted: 1 }; 2]);
            sum.add(&tally);
        }
        sum.round(&tree, &Verdict { path: vec![0], tokens: vec![7] }, 1);
        assert_eq!(sum.drafted, sum.accepted + sum.rejected + sum.discarded);
        assert_eq!((sum.accepted, sum.discarded, sum.tokens_per_round), (5, 1, vec![0, 2, 1, 1]));
        assert_eq!(sum.depths, [Depth { offered: 4, accepted: 3 }, Depth { offered: 3, accepted: 3 }]);
    }
}
