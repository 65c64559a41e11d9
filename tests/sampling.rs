//! The sampler from outside: every stage against a naive pipeline, draws against exact distributions, and the cases in
//! which other engines went wrong.

use foretoken::{
    sample::{History, LogitBias, Noise, Purpose, SampleParams, Sampler, gumbel},
    spec::walk,
    tree::{DraftTree, Token},
};
use std::collections::BTreeMap;

const NONE: History<'_> = History { committed: &[], path: &[], start: 0 };
const MASK: f32 = f32::NEG_INFINITY;

/// Everything off, temperature 1.
fn plain() -> SampleParams {
    SampleParams { temp: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() }
}

fn greedy() -> SampleParams {
    SampleParams { temp: 0.0, ..plain() }
}

fn biased(bias: &[(Token, f32)], params: SampleParams) -> SampleParams {
    SampleParams { logit_bias: LogitBias(bias.to_vec()), ..params }
}

fn sampler(params: &SampleParams, seed: u64, vocab_size: usize) -> Sampler {
    Sampler::new(params.clone(), seed, vocab_size, |t| format!("<{t}>").into_bytes()).unwrap()
}

/// `n` pseudo-random numbers below `bound`.
fn numbers(seed: u64, n: u32, bound: u64) -> Vec<u64> {
    (0..n).map(|i| Noise::new(seed).bits(u64::MAX, i, Purpose::Seed) % bound).collect()
}

/// Logits with a long upper tail like a language model's, some ties and some masks.
fn logits(seed: u64, n: u32, spread: f32) -> Vec<f32> {
    let value = |v: u64| (gumbel(v << 48 | 1 << 47) as f32 * 64.0 * spread).round() / 64.0;
    numbers(seed, n, 1 << 16).into_iter().map(|v| if v % 50 == 7 { MASK } else { value(v) }).collect()
}

fn pick(params: &SampleParams, seed: u64, logits: &[f32]) -> Token {
    sampler(params, seed, logits.len()).pick(logits, NONE, 0).unwrap()
}

/// The ids that keep some probability.
fn support(params: &SampleParams, logits: &[f32]) -> Vec<Token> {
    let kept = sampler(params, 0, logits.len()).distribution(logits, NONE, 0).unwrap();
    kept.into_iter().map(|(token, _)| token).collect()
}

/// The pipeline without penalties, written for the eye: every stage sorts, normalises and sums anew.
fn naive(params: &SampleParams, logits: &[f32], coin: f64) -> BTreeMap<Token, f64> {
    type Row = Vec<(Token, f64)>;
    let softmax = |row: &Row, temp: f64| -> Vec<f64> {
        let total: f64 = row.iter().map(|r| ((r.1 - row[0].1) / temp).exp()).sum();
        row.iter().map(|r| ((r.1 - row[0].1) / temp).exp() / total).collect()
    };
    let sort = |row: &mut Row| row.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    let [sigmas, typical, top_p, min_p, xtc_p, xtc_t, temp] = [
        params.top_n_sigma,
        params.typical,
        params.top_p,
        params.min_p,
        params.xtc_probability,
        params.xtc_threshold,
        params.temp,
    ]
    .map(f64::from);
    let mut row: Row = (0..).zip(logits.iter().map(|&l| l.into())).filter(|r| r.1 > f64::NEG_INFINITY).collect();
    sort(&mut row);
    if sigmas > 0.0 {
        let n = row.len() as f64;
        let mean = row.iter().map(|r| r.1).sum::<f64>() / n;
        let sigma = (row.iter().map(|r| (r.1 - mean).powi(2)).sum::<f64>() / n).sqrt();
        let max = row[0].1;
        row.retain(|r| r.1 >= max - sigmas * sigma);
    }
    if params.top_k > 0 {
        row.truncate(params.top_k as usize);
    }
    if typical < 1.0 {
        let p = softmax(&row, 1.0);
        let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
        let mut keyed: Vec<_> = row.iter().zip(&p).map(|(&r, &p)| ((-p.ln() - entropy).abs(), p, r)).collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.0.cmp(&b.2.0)));
        let n = (1..=keyed.len()).find(|&n| keyed[..n].iter().map(|k| k.1).sum::<f64>() > typical);
        row = keyed[..n.unwrap_or(keyed.len())].iter().map(|k| k.2).collect();
        sort(&mut row);
    }
    if top_p < 1.0 {
        let p = softmax(&row, 1.0);
        let n = (1..=p.len()).find(|&n| p[..n].iter().sum::<f64>() >= top_p);
        row.truncate(n.unwrap_or(p.len()));
    }
    let p = softmax(&row, 1.0);
    row.truncate(p.iter().filter(|&&q| q >= min_p * p[0]).count());
    if coin < xtc_p && xtc_t <= 0.5 {
        let choices = softmax(&row, 1.0).iter().filter(|&&p| p >= xtc_t).count();
        row.drain(..choices.saturating_sub(1));
    }
    let p = softmax(&row, temp);
    row.iter().map(|r| r.0).zip(p).filter(|r| r.1 > 0.0).collect()
}

