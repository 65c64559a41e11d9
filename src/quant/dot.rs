//! The kernel that multiplies packed weights of the integer formats with int8 activations.
//!
//! It takes a *tile* at a time, as many rows of the batch and panels as registers have sums for, and unpacks a step once for
//! all of it; every output has one accumulator that takes its steps in order, whatever the batch or the split over threads
//! (law 1). Sums of a step are exact in int32, so instruction sets agree to the bit as well.

#![allow(clippy::needless_range_loop)] // one index into several arrays of registers

use super::panel::{AHEAD, Activations, Packed, STEP, Scales, bytes, quant_bytes};
use super::{Dot, Input, Out};
use crate::isa::{Isa, Kernel, Simd};
use std::marker::PhantomData;

/// Products of one or more panels with the rows of a batch; the kernel of every integer format.
pub fn dot<P: Packed>(isa: Isa, call: Dot<'_>) {
    isa.dispatch(Panels::<P>(call, PhantomData));
}

struct Panels<'a, P>(Dot<'a>, PhantomData<P>);

/// Calls a function made for so many rows; those that an instruction set has no tiles of are left out.
macro_rules! by_rows {
    ($rows:expr, $function:ident::<S, P, M>($($argument:expr),*)) => {
        match $rows {
            1 if M == 1 => $function::<S, P, M, 1>($($argument),*),
            2 if M == 1 => $function::<S, P, M, 2>($($argument),*),
            3 if M == 1 => $function::<S, P, M, 3>($($argument),*),
            4 => $function::<S, P, M, 4>($($argument),*),
            5 if S::TILES[M - 1] >= 5 => $function::<S, P, M, 5>($($argument),*),
            6 if S::TILES[M - 1] >= 6 => $function::<S, P, M, 6>($($argument),*),
            7 if S::TILES[M - 1] >= 7 => $function::<S, P, M, 7>($($argument),*),
            8 if S::TILES[M - 1] >= 8 => $function::<S, P, M, 8>($($argument),*),
            _ => unreachable!("a tile has that many rows"),
        }
    };
}

impl<P: Packed> Kernel for Panels<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Dot { panels, cols, input, mut out } = self.0;
        let Input::Int8(x) = input else { panic!("integer weights take int8 activations") };
        let size = bytes::<P>(cols);
        let mut panels = panels;
        while !panels.is_empty() {
            // Few rows wait for memory, and a core reads one stream faster than two.
            let together = if S::TILES[1] == 0 || out.rows() <= S::TILES[0] || panels.len() == size { 1 } else { 2 };
            match together {
                2 => group::<S, P, 2>(panels, cols, x, &mut out),
                _ => group::<S, P, 1>(panels, cols, x, &mut out),
            }
            for _ in 0..together {
                out.next_panel();
            }
            panels = &panels[together * size..];
        }
    }
}

/// `M` panels and all rows, in tiles as even as can be.
#[inline(always)]
fn group<S: Simd, P: Packed, const M: usize>(panels: &[u8], cols: usize, x: &[Activations], out: &mut Out<'_>) {
    let (steps, size, rows) = (cols / STEP, bytes::<P>(cols), out.rows());
    let parts: Parts<'_, M> = std::array::from_fn(|m| panels[m * size..][..size].split_at(quant_bytes::<P>(cols)));
    let mut tiles = rows.div_ceil(S::TILES[M - 1]);
    let lines = (M * size / 64).div_ceil((tiles * steps).max(1));
    let mut ahead = Ahead { at: panels.as_ptr().wrapping_add(M * size), lines };
    let mut first = 0;
    while first < rows {
        if M == 1 {
            ahead.at = panels.as_ptr().wrapping_add(size.max(AHEAD));
        }
        let height = (rows - first).div_ceil(tiles);
        let x = &x[first * steps..];
        by_rows!(height, tile::<S, P, M>(&parts, steps, x, first, out, &mut ahead));
        (first, tiles) = (first + height, tiles - 1);
    }
}

/// What is asked for while there is something else to do, the panels after those at hand: as much as is taken, line by line
/// between multiplications, where one panel is at hand; otherwise some lines before each step.
struct Ahead {
    at: *const u8,
    lines: usize,
}

