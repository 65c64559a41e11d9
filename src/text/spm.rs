//! SentencePiece-style BPE (`tokenizer.ggml.model = llama`): the file has a score per token and no merges.
//!
//! Neighbouring symbols whose joined text is a token are candidates; the one with the best score, leftmost of equals,
//! is joined, until none is left. A heap of candidates and a doubly linked list of symbols make it O(n log n); a
//! candidate is stale when either side has changed since, which its length tells. What is no token in the end is
//! spelt in `<0xXX>` bytes. Control, unknown and byte tokens are never made by joining, as in SentencePiece.

use super::{
    bpe::is_byte_name,
    vocab::{Kind, Vocab},
};
use crate::{gguf::Metadata, tree::Token};
use anyhow::{Context, Result, ensure};
use std::{cmp::Reverse, collections::BinaryHeap};

pub(super) struct Spm {
    /// Scores as integers of the same order.
    ranks: Vec<u32>,
    bytes: [Option<Token>; 256],
    unknown: Option<Token>,
    /// A space is put before text at the start and after special tokens.
    pub prefix_space: bool,
}

const NONE: usize = usize::MAX;

struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

/// (rank, leftmost first, right symbol, bytes of both)
type Candidate = (u32, Reverse<usize>, usize, usize);

impl Spm {
    pub(super) fn from_gguf(meta: &Metadata, vocab: &Vocab, unknown: Option<Token>) -> Result<Self> {
        let key = "tokenizer.ggml.scores";
        let scores = meta.floats(key)?.with_context(|| format!("{key} is missing"))?;
        ensure!(scores.len() == vocab.len(), "{key} has {} entries for {} tokens", scores.len(), vocab.len());
        if let Some(i) = scores.iter().position(|s| s.is_nan()) {
            anyhow::bail!("{key}[{i}] is NaN");
        }
        let mut bytes = [None; 256];
        for token in 0..vocab.len() as Token {
            if vocab.kind(token) == Some(Kind::Byte)
                && let Some(byte) = is_byte_name(vocab.text(token))
            {
                bytes[byte as usize] = Some(token);
            }
        }
        let prefix_space = meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        Ok(Self { ranks: scores.into_iter().map(rank).collect(), bytes, unknown, prefix_space })
    }

    /// Appends the ids of a text without special tokens.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, after_special: bool, out: &mut Vec<Token>) {
        let mut spelt = String::with_capacity(text.len() + text.len() / 2);
        if self.prefix_space && after_special {
            spelt.push('▁');
        }
        spelt.extend(text.chars().map(|c| if c == ' ' { '▁' } else { c }));

        let mut symbols: Vec<Symbol> = spelt
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol { start, len: c.len_utf8(), prev: i.wrapping_sub(1), next: i + 1 })
            .collect();
        let Some(last) = symbols.last_mut() else { return };
        last.next = NONE;

        let mut heap = BinaryHeap::<Candidate>::with_capacity(symbols.len());
        let candidate = |symbols: &[Symbol], left: usize, right: usize| {
            let (l, r) = (symbols.get(left)?, symbols.get(right)?);
            let len = l.len + r.len;
            let token = self.joined(vocab, &spelt, l.start, len)?;
            Some((self.ranks[token as usize], Reverse(left), right, len))
        };
        heap.extend((1..symbols.len()).filter_map(|i| candidate(&symbols, i - 1, i)));
        while let Some((_, Reverse(left), right, len)) = heap.pop() {
            if symbols[left].len == 0 || symbols[right].len == 0 || symbols[left].len + symbols[right].len != len {
                continue;
            }
            symbols[left].len = len;
            symbols[right].len = 0;
            let next = symbols[right].next;
            symbols[left].next = next;
            if next != NONE {
                symbols[next].prev = left;
            }
            heap.extend(candidate(&symbols, symbols[left].prev, left));
            heap.extend(candidate(&symbols, left, next));
        }

        let mut at = 0;
        while at != NONE {
            let Symbol { start, len, next, .. } = symbols[at];
            match self.joined(vocab, &spelt, start, len) {
                Some(token) => out.push(token),
                None => self.spell(vocab, &spelt.as_bytes()[start..start + len], out),
            }
            at = next;
        }
    }

    fn joined(&self, vocab: &Vocab, text: &str, start: usize, len: usize) -> Option<Token> {
        if len > vocab.longest {
            return None;
        }
        let token = vocab.find(&text[start..start + len])?;
        (!matches!(vocab.kind(token)?, Kind::Control | Kind::Unknown | Kind::Byte)).then_some(token)
    }

    fn spell(&self, vocab: &Vocab, bytes: &[u8], out: &mut Vec<Token>) {
        if bytes.iter().all(|&b| self.bytes[b as usize].is_some()) {
            out.extend(bytes.iter().filter_map(|&b| self.bytes[b as usize]));
        } else if let Some(unknown) = self.unknown {
            debug_assert!((unknown as usize) < vocab.len());
            out.push(unknown);
        }
    }
}

/// Maps floats to integers of the same order; -0 and 0 are one.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn ranks_order_as_scores() {
        let scores = [f32::NEG_INFINITY, -1e9, -1000.0, -1.5, -1e-30, 0.0, 1e-30, 2.0, f32::INFINITY];
        assert!(scores.windows(2).all(|w| rank(w[0]) < rank(w[1])));
        assert_eq!(rank(-0.0), rank(0.0));
    }
}
