//! Lookup against a search through the whole text.

use super::super::round::draft_of;
use super::*;
use proptest::prelude::*;
use std::time::Instant;

/// The same guesses from the texts alone, in quadratic time and more.
struct Naive<'a> {
    text: &'a [Token],
    documents: &'a [Vec<Token>],
    min: usize,
    width: usize,
}

/// Places in documents that a context of so many tokens ends at.
#[derive(Clone, Default)]
struct Found {
    len: usize,
    places: Vec<(usize, usize)>,
}

/// Tokens after a context, with how often and where last they follow.
type Seen = Vec<(Token, usize, usize)>;

impl Naive<'_> {
    /// Places in the text that `context` ends at, as counts of tokens.
    fn ends(&self, context: &[Token]) -> Vec<usize> {
        (context.len()..=self.text.len()).filter(|&end| self.text[..end].ends_with(context)).collect()
    }

    /// What followed suffixes of `context` in the text, longest first. Of those that end at the same places the longest
    /// counts.
    fn seen(&self, context: &[Token]) -> Vec<(usize, Seen)> {
        let (mut all, mut longer) = (vec![], vec![]);
        for len in (self.min..=context.len()).rev() {
            let ends = self.ends(&context[context.len() - len..]);
            if ends.is_empty() || ends == longer {
                continue;
            }
            let followers: Vec<(Token, usize)> =
                ends.iter().filter_map(|&end| Some((*self.text.get(end)?, end + 1))).collect();
            longer = ends;
            let mut tokens: Vec<Token> = followers.iter().map(|f| f.0).collect();
            tokens.sort_unstable();
            tokens.dedup();
            if tokens.len() > WIDEST_FAN as usize {
                break;
            }
            let at = |token| followers.iter().filter(move |f| f.0 == token).map(|f| f.1);
            all.push((len, tokens.iter().map(|&t| (t, at(t).count(), at(t).next_back().unwrap())).collect()));
        }
        all
    }

    /// The longest suffix of `context` in the documents.
    fn find(&self, context: &[Token]) -> Found {
        for len in (self.min..=context.len().min(corpus::DEPTH)).rev() {
            let tail = &context[context.len() - len..];
            let ends = |d: usize| (len..=self.documents[d].len()).map(move |end| (d, end));
            let places = (0..self.documents.len()).flat_map(ends);
            let places: Vec<_> = places.filter(|&(d, end)| self.documents[d][..end].ends_with(tail)).collect();
            if !places.is_empty() {
                return Found { len, places: places.into_iter().filter(|&p| self.after(p).is_some()).collect() };
            }
        }
        Found::default()
    }

    fn after(&self, (document, at): (usize, usize)) -> Option<Token> {
        self.documents[document].get(at).copied()
    }

    fn follow(&self, found: &Found, token: Token) -> Found {
        let kept = found.places.iter().filter(|&&p| self.after(p) == Some(token)).map(|&(d, at)| (d, at + 1));
        Found { len: found.len + 1, places: kept.filter(|&p| self.after(p).is_some()).collect() }
    }

    fn look_up(&self, context: &[Token], found: &Found) -> Vec<(Token, f64, usize)> {
        let mut asked: Vec<(usize, bool, Seen)> = self.seen(context).into_iter().map(|(l, s)| (l, true, s)).collect();
        let mut tokens: Vec<Token> = found.places.iter().filter_map(|&p| self.after(p)).collect();
        tokens.sort_unstable();
        let followers: Seen = tokens.chunk_by(|a, b| a == b).map(|same| (same[0], same.len(), 0)).collect();
        if !followers.is_empty() {
            asked.push((found.len.saturating_sub(CHANCE).max(1), false, followers));
        }
        asked.sort_by_key(|&(len, own, _)| std::cmp::Reverse((len, own)));
        let (mut all, mut rest): (Vec<(Token, f64, usize)>, f64) = (vec![], 1.0);
        for (len, _, seen) in asked {
            if all.len() >= self.width || rest < LEAST_REST {
                break;
            }
            let escape = 1.0 / len as f64;
            let whole = seen.iter().map(|s| s.1).sum::<usize>() as f64 + escape;
            for (token, count, recent) in seen {
                if all.iter().all(|f| f.0 != token) {
                    all.push((token, rest * count as f64 / whole, recent));
                }
            }
            rest *= escape / whole;
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.2.cmp(&a.2)));
        all.truncate(self.width);
        all
    }

    /// Guesses with their paths: the best open one is taken until there are enough.
    fn draft(&self, max: usize, budget: usize) -> Vec<(Vec<Token>, f64)> {
        let mut taken: Vec<(Vec<Token>, f64)> = vec![];
        let mut open: Vec<(Vec<Token>, f64, usize, Found)> = vec![];
        let mut from = (vec![], 1.0, self.find(self.text));
        let mut searches = 1;
        while taken.len() < budget {
            let (path, share, found) = from.clone();
            if path.len() < max {
                let context = [self.text, &path[..]].concat();
                for (token, part, recent) in self.look_up(&context, &found) {
                    open.push(([&path[..], &[token]].concat(), part * share, recent, found.clone()));
                }
            }
            let siblings = |p: &[Token]| taken.iter().filter(|t| t.0[..t.0.len() - 1] == p[..p.len() - 1]).count();
            let leaves = taken.iter().filter(|t| taken.iter().all(|u| u.0[..u.0.len() - 1] != t.0[..])).count();
            open.retain(|(path, ..)| siblings(path) == 0 || leaves < self.width);
            let best = (0..open.len()).max_by(|&a, &b| {
                let ((p, x, i, _), (q, y, j, _)) = (&open[a], &open[b]);
                let order = |path: &[Token]| taken.iter().position(|t| t.0[..] == path[..path.len() - 1]);
                x.total_cmp(y).then(i.cmp(j)).then(order(q).cmp(&order(p))).then(q.last().cmp(&p.last()))
            });
            let Some(best) = best else { break };
            let (path, share, _, above) = open.remove(best);
            let mut found = self.follow(&above, *path.last().unwrap());
            if found.places.is_empty() {
                searches += 1;
                let context = [self.text, &path[..]].concat();
                found = if searches <= corpus::SEARCHES { self.find(&context) } else { Found::default() };
            }
            taken.push((path.clone(), share));
            from = (path, share, found);
        }
        taken
    }
}

