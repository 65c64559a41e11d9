//! The index against a search through all of the text, and damaged indexes.

use super::*;
use proptest::prelude::*;

/// The bytes of an index of `documents`.
fn bytes(documents: &[Vec<Token>], vocab: usize) -> Vec<u8> {
    let text = documents.join(&BORDER);
    let sorted = suffix::sort(&text, vocab, &mut |_, _| ());
    let bytes = in_memory(&Key::default(), &text, &sorted);
    assert_eq!(bytes.len(), index::size(&text, &sorted));
    bytes.to_vec()
}

fn documents() -> impl Strategy<Value = Vec<Vec<Token>>> {
    (1u32..4).prop_flat_map(|symbols| prop::collection::vec(prop::collection::vec(0..symbols, 0..80), 1..4))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 700, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_longest_match_is_found(
        documents in documents(), context in prop::collection::vec(0u32..4, 0..24), min in 0usize..5, own in any::<bool>(),
    ) {
        // A context from a document has long matches.
        let context = if own { documents[0][..documents[0].len() / 2].to_vec() } else { context };
        let index = Index::open(bytes(&documents, 4).into(), &Key::default(), 4).unwrap();
        let count = |len: usize| {
            let tail = &context[context.len() - len..];
            documents.iter().map(|d| d.windows(len).filter(|window| *window == tail).count()).sum::<usize>()
        };
        let longest = (min.max(1)..=context.len().min(DEPTH)).rev().find(|&len| count(len) > 0);
        let got = index.find(&context, min);
        prop_assert_eq!(got.as_ref().map(|(len, range)| (*len, range.len())), longest.map(|len| (len, count(len))));
        if let Some((len, range)) = got {
            let tail = &context[context.len() - len..];
            let mut places: Vec<usize> = range.map(|i| index.place(i)).collect();
            let stands = |&at: &usize| tail.iter().zip(at..).all(|(&token, at)| index.token(at) == Some(token));
            prop_assert!(places.iter().all(stands));
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), count(len));
        }
    }

    /// Whatever the bytes say, nothing panics and no guess is outside the vocabulary.
    #[test]
    fn damaged_indexes_are_refused_or_harmless(
        documents in documents(), hits in prop::collection::vec((any::<u32>(), any::<u8>()), 1..6), cut in 0usize..9,
        body in any::<bool>(),
    ) {
        let (vocab, key) = (4, Key::default());
        let mut bytes = bytes(&documents, vocab);
        let whole = bytes.len();
        for (at, byte) in hits {
            let start = if body { 84 } else { 0 };
            let at = start + at as usize % (whole - start).max(1);
            bytes.get_mut(at).into_iter().for_each(|b| *b = byte);
        }
        bytes.truncate(whole - if body { 0 } else { cut });
        let opened = Index::open(bytes.into(), &key, vocab);
        prop_assert!(opened.is_err() || cut == 0 || body, "a cut index is opened");
        if let Ok(index) = opened {
            let mut corpus = Corpus::new(index);
            let matches = corpus.begin(&documents[0], 1);
            let followers: Vec<_> = corpus.followers(matches).collect();
            for (token, _) in followers {
                prop_assert!((token as usize) < vocab);
                corpus.follow(matches, token);
            }
        }
    }
}

#[test]
fn many_matches_are_sampled_evenly() {
    let row = |i: u32| [1, 2, if i.is_multiple_of(4) { 3 } else { 4 }, 5 + i % 7];
    let document: Vec<Token> = (0..40_000).flat_map(row).collect();
    let mut corpus = Corpus::of(&[&document], 13);
    assert_eq!(corpus.tokens(), document.len());
    let matches = corpus.begin(&[12, 1, 2], 1);
    assert_eq!((matches.length(), matches.count()), (2, SAMPLE));
    let followers: Vec<_> = corpus.followers(matches).collect();
    assert_eq!(followers, [(3, SAMPLE / 4), (4, SAMPLE - SAMPLE / 4)]);
    // The order of places is that of what follows them, so even the followers' followers have their shares.
    let three = corpus.follow(matches, 3);
    let after: Vec<usize> = corpus.followers(three).map(|(_, count)| count).collect();
    assert_eq!((three.length(), after.iter().sum::<usize>()), (3, SAMPLE / 4));
    assert!(after.len() == 7 && after.iter().all(|&n| (SAMPLE / 28 - 1..=SAMPLE / 28 + 2).contains(&n)), "{after:?}");
    assert_eq!(corpus.follow(three, 12).count(), 0);
}

#[test]
fn searches_in_a_round_are_few() {
    let mut corpus = Corpus::of(&[&[1, 2, 3]], 4);
    assert_eq!(corpus.begin(&[1], 1).count(), 1);
    (1..SEARCHES).for_each(|_| assert_eq!(corpus.search(&[2], 1).count(), 1));
    assert_eq!(corpus.search(&[2], 1).count(), 0);
    assert_eq!(corpus.begin(&[2], 1).count(), 1);
}

#[test]
fn headers_are_checked() {
    let good = bytes(&[vec![1, 2, 3]], 4);
    let open = |bytes: Vec<u8>| Index::open(bytes.into(), &Key::default(), 4).map(|_| ());
    open(good.clone()).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    for (bytes, needle) in [
        (vec![], "is no corpus index"),
        (good[..63].to_vec(), "is no corpus index"),
        (with(0, b'G'), "is no corpus index"),
        (with(8, 9), "has version 9, supported 1"),
        (with(12, 5), "is of 5 tokens, the vocabulary of 4"),
        (with(40, 1), "was made of something else"),
        (with(23, 0xff), "has lengths beyond any memory"),
        (with(16, 4), "has 108 bytes, 112 belong there"),
        (good[..107].to_vec(), "has 107 bytes, 108 belong there"),
        ([&good[..], &[0]].concat(), "has 109 bytes, 108 belong there"),
        (with(64, 1), "is damaged"),
        (with(72, 200), "is damaged"),
        (with(80, 2), "is damaged"),
    ] {
        let error = format!("{:#}", open(bytes).unwrap_err());
        assert!(error.contains(needle), "{needle}: {error}");
    }
}