impl Ahead {
    #[inline(always)]
    fn ask<S: Simd>(&mut self) {
        for _ in 0..self.lines {
            S::prefetch(self.at);
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// Bytes of a panel that a step takes.
const fn step_bytes<P: Packed>() -> usize {
    P::SLOTS * 64 + P::SCALES * STEP / P::BLOCK
}

/// Quants and scales of `M` panels.
type Parts<'a, const M: usize> = [(&'a [u8], &'a [u8]); M];

/// `N` rows of the batch, from row `first` on, `x` theirs, against `M` panels.
#[inline(always)]
fn tile<S: Simd, P: Packed, const M: usize, const N: usize>(
    parts: &Parts<'_, M>,
    steps: usize,
    x: &[Activations],
    first: usize,
    out: &mut Out<'_>,
    ahead: &mut Ahead,
) {
    let x: [&[Activations]; N] = std::array::from_fn(|n| &x[n * steps..][..steps]);
    let mut sums = [[S::splat(0.0); N]; M];
    let per_block = P::BLOCK / STEP;
    for block in 0..steps / per_block {
        let scales: [&[u8]; M] = std::array::from_fn(|m| &parts[m].1[block * P::SCALES..][..P::SCALES]);
        for within in 0..per_block {
            if M > 1 {
                ahead.ask::<S>();
            }
            let step = block * per_block + within;
            let slots: [&[[u8; 64]]; M] =
                std::array::from_fn(|m| &parts[m].0.as_chunks::<64>().0[step * P::SLOTS..][..P::SLOTS]);
            let mut by = [Scales::<S>::whole(S::splat(0.0), S::splat(0.0)); M];
            for m in 0..M {
                by[m] = P::scales::<S>(scales[m], within);
            }
            let now: [&Activations; N] = std::array::from_fn(|n| &x[n][step]);
            advance::<S, P, M, N>(&mut sums, &slots, &by, &now, ahead.at);
            if M == 1 {
                ahead.at = ahead.at.wrapping_add(step_bytes::<P>());
            }
        }
    }
    for m in 0..M {
        for n in 0..N {
            out.put::<S>(m, first + n, sums[m][n]);
        }
    }
}

/// Groups whose sums are widened together where an instruction set adds pairs (see [`Simd::pairs`]).
const fn run<P: Packed>() -> usize {
    let (fit, groups) = (1 << 7u32.saturating_sub(P::BITS), if P::HALVES { 4 } else { 8 });
    if fit < groups { fit } else { groups }
}

/// Adds to `total` the products of some groups, written out for the shifts to be constants. For each group all sums in
/// turns: none waits for the one before.
macro_rules! dots {
    ($s:ident, $p:ident, $m:ident, $n:ident, $total:ident, $slots:ident, $x:ident, $ahead:ident; $($g:literal)*) => {
        let mut pairs = [[$s::isplat(0); $n]; $m];
        $({
            let mut w = [$s::bytes(&$slots[0][0]); $m];
            for m in 0..$m {
                w[m] = $p::quants::<$s>($slots[m], $g);
            }
            if $m == 1 {
                for line in ($g..step_bytes::<$p>().div_ceil(64)).step_by(8) {
                    $s::prefetch($ahead.wrapping_add(64 * line));
                }
            }
            for n in 0..$n {
                let x = $x[n].quants[$g];
                for m in 0..$m {
                    if $p::BITS == 8 {
                        $total[m][n] = $s::dot_wide($total[m][n], w[m], x);
                    } else if $s::PAIRS {
                        pairs[m][n] = $s::pairs(pairs[m][n], w[m], x);
                    } else {
                        $total[m][n] = $s::dot($total[m][n], w[m], x);
                    }
                }
            }
            if $p::BITS < 8 && $s::PAIRS && ($g + 1) % run::<$p>() == 0 {
                for n in 0..$n {
                    for m in 0..$m {
                        $total[m][n] = $s::widen($total[m][n], pairs[m][n]);
                        pairs[m][n] = $s::isplat(0);
                    }
                }
            }
        })*
    };
}

/// One step: for `M` panels and `N` rows sixteen sums each, thirty-two columns on. Beside one panel as much is asked for
/// from `ahead` on.
#[inline(always)]
fn advance<S: Simd, P: Packed, const M: usize, const N: usize>(
    sums: &mut [[S::F; N]; M],
    slots: &[&[[u8; 64]]; M],
    by: &[Scales<S>; M],
    x: &[&Activations; N],
    ahead: *const u8,
) {
    if P::HALVES {
        let mut total = begin::<S, P, M, N>(x, 1);
        dots!(S, P, M, N, total, slots, x, ahead; 0 1 2 3);
        end::<S, P, M, N>(sums, &total, by, x, 1);
        let mut total = begin::<S, P, M, N>(x, 2);
        dots!(S, P, M, N, total, slots, x, ahead; 4 5 6 7);
        end::<S, P, M, N>(sums, &total, by, x, 2);
    } else {
        let mut total = begin::<S, P, M, N>(x, 0);
        dots!(S, P, M, N, total, slots, x, ahead; 0 1 2 3 4 5 6 7);
        end::<S, P, M, N>(sums, &total, by, x, 0);
    }
}

/// What sums of quants begin with: their shift times the activations', taken off. `part` is that of [`Activations::totals`].
#[inline(always)]
fn begin<S: Simd, P: Packed, const M: usize, const N: usize>(x: &[&Activations; N], part: usize) -> [[S::I; N]; M] {
    let mut total = [[S::isplat(0); N]; M];
    if let Some(shift) = if P::BITS == 8 { S::WIDE_SHIFT } else { P::SHIFT } {
        for n in 0..N {
            let start = S::isub(S::isplat(0), S::ishl(S::isplat(x[n].totals[part]), shift));
            for m in 0..M {
                total[m][n] = start;
            }
        }
    }
    total
}

/// Adds sums of quants to `sums` as what they are worth.
#[inline(always)]
fn end<S: Simd, P: Packed, const M: usize, const N: usize>(
    sums: &mut [[S::F; N]; M],
    total: &[[S::I; N]; M],
    by: &[Scales<S>; M],
    x: &[&Activations; N],
    part: usize,
) {
    let half = part.saturating_sub(1);
    for n in 0..N {
        let scale = S::splat(x[n].scale);
        for m in 0..M {
            sums[m][n] = S::fma(S::mul(S::to_f32(total[m][n]), scale), by[m].scale[half], sums[m][n]);
            if P::MIN {
                sums[m][n] = S::fma(S::splat(x[n].sums[part]), by[m].min[half], sums[m][n]);
            }
        }
    }
}
