//! The index of a corpus: its text in tokens, and the places in it sorted by what stands there. One run of bytes, on
//! disk or in memory.
//!
//! ```text
//! magic [8]  version  vocabulary  text u64  places u64  key [32]  |  starts [vocabulary + 1]  |  text  |  places
//! ```
//!
//! Numbers are little-endian and of 32 bits where nothing else is said. `starts` is where each token's places begin.
//! In the text any number outside the vocabulary is a border between documents, which no match crosses.
//!
//! The header, the length and `starts` are checked when it is opened. Text and places are not, for that would read all of
//! it; every number is checked as it is used instead, so whatever stands there can lead to nothing worse than bad guesses.

use super::suffix::{DEPTH, Sorted};
use crate::gguf::FileBytes;
use crate::tree::Token;
use anyhow::{Context, Result, ensure};
use std::cmp::Ordering;
use std::io::{self, Write};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"FTCORPUS";

/// Changes with the layout and with how texts become tokens.
pub const VERSION: u32 = 1;

const HEADER: usize = 64;

/// Stands between documents.
pub const BORDER: Token = Token::MAX;

/// What an index was made of, hashed.
pub type Key = [u8; 32];

/// An index, ready to be asked.
#[derive(Debug)]
pub struct Index {
    bytes: FileBytes,
    vocab: usize,
    text: Range<usize>,
    places: Range<usize>,
}

/// Writes an index.
pub fn write(out: &mut impl Write, key: &Key, text: &[Token], sorted: &Sorted) -> io::Result<()> {
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&(sorted.starts.len() as u32 - 1).to_le_bytes())?;
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(&(sorted.places.len() as u64).to_le_bytes())?;
    out.write_all(key)?;
    let mut numbers = [&sorted.starts, text, &sorted.places].into_iter().flatten();
    numbers.try_for_each(|number| out.write_all(&number.to_le_bytes()))
}

/// Bytes that [`write()`] writes.
pub fn size(text: &[Token], sorted: &Sorted) -> usize {
    HEADER + 4 * (sorted.starts.len() + text.len() + sorted.places.len())
}

impl Index {
    /// Opens an index made of what `key` says, for a vocabulary of so many tokens.
    pub fn open(bytes: FileBytes, key: &Key, vocab: usize) -> Result<Self> {
        ensure!(bytes.len() >= HEADER && bytes.starts_with(MAGIC), "is no corpus index");
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        ensure!(short(8) == VERSION, "has version {}, supported {VERSION}", short(8));
        ensure!(bytes[32..HEADER] == key[..], "was made of something else");
        ensure!(short(12) as usize == vocab, "is of {} tokens, the vocabulary of {vocab}", short(12));
        let end = |start: usize, count: u64| usize::try_from(count).ok()?.checked_mul(4)?.checked_add(start);
        let start = HEADER + 4 * (vocab + 1);
        let ends = end(start, long(16)).and_then(|text| Some((text, end(text, long(24))?)));
        let (text, all) = ends.context("has lengths beyond any memory")?;
        ensure!(all == bytes.len(), "has {} bytes, {all} belong there", bytes.len());
        let index = Self { vocab, text: start..text, places: text..all, bytes };
        let starts = (0..=vocab).map(|token| index.start(token));
        ensure!(index.start(0) == 0 && index.start(vocab) == index.count() && starts.is_sorted(), "is damaged");
        Ok(index)
    }

    /// Bytes of memory it takes, where it is not mapped.
    pub fn memory(&self) -> usize {
        self.bytes.owned()
    }

    /// Places in it.
    pub fn count(&self) -> usize {
        self.places.len() / 4
    }

    /// The token at a place; none at a border.
    pub fn token(&self, at: usize) -> Option<Token> {
        self.number(&self.text, at).filter(|&token| (token as usize) < self.vocab)
    }

    /// Place number `i` in order; outside the text where the index is damaged.
    pub fn place(&self, i: usize) -> usize {
        self.number(&self.places, i).map_or(usize::MAX, |place| place as usize)
    }

    /// Of the last [`DEPTH`] tokens of `context`, the most that stand somewhere in the text, but no fewer than `min`:
    /// how many, and the numbers of the places where they do.
    pub fn find(&self, context: &[Token], min: usize) -> Option<(usize, Range<usize>)> {
        let tail = |len: usize| &context[context.len() - len..];
        let (mut least, mut most) = (min.max(1), context.len().min(DEPTH));
        if least > most || !self.has(tail(least)) {
            return None;
        }
        // Where a string stands, its suffixes do.
        while least < most {
            let middle = (least + most).div_ceil(2);
            if self.has(tail(middle)) {
                least = middle;
            } else {
                most = middle - 1;
            }
        }
        let string = tail(least);
        let first = self.first(string);
        let beyond = partition(first..self.bucket(string).end, |i| self.compare(i, string) == Ordering::Equal);
        Some((least, first..beyond))
    }

    fn number(&self, range: &Range<usize>, at: usize) -> Option<u32> {
        let four = self.bytes.get(range.clone())?.get(at.checked_mul(4)?..)?.first_chunk()?;
        Some(u32::from_le_bytes(*four))
    }

    fn start(&self, token: usize) -> usize {
        self.number(&(HEADER..self.text.start), token).map_or(0, |start| start as usize)
    }

    /// Where the places of a string's first token are.
    fn bucket(&self, string: &[Token]) -> Range<usize> {
        match string[0] as usize {
            token if token < self.vocab => self.start(token)..self.start(token + 1),
            _ => 0..0,
        }
    }

    fn has(&self, string: &[Token]) -> bool {
        let first = self.first(string);
        first < self.bucket(string).end && self.compare(first, string) == Ordering::Equal
    }

    /// The first place that is not before `string`.
    fn first(&self, string: &[Token]) -> usize {
        partition(self.bucket(string), |i| self.compare(i, string) == Ordering::Less)
    }

    /// What stands at place number `i`, in as many tokens as `string` has, against `string`. Its first token is known.
    fn compare(&self, i: usize, string: &[Token]) -> Ordering {
        let place = self.place(i);
        let rest = string.iter().enumerate().skip(1);
        let mut orders = rest.map(|(d, token)| self.token(place.saturating_add(d)).cmp(&Some(*token)));
        orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

/// The first of `range` for which `before` does not hold, which it does up to some point.
fn partition(mut range: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    while range.start < range.end {
        let middle = range.start + range.len() / 2;
        if before(middle) {
            range.start = middle + 1;
        } else {
            range.end = middle;
        }
    }
    range.start
}
