//! Attention of one row over one KV head: all query heads of the group share each read of a key or value.
//!
//! A row sees a sequence of logical positions: committed slots from its window's start, then its ancestors in depth order
//! (for a chain these are simply the next slots). Scores, their exponentials, their sum and the weighted sum of values are
//! all laid out and accumulated by index in that sequence, so neither the batch nor the slot of an ancestor can change a
//! bit (law 2). Scores are f32 throughout: products beyond the range of f16 are harmless.

use super::kv::Stored;
use super::math::{exp, tanh};
use crate::isa::{Kernel, Simd, load_part, store_part};
use std::marker::PhantomData;

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
    /// All slots of the layer, keys and values, from this KV head's first byte on.
    pub keys: &'a [u8],
    pub values: &'a [u8],
    /// Bytes from one slot to the next, and of one head.
    pub stride: usize,
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
        let Attend { q, keys, values, stride, head_bytes, width, visible, scale, softcap, scores, out, .. } = self;
        let chunks = width / 16;

        let q: [&[[f32; 16]]; N] = std::array::from_fn(|n| &q[n * width..(n + 1) * width].as_chunks().0[..chunks]);

        for i in 0..visible.len() {
            let key = &keys[visible.slot(i) * stride..][..head_bytes];
            let mut sums = [S::splat(0.0); N];
            for chunk in 0..chunks {
                let k = T::load::<S>(key, chunk);
                for (sum, q) in sums.iter_mut().zip(&q) {
                    *sum = S::fma(S::load(&q[chunk]), k, *sum);
                }
            }
            for n in 0..N {
                scores[n * room + i] = S::sum(sums[n]) * scale;
            }
        }

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
                let value = &values[visible.slot(i) * stride..][..head_bytes];
                let mut weight = [S::splat(0.0); N];
                for (n, weight) in weight.iter_mut().enumerate() {
                    *weight = S::splat(scores[n * room + i]);
                }
                if take == 4 {
                    for (c, sums) in sums.iter_mut().enumerate() {
                        let v = T::load::<S>(value, chunk + c);
                        for n in 0..N {
                            sums[n] = S::fma(weight[n], v, sums[n]);
                        }
                    }
                } else {
                    let v = T::load::<S>(value, chunk);
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
