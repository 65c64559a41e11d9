//! Which tokens may come next.

use crate::tree::Token;

/// A set of tokens, one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(Vec<u64>);

impl Mask {
    pub(super) fn none(vocab_size: usize) -> Self {
        Self(vec![0; vocab_size.div_ceil(64)])
    }

    pub(super) fn insert(&mut self, token: Token) {
        self.0[token as usize / 64] |= 1 << (token % 64);
    }

    pub(super) fn remove(&mut self, token: Token) {
        self.0[token as usize / 64] &= !(1 << (token % 64));
    }

    /// Whether a token may come next.
    pub fn contains(&self, token: Token) -> bool {
        self.0.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// Number of tokens that may come next.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no token may come next.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Makes the logits of all others -inf.
    pub fn apply(&self, logits: &mut [f32]) {
        for (word, logits) in self.0.iter().zip(logits.chunks_mut(64)) {
            match *word {
                u64::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    let banned = logits.iter_mut().enumerate().filter(|(i, _)| word >> i & 1 == 0);
                    banned.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }
}