#[test]
fn every_stage_agrees_with_the_naive_pipeline() {
    let default = SampleParams::default;
    let mut table = vec![plain(), default()];
    for x in [0.05, 0.3, 0.7, 0.95] {
        table.push(SampleParams { top_p: x, ..plain() });
        table.push(SampleParams { min_p: x, ..plain() });
        table.push(SampleParams { typical: x, ..plain() });
        table.push(SampleParams { top_n_sigma: x * 3.0, ..plain() });
        table.push(SampleParams { xtc_probability: x, xtc_threshold: x / 10.0, ..plain() });
        table.push(SampleParams { top_k: (x * 100.0) as i32, temp: x, ..plain() });
        table.push(SampleParams { top_k: 300, temp: x, ..plain() });
        table.push(SampleParams { typical: x, xtc_probability: 0.5, ..default() });
        table.push(SampleParams { top_n_sigma: 2.0, top_k: 0, typical: 0.9, top_p: x, temp: 1.5, ..default() });
    }
    for params in &table {
        for (n, spread) in [(3, 1.0), (64, 0.3), (64, 4.0), (1500, 0.01), (1500, 1.0), (1500, 3.0)] {
            for ordinal in 0..4 {
                let logits = logits(ordinal + 100, n, spread);
                let got = sampler(params, 5, logits.len()).distribution(&logits, NONE, ordinal).unwrap();
                let want = naive(params, &logits, Noise::new(5).coin(ordinal, 0, Purpose::Xtc));
                let same = got.len() == want.len()
                    && got.iter().zip(&want).all(|(g, w)| g.0 == *w.0 && (g.1 - w.1).abs() < 1e-12);
                assert!(same, "{params:?} on {n} x {spread}:\n{got:?}\n{want:?}");
            }
        }
    }
}

/// Chi-square of draws against `exact`, and the value it exceeds once in 30,000; cells of fewer than 5 are pooled.
fn chi_square(draws: &[Token], exact: &[(Token, f64)]) -> (f64, f64) {
    let (mut chi, mut cells, mut pool) = (0.0, 0.0, (0.0, 0.0));
    let mut add = |seen: f64, expected: f64| {
        chi += (seen - expected).powi(2) / expected;
        cells += 1.0;
    };
    for &(token, p) in exact {
        let (seen, expected) = (draws.iter().filter(|&&t| t == token).count() as f64, p * draws.len() as f64);
        if expected < 5.0 {
            pool = (pool.0 + seen, pool.1 + expected);
        } else {
            add(seen, expected);
        }
    }
    if pool.1 > 0.0 {
        add(pool.0, pool.1);
    }
    let df: f64 = f64::max(cells - 1.0, 1.0);
    let v = 2.0 / (9.0 * df);
    (chi, df * (1.0 - v + 4.0 * v.sqrt()).powi(3))
}

#[test]
fn draws_follow_the_distribution_over_seeds_and_over_ordinals() {
    let table = [
        plain(),
        SampleParams { temp: 0.3, ..plain() },
        SampleParams { temp: 3.0, ..plain() },
        SampleParams::default(),
        SampleParams { typical: 0.6, ..plain() },
        SampleParams { top_p: 0.7, min_p: 0.1, temp: 2.0, ..plain() },
    ];
    for params in &table {
        for (n, spread) in [(2, 1.0), (40, 0.5), (300, 1.0)] {
            let logits = logits(u64::from(n), n, spread);
            let mut one = sampler(params, 77, logits.len());
            let exact = one.distribution(&logits, NONE, 0).unwrap();
            let by_seed: Vec<Token> = (0..1000).map(|seed| pick(params, seed, &logits)).collect();
            let by_ordinal: Vec<Token> = (0..20_000).map(|o| one.pick(&logits, NONE, o).unwrap()).collect();
            for draws in [by_seed, by_ordinal] {
                assert!(draws.iter().all(|t| exact.iter().any(|e| e.0 == *t)), "{params:?}: outside the support");
                let (chi, limit) = chi_square(&draws, &exact);
                assert!(chi < limit, "{params:?}, {n} tokens, {} draws: {chi} over {limit}", draws.len());
            }
        }
    }
}

