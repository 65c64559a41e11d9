//! Prompt lookup: what followed the last few tokens when they occurred before, in the prompt or in the output, or in a
//! [corpus].
//!
//! The text so far sits in a suffix automaton, so its longest suffix that occurred before is at hand after every token.
//! What followed it is guessed; what followed its shorter suffixes comes after that. A context of length *l* with *n*
//! occurrences gives a follower seen *k* times the share `k / (n + 1/l)` and leaves the rest to the next shorter one, so
//! long contexts are believed and short ones are not; among equals the most recent comes first. The tree takes the nodes
//! with the largest products of shares along their paths.
//!
//! The longest context that stands in the corpus takes its turn among them: its shares are made of its occurrences by the
//! same rule, of what longer contexts left. Only, a corpus is large and written by others, so contexts of some length stand
//! in it by chance: `CHANCE` tokens of them are not counted, and where what remains is no longer than a context in the
//! text, the text comes first.
//!
//! A copy with changes is resumed after each of them.
//!
//! Lookup decoding: <https://github.com/apoorvumang/prompt-lookup-decoding>; with a suffix automaton: SAM-Decoding,
//! <https://arxiv.org/abs/2411.10666>.

use super::automaton::{Automaton, StateId};
use super::choice::{Choice, Kind, Setting, SettingKind};
use super::corpus::{self, Corpus, Making, Matches};
use super::resume::{self, Copying};
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
        Setting { name: "min", help: "Tokens that must have occurred before", kind: SettingKind::Count(1, (1, 64)) },
        Setting { name: "max", help: "Longest run of guesses", kind: SettingKind::Count(63, (1, 63)) },
        Setting { name: "width", help: "Different continuations in one tree", kind: SettingKind::Count(2, (1, 16)) },
        Setting {
            name: "corpus",
            help: "Text to look into too, or token ids (*.tokens); its index is kept in ~/.cache/foretoken",
            kind: SettingKind::Files,
        },
    ],
    rank: 0,
};

/// Makes one.
pub fn open<B: Backend>(choice: &Choice, target: &Target<'_, B>) -> Result<Box<dyn Drafter<B>>> {
    let mut lookup = Lookup::new(choice.count(0), choice.count(1), choice.count(2));
    if !choice.files(3).is_empty() {
        let (cache, &Target { tokenizer, admit, tell, .. }) = (corpus::cache(), target);
        let making = Making { tokenizer, cache: cache.as_deref(), admit, tell };
        lookup = lookup.with_corpus(Corpus::open(choice.files(3), &making)?);
    }
    Ok(Box::new(lookup))
}

/// A context that so many different tokens follow says nothing about the next one.
const WIDEST_FAN: u32 = 64;

/// Shorter contexts are not asked about a share less than this. It bounds the walk where every suffix occurred before.
const LEAST_REST: f64 = 1.0 / 256.0;

/// Tokens of a context in the corpus that count for nothing. With corpora of 7 and 48 MB four do better than none (the
/// longest first, wherever it stands) and than all (the text always first), two to six about the same.
const CHANCE: usize = 4;

/// Tokens of context that say where the text is being copied from.
const SURE: usize = 3;

/// The drafter.
pub struct Lookup {
    min: usize,
    max: usize,
    width: usize,
    text: Automaton,
    corpus: Option<Corpus>,
    copying: Copying,
    followers: Vec<Follower>,
}

