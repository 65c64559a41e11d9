//! What tests of the laws share, whatever runs the model.

use super::blocks::Random;
use foretoken::tree::{DraftTree, Token};
use std::fmt::Display;

/// Panics where two rows of numbers differ in a bit.
#[track_caller]
pub fn assert_same_bits(a: &[f32], b: &[f32], what: impl Display) {
    assert_eq!(a.len(), b.len(), "{what}");
    if let Some(i) = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits()) {
        panic!("{what}: value {i} is {} and {}", a[i], b[i]);
    }
}

/// A random tree of `nodes` nodes: long chains, wide fans and everything between.
pub fn random_tree(anchor: Token, nodes: usize, vocab: usize, random: &mut Random) -> DraftTree {
    let mut tree = DraftTree::new(anchor, nodes);
    while tree.nodes().len() < nodes {
        let last = tree.nodes().len() - 1;
        let parent = if random.below(2) == 0 { last } else { random.below(last + 1) };
        tree.push(parent, random.below(vocab) as Token, 0.0);
    }
    tree
}