#[test]
fn xtc_throws_its_coin_as_often_as_asked() {
    let params = SampleParams { xtc_probability: 0.25, xtc_threshold: 0.2, ..plain() };
    let mut sampler = sampler(&params, 9, 3);
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln() - 0.01];
    // Applied: only the second stays of the two choices. Otherwise all three.
    let kept: Vec<usize> = (0..4000).map(|o| sampler.distribution(&logits, NONE, o).unwrap().len()).collect();
    assert!(kept.iter().all(|&n| n == 2 || n == 3));
    let applied = kept.iter().filter(|&&n| n == 2).count();
    assert!(applied.abs_diff(1000) < 110, "{applied} of 4000"); // 4 deviations
}

#[test]
fn a_pick_is_the_gumbel_argmax_of_the_distribution() {
    // Straight from the definition: no bound, no order, logarithms of the final probabilities.
    for params in [plain(), SampleParams::default(), SampleParams { temp: 0.01, ..plain() }] {
        for n in [5, 500, 5000] {
            let logits = logits(n.into(), n, 1.0);
            for seed in 0..40 {
                let (mut sampler, noise) = (sampler(&params, seed, logits.len()), Noise::new(seed));
                let exact = sampler.distribution(&logits, NONE, seed * 3).unwrap();
                let score = |&(t, p): &(Token, f64)| p.ln() + gumbel(noise.bits(seed * 3, t, Purpose::Draw));
                let want = exact.iter().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap().0;
                assert_eq!(sampler.pick(&logits, NONE, seed * 3).unwrap(), want);
            }
        }
    }
}

#[test]
fn a_pick_depends_on_its_arguments_only() {
    let params = SampleParams {
        repeat_penalty: 1.3,
        frequency_penalty: 0.2,
        dry_multiplier: 0.8,
        xtc_probability: 0.5,
        typical: 0.9,
        ..SampleParams::default()
    };
    let history: Vec<Token> = numbers(1, 300, 20).into_iter().map(|n| n as Token).collect();
    let row = |ordinal: u64| logits(ordinal, 200, 1.0);
    let at = |s: &mut Sampler, o: u64, split: usize| {
        let (committed, path) = history[..o as usize + 20].split_at(split);
        s.pick(&row(o), History { committed, path, start: 0 }, o).unwrap()
    };
    let mut forward = sampler(&params, 4, 200);
    let want: Vec<Token> = (0..100).map(|o| at(&mut forward, o, 0)).collect();
    let mut busy = sampler(&params, 4, 200);
    for o in (0..100).rev() {
        for noise in [o / 2, 99 - o] {
            at(&mut busy, noise, 3);
        }
        busy.distribution(&row(o + 1), NONE, o).unwrap();
        busy.pick(&[f32::NAN; 200], NONE, o).unwrap_err();
        let split = (o as usize * 7) % (o as usize + 20);
        assert_eq!(at(&mut busy, o, split), want[o as usize], "ordinal {o}, {split} committed");
        assert_eq!(at(&mut sampler(&params, 4, 200), o, split), want[o as usize]);
    }
}

/// A model of 12 tokens whose logits depend on the last three.
fn toy(text: &[Token]) -> Vec<f32> {
    let key = text.iter().rev().take(3).fold(0, |h, &t| h * 13 + u64::from(t));
    logits(key, 12, 1.0).into_iter().map(|l| l.max(-20.0)).collect()
}

