//! EAGLE-2's tree: guesses are followed by their cumulative log-probability, and of all that were ever made the best are
//! kept.
//!
//! A level is one pass: the best few guesses of the level before are run together, each giving as many new ones. What is
//! made beside the tree of the round is kept here, for far more is guessed than kept.

use super::layer::{Layer, Source};
use crate::backend::{Backend, Span};
use crate::spec::{Output, Round};
use crate::tree::{DraftTree, Token};
use anyhow::Result;

/// The shape of the trees.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Guesses after a guess, and guesses of a level that are followed.
    pub branch: usize,
    /// Levels.
    pub depth: usize,
}

/// A guess.
#[derive(Clone, Debug)]
struct Guess {
    token: Token,
    /// The guess it follows, if not the anchor.
    parent: Option<usize>,
    /// Logarithm of the probability of the path.
    score: f32,
    /// Row of the last pass that it came from.
    row: usize,
    /// Its slot behind the context and the set of those it sees, once it was run.
    seen: u64,
}

/// All guesses of a round, parents first.
struct Pool(Vec<Guess>);

impl Pool {
    /// The guesses from below the anchor down to number `i`.
    fn path(&self, i: usize) -> Vec<(Token, f32)> {
        let mut path = vec![];
        let mut next = Some(i);
        while let Some(i) = next {
            path.push((self.0[i].token, self.0[i].score));
            next = self.0[i].parent;
        }
        path.reverse();
        path
    }

    /// Numbers of all guesses, best first; a guess is no better than the one it follows, and comes after it.
    fn ranked(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        order.sort_by(|&a, &b| self.0[b].score.total_cmp(&self.0[a].score).then(a.cmp(&b)));
        order
    }

    /// Adds what follows a guess, that of the anchor or another, which was in this row of the pass.
    fn add(
        &mut self,
        round: &mut Round<'_>,
        from: (Option<usize>, usize),
        logits: &[f32],
        ids: Option<&[Token]>,
        branch: usize,
    ) {
        let (parent, row) = from;
        let path: Vec<Token> = parent.map_or(vec![], |i| self.path(i)).into_iter().map(|(token, _)| token).collect();
        let above = parent.map_or(0.0, |i| self.0[i].score);
        for (token, share) in round.rank_beyond(&path, logits, ids, branch) {
            // A share of nothing is no guess.
            if share > 0.0 {
                self.0.push(Guess { token, parent, score: above + share.ln() as f32, row, seen: 0 });
            }
        }
    }
}

/// Fills the round's tree. The last pass ended with the anchor's pair, in row `last`; `pairs` are in the
/// cache.
pub fn grow<B: Backend>(
    layer: &mut Layer<B>,
    round: &mut Round<'_>,
    growth: Growth,
    pairs: usize,
    last: usize,
) -> Result<()> {
    let size = layer.head().size();
    let ids = match layer.head() {
        Output::Own { ids, .. } => ids.clone(),
        Output::Target(_) => None,
    };
    let mut pool = Pool(vec![]);
    let logits = layer.logits(&[last])?;
    pool.add(round, (None, last), &logits, ids.as_deref(), growth.branch);
    let (mut from, mut ran) = (0, 0);
    for _ in 1..growth.depth {
        // What follows a guess comes after it: only before the last of the best can be what leads to one of them.
        let best = pool.ranked().into_iter().take(round.room().saturating_sub(1));
        let mut frontier: Vec<usize> = best.filter(|&i| i >= from).take(growth.branch).collect();
        frontier.truncate(DraftTree::MAX - ran);
        let paths: Vec<_> = frontier.iter().map(|&i| pool.path(i)).collect();
        let mut wanted = round.wants_below(&paths).into_iter();
        frontier.retain(|_| wanted.next() == Some(true));
        if frontier.is_empty() {
            break;
        }
        from = pool.0.len();
        for (i, &guess) in frontier.iter().enumerate() {
            let above = pool.0[guess].parent.map_or(0, |parent| pool.0[parent].seen);
            pool.0[guess].seen = above | 1 << (ran + i);
        }
        let guesses = || frontier.iter().map(|&i| &pool.0[i]);
        let tokens: Vec<Token> = guesses().map(|guess| guess.token).collect();
        let rows: Vec<usize> = guesses().map(|guess| guess.row).collect();
        let ancestors: Vec<u64> = guesses().map(|guess| guess.seen).collect();
        let span = Span::Tree { base: pairs, ancestors: &ancestors };
        layer.run(&tokens, Source::Own(&rows), span, pairs + ran);
        ran += frontier.len();
        let all: Vec<usize> = (0..frontier.len()).collect();
        let logits = layer.logits(&all)?;
        for (i, (&guess, logits)) in frontier.iter().zip(logits.chunks_exact(size)).enumerate() {
            pool.add(round, (Some(guess), i), logits, ids.as_deref(), growth.branch);
        }
    }
    // The best of all, as many as fit; a guess comes after the one it follows.
    let mut nodes = vec![None; pool.0.len()];
    for i in pool.ranked() {
        let Guess { token, parent, score, .. } = pool.0[i];
        if let Some(above) = parent.map_or(Some(0), |parent| nodes[parent]) {
            nodes[i] = round.push(above, token, score);
        }
    }
    Ok(())
}
