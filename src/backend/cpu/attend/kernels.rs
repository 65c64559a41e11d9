//! The steps of attention over one block of positions, for the query heads of a tile.
//!
//! While keys are read, the values at the same places of the page are asked for, and while values are read, the keys of the
//! next page: a page is far enough for memory to keep up, and without it one thread takes 2.5 times as long.

#![allow(clippy::needless_range_loop)] // one index into several arrays of registers

use super::ROOM;
use crate::backend::cpu::kv::{LANES, Stored};
use crate::backend::cpu::math::{exp, tanh};
use crate::isa::{Kernel, Simd, load_part};
use std::marker::PhantomData;
use std::ops::Range;

/// Query heads that are taken together, at most.
const TOGETHER: usize = 6;

/// Runs `$call::<N>` for evenly many of `$count` queries at a time.
macro_rules! together {
    ($count:expr, |$first:ident, $n:ident| $call:expr) => {{
        let count = $count;
        let mut $first = 0;
        while $first < count {
            let left = count - $first;
            let take = left.div_ceil(left.div_ceil(TOGETHER));
            match take {
                1 => {
                    const $n: usize = 1;
                    $call
                }
                2 => {
                    const $n: usize = 2;
                    $call
                }
                3 => {
                    const $n: usize = 3;
                    $call
                }
                4 => {
                    const $n: usize = 4;
                    $call
                }
                5 => {
                    const $n: usize = 5;
                    $call
                }
                _ => {
                    const $n: usize = 6;
                    $call
                }
            }
            $first += take;
        }
    }};
}

/// Calls for `$count` things, four or two at a time where the sums of `$N` queries fit into registers, each `$size` from number
/// `$at` on.
macro_rules! by_room {
    ($S:ty, $N:expr, $count:expr, |$at:ident, $size:ident| $call:expr) => {{
        let count = $count;
        let mut $at = 0;
        by_room!(@while $at, 4, 4 * $N <= <$S>::SUMS, count, $size, $call);
        by_room!(@while $at, 2, 2 * $N <= <$S>::SUMS, count, $size, $call);
        by_room!(@while $at, 1, true, count, $size, $call);
    }};
    (@while $at:ident, $step:literal, $fits:expr, $count:ident, $size:ident, $call:expr) => {
        if $fits {
            const $size: usize = $step;
            while $at + $size <= $count {
                $call;
                $at += $size;
            }
        }
    };
}

/// Scores of every query with blocks of sixteen keys: for each key one sum, element after element.
pub struct Scores<'a, T> {
    /// `[queries, K]`
    pub queries: &'a [f32],
    pub width: usize,
    pub keys: &'a [&'a [u8]],
    /// How far beyond a key there is something that will be read next.
    pub ahead: usize,
    pub scale: f32,
    /// `[queries, ROOM]` (the last may be shorter)
    pub scores: &'a mut [f32],
    pub stored: PhantomData<T>,
}

impl<T: Stored> Kernel for Scores<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        together!(self.queries.len() / self.width, |first, N| self.some::<S, N>(first));
    }
}

impl<T: Stored> Scores<'_, T> {
    #[inline(always)]
    fn some<S: Simd, const N: usize>(&mut self, first: usize) {
        by_room!(S, N, self.keys.len(), |at, M| self.blocks::<S, N, M>(first, at));
    }

    #[inline(always)]
    fn blocks<S: Simd, const N: usize, const M: usize>(&mut self, first: usize, at: usize) {
        let width = self.width;
        // The first queries bring the values into the cache, the others have them there.
        let ahead = if first == 0 { self.ahead } else { 0 };
        let mut keys: [&[u8]; M] = [&[]; M];
        keys.copy_from_slice(&self.keys[at..at + M]);
        let mut q: [&[f32]; N] = [&[]; N];
        for (n, q) in q.iter_mut().enumerate() {
            *q = &self.queries[(first + n) * width..][..width];
        }
        let mut sums = [[S::splat(0.0); N]; M];
        for d in 0..width {
            let mut k = [S::splat(0.0); M];
            for m in 0..M {
                k[m] = T::across::<S>(keys[m], d);
                if d % 2 == 0 {
                    S::prefetch(keys[m].as_ptr().wrapping_add(d * T::BYTES + ahead));
                }
            }
            for n in 0..N {
                let q = S::splat(q[n][d]);
                for m in 0..M {
                    sums[m][n] = S::fma(k[m], q, sums[m][n]);
                }
            }
        }
        for n in 0..N {
            let scores = &mut self.scores[(first + n) * ROOM + at * LANES..];
            for m in 0..M {
                let scores = scores[m * LANES..].first_chunk_mut().expect("room for every score");
                S::store(S::mul(sums[m][n], S::splat(self.scale)), scores);
            }
        }
    }
}