#[test]
fn no_draft_changes_the_text() {
    let penalised = SampleParams { repeat_penalty: 1.2, presence_penalty: 0.3, dry_multiplier: 0.8, ..plain() };
    let xtc = SampleParams { xtc_probability: 0.5, ..SampleParams::default() };
    for params in [plain(), greedy(), SampleParams::default(), penalised, xtc] {
        for seed in 0..10 {
            let generate = |guess: &dyn Fn(&[Token], &mut DraftTree)| {
                let (mut sampler, mut context, mut steps) = (sampler(&params, seed, 12), vec![1, 2, 3], 0);
                while context.len() < 60 {
                    let mut tree = DraftTree::new(*context.last().unwrap(), 24);
                    guess(&context, &mut tree);
                    let generated = context.len() as u64 - 3;
                    let verdict = walk(&tree, |node| {
                        let path: Vec<Token> = tree.path(node)[1..].iter().map(|&n| tree.nodes()[n].token).collect();
                        let logits = toy(&[context.as_slice(), &path].concat());
                        let ordinal = generated + path.len() as u64;
                        sampler.pick(&logits, History { committed: &context, path: &path, start: 0 }, ordinal)
                    });
                    context.extend(verdict.unwrap().tokens);
                    steps += 1;
                }
                context.truncate(60);
                (context, steps)
            };
            let (want, plain_steps) = generate(&|_, _| ());
            assert_eq!(plain_steps, 57);
            let bushy = |_: &[Token], tree: &mut DraftTree| {
                for i in 0..60 {
                    let parent = (i / 4).min(tree.nodes().len() - 1);
                    let _full = tree.push(parent, i as Token * 5 % 12, 0.0);
                }
            };
            let oracle = |context: &[Token], tree: &mut DraftTree| {
                let ahead = want.iter().skip(context.len()).take(7);
                ahead.fold(0, |node, &token| tree.push(node, token, 0.0).unwrap());
            };
            let liar = |context: &[Token], tree: &mut DraftTree| {
                let ahead = want.iter().skip(context.len()).take(7);
                ahead.fold(0, |node, &token| tree.push(node, (token + 1) % 12, 0.0).unwrap());
            };
            assert_eq!(generate(&liar), (want.clone(), 57));
            assert_eq!(generate(&oracle), (want.clone(), 8));
            let (text, steps) = generate(&bushy);
            assert_eq!(text, want);
            assert!(steps < 57, "the bushy tree never helped");
        }
    }
}

// Rows of the list of faults seen in other engines.

#[test]
fn s1_disabled_values_are_off() {
    let flat = [0.25; 16];
    let off = [
        plain(),
        SampleParams { top_k: 16, ..plain() },
        SampleParams { top_k: 17, ..plain() },
        SampleParams { top_k: i32::MAX, ..plain() },
        SampleParams { top_p: 1.0, min_p: 0.0, typical: 1.0, top_n_sigma: 0.0, ..plain() },
        SampleParams { top_n_sigma: -1.0, xtc_probability: 0.0, dry_multiplier: 0.0, repeat_penalty: 1.0, ..plain() },
        SampleParams { xtc_probability: 1.0, xtc_threshold: 0.6, ..plain() },
    ];
    for params in off {
        let draws: Vec<Token> = (0..1000).map(|seed| pick(&params, seed, &flat)).collect();
        assert_eq!(draws, (0..1000).map(|seed| pick(&plain(), seed, &flat)).collect::<Vec<_>>(), "{params:?}");
        let (chi, limit) = chi_square(&draws, &(0..16).map(|t| (t, 1.0 / 16.0)).collect::<Vec<_>>());
        assert!(chi < limit && (0..16).all(|t| draws.contains(&t)), "{params:?}");
        // Off is off for the least likely token, too.
        assert_eq!(support(&params, &[0.0, -9.0, 3.0, -30.0]), [0, 1, 2, 3], "{params:?}");
    }
    for bad in [-1.0, f32::NAN] {
        let params = SampleParams { top_p: bad, ..plain() };
        let error = Sampler::new(params, 0, 4, |_| Vec::new()).err().unwrap().to_string();
        assert_eq!(error, format!("--top-p: found {bad}, supported 0 to 1"));
    }
}

