//! Attention of one row over one KV head: all query heads of the group share each read of a key or value.
//!
//! A row sees a sequence of logical positions: committed slots from its window's start, then its ancestors in depth order
//! (for a chain these are simply the next slots). Scores, their exponentials, their sum and the weighted sum of values are
//! all laid out and accumulated by index in that sequence, so neither the batch nor the slot of an ancestor can change a
//! bit (law 2). Scores are f32 throughout: products beyond the range of f16 are harmless.

use super::kv::{LANES, Stored};
use super::math::{exp, tanh};
use crate::isa::{Kernel, Simd, load_part, store_part};
use std::marker::PhantomData;
use std::slice::ChunksExact;

/// The positions a row sees, in order.
#[derive(Clone, Copy)]
pub struct Visible<'a> {
    /// First committed slot within the window; equals `base` when the window starts later.
    pub first: usize,
    /// End of the slots that are seen in sequence from `first`.
    pub end: usize,
    /// Slots seen after those.
    pub rest: &'a [usize],
}

impl Visible<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.end - self.first + self.rest.len()
    }

    #[inline(always)]
    fn slot(&self, i: usize) -> usize {
        let run = self.end - self.first;
        if i < run { self.first + i } else { self.rest[i - run] }
    }
}

/// One row, one KV head, its group of query heads.
pub struct Attend<'a, T> {
    /// `[group, K]`
    pub q: &'a [f32],
    /// This head's keys in blocks and values in rows (see [`super::kv`]).
    pub keys: &'a [u8],
    pub values: &'a [u8],
    /// Bytes of one value.
    pub head_bytes: usize,
    /// Head width `K`.
    pub width: usize,
    pub visible: Visible<'a>,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// Room for `group * visible.len()` rounded up to sixteen a head.
    pub scores: &'a mut [f32],
    /// `[group, K]`
    pub out: &'a mut [f32],
    pub stored: PhantomData<T>,
}

/// Query heads that are taken together, at most.
const TOGETHER: usize = 4;

impl<T: Stored> Kernel for Attend<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Attend { q, width, visible, .. } = self;
        let room = visible.len().next_multiple_of(16);
        let group = q.len() / width;
        let mut head = 0;
        while head < group {
            let n = (group - head).min(TOGETHER);
            let cut = head * width..(head + n) * width;
            let part = Attend::<T> {
                q: &q[cut.clone()],
                scores: &mut self.scores[..n * room],
                out: &mut self.out[cut],
                ..self
            };
            match n {
                1 => part.heads::<S, 1>(room),
                2 => part.heads::<S, 2>(room),
                3 => part.heads::<S, 3>(room),
                _ => part.heads::<S, TOGETHER>(room),
            }
            head += n;
        }
    }
}

impl<T: Stored> Attend<'_, T> {
    #[inline(always)]
    fn heads<S: Simd, const N: usize>(self, room: usize) {
        let Attend { q, keys, values, head_bytes, width, visible, scale, softcap, scores, out, .. } = self;
        let chunks = width / 16;
        let q: [&[f32]; N] = std::array::from_fn(|n| &q[n * width..(n + 1) * width]);
        let keys = keys.chunks_exact(LANES * head_bytes);
        score_run::<S, T, N>(&q, keys.clone(), visible, scale, scores, room);
        score_rest::<S, T, N>(&q, keys, visible, scale, scores, room);

        let mut inverse = [S::splat(0.0); N];
        for n in 0..N {
            let total = softmax::<S>(&mut scores[n * room..][..visible.len()], softcap);
            inverse[n] = S::splat(1.0 / total);
        }

        let mut chunk = 0;
        while chunk < chunks {
            let take = if chunks - chunk >= 4 { 4 } else { 1 };
            let mut sums = [[S::splat(0.0); N]; 4];
            for i in 0..visible.len() {
                let value = &values[visible.slot(i) * head_bytes..][..head_bytes];
                let mut weight = [S::splat(0.0); N];
                for (n, weight) in weight.iter_mut().enumerate() {
                    *weight = S::splat(scores[n * room + i]);
                }
                if take == 4 {
                    for (c, sums) in sums.iter_mut().enumerate() {
                        let v = T::row::<S>(value, chunk + c);
                        for n in 0..N {
                            sums[n] = S::fma(weight[n], v, sums[n]);
                        }
                    }
                } else {
                    let v = T::row::<S>(value, chunk);
                    for n in 0..N {
                        sums[0][n] = S::fma(weight[n], v, sums[0][n]);
                    }
                }
            }
            for (c, sums) in sums.iter().take(take).enumerate() {
                for n in 0..N {
                    let at = n * width + 16 * (chunk + c);
                    store_part::<S>(S::mul(sums[n], inverse[n]), &mut out[at..at + 16]);
                }
            }
            chunk += take;
        }
    }
}