/// Turns the scores of every query that are seen into exponentials of their distance to the largest, the others beside them
/// into zeros; gives the largest and the sum of each.
pub struct Weigh<'a> {
    /// `[queries, ROOM]`
    pub scores: &'a mut [f32],
    pub seen: Range<usize>,
    pub softcap: Option<f32>,
    /// `[queries]`
    pub tops: &'a mut [f32],
    /// `[queries]`
    pub totals: &'a mut [f32],
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        together!(self.tops.len(), |first, N| self.some::<S, N>(first));
    }
}

impl Weigh<'_> {
    /// Queries in turns, as each has to wait for itself.
    #[inline(always)]
    fn some<S: Simd, const N: usize>(&mut self, first: usize) {
        let (from, end) = (self.seen.start / LANES, self.seen.end.div_ceil(LANES));
        let scores = &mut self.scores[first * ROOM..][..N * ROOM];
        let place = |n: usize, strip: usize| n * ROOM + strip * LANES;
        if let Some(cap) = self.softcap {
            let (cap, inverse) = (S::splat(cap), S::splat(1.0 / cap));
            for n in 0..N {
                for x in scores[place(n, from)..place(n, end)].as_chunks_mut::<LANES>().0 {
                    S::store(S::mul(cap, tanh::<S>(S::mul(S::load(x), inverse))), x);
                }
            }
        }
        let beside = |scores: &mut [f32], n: usize, x: f32| {
            scores[place(n, from)..n * ROOM + self.seen.start].fill(x);
            scores[n * ROOM + self.seen.end..place(n, end)].fill(x);
        };
        for n in 0..N {
            beside(scores, n, f32::MIN);
        }
        let mut tops = [S::splat(f32::MIN); N];
        for strip in from..end {
            for n in 0..N {
                let x = scores[place(n, strip)..].first_chunk().expect("room for every score");
                tops[n] = S::max(tops[n], S::load(x));
            }
        }
        for n in 0..N {
            self.tops[first + n] = S::top(tops[n]);
            tops[n] = S::splat(self.tops[first + n]);
        }
        for strip in from..end {
            for n in 0..N {
                let x = scores[place(n, strip)..].first_chunk_mut().expect("room for every score");
                S::store(exp::<S>(S::sub(S::load(x), tops[n])), x);
            }
        }
        for n in 0..N {
            beside(scores, n, 0.0);
        }
        let mut totals = [S::splat(0.0); N];
        for strip in from..end {
            for n in 0..N {
                let x = scores[place(n, strip)..].first_chunk().expect("room for every score");
                totals[n] = S::add(totals[n], S::load(x));
            }
        }
        for n in 0..N {
            self.totals[first + n] = S::sum(totals[n]);
        }
    }
}

/// Adds weighted values, one after the other, to the sums of every query.
pub struct Values<'a, T> {
    /// `[queries, ROOM]` (the last may be shorter), from the first value's on.
    pub weights: &'a [f32],
    /// Rows.
    pub values: &'a [u8],
    pub head_bytes: usize,
    /// How far beyond a value there is something that will be read next.
    pub ahead: usize,
    pub width: usize,
    /// `[queries, K]`
    pub sums: &'a mut [f32],
    pub stored: PhantomData<T>,
}

impl<T: Stored> Kernel for Values<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        together!(self.sums.len() / self.width, |first, N| self.some::<S, N>(first));
    }
}