#[test]
fn s2_cold_and_repeatable() {
    let row = [1.0, 3.0, 2.999, 3.0, MASK];
    for seed in 0..100 {
        assert_eq!(pick(&greedy(), seed, &row), 1, "lowest id on ties");
        for temp in [1e-9, 1e-30, f32::MIN_POSITIVE, 1e-45] {
            let cold = SampleParams { temp, ..plain() };
            assert!([1, 3].contains(&pick(&cold, seed, &row)), "only exact ties are left at {temp}");
            assert_eq!(pick(&cold, seed, &[1.0, 3.0, 2.999, f32::MIN, f32::MIN]), 1);
            let ties = sampler(&cold, seed, 5).distribution(&row, NONE, 0).unwrap();
            assert_eq!(ties, [(1, 0.5), (3, 0.5)], "at {temp}");
        }
        let row = logits(seed, 1000, 1.0);
        let twice = [(); 2].map(|()| sampler(&SampleParams::default(), seed, 1000).pick(&row, NONE, 8).unwrap());
        assert_eq!(twice[0], twice[1]);
    }
    let row = logits(1, 1000, 1.0);
    let seeds: Vec<Token> = (0..50).map(|seed| pick(&plain(), seed, &row)).collect();
    assert!(seeds.iter().any(|&t| t != seeds[0]), "the seed must matter");
    assert!(Sampler::new(SampleParams { temp: -1.0, ..plain() }, 0, 4, |_| Vec::new()).is_err());
    // Arg-max also where typical sampling and XTC would take it away.
    let skewed = [5.0, 4.9, 1.0, 1.0];
    let contrary = SampleParams { typical: 0.1, xtc_probability: 1.0, ..greedy() };
    assert_eq!(sampler(&contrary, 0, 4).distribution(&skewed, NONE, 0).unwrap(), [(0, 1.0)]);
}

#[test]
fn s3_no_numbers() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let table: [(&[f32], &str); 5] = [
        (&[1.0, nan, 2.0], "logits: found NaN for token 1, supported finite numbers and -inf"),
        (&[1.0, 2.0, inf, nan], "logits: found inf for token 2, supported finite numbers and -inf"),
        (&[nan, nan], "logits: found NaN for token 0, supported finite numbers and -inf"),
        (&[MASK, MASK], "logits: every token is masked, none can be picked"),
        (&[], "logits: every token is masked, none can be picked"),
    ];
    let all = [plain(), greedy(), SampleParams::default(), biased(&[], plain()), SampleParams { top_k: 1, ..plain() }];
    for params in all {
        for (row, want) in table {
            let mut sampler = sampler(&params, 0, row.len());
            assert_eq!(sampler.pick(row, NONE, 0).unwrap_err().to_string(), want, "{params:?}");
            assert_eq!(sampler.distribution(row, NONE, 0).unwrap_err().to_string(), want, "{params:?}");
        }
        // All equal is no fault, nor is a mask, nor are the largest numbers.
        let mut sampler = sampler(&params, 0, 3);
        sampler.pick(&[0.0; 3], NONE, 0).unwrap();
        assert_eq!(sampler.pick(&[MASK, 0.0, MASK], NONE, 0).unwrap(), 1);
        assert_eq!(sampler.pick(&[f32::MIN, f32::MIN, f32::MAX], NONE, 0).unwrap(), 2);
        let error = sampler.pick(&[0.0; 2], NONE, 0).unwrap_err().to_string();
        assert_eq!(error, "logits: found 2 values, the vocabulary has 3 tokens");
    }
}