fn told(text: &[Token], min: usize, max: usize, width: usize) -> Lookup {
    let mut lookup = Lookup::new(min, max, width);
    lookup.read(text);
    lookup
}

fn drafted(lookup: &mut Lookup, text: &[Token], budget: usize) -> Vec<(Vec<Token>, f64)> {
    let tree = draft_of(lookup, text, budget + 1);
    let path = |id| tree.path(id)[1..].iter().map(|&n| tree.nodes()[n].token).collect();
    (1..tree.nodes().len()).map(|id| (path(id), f64::from(tree.nodes()[id].score).exp())).collect()
}

/// Texts of few symbols, texts that copy pieces of themselves, and texts of one phrase over and over.
fn texts() -> impl Strategy<Value = Vec<Token>> {
    let random = (1u32..6, 0usize..70).prop_flat_map(|(symbols, len)| prop::collection::vec(0..symbols, len + 1));
    let copies = (prop::collection::vec(0u32..40, 1..40), prop::collection::vec((any::<u16>(), 1usize..12), 0..6));
    let copies = copies.prop_map(|(mut text, pieces)| {
        for (at, len) in pieces {
            let at = at as usize % text.len();
            text.extend_from_within(at..(at + len).min(text.len()));
        }
        text
    });
    let loops = (prop::collection::vec(0u32..4, 1..7), 1usize..70);
    let loops = loops.prop_map(|(phrase, len)| phrase.into_iter().cycle().take(len).collect());
    prop_oneof![random, copies, loops]
}