/// The end of the text or of a path: the longest suffix of it that occurs in the text.
#[derive(Clone, Copy, Debug)]
struct Place {
    state: StateId,
    /// Its length, which may be less than that of the longest string of the state.
    len: usize,
    /// The same in the corpus; in a follower's place that of what it follows.
    found: Matches,
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
        Self {
            min,
            max,
            width,
            text: Automaton::new(min),
            corpus: None,
            copying: Copying::default(),
            followers: vec![],
        }
    }

    /// The same, looking into a corpus too.
    pub fn with_corpus(self, corpus: Corpus) -> Self {
        Self { corpus: Some(corpus), ..self }
    }

    /// Guesses how a copy goes on after a change.
    fn resume(&self, round: &mut Round<'_>) {
        for (share, tokens) in self.copying.resumptions() {
            let (mut node, mut score) = (0, share.ln());
            for &token in tokens.iter().take(self.max) {
                match round.push(node, token, score as f32) {
                    Some(next) => node = next,
                    None => return,
                }
                score += resume::STEP.ln();
            }
        }
    }

    /// Leaves in `followers` the best few tokens after a place, best first.
    fn look_up(&mut self, place: Place) {
        self.followers.clear();
        let Place { mut state, mut len, found } = place;
        let mut worth = self.worth(found);
        let mut rest = 1.0;
        while self.followers.len() < self.width && rest >= LEAST_REST {
            let told = len >= self.min && self.text.class(state).fan <= WIDEST_FAN;
            if worth > if told { len } else { 0 } {
                rest *= self.ask_corpus(place, worth, rest);
                worth = 0;
            } else if told {
                rest *= self.ask_text(Place { state, len, found }, rest);
                state = self.text.link(state);
                len = self.text.class(state).len as usize;
            } else {
                break;
            }
        }
        self.followers.sort_by(|a, b| b.share.total_cmp(&a.share).then(b.recent.cmp(&a.recent)));
        self.followers.truncate(self.width);
    }

    /// Shares `rest` out among the tokens after a place in the text. Gives the part of it that is left.
    fn ask_text(&mut self, Place { state, len, found }: Place, rest: f64) -> f64 {
        let escape = 1.0 / len as f64;
        let seen: u32 = self.text.followers(state).map(|(_, to)| self.text.class(to).count).sum();
        let whole = f64::from(seen) + escape;
        for (token, to) in self.text.followers(state) {
            let class = self.text.class(to);
            if self.followers.iter().all(|f| f.token != token) {
                let share = rest * f64::from(class.count) / whole;
                let place = Place { state: to, len: len + 1, found };
                self.followers.push(Follower { token, place, share, recent: class.recent });
            }
        }
        escape / whole
    }

    /// The same for a place in the corpus.
    fn ask_corpus(&mut self, Place { state, len, found }: Place, worth: usize, rest: f64) -> f64 {
        let Some(corpus) = &self.corpus else { return 1.0 };
        let escape = 1.0 / worth as f64;
        let whole = found.count() as f64 + escape;
        for (token, count) in corpus.followers(found) {
            if self.followers.iter().all(|f| f.token != token) {
                let share = rest * count as f64 / whole;
                let (state, len) = self.text.follow(state, len, token);
                self.followers.push(Follower { token, place: Place { state, len, found }, share, recent: 0 });
            }
        }
        escape / whole
    }

    /// How many tokens of context in the text are as good as these matches in the corpus.
    fn worth(&self, found: Matches) -> usize {
        let fan = |corpus: &Corpus| corpus.followers(found).take(WIDEST_FAN as usize + 1).count();
        let told = found.count() > 0 && self.corpus.as_ref().is_some_and(|corpus| fan(corpus) <= WIDEST_FAN as usize);
        if told { found.length().saturating_sub(CHANCE).max(1) } else { 0 }
    }

    /// What is found in the corpus at a node, `above` being what was found above it.
    fn recall(&mut self, round: &Round<'_>, node: NodeId, above: Matches) -> Matches {
        let Some(corpus) = &mut self.corpus else { return above };
        let nodes = round.tree().nodes();
        let found = corpus.follow(above, nodes[node].token);
        if found.count() > 0 {
            return found;
        }
        let path = round.tree().path(node);
        let below = path[1..].iter().map(|&node| nodes[node].token);
        let context: Vec<Token> = round.context().iter().copied().rev().take(corpus::DEPTH).collect();
        let context: Vec<Token> = context.into_iter().rev().chain(below).collect();
        corpus.search(&context, self.min)
    }

    /// Takes note of what comes next in the text.
    pub fn read(&mut self, tokens: &[Token]) {
        for &token in tokens {
            self.text.push(token);
            self.copying.push(token);
        }
    }

    /// Adds its guesses to the tree of `round`.
    pub fn guess(&mut self, round: &mut Round<'_>) {
        self.resume(round);
        let mut guesses = BinaryHeap::new();
        let mut has_child = [false; DraftTree::MAX];
        let (state, len) = (self.text.last(), self.text.len());
        let found = self.corpus.as_mut().map(|corpus| corpus.begin(round.context(), self.min));
        let end = Place { state, len, found: found.unwrap_or_default() };
        let (mut leaves, mut parent, mut depth, mut share, mut place) = (1, 0, 0, 1.0, end);
        loop {
            if depth < self.max {
                self.look_up(place);
                if depth == 0 && len >= SURE {
                    // Only what stands in the text has a place in it.
                    let best = self.followers.first().and_then(|best| (best.recent as usize).checked_sub(1));
                    best.into_iter().for_each(|at| self.copying.follow(at));
                }
                let scaled = self.followers.iter().map(|&f| Follower { share: f.share * share, ..f });
                guesses.extend(scaled.map(|follower| Guess { parent, depth: depth + 1, follower }));
            }
            // A parent's second child begins another continuation.
            let fits = |guess: &Guess| !has_child[guess.parent] || leaves < self.width;
            let Some(guess) = std::iter::from_fn(|| guesses.pop()).find(fits) else { return };
            let follower = guess.follower;
            let score = follower.share.ln() as f32;
            let Some(node) = round.push(guess.parent, follower.token, score) else { return };
            leaves += usize::from(std::mem::replace(&mut has_child[guess.parent], true));
            (parent, depth, share, place) = (node, guess.depth, follower.share, follower.place);
            place.found = self.recall(round, node, place.found);
        }
    }
}

impl<B: Backend> Drafter<B> for Lookup {
    fn observe(&mut self, tokens: &[Token]) -> Result<()> {
        self.read(tokens);
        Ok(())
    }

    fn draft(&mut self, round: &mut Round<'_>) -> Result<()> {
        self.guess(round);
        Ok(())
    }

    fn rewind(&mut self, kept: &[Token]) -> Result<()> {
        // An automaton only grows. A token takes well under a microsecond.
        (self.text, self.copying) = (Automaton::new(self.min), Copying::default());
        self.read(kept);
        Ok(())
    }

    fn memory(&self) -> u64 {
        self.corpus.as_ref().map_or(0, Corpus::memory)
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