#[test]
fn s5_temperature_comes_after_truncation() {
    let row = [3.0, 2.0, 1.0];
    for temp in [0.1, 0.5, 1.0, 5.0] {
        let params = SampleParams { top_p: 0.8, temp, ..plain() };
        let kept = sampler(&params, 0, 3).distribution(&row, NONE, 0).unwrap();
        let p = 1.0 / (1.0 + (-1.0 / f64::from(temp)).exp());
        assert!(kept.len() == 2 && (kept[0].1 - p).abs() < 1e-12 && kept[1].0 == 1, "T {temp}: {kept:?}");
    }
    // The cut before sees the penalty: token 0 falls behind and top-k 2 leaves the others.
    let params = SampleParams { top_k: 2, presence_penalty: 2.5, ..plain() };
    let history = History { committed: &[0], path: &[], start: 0 };
    let kept = sampler(&params, 0, 3).distribution(&row, history, 0).unwrap();
    assert_eq!(kept.iter().map(|k| k.0).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn s6_biases_apply_first_and_everywhere() {
    let row = [0.5, 2.0, 1.8, 1.0];
    let top_1 = SampleParams { top_k: 1, ..plain() };
    // bias -> the token of arg-max and top-k 1
    let table: [(&[(Token, f32)], Token); 6] = [
        (&[], 1),
        (&[(1, MASK)], 2),
        (&[(1, -100.0)], 2),
        (&[(2, 1.0)], 2),
        (&[(1, MASK), (2, -100.0)], 3),
        (&[(0, 1.0), (0, 1.0)], 0),
    ];
    for (bias, want) in table {
        for seed in 0..20 {
            assert_eq!(pick(&biased(bias, greedy()), seed, &row), want, "{bias:?}");
            assert_eq!(pick(&biased(bias, top_1.clone()), seed, &row), want, "{bias:?}");
        }
    }
    assert_eq!(support(&biased(&[(1, MASK)], plain()), &row), [0, 2, 3], "banned at every temperature");
    assert_eq!(pick(&biased(&[(0, 50.0)], greedy()), 0, &[MASK, 0.0]), 1, "a bias does not lift a mask");
    let params = biased(&[(4, 1.0)], greedy());
    let error = Sampler::new(params, 0, 4, |_| Vec::new()).err().unwrap().to_string();
    assert_eq!(error, "--logit-bias: found token id 4, the vocabulary has 4 tokens");
}

#[test]
fn s7_everything_banned_is_an_error() {
    let ban: Vec<(Token, f32)> = (0..4).map(|t| (t, MASK)).collect();
    for params in [plain(), greedy(), SampleParams::default()] {
        let outcome = sampler(&biased(&ban, params), 0, 4).pick(&[1.0, 2.0, 3.0, 4.0], NONE, 0);
        assert_eq!(outcome.unwrap_err().to_string(), "logits: every token is masked, none can be picked");
    }
}

/// Greedy and top-k picks are a few passes over the logits: far cheaper than sorting them, in one run on one machine.
#[test]
fn picks_do_not_sort_the_vocabulary() {
    let fastest = |runs: u64, f: &mut dyn FnMut(u64)| {
        let times = (0..runs).map(|i| {
            let started = std::time::Instant::now();
            f(i);
            started.elapsed()
        });
        times.min().unwrap()
    };
    let row = logits(1, 49_152, 1.5);
    let sort = fastest(10, &mut |_| {
        let mut sorted = row.clone();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        std::hint::black_box(sorted);
    });
    for (name, params) in [
        ("greedy", greedy()),
        ("default", SampleParams::default()),
        ("top-k 40", SampleParams { top_k: 40, ..plain() }),
    ] {
        let mut sampler = sampler(&params, 1, row.len());
        let pick = fastest(100, &mut |ordinal| {
            std::hint::black_box(sampler.pick(&row, NONE, ordinal).unwrap());
        });
        assert!(pick * 3 < sort, "{name}: {pick:?}, sorting takes {sort:?}");
    }
}

/// Logits of some tokens are ranked as those of all are when the others have none, edited or not.
#[test]
fn some_tokens_are_ranked_like_all() {
    let history = History { committed: &[3, 9, 12], path: &[9], start: 1 };
    let penalised = SampleParams { repeat_penalty: 1.4, ..plain() };
    for params in [greedy(), plain(), biased(&[(9, 4.0), (30, MASK)], greedy()), penalised] {
        for seed in 0..40 {
            let ids: Vec<Token> = (0..300).rev().step_by(3).collect();
            let some = logits(seed, 100, 2.0);
            let mut all = vec![MASK; 300];
            ids.iter().zip(&some).for_each(|(&id, &logit)| all[id as usize] = logit);
            let mut sampler = sampler(&params, seed, 300);
            let got = sampler.rank(&some, Some(&ids), history, 5, (8, true)).unwrap();
            assert_eq!(got.len(), 8);
            let want = sampler.rank(&all, None, history, 5, (8, true)).unwrap();
            let close = |(a, b): (&(Token, f64), &(Token, f64))| a.1 == b.1 || (a.1 / b.1 - 1.0).abs() < 1e-9;
            assert!(got.iter().zip(&want).all(close), "{got:?} {want:?}");
            // Equal logits at a cut may go either way.
            let sum = |all: &[(Token, f64)]| all.iter().map(|&(_, share)| share).sum::<f64>();
            assert!((sum(&got) - sum(&want)).abs() < 1e-9);
        }
    }
}
