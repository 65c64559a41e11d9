//! Picking tokens on the device.

use super::common::blocks::Random;
use super::device::{Buffer, ORDERS, is_there, launch, set_order};
use crate::args;
use foretoken::backend::cuda::kernels;
use foretoken::sample::{Noise, Purpose};

const INF: f32 = f32::INFINITY;
const VOCABULARIES: [usize; 6] = [1, 3, 31, 1000, 1024, 5000];

/// Eight rows: three plain ones, equal logits, a NaN, +inf, all masked, all masked but one.
fn logits(vocab: usize, random: &mut Random) -> Vec<f32> {
    let mut x = random.normals(8 * vocab);
    let mut rows = x.chunks_exact_mut(vocab).skip(2);
    let mut row = || rows.next().unwrap();
    row().iter_mut().for_each(|x| *x = (*x * 2.0).round() + 0.0);
    row().fill(-2.5);
    row()[vocab / 2] = f32::NAN;
    row()[vocab - 1] = INF;
    row().fill(-INF);
    let last = row();
    last.fill(-INF);
    last[vocab - 1] = -1e30;
    x
}

/// Tokens and logits, largest first; nothing where a row has no answer.
fn sorted(row: &[f32]) -> Option<Vec<(u32, f32)>> {
    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).filter(|(_, x)| *x != -INF).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    (!all.is_empty() && row.iter().all(|x| *x < INF)).then_some(all)
}

#[test]
fn the_largest_logits_are_found() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(71), 0);
    for (vocab, order) in VOCABULARIES.into_iter().zip(ORDERS.into_iter().cycle()) {
        set_order(order);
        let x = logits(vocab, &mut random);
        let want: Vec<_> = x.chunks_exact(vocab).map(sorted).collect();
        let from = Buffer::of(&x);
        // 0 stands for the kernel that knows only the largest.
        for k in [0usize, 1, 2, 40, 256] {
            let best = k == 0;
            let k = k.max(1);
            let (counts, tokens, values) = (Buffer::room(32), Buffer::room(32 * k), Buffer::room(32 * k));
            match best {
                true => launch(&kernels::arg_max(8), args![&from, &counts, &tokens, &values, vocab]),
                false => launch(&kernels::top_k(8), args![&from, &counts, &tokens, &values, vocab, k]),
            }
            let (counts, tokens, values) =
                (counts.read::<i32>(8), tokens.read::<u32>(8 * k), values.read::<f32>(8 * k));
            for (row, want) in want.iter().enumerate() {
                let got = (counts[row] >= 0).then(|| {
                    let some = row * k..row * k + counts[row] as usize;
                    let mut got: Vec<_> = tokens[some.clone()].iter().copied().zip(values[some].to_vec()).collect();
                    got.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                    got
                });
                let want = want.as_ref().map(|want| want[..k.min(want.len())].to_vec());
                assert_eq!(got, want, "{vocab} logits, row {row}, k {k}");
                cases += 1;
            }
        }
    }
    println!("{cases} rows, all as sorting has them");
}

#[test]
fn a_draw_is_among_what_the_device_offers() {
    if !is_there() {
        return;
    }
    const ROOM: usize = 4;
    let (mut random, mut draws, mut offered) = (Random(72), 0, 0);
    for (vocab, order) in VOCABULARIES.into_iter().zip(ORDERS.into_iter().cycle()) {
        set_order(order);
        for (temperature, seed) in [(1.0f32, 7u64), (0.2, u64::MAX - 5), (3.0, 1 << 40)] {
            let x = logits(vocab, &mut random);
            let ordinals: Vec<u64> = (0..8).map(|i| i * i + seed % 3).collect();
            let (from, of) = (Buffer::of(&x), Buffer::of(&ordinals));
            let (counts, tokens, values) = (Buffer::room(32), Buffer::room(32 * ROOM), Buffer::room(32 * ROOM));
            let (low, high) = (seed as u32 as usize, (seed >> 32) as usize);
            launch(
                &kernels::gumbel(8),
                args![&from, &counts, &tokens, &values, &of, vocab, ROOM, temperature, low, high],
            );
            let (counts, tokens, values) =
                (counts.read::<i32>(8), tokens.read::<u32>(8 * ROOM), values.read::<f32>(8 * ROOM));
            for (row, x) in x.chunks_exact(vocab).enumerate() {
                let Some(all) = sorted(x) else {
                    assert_eq!(counts[row], -1, "{vocab} logits, row {row}");
                    continue;
                };
                let top = f64::from(all[0].1);
                let weigh = |logit: f32| ((f64::from(logit) - top) / f64::from(temperature)).exp();
                let law: Vec<(u32, f64)> = all.iter().map(|&(token, logit)| (token, weigh(logit))).collect();
                let drawn = Noise::new(seed).draw(ordinals[row], Purpose::Draw, &law);
                let count = counts[row] as usize;
                assert!((1..=ROOM).contains(&count), "{vocab} logits, row {row}: {count} tokens");
                let some = row * ROOM..row * ROOM + count;
                assert!(tokens[some.clone()].contains(&drawn), "{vocab} logits, row {row}: {drawn} is not offered");
                for (&token, &value) in tokens[some.clone()].iter().zip(&values[some]) {
                    assert_eq!(value, x[token as usize]);
                }
                draws += 1;
                offered += count;
            }
        }
    }
    println!("{draws} draws, {offered} tokens offered");
    // The margin is far below the distance of the best two, nearly always.
    assert!(offered <= draws + 1);
}
