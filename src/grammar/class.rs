//! Sets of characters, and how they become sets of bytes.
//!
//! A recogniser works on bytes, because tokens may begin and end inside a character. So a set of code points becomes
//! sequences of byte sets that spell exactly its characters in UTF-8: no overlong form, no surrogate.

use std::ops::RangeInclusive;

const SURROGATES: RangeInclusive<u32> = 0xD800..=0xDFFF;
const LAST: u32 = 0x10FFFF;
/// The first code point of each length in bytes, but the first length.
const LENGTHS: [u32; 3] = [0x80, 0x800, 0x10000];

/// A set of bytes, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) fn insert(&mut self, bytes: RangeInclusive<u8>) {
        for byte in bytes {
            self.0[usize::from(byte) / 64] |= 1 << (byte % 64);
        }
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte) / 64] >> (byte % 64) & 1 == 1
    }

    pub(super) fn one(byte: u8) -> Self {
        let mut set = Self::default();
        set.insert(byte..=byte);
        set
    }
}

/// A set of characters: ascending ranges that neither touch nor hold surrogates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    pub(super) fn all() -> Self {
        Self::new(vec![(0, LAST)], false)
    }

    /// The characters within `ranges`, or all others.
    pub(super) fn new(mut ranges: Vec<(u32, u32)>, negated: bool) -> Self {
        ranges.sort_unstable();
        let mut union: Vec<(u32, u32)> = vec![];
        for (low, high) in ranges {
            match union.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => union.push((low, high)),
            }
        }
        if negated {
            let mut next = 0;
            let mut rest = vec![];
            for (low, high) in union {
                if next < low {
                    rest.push((next, low - 1));
                }
                next = high + 1;
            }
            if next <= LAST {
                rest.push((next, LAST));
            }
            union = rest;
        }
        let (first, last) = (*SURROGATES.start(), *SURROGATES.end());
        let around = |(low, high): (u32, u32)| [(low, high.min(first - 1)), (low.max(last + 1), high)];
        let split = |(low, high)| if high < first || low > last { [(low, high), (1, 0)] } else { around((low, high)) };
        Self(union.into_iter().flat_map(split).filter(|(low, high)| low <= high).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sequences of byte sets that together spell these characters. Those with equal tails are one, so that a set of
    /// few ranges becomes few sequences.
    pub(super) fn sequences(&self) -> Vec<Vec<ByteSet>> {
        type Bytes = Vec<(u8, u8)>;
        let mut spelled: Vec<Bytes> = vec![];
        for &(low, high) in &self.0 {
            spell(low, high, &mut spelled);
        }
        // By tail, so that equal ones are neighbours.
        spelled.sort_by(|a, b| (a.len(), &a[1..]).cmp(&(b.len(), &b[1..])));
        let mut all: Vec<(Bytes, ByteSet)> = vec![];
        for bytes in spelled {
            let (first, tail) = (bytes[0], &bytes[1..]);
            match all.last_mut() {
                Some((last, set)) if last == tail => set.insert(first.0..=first.1),
                _ => {
                    let mut set = ByteSet::default();
                    set.insert(first.0..=first.1);
                    all.push((tail.to_vec(), set));
                }
            }
        }
        let widen = |(low, high)| {
            let mut set = ByteSet::default();
            set.insert(low..=high);
            set
        };
        all.into_iter().map(|(tail, set)| [set].into_iter().chain(tail.into_iter().map(widen)).collect()).collect()
    }
}

/// Cuts a range until its ends differ in one byte only, or in a byte followed by all there is.
fn spell(low: u32, high: u32, out: &mut Vec<Vec<(u8, u8)>>) {
    let mut todo = vec![(low, high)];
    while let Some((low, high)) = todo.pop() {
        if let Some(&border) = LENGTHS.iter().find(|&&border| low < border && border <= high) {
            todo.extend([(low, border - 1), (border, high)]);
            continue;
        }
        let length = 1 + LENGTHS.iter().filter(|&&border| border <= low).count();
        // The last bytes that are not common must run over all of their values.
        let cut = (1..length).map(|bytes| 1u32 << (6 * bytes)).find_map(|block| {
            let (first, last) = (low / block, high / block);
            if first == last {
                None
            } else if low % block != 0 {
                Some((first + 1) * block)
            } else if high % block != block - 1 {
                Some(last * block)
            } else {
                None
            }
        });
        match cut {
            Some(border) => todo.extend([(low, border - 1), (border, high)]),
            None => out.push(encode(low, length).into_iter().zip(encode(high, length)).collect()),
        }
    }
}

/// UTF-8, also of ends of ranges.
fn encode(code: u32, length: usize) -> Vec<u8> {
    if length == 1 {
        return vec![code as u8];
    }
    let lead = [0, 0, 0xC0, 0xE0, 0xF0][length];
    let tail = (0..length - 1).rev().map(|i| 0x80 | (code >> (6 * i) & 0x3F) as u8);
    [lead | (code >> (6 * (length - 1))) as u8].into_iter().chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spells(set: &[Vec<ByteSet>], text: &[u8]) -> usize {
        let fits = |s: &&Vec<ByteSet>| s.len() == text.len() && s.iter().zip(text).all(|(set, &b)| set.contains(b));
        set.iter().filter(fits).count()
    }

    #[test]
    fn every_character_is_spelled_once_or_not_at_all() {
        let tables: [&[(u32, u32)]; 7] = [
            &[(0, LAST)],
            &[(0x22, 0x22), (0x5C, 0x5C), (0, 0x1F), (0x7F, 0x7F)],
            &[(0x41, 0x5A), (0x50, 0x80), (0x7FE, 0x801), (0xFFF0, 0x1000F)],
            &[(0xD000, 0xE123)],
            &[(0xD900, 0xDA00)],
            &[(0x3041, 0x309F), (0x20AC, 0x20AC), (0x10FFFF, 0x10FFFF)],
            &[],
        ];
        for ranges in tables {
            for negated in [false, true] {
                let set = CharSet::new(ranges.to_vec(), negated);
                let sequences = set.sequences();
                assert_eq!(set.is_empty(), sequences.is_empty());
                for c in (0..=LAST).filter_map(char::from_u32) {
                    let within = ranges.iter().any(|&(low, high)| (low..=high).contains(&(c as u32)));
                    let spelled = spells(&sequences, c.encode_utf8(&mut [0; 4]).as_bytes());
                    assert_eq!(spelled, usize::from(within != negated), "{c:?} in {ranges:x?}");
                }
            }
        }
    }

    #[test]
    fn nothing_but_utf_8_is_spelled() {
        let all = CharSet::all().sequences();
        assert!(all.len() <= 9, "{}", all.len());
        for text in [
            &[0x80][..],
            &[0xC0, 0x80],
            &[0xC1, 0xBF],
            &[0xE0, 0x9F, 0xBF],
            &[0xED, 0xA0, 0x80],
            &[0xF0, 0x8F, 0xBF, 0xBF],
            &[0xF4, 0x90, 0x80, 0x80],
            &[0xFF],
        ] {
            assert_eq!(spells(&all, text), 0, "{text:x?}");
        }
    }
}
