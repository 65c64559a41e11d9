//! How often the guesses of each head come true, as seen while it runs.

use super::plan::{Plan, TOP, ranks};
use crate::tree::Token;
use std::collections::VecDeque;

/// Guesses that are remembered.
const WINDOW: f64 = 256.0;
/// Weight of what is believed before, in guesses.
const PRIOR: f64 = 8.0;
/// What the first head's best guess is believed to be right, and each further head's in proportion.
const BELIEF: (f64, f64) = (0.5, 0.75);

/// What was guessed at places whose tokens have not all come, and what came of earlier guesses.
pub(super) struct Measured {
    heads: Vec<Head>,
    pending: VecDeque<Pending>,
}

#[derive(Clone, Default)]
struct Head {
    seen: f64,
    right: [f64; TOP],
}

/// Best guesses, head by head; that of head *k* is about the token at place `from` + *k*.
struct Pending {
    from: usize,
    guesses: Vec<Vec<Token>>,
}

impl Measured {
    pub(super) fn new(heads: usize) -> Self {
        Measured { heads: vec![Head::default(); heads], pending: VecDeque::new() }
    }

    /// Takes note of what was guessed about the tokens from place `from` on.
    pub(super) fn guessed(&mut self, from: usize, guesses: impl Iterator<Item = Vec<Token>>) {
        self.pending.push_back(Pending { from, guesses: guesses.collect() });
    }

    /// Learns from the tokens that came from place `from` on.
    pub(super) fn observe(&mut self, from: usize, tokens: &[Token]) {
        for (place, token) in (from..).zip(tokens) {
            self.pending.retain(|pending| place < pending.from + pending.guesses.len());
            for pending in self.pending.iter().filter(|pending| place >= pending.from) {
                let level = place - pending.from;
                let (Some(head), Some(guesses)) = (self.heads.get_mut(level), pending.guesses.get(level)) else {
                    continue;
                };
                let keep = 1.0 - 1.0 / WINDOW;
                head.seen = head.seen * keep + 1.0;
                head.right.iter_mut().for_each(|right| *right *= keep);
                if let Some(rank) = guesses.iter().take(TOP).position(|guess| guess == token) {
                    head.right[rank] += 1.0;
                }
            }
        }
    }

    /// Forgets guesses that nothing is known of yet.
    pub(super) fn forget_guesses(&mut self) {
        self.pending.clear();
    }

    /// The tree for what was seen so far.
    pub(super) fn plan(&self) -> Plan {
        let belief = |level: usize| BELIEF.0 * BELIEF.1.powi(level as i32);
        let accuracy = |(level, head): (usize, &Head)| -> Vec<f32> {
            let share = |(right, prior): (&f64, f64)| ((right + PRIOR * prior) / (head.seen + PRIOR)) as f32;
            head.right.iter().zip(ranks(belief(level))).map(share).collect()
        };
        Plan::grown(&self.heads.iter().enumerate().map(accuracy).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_grows_where_guesses_come_true() {
        let mut measured = Measured::new(3);
        let wide = measured.plan();
        // The first head's third guess is always right, the second's first, the third's never.
        for place in 0..400 {
            let text = |place: usize| 100 + (place % 7) as Token;
            measured.observe(place, &[text(place)]);
            let guesses = [vec![1, 2, text(place + 1)], vec![text(place + 2), 3], vec![4, 5]];
            measured.guessed(place + 1, guesses.into_iter());
            assert!(measured.pending.len() <= 4);
        }
        let plan = measured.plan();
        assert_ne!(plan, wide);
        let first: Vec<_> = plan.wishes().iter().take(2).map(|wish| (wish.parent, wish.level, wish.rank)).collect();
        assert_eq!(first, [(0, 0, 2), (1, 1, 0)]);
        measured.forget_guesses();
        assert!(measured.pending.is_empty());
    }
}
