//! Lookup against a search through the whole text.

use super::super::round::draft_of;
use super::*;
use proptest::prelude::*;
use std::time::Instant;

/// The same guesses from the text alone, in quadratic time and more.
struct Naive<'a> {
    text: &'a [Token],
    min: usize,
    width: usize,
}

impl Naive<'_> {
    /// Places in the text that `context` ends at, as counts of tokens.
    fn ends(&self, context: &[Token]) -> Vec<usize> {
        (context.len()..=self.text.len()).filter(|&end| self.text[..end].ends_with(context)).collect()
    }

    /// Tokens after `context`, a suffix of the text with guesses behind it, with their shares and latest places. Of
    /// suffixes that end at the same places the longest counts.
    fn look_up(&self, context: &[Token]) -> Vec<(Token, f64, usize)> {
        let (mut found, mut rest): (Vec<(Token, f64, usize)>, f64) = (vec![], 1.0);
        let mut longer = vec![];
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
            let escape = 1.0 / len as f64;
            let whole = followers.len() as f64 + escape;
            for token in tokens {
                let at: Vec<usize> = followers.iter().filter(|f| f.0 == token).map(|f| f.1).collect();
                if found.iter().all(|f| f.0 != token) {
                    found.push((token, rest * at.len() as f64 / whole, *at.last().unwrap()));
                }
            }
            rest *= escape / whole;
            if found.len() >= self.width || rest < LEAST_REST {
                break;
            }
        }
        found.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.2.cmp(&a.2)));
        found.truncate(self.width);
        found
    }

    /// Guesses with their paths: the best open one is taken until there are enough.
    fn draft(&self, max: usize, budget: usize) -> Vec<(Vec<Token>, f64)> {
        let mut taken: Vec<(Vec<Token>, f64)> = vec![];
        let mut open: Vec<(Vec<Token>, f64, usize)> = vec![];
        let mut from = (vec![], 1.0);
        while taken.len() < budget {
            let (path, share) = from.clone();
            if path.len() < max {
                let context = [self.text, &path[..]].concat();
                for (token, part, recent) in self.look_up(&context) {
                    open.push(([&path[..], &[token]].concat(), part * share, recent));
                }
            }
            let siblings = |p: &[Token]| taken.iter().filter(|t| t.0[..t.0.len() - 1] == p[..p.len() - 1]).count();
            let leaves = taken.iter().filter(|t| taken.iter().all(|u| u.0[..u.0.len() - 1] != t.0[..])).count();
            open.retain(|(path, ..)| siblings(path) == 0 || leaves < self.width);
            let best = (0..open.len()).max_by(|&a, &b| {
                let ((p, x, i), (q, y, j)) = (&open[a], &open[b]);
                let order = |path: &[Token]| taken.iter().position(|t| t.0[..] == path[..path.len() - 1]);
                x.total_cmp(y).then(i.cmp(j)).then(order(q).cmp(&order(p))).then(q.last().cmp(&p.last()))
            });
            let Some(best) = best else { break };
            let (path, share, _) = open.remove(best);
            taken.push((path.clone(), share));
            from = (path, share);
        }
        taken
    }
}

fn told(text: &[Token], min: usize, max: usize, width: usize) -> Lookup {
    let mut lookup = Lookup::new(min, max, width);
    lookup.observe(text).unwrap();
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn lookup_finds_what_a_search_finds(
        text in texts(), min in 1usize..4, max in 1usize..12, width in 1usize..5, budget in 1usize..24,
    ) {
        let got = drafted(&mut told(&text, min, max, width), &text, budget);
        let want = Naive { text: &text, min, width }.draft(max, budget);
        prop_assert_eq!(got.len(), want.len(), "{:?} {:?}", got, want);
        for (got, want) in got.iter().zip(&want) {
            prop_assert_eq!(&got.0, &want.0);
            prop_assert!((got.1 - want.1).abs() < 1e-5 * want.1, "{:?} {:?}", got, want);
        }
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
fn told_in_pieces_or_at_once_and_after_a_reset_is_the_same() {
    let text: Vec<Token> = (0..300).map(|i| i * i % 17).collect();
    let want = drafted(&mut told(&text, 1, 20, 3), &text, 30);
    assert!(want.len() > 10);
    let mut lookup = told(&[1, 2, 3, 4, 1, 2, 3], 1, 20, 3);
    lookup.rewind(&[]).unwrap();
    assert_eq!(drafted(&mut lookup, &[3], 30), []);
    text.chunks(7).for_each(|piece| lookup.observe(piece).unwrap());
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
                lookup.observe(std::slice::from_ref(token)).unwrap();
                draft_of(&mut lookup, &text, 17);
            }
            fastest = fastest.min(started.elapsed().as_secs_f64() / 64.0 * 1e6);
        }
        println!("{name}: {fastest:.1} us a round");
        assert!(fastest < 50.0, "{name}: {fastest} us");
    }
}
