//! Sorts the places of a text by the tokens that stand there, up to [`DEPTH`] of them: a suffix array cut off at what
//! will be asked.
//!
//! Because of the cut, text that repeats itself costs no more than any other, and no sort of suffixes in full is needed:
//! places are put into buckets by their first token, and each bucket is sorted by as many of the next tokens as fit into
//! one word, then each run of equal words by the words after it. That reads the text once per word instead of once per
//! comparison, and buckets are independent of each other, so it runs on all cores. The suffix-sorting crates there are
//! bring C with them, take bytes only, or are young translations of C.

use crate::tree::Token;
use rayon::prelude::*;

/// Tokens by which places are sorted.
pub const DEPTH: usize = 16;

/// Runs from this length on are worth sorting on several cores.
const LARGE: usize = 1 << 16;

/// Parts in which the work is reported.
const PARTS: usize = 100;

/// Sorted places.
pub struct Sorted {
    /// For each token where its places begin in `places`, and at last their number.
    pub starts: Vec<u32>,
    /// Places of tokens, ordered by the tokens from there on; equal ones by place.
    pub places: Vec<u32>,
}

/// Sorts all places of `text` with a token less than `vocab`. Any other number ends what comes before it and sorts before
/// all tokens, as the end of the text does. `progress` is told how many places are done, and of how many.
pub fn sort(text: &[Token], vocab: usize, progress: &mut dyn FnMut(usize, usize)) -> Sorted {
    assert!(u32::try_from(text.len()).is_ok() && u32::try_from(vocab).is_ok());
    let known = |&(_, &token): &(usize, &Token)| (token as usize) < vocab;
    let mut starts = vec![0u32; vocab + 1];
    text.iter().enumerate().filter(known).for_each(|(_, &token)| starts[token as usize + 1] += 1);
    for token in 0..vocab {
        starts[token + 1] += starts[token];
    }
    let mut next = starts.clone();
    let mut places = vec![0u32; starts[vocab] as usize];
    for (at, &token) in text.iter().enumerate().filter(known) {
        let slot = &mut next[token as usize];
        places[*slot as usize] = at as u32;
        *slot += 1;
    }
    drop(next);

    let bits = usize::BITS - vocab.leading_zeros();
    let keys = Keys { text, vocab, bits, count: (u64::BITS / bits) as usize };
    let total = places.len();
    let (part, mut rest, mut done) = (total / PARTS + 1, &mut places[..], 0);
    let mut token = 0;
    while token < vocab {
        let mut buckets = vec![];
        let begin = done;
        while token < vocab && done - begin < part {
            let (bucket, others) = rest.split_at_mut((starts[token + 1] - starts[token]) as usize);
            (rest, done, token) = (others, done + bucket.len(), token + 1);
            buckets.push(bucket);
        }
        buckets.into_par_iter().for_each(|bucket| keys.sort(bucket, 1));
        progress(done, total);
    }
    Sorted { starts, places }
}

/// Several tokens in one word, in the order of the tokens.
struct Keys<'a> {
    text: &'a [Token],
    vocab: usize,
    /// Of a token in a key, where 0 is the end.
    bits: u32,
    /// Tokens in a key.
    count: usize,
}

impl Keys<'_> {
    fn key(&self, at: usize) -> u64 {
        let mut key = 0;
        let mut ended = false;
        for i in at..at + self.count {
            let token = self.text.get(i).filter(|&&token| (token as usize) < self.vocab && !ended);
            ended = token.is_none();
            key = key << self.bits | token.map_or(0, |&token| u64::from(token) + 1);
        }
        key
    }

    /// Whether the end is among the tokens of a key: what has it in the same place is equal.
    fn is_last(&self, key: u64) -> bool {
        key & ((1 << self.bits) - 1) == 0
    }

    /// Sorts ascending places that agree in their first `depth` tokens.
    fn sort(&self, places: &mut [u32], depth: usize) {
        if places.len() < 2 || depth >= DEPTH {
            return;
        }
        let keyed = |&place: &u32| (self.key(place as usize + depth), place);
        let mut pairs: Vec<(u64, u32)>;
        if places.len() < LARGE {
            pairs = places.iter().map(keyed).collect();
            pairs.sort_unstable();
        } else {
            pairs = places.par_iter().map(keyed).collect();
            pairs.par_sort_unstable();
        }
        places.iter_mut().zip(&pairs).for_each(|(place, pair)| *place = pair.1);
        // Only the borders are kept: going deeper with the pairs in hand would hold them of all depths at once.
        let runs = pairs.chunk_by(|a, b| a.0 == b.0);
        let runs = runs.map(|run| (run.len(), run.len() > 1 && !self.is_last(run[0].0)));
        let runs: Vec<(u32, bool)> = runs.map(|(len, open)| (len as u32, open)).collect();
        drop(pairs);
        let mut rest = places;
        for (len, open) in runs {
            let (run, others) = rest.split_at_mut(len as usize);
            rest = others;
            if open {
                self.sort(run, depth + self.count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What stands at a place, as far as it counts. Keys may look a little further.
    fn suffix(text: &[Token], vocab: usize, at: u32) -> &[Token] {
        let suffix = &text[at as usize..];
        let end = suffix.iter().position(|&token| token as usize >= vocab).unwrap_or(suffix.len());
        &suffix[..end.min(DEPTH)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn places_are_in_order(
            (vocab, text) in (1usize..6, 0usize..2).prop_flat_map(|(symbols, wide)| {
                // Keys of many tokens and of few. Symbols beyond the vocabulary are borders.
                let (vocab, factor) = if wide == 1 { (1 << 13, 1 << 11) } else { (symbols, 1) };
                let tokens = prop::collection::vec((0..symbols + 1).prop_map(move |s| (s * factor) as Token), 0..200);
                (Just(vocab), tokens)
            }),
        ) {
            let mut told = (0, 0);
            let Sorted { starts, places } = sort(&text, vocab, &mut |done, total| told = (done, total));
            prop_assert_eq!(told, (places.len(), places.len()));
            let mut all: Vec<u32> = (0..text.len() as u32).filter(|&at| (text[at as usize] as usize) < vocab).collect();
            let order = |place: &u32| suffix(&text, vocab, *place);
            prop_assert!(places.is_sorted_by_key(order), "{:?}", places);
            for (token, starts) in starts.windows(2).enumerate() {
                let bucket = &places[starts[0] as usize..starts[1] as usize];
                prop_assert!(bucket.iter().all(|&at| text[at as usize] as usize == token));
            }
            let mut sorted = places;
            sorted.sort_unstable();
            all.sort_unstable();
            prop_assert_eq!(sorted, all);
        }
    }

    #[test]
    fn repetition_costs_no_more() {
        // Every suffix is a prefix of every longer one; a sort that compares them takes a quadratic time. Runs are large,
        // and keys are of three tokens, which end at the depth.
        let text = vec![1; 3 * LARGE];
        let places = sort(&text, 1 << 20, &mut |_, _| ()).places;
        let tail: Vec<u32> = (0..DEPTH - 1).map(|i| (text.len() - 1 - i) as u32).collect();
        assert!(places.starts_with(&tail), "{:?}", &places[..DEPTH]);
        assert!(places[tail.len()..].is_sorted());
    }
}
