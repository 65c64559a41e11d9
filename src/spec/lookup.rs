//! Prompt lookup: what followed the last few tokens when they occurred before, in the prompt or in the output.
//!
//! The text so far sits in a suffix automaton, so its longest suffix that occurred before is at hand after every token.
//! What followed it is guessed; what followed its shorter suffixes comes after that. A context of length *l* with *n*
//! occurrences gives a follower seen *k* times the share `k / (n + 1/l)` and leaves the rest to the next shorter one, so
//! long contexts are believed and short ones are not; among equals the most recent comes first. The tree takes the nodes
//! with the largest products of shares along their paths.
//!
//! Lookup decoding: <https://github.com/apoorvumang/prompt-lookup-decoding>; with a suffix automaton: SAM-Decoding,
//! <https://arxiv.org/abs/2411.10666>.

use super::automaton::{Automaton, StateId};
use super::choice::{Choice, Kind, Setting, SettingKind};
use super::{Drafter, Round, Target};
use crate::backend::Backend;
use crate::tree::{DraftTree, NodeId, Token};
use anyhow::Result;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The table's line.
pub const KIND: Kind = Kind {
    name: "lookup",
    help: "What followed the same tokens earlier in the prompt or the answer; takes no model and no memory to speak of",
    path: None,
    settings: &[
        Setting { name: "min", help: "Tokens that must have occurred before", kind: SettingKind::Count(3, (1, 64)) },
        Setting { name: "max", help: "Longest run of guesses", kind: SettingKind::Count(63, (1, 63)) },
        Setting { name: "width", help: "Different continuations in one tree", kind: SettingKind::Count(2, (1, 16)) },
    ],
    rank: 0,
};

/// Makes one.
pub fn open<B: Backend>(choice: &Choice, _: &Target<'_, B>) -> Result<Box<dyn Drafter>> {
    Ok(Box::new(Lookup::new(choice.count(0), choice.count(1), choice.count(2))))
}

/// A context that so many different tokens follow says nothing about the next one.
const WIDEST_FAN: u32 = 64;

/// Shorter contexts are not asked about a share less than this. It bounds the walk where every suffix occurred before.
const LEAST_REST: f64 = 1.0 / 256.0;

/// The drafter.
pub struct Lookup {
    min: usize,
    max: usize,
    width: usize,
    text: Automaton,
    followers: Vec<Follower>,
}

/// The end of the text or of a path: the longest suffix of it that occurs in the text.
#[derive(Clone, Copy, Debug)]
struct Place {
    state: StateId,
    /// Its length, which may be less than that of the longest string of the state.
    len: usize,
}

/// What may follow a place.
#[derive(Clone, Copy, Debug)]
struct Follower {
    token: Token,
    place: Place,
    share: f64,
    recent: u32,
}

/// A follower and where it would hang; `share` is that of its whole path.
#[derive(Clone, Copy, Debug)]
struct Guess {
    parent: NodeId,
    depth: usize,
    follower: Follower,
}

impl Lookup {
    /// Contexts of at least `min` tokens, runs of at most `max` guesses, at most `width` leaves.
    pub fn new(min: usize, max: usize, width: usize) -> Self {
        Self { min, max, width, text: Automaton::new(min), followers: vec![] }
    }

    /// Leaves in `followers` the best few tokens after a place, best first.
    fn look_up(&mut self, Place { mut state, mut len }: Place) {
        self.followers.clear();
        let mut rest = 1.0;
        loop {
            if len < self.min || self.text.class(state).fan > WIDEST_FAN {
                break;
            }
            let escape = 1.0 / len as f64;
            let seen: u32 = self.text.followers(state).map(|(_, to)| self.text.class(to).count).sum();
            let whole = f64::from(seen) + escape;
            for (token, to) in self.text.followers(state) {
                let class = self.text.class(to);
                if self.followers.iter().all(|f| f.token != token) {
                    let share = rest * f64::from(class.count) / whole;
                    let place = Place { state: to, len: len + 1 };
                    self.followers.push(Follower { token, place, share, recent: class.recent });
                }
            }
            rest *= escape / whole;
            if self.followers.len() >= self.width || rest < LEAST_REST {
                break;
            }
            state = self.text.link(state);
            len = self.text.class(state).len as usize;
        }
        self.followers.sort_by(|a, b| b.share.total_cmp(&a.share).then(b.recent.cmp(&a.recent)));
        self.followers.truncate(self.width);
    }
}

impl Drafter for Lookup {
    fn observe(&mut self, tokens: &[Token]) -> Result<()> {
        tokens.iter().for_each(|&token| self.text.push(token));
        Ok(())
    }

    fn draft(&mut self, round: &mut Round<'_>) -> Result<()> {
        let mut guesses = BinaryHeap::new();
        let mut has_child = [false; DraftTree::MAX];
        let end = Place { state: self.text.last(), len: self.text.len() };
        let (mut leaves, mut parent, mut depth, mut share, mut place) = (1, 0, 0, 1.0, end);
        loop {
            if depth < self.max {
                self.look_up(place);
                let scaled = self.followers.iter().map(|&f| Follower { share: f.share * share, ..f });
                guesses.extend(scaled.map(|follower| Guess { parent, depth: depth + 1, follower }));
            }
            // A parent's second child begins another continuation.
            let fits = |guess: &Guess| !has_child[guess.parent] || leaves < self.width;
            let Some(guess) = std::iter::from_fn(|| guesses.pop()).find(fits) else { return Ok(()) };
            let follower = guess.follower;
            let score = follower.share.ln() as f32;
            let Some(node) = round.push(guess.parent, follower.token, score) else { return Ok(()) };
            leaves += usize::from(std::mem::replace(&mut has_child[guess.parent], true));
            (parent, depth, share, place) = (node, guess.depth, follower.share, follower.place);
        }
    }

    fn rewind(&mut self, kept: &[Token]) -> Result<()> {
        // An automaton only grows. A token takes well under a microsecond.
        self.text = Automaton::new(self.min);
        self.observe(kept)
    }
}

impl Ord for Guess {
    /// The larger share first, then the more recent, then the nearer to the anchor.
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.follower, &other.follower);
        let order = a.share.total_cmp(&b.share).then(a.recent.cmp(&b.recent));
        order.then(other.parent.cmp(&self.parent)).then(b.token.cmp(&a.token))
    }
}

impl PartialOrd for Guess {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Guess {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Guess {}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