/// Scores of `M` blocks of sixteen keys: for each key one sum, element after element.
#[inline(always)]
fn score_blocks<S: Simd, T: Stored, const N: usize, const M: usize>(
    q: &[&[f32]; N],
    blocks: [&[u8]; M],
    scale: f32,
) -> [[[f32; LANES]; N]; M] {
    let mut sums = [[S::splat(0.0); N]; M];
    for d in 0..q[0].len() {
        for (block, sums) in blocks.iter().zip(&mut sums) {
            let k = T::across::<S>(block, d);
            for (q, sum) in q.iter().zip(sums) {
                *sum = S::fma(k, S::splat(q[d]), *sum);
            }
        }
    }
    let mut scores = [[[0.0; LANES]; N]; M];
    for (sums, scores) in sums.into_iter().zip(&mut scores) {
        for (sum, scores) in sums.into_iter().zip(scores) {
            S::store(S::mul(sum, S::splat(scale)), scores);
        }
    }
    scores
}

/// Scores of the slots that are seen in sequence.
#[inline(always)]
fn score_run<S: Simd, T: Stored, const N: usize>(
    q: &[&[f32]; N],
    keys: ChunksExact<'_, u8>,
    visible: Visible<'_>,
    scale: f32,
    scores: &mut [f32],
    room: usize,
) {
    let Visible { first, end, .. } = visible;
    if first == end {
        return;
    }
    let mut slot = first / LANES * LANES;
    let mut blocks = keys.skip(first / LANES).take(end.div_ceil(LANES) - first / LANES);
    while let Some(one) = blocks.next() {
        match blocks.next() {
            Some(two) => {
                for scored in score_blocks::<S, T, N, 2>(q, [one, two], scale) {
                    place(&scored, slot, visible, scores, room);
                    slot += LANES;
                }
            }
            None => place(&score_blocks::<S, T, N, 1>(q, [one], scale)[0], slot, visible, scores, room),
        }
    }
}

/// Puts the scores of a block that begins at `slot` where the sequence has them.
#[inline(always)]
fn place<const N: usize>(
    scored: &[[f32; LANES]; N],
    slot: usize,
    visible: Visible<'_>,
    scores: &mut [f32],
    room: usize,
) {
    let (from, to) = (visible.first.max(slot), visible.end.min(slot + LANES));
    for (n, scored) in scored.iter().enumerate() {
        let at = n * room + from - visible.first;
        scores[at..at + to - from].copy_from_slice(&scored[from - slot..to - slot]);
    }
}

/// Scores of the slots that are seen after those: blocks whole, of which the lanes that are seen are taken.
#[inline(always)]
fn score_rest<S: Simd, T: Stored, const N: usize>(
    q: &[&[f32]; N],
    mut keys: ChunksExact<'_, u8>,
    visible: Visible<'_>,
    scale: f32,
    scores: &mut [f32],
    room: usize,
) {
    let mut next = 0;
    let mut i = visible.end - visible.first;
    let mut rest = visible.rest.iter().peekable();
    while let Some(&&slot) = rest.peek() {
        let block = slot / LANES;
        let keys = keys.nth(block - next).expect("a seen slot is in the cache");
        next = block + 1;
        let [scored] = score_blocks::<S, T, N, 1>(q, [keys], scale);
        while let Some(&slot) = rest.next_if(|&&slot| slot / LANES == block) {
            for (n, scored) in scored.iter().enumerate() {
                scores[n * room + i] = scored[slot % LANES];
            }
            i += 1;
        }
    }
}

/// Turns scores into exponentials of their distance to the largest; gives their sum.
#[inline(always)]
fn softmax<S: Simd>(scores: &mut [f32], softcap: Option<f32>) -> f32 {
    if let Some(cap) = softcap {
        let (cap, inverse) = (S::splat(cap), S::splat(1.0 / cap));
        for x in scores.chunks_mut(16) {
            store_part::<S>(S::mul(cap, tanh::<S>(S::mul(load_part::<S>(x), inverse))), x);
        }
    }
    let (full, tail) = scores.as_chunks::<16>();
    let mut top = S::splat(f32::MIN);
    for x in full {
        top = S::max(top, S::load(x));
    }
    let top = tail.iter().copied().fold(S::top(top), f32::max);
    let mut sum = S::splat(0.0);
    for x in scores.chunks_mut(16) {
        store_part::<S>(exp::<S>(S::sub(load_part::<S>(x), S::splat(top))), x);
        // Loaded again, so that lanes past the end count as zero.
        sum = S::add(sum, load_part::<S>(x));
    }
    S::sum(sum)
}