/// Numbers less than this are tokens of the texts.
const VOCAB: usize = 64;

fn compare(mut lookup: Lookup, naive: &Naive<'_>, max: usize, budget: usize) -> Result<(), TestCaseError> {
    lookup.read(naive.text);
    let got = drafted(&mut lookup, naive.text, budget);
    let want = naive.draft(max, budget);
    prop_assert_eq!(got.len(), want.len(), "{:?} {:?}", got, want);
    for (got, want) in got.iter().zip(&want) {
        prop_assert_eq!(&got.0, &want.0);
        prop_assert!((got.1 - want.1).abs() < 1e-5 * want.1, "{:?} {:?}", got, want);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn lookup_finds_what_a_search_finds(
        text in texts(), min in 1usize..4, max in 1usize..12, width in 1usize..5, budget in 1usize..24,
    ) {
        compare(Lookup::new(min, max, width), &Naive { text: &text, documents: &[], min, width }, max, budget)?;
    }

    #[test]
    fn a_corpus_is_searched_too(
        (text, documents) in (texts(), prop::collection::vec(texts(), 1..4)),
        pieces in prop::collection::vec((any::<u16>(), 1usize..25), 0..4),
        min in 1usize..4, max in 1usize..24, width in 1usize..5, budget in 1usize..24,
    ) {
        // Documents have pieces of the text in them, and its end, with something after them.
        let mut documents = documents;
        let count = documents.len();
        for (i, (at, len)) in pieces.into_iter().enumerate() {
            let at = if i == 0 { text.len().saturating_sub(len) } else { at as usize % text.len() };
            let document = &mut documents[i % count];
            let begin = document.len() / 2;
            let piece = text[at..(at + len).min(text.len())].iter().copied();
            document.splice(begin..begin, piece);
        }
        let corpus = Corpus::of(&documents.iter().map(Vec::as_slice).collect::<Vec<_>>(), VOCAB);
        let lookup = Lookup::new(min, max, width).with_corpus(corpus);
        compare(lookup, &Naive { text: &text, documents: &documents, min, width }, max, budget)?;
    }
}

#[test]
fn drafts_are_what_people_expect() {
    type Row<'a> = (&'a [Token], usize, usize, &'a [&'a [Token]]); // text, min, width, paths
    let table: &[Row<'_>] = &[
        (&[1], 1, 4, &[]),
        (&[1, 2, 3, 1, 2], 2, 1, &[&[3], &[3, 1], &[3, 1, 2], &[3, 1, 2, 3]]),
        (&[1, 2, 3, 1, 2], 3, 1, &[]),
        (&[1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 2, 1, &[&[4], &[4, 8], &[4, 8, 1], &[4, 8, 1, 2]]), // the most recent
        (&[1, 2, 3, 9, 1, 2, 3, 7, 1, 2, 4, 8, 1, 2], 2, 1, &[&[3], &[3, 7], &[3, 7, 1], &[3, 7, 1, 2]]), // the most frequent
        (&[5, 1, 2, 3, 9, 6, 1, 2, 4, 8, 5, 1, 2], 2, 1, &[&[3], &[3, 9], &[3, 9, 6], &[3, 9, 6, 1]]), // the longest context
        (&[1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 2, 2, &[&[4], &[3], &[4, 8], &[3, 9]]),
    ];
    for &(text, min, width, want) in table {
        let got: Vec<Vec<Token>> = drafted(&mut told(text, min, 9, width), text, 4).into_iter().map(|g| g.0).collect();
        assert_eq!(got, want, "{text:?} {min} {width}");
    }
}

#[test]
fn the_corpus_fills_what_the_text_leaves() {
    type Row<'a> = (&'a [Token], &'a [&'a [Token]], usize, &'a [&'a [Token]]); // text, documents, width, paths
    let table: &[Row<'_>] = &[
        (&[1, 2, 3], &[&[9, 1, 2, 3, 4, 5, 6, 7]], 1, &[&[4], &[4, 5], &[4, 5, 6], &[4, 5, 6, 7]]),
        (&[1, 2, 3], &[&[1, 2, 3], &[4, 5, 6]], 1, &[]), // no match crosses a border
        (&[1, 2, 3], &[&[1, 2], &[3, 4, 5, 6]], 1, &[]),
        (&[1, 2, 3, 7, 1, 2, 3], &[&[1, 2, 3, 4], &[1, 2, 3, 4]], 1, &[&[7], &[7, 1], &[7, 1, 2], &[7, 1, 2, 3]]), // the text first
        (&[1, 2, 3, 7, 1, 2, 3], &[&[1, 2, 3, 4], &[1, 2, 3, 4]], 2, &[&[7], &[7, 1], &[7, 1, 2], &[7, 1, 2, 3]]),
        (&[8, 1, 2, 3, 7, 6, 5, 4, 3, 2, 1, 2, 3], &[&[6, 5, 4, 3, 2, 1, 2, 3, 9]], 1, &[&[9]]), // much longer
        (
            &[8, 9, 3, 4, 6, 0, 1, 2, 3],
            &[&[6, 0, 1, 2, 3, 8, 9, 3, 5], &[6, 0, 1, 2, 3, 8, 9, 3, 5]],
            1,
            &[&[8], &[8, 9], &[8, 9, 3], &[8, 9, 3, 5]],
        ),
        (&[1, 2, 3], &[&[1, 2, 3, 5, 0], &[1, 2, 3, 4, 0], &[1, 2, 3, 5, 7]], 2, &[&[5], &[4], &[5, 0], &[4, 0]]), // merged
    ];
    for &(text, documents, width, want) in table {
        let mut lookup = Lookup::new(3, 9, width).with_corpus(Corpus::of(documents, VOCAB));
        lookup.read(text);
        let got: Vec<Vec<Token>> = drafted(&mut lookup, text, 4).into_iter().map(|g| g.0).collect();
        assert_eq!(got, want, "{text:?} {documents:?} {width}");
    }
}