impl<T: Stored> Values<'_, T> {
    #[inline(always)]
    fn some<S: Simd, const N: usize>(&mut self, first: usize) {
        by_room!(S, N, self.width / 16, |at, C| self.chunks::<S, N, C>(first, at));
    }

    #[inline(always)]
    fn chunks<S: Simd, const N: usize, const C: usize>(&mut self, first: usize, at: usize) {
        let width = self.width;
        let ahead = if first == 0 { self.ahead } else { 0 };
        let count = self.values.len() / self.head_bytes;
        let mut weights: [&[f32]; N] = [&[]; N];
        for (n, weights) in weights.iter_mut().enumerate() {
            *weights = &self.weights[(first + n) * ROOM..][..count];
        }
        let mut sums = [[S::splat(0.0); N]; C];
        for n in 0..N {
            for c in 0..C {
                sums[c][n] = load_part::<S>(&self.sums[(first + n) * width + 16 * (at + c)..]);
            }
        }
        for (i, value) in self.values.chunks_exact(self.head_bytes).enumerate() {
            let mut v = [S::splat(0.0); C];
            for c in 0..C {
                v[c] = T::row::<S>(value, at + c);
                if c % 2 == 0 {
                    S::prefetch(value.as_ptr().wrapping_add((at + c) * T::BYTES + ahead));
                }
            }
            for n in 0..N {
                let weight = S::splat(weights[n][i]);
                for c in 0..C {
                    sums[c][n] = S::fma(weight, v[c], sums[c][n]);
                }
            }
        }
        for n in 0..N {
            for c in 0..C {
                let sum = &mut self.sums[(first + n) * width + 16 * (at + c)..];
                S::store(sums[c][n], sum.first_chunk_mut().expect("a head is whole chunks"));
            }
        }
    }
}

/// Merges what a block came to into what those before it came to: sums of values of one row's query heads, and in lanes
/// the largest scores and the sums of weights.
pub struct Merge<'a> {
    pub from: [&'a [f32]; 3],
    pub into: [&'a mut [f32]; 3],
    pub group: usize,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let ([sums, tops, totals], [sums_to, tops_to, totals_to]) = (self.from, self.into);
        let width = sums.len() / self.group;
        let lanes = tops.as_chunks::<LANES>().0.iter().zip(totals.as_chunks::<LANES>().0);
        let lanes_to = tops_to.as_chunks_mut::<LANES>().0.iter_mut().zip(totals_to.as_chunks_mut::<LANES>().0);
        let heads = sums.chunks(LANES * width).zip(sums_to.chunks_mut(LANES * width));
        for (((tops, totals), (tops_to, totals_to)), (sums, sums_to)) in lanes.zip(lanes_to).zip(heads) {
            let (new, old) = (S::load(tops), S::load(tops_to));
            let top = S::max(new, old);
            let (new, old) = (exp::<S>(S::sub(new, top)), exp::<S>(S::sub(old, top)));
            S::store(top, tops_to);
            S::store(S::fma(S::load(totals), new, S::mul(S::load(totals_to), old)), totals_to);
            let mut factors = [[0.0; LANES]; 2];
            S::store(new, &mut factors[0]);
            S::store(old, &mut factors[1]);
            let heads = sums.chunks_exact(width).zip(sums_to.chunks_exact_mut(width));
            for ((sums, sums_to), (new, old)) in heads.zip(factors[0].iter().zip(&factors[1])) {
                let (new, old) = (S::splat(*new), S::splat(*old));
                for (sum, sum_to) in sums.as_chunks::<16>().0.iter().zip(sums_to.as_chunks_mut::<16>().0) {
                    S::store(S::fma(S::load(sum), new, S::mul(S::load(sum_to), old)), sum_to);
                }
            }
        }
    }
}

/// Weighted sums over the sums of the weights.
pub struct Finish<'a> {
    /// `[group, K]`
    pub sums: &'a [f32],
    pub totals: &'a [f32],
    pub width: usize,
    /// `[group, K]`
    pub out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let heads = self.sums.chunks_exact(self.width).zip(self.out.chunks_exact_mut(self.width));
        for ((sums, out), &total) in heads.zip(self.totals) {
            let inverse = S::splat(1.0 / total);
            for (sum, out) in sums.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0) {
                S::store(S::mul(S::load(sum), inverse), out);
            }
        }
    }
}