#[test]
fn told_in_pieces_or_at_once_and_after_a_reset_is_the_same() {
    let text: Vec<Token> = (0..300).map(|i| i * i % 17).collect();
    let want = drafted(&mut told(&text, 1, 20, 3), &text, 30);
    assert!(want.len() > 10);
    let mut lookup = told(&[1, 2, 3, 4, 1, 2, 3], 1, 20, 3);
    Drafter::<crate::backend::cpu::Cpu>::rewind(&mut lookup, &[]).unwrap();
    assert_eq!(drafted(&mut lookup, &[3], 30), []);
    text.chunks(7).for_each(|piece| lookup.read(piece));
    assert_eq!(drafted(&mut lookup, &text, 30), want);
}

#[test]
fn a_round_takes_microseconds() {
    // The bound is the one of the release build, a busy machine forgiven: the fastest of some runs counts.
    // Of twelve symbols, every three have occurred before, and any may follow.
    let noise = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i << 20).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    type Symbol = fn(u64, u64) -> u64;
    let texts: [(&str, Symbol); 3] =
        [("noise", |_, noise| noise % 12), ("one phrase", |i, _| i % 7), ("one token", |_, _| 5)];
    for (name, token) in texts {
        let text: Vec<Token> = (0..8000 + 64).map(|i| token(i, noise(i)) as Token).collect();
        let mut fastest = f64::MAX;
        for _ in 0..5 {
            let mut lookup = told(&text[..8000], 3, 63, 2);
            let started = Instant::now();
            for token in &text[8000..] {
                lookup.read(std::slice::from_ref(token));
                draft_of(&mut lookup, &text, 17);
            }
            fastest = fastest.min(started.elapsed().as_secs_f64() / 64.0 * 1e6);
        }
        println!("{name}: {fastest:.1} us a round");
        assert!(fastest < 50.0, "{name}: {fastest} us");
    }
}
