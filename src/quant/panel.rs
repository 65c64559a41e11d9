//! Packed weights of the integer formats, and the one dot kernel they share.
//!
//! A *panel* is sixteen rows of a weight matrix, stored so that one register holds four consecutive columns of all
//! sixteen: byte `4 * row + c` of a 64-byte *group* belongs to row `row` and column `c` of the four. A dot product then
//! broadcasts four int8 activations and advances sixteen outputs at once, without sums across lanes. The columns come in
//! *steps* of 32, eight groups of four; a format keeps its quants of a step in as few 64-byte *slots* as its bits need.
//!
//! ```text
//! panel   = quants of step 0, step 1, ... (SLOTS x 64 bytes each), then scales of block 0, block 1, ... (SCALES bytes each)
//! group g = columns 4g .. 4g + 4 of a step
//! ```
//!
//! Scales of a block are structures of arrays over the sixteen rows. The kernel takes a *tile* at a time, as many rows of the
//! batch and panels as registers have sums for, and unpacks a step once for all of it; every output has one accumulator that
//! takes its steps in order, whatever the batch or the split over threads (law 1). Sums of a step are exact in int32, so
//! instruction sets agree to the bit as well.

#![allow(clippy::needless_range_loop)] // one index into several arrays of registers

use super::{Dot, Format, Input, Out};
use crate::isa::{Isa, Kernel, Simd, load_part};
use std::marker::PhantomData;

/// How far ahead of its use a weight is asked for, in bytes: what a core reads from memory while it waits for a line.
pub(crate) const AHEAD: usize = 16384;

/// Columns of a step, and of a block of quantised activations.
pub const STEP: usize = 32;

/// Thirty-two activations of one row in int8, with what the formats need to know about them. One cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub struct Activations {
    /// Four int8 a word, lowest column in the lowest byte.
    pub quants: [i32; 8],
    /// A quant times this is the activation.
    pub scale: f32,
    /// `scale` times the sum of the quants: what a format's constant minimum is multiplied by.
    pub sum: f32,
    /// The sum of the quants.
    pub total: i32,
    /// The sums of the first and the last sixteen quants.
    pub halves: [i32; 2],
}

/// Quantises rows `x[T, D]` to blocks of 32 int8; the last block of a row is filled with zeros.
pub struct Quantise<'a> {
    /// One row.
    pub x: &'a [f32],
    /// `ceil(D / 32)` blocks.
    pub out: &'a mut [Activations],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (x, out) in self.x.chunks(STEP).zip(self.out) {
            let (a, b) = x.split_at(x.len().min(16));
            let (a, b) = (load_part::<S>(a), load_part::<S>(b));
            let zero = S::splat(0.0);
            let top = S::top(S::max(S::max(a, S::sub(zero, a)), S::max(b, S::sub(zero, b))));
            // Products with the inverse can reach 127 and a bit, which still rounds to 127. An inverse that overflows
            // belongs to a block of subnormals, which count as zero.
            let inverse = 127.0 / top;
            let inverse = if inverse.is_finite() { inverse } else { 0.0 };
            let parts = [S::mul(a, S::splat(inverse)), S::mul(b, S::splat(inverse))];
            for i in 0..2 {
                let (quants, words) = (S::to_i8(parts[i]), &mut out.quants[4 * i..4 * i + 4]);
                for (word, &[a, b, c, d]) in words.iter_mut().zip(quants.as_chunks().0) {
                    *word = i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8]);
                }
                // Whole numbers this small add up exactly.
                out.halves[i] = S::sum(S::round(parts[i])) as i32;
            }
            out.total = out.halves[0] + out.halves[1];
            out.scale = if inverse == 0.0 { 0.0 } else { top / 127.0 };
            out.sum = out.scale * out.total as f32;
        }
    }
}

/// What a step's integer sums are multiplied by, per row. Fields that a format's flags leave out are not read.
#[derive(Clone, Copy)]
pub struct Scales<S: Simd> {
    /// The step's scale.
    pub scale: S::F,
    /// With [`Packed::MIN`]: added once per unit of activation (times `sub_min` with [`Packed::HALVES`]).
    pub min: S::F,
    /// With [`Packed::HALVES`]: integer scales of the two halves of the step.
    pub halves: [S::I; 2],
    /// With both flags: integer minima of the halves.
    pub min_halves: [S::I; 2],
}

impl<S: Simd> Scales<S> {
    /// One scale for the whole step.
    #[inline(always)]
    pub fn whole(scale: S::F, min: S::F) -> Self {
        let zero = S::isplat(0);
        Self { scale, min, halves: [zero; 2], min_halves: [zero; 2] }
    }
}

/// A format whose weights are integers of at most eight bits under scales. A weight is
/// `scale * (quant - 2^SHIFT) + min`, quants being what [`Packed::quants`] gives.
pub trait Packed: 'static {
    /// Columns of a block in the file.
    const BLOCK: usize;
    /// Bytes of a block in the file.
    const BYTES: usize;
    /// 64-byte slots of quants per step.
    const SLOTS: usize;
    /// Bytes of scales per block of a panel.
    const SCALES: usize;
    /// What is taken off a quant, as a power of two.
    const SHIFT: Option<u32>;
    /// Quants use all eight bits and mean their value less 128 (then `SHIFT` is `None`).
    const WIDE: bool = false;
    /// The halves of a step have integer scales of their own.
    const HALVES: bool = false;
    /// Weights have a minimum.
    const MIN: bool = false;

    /// Puts one block of row `row` into its places among the quants and scales of that block of a panel.
    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]);
    /// Unpacks group `g` of the eight of one step from its slots.
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B;
    /// The scales of step `step` of a block.
    fn scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S>;
}

/// The row of [`super::FORMATS`] of a packed format.
pub const fn format<P: Packed>(name: &'static str, ggml_id: u32, dequant: fn(&[u8], &mut [f32])) -> Format {
    Format {
        name,
        ggml_id,
        block: P::BLOCK,
        bytes: P::BYTES,
        dequant,
        int8: true,
        panel_bytes: bytes::<P>,
        pack: pack::<P>,
        dot: dot::<P>,
    }
}

/// Bytes of a panel of `cols` columns, a multiple of 64.
pub fn bytes<P: Packed>(cols: usize) -> usize {
    (quant_bytes::<P>(cols) + cols / P::BLOCK * P::SCALES).next_multiple_of(64)
}

fn quant_bytes<P: Packed>(cols: usize) -> usize {
    cols / STEP * P::SLOTS * 64
}

/// Packs up to sixteen rows of the file, `rows` back to back, into one panel; missing rows weigh nothing.
pub fn pack<P: Packed>(rows: &[u8], cols: usize, panel: &mut [u8]) {
    let row_bytes = cols / P::BLOCK * P::BYTES;
    let (quants, scales) = panel.split_at_mut(quant_bytes::<P>(cols));
    let (quants, _) = quants.as_chunks_mut::<64>();
    let slots = P::BLOCK / STEP * P::SLOTS;
    for (row, raw) in rows.chunks_exact(row_bytes).enumerate() {
        let blocks = raw.chunks_exact(P::BYTES);
        for ((raw, quants), scales) in
            blocks.zip(quants.chunks_exact_mut(slots)).zip(scales.chunks_exact_mut(P::SCALES))
        {
            P::pack(raw, row, quants, scales);
        }
    }
}

/// Products of one or more panels with the rows of a batch; the kernel of every integer format.
pub fn dot<P: Packed>(isa: Isa, call: Dot<'_>) {
    isa.dispatch(Panels::<P>(call, PhantomData));
}

/// Calls a function made for so many rows, of which there are some at least where two panels go together; those that an
/// instruction set has no tiles of are left out.
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

struct Panels<'a, P>(Dot<'a>, PhantomData<P>);

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
        let height = (rows - first).div_ceil(tiles);
        let x = &x[first * steps..];
        by_rows!(height, tile::<S, P, M>(&parts, steps, x, first, out, &mut ahead));
        (first, tiles) = (first + height, tiles - 1);
    }
}

/// What is asked for while there is something else to do: the panels after those at hand, some lines a step.
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
            ahead.ask::<S>();
            let step = block * per_block + within;
            let slots: [&[[u8; 64]]; M] =
                std::array::from_fn(|m| &parts[m].0.as_chunks::<64>().0[step * P::SLOTS..][..P::SLOTS]);
            let mut by = [Scales::<S>::whole(S::splat(0.0), S::splat(0.0)); M];
            for m in 0..M {
                by[m] = P::scales::<S>(scales[m], within);
            }
            let now: [&Activations; N] = std::array::from_fn(|n| &x[n][step]);
            advance::<S, P, M, N>(&mut sums, &slots, &by, &now);
        }
    }
    for m in 0..M {
        for n in 0..N {
            out.put::<S>(m, first + n, sums[m][n]);
        }
    }
}

/// Adds to `total` the products of some groups, written out for the shifts to be constants. For each group all sums in
/// turns: none waits for the one before.
macro_rules! dots {
    ($s:ident, $p:ident, $m:ident, $n:ident, $total:ident, $slots:ident, $x:ident; $($g:literal)*) => {$({
        let mut w = [$s::bytes(&$slots[0][0]); $m];
        for m in 0..$m {
            w[m] = $p::quants::<$s>($slots[m], $g);
        }
        for n in 0..$n {
            let x = $x[n].quants[$g];
            for m in 0..$m {
                $total[m][n] = if $p::WIDE { $s::dot_wide($total[m][n], w[m], x) } else { $s::dot($total[m][n], w[m], x) };
            }
        }
    })*};
}

/// One step: for `M` panels and `N` rows sixteen sums each, thirty-two columns on.
#[inline(always)]
fn advance<S: Simd, P: Packed, const M: usize, const N: usize>(
    sums: &mut [[S::F; N]; M],
    slots: &[&[[u8; 64]]; M],
    by: &[Scales<S>; M],
    x: &[&Activations; N],
) {
    let mut total = [[S::isplat(0); N]; M];
    if P::HALVES {
        offset::<S, P, M, N>(&mut total, x, |x| x.halves[0]);
        dots!(S, P, M, N, total, slots, x; 0 1 2 3);
        let mut high = [[S::isplat(0); N]; M];
        offset::<S, P, M, N>(&mut high, x, |x| x.halves[1]);
        for m in 0..M {
            for n in 0..N {
                total[m][n] = S::imul(total[m][n], by[m].halves[0]);
            }
        }
        dots!(S, P, M, N, high, slots, x; 4 5 6 7);
        for m in 0..M {
            for n in 0..N {
                total[m][n] = S::iadd(total[m][n], S::imul(high[m][n], by[m].halves[1]));
            }
        }
    } else {
        offset::<S, P, M, N>(&mut total, x, |x| x.total);
        dots!(S, P, M, N, total, slots, x; 0 1 2 3 4 5 6 7);
    }
    for n in 0..N {
        let scale = S::splat(x[n].scale);
        for m in 0..M {
            let sum = S::fma(S::mul(S::to_f32(total[m][n]), scale), by[m].scale, sums[m][n]);
            sums[m][n] = if !P::MIN {
                sum
            } else if P::HALVES {
                let low = S::imul(S::isplat(x[n].halves[0]), by[m].min_halves[0]);
                let high = S::imul(S::isplat(x[n].halves[1]), by[m].min_halves[1]);
                S::fma(S::mul(S::to_f32(S::iadd(low, high)), scale), by[m].min, sum)
            } else {
                S::fma(S::splat(x[n].sum), by[m].min, sum)
            };
        }
    }
}

/// What sums of quants begin with: their shift times the activations', taken off.
#[inline(always)]
fn offset<S: Simd, P: Packed, const M: usize, const N: usize>(
    total: &mut [[S::I; N]; M],
    x: &[&Activations; N],
    of: impl Fn(&Activations) -> i32,
) {
    if let Some(shift) = if P::WIDE { S::WIDE_SHIFT } else { P::SHIFT } {
        for n in 0..N {
            let start = S::isub(S::isplat(0), S::ishl(S::isplat(of(x[n])), shift));
            for m in 0..M {
                total[m][n] = start;
            }
        }
    }
}

/// The word of columns `4 * group ..` of row `row` in `slot`.
#[inline(always)]
pub fn put(slot: &mut [u8; 64], row: usize, word: u32) {
    slot[4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
}

/// Four bytes as a word.
#[inline(always)]
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Puts the 16-bit scale at the start of `block` among those of the other rows.
#[inline(always)]
pub fn put_u16(scales: &mut [u8], row: usize, block: &[u8]) {
    scales[2 * row..2 * row + 2].copy_from_slice(&block[..2]);
}

/// Sixteen 16-bit words from 32 bytes.
#[inline(always)]
pub fn words(bytes: &[u8]) -> [u16; 16] {
    let mut x = [0; 16];
    for (x, bytes) in x.iter_mut().zip(bytes[..32].as_chunks::<2>().0) {
        *x = u16::from_le_bytes(*bytes);
    }
    x
}

/// Sixteen halves from 32 bytes.
#[inline(always)]
pub fn halves<S: Simd>(bytes: &[u8]) -> S::F {
    S::load_f16(&words(bytes))
}

/// Puts 32 nibbles, at bit `shift` of as many bytes, into four slots.
#[inline(always)]
pub fn put_nibbles(slots: &mut [[u8; 64]], row: usize, bytes: &[u8], shift: usize) {
    for (j, slot) in slots[..4].iter_mut().enumerate() {
        let low = word(bytes, 4 * j) >> shift & 0x0f0f_0f0f;
        let high = word(bytes, 16 + 4 * j) >> shift & 0x0f0f_0f0f;
        put(slot, row, low | high << 4);
    }
}

/// Puts 32 bit pairs, at bit `shift` of as many bytes, into two slots.
#[inline(always)]
pub fn put_pairs(slots: &mut [[u8; 64]], row: usize, bytes: &[u8], shift: usize) {
    for (j, slot) in slots.iter_mut().enumerate() {
        let four = (0..4).fold(0, |all, i| all | (word(bytes, 16 * j + 4 * i) >> shift & 0x0303_0303) << (2 * i));
        put(slot, row, four);
    }
}

/// Bit `at` of 32 bytes, as one word.
#[inline(always)]
pub fn plane(bytes: &[u8], at: usize) -> u32 {
    bytes.iter().enumerate().fold(0, |all, (i, &byte)| all | u32::from(byte >> at & 1) << i)
}

/// The word of a slot of single bits: bit `g` of byte `c` is bit `4 * g + c` of `columns`.
#[inline(always)]
pub fn bits(columns: u32) -> u32 {
    (0..4).fold(0, |all, c| {
        let x = columns >> c & 0x1111_1111;
        let x = (x | x >> 3) & 0x0303_0303;
        let x = (x | x >> 6) & 0x000f_000f;
        all | ((x | x >> 12) & 0xff) << (8 * c)
    })
}

/// Group `g` of five-bit quants: four slots of nibbles, one of fifth bits.
#[inline(always)]
pub fn five_bits<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
    S::or(nibbles::<S>(slots, g), bit::<S>(&slots[4], g, 4))
}

/// Group `g` from four slots of nibbles: low nibbles are groups 0 to 3, high ones 4 to 7.
#[inline(always)]
pub fn nibbles<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
    let pair = S::bytes(&slots[g % 4]);
    S::and(if g < 4 { pair } else { S::shr(pair, 4) }, 15)
}

/// Bit `g` of each byte of `slot` moved to bit `to`, everything else zero.
#[inline(always)]
pub fn bit<S: Simd>(slot: &[u8; 64], g: usize, to: usize) -> S::B {
    let bits = S::bytes(slot);
    let moved = if g < to { S::shl(bits, (to - g) as u32) } else { S::shr(bits, (g - to) as u32) };
    S::and(moved, 1 << to)
}

/// Group `g` from two slots of bit pairs, moved up by `up`: pair `i` of slot `j` is group `4 * j + i`.
#[inline(always)]
pub fn pair<S: Simd>(slots: &[[u8; 64]], g: usize, up: usize) -> S::B {
    let bits = S::bytes(&slots[g / 4]);
    let from = g % 4 * 2;
    let moved = if from < up { S::shl(bits, (up - from) as u32) } else { S::shr(bits, (from - up) as u32) };
    S::and(moved, 3 << up)
}

/// Sixteen bytes of `scales`.
#[inline(always)]
pub fn sixteen(scales: &[u8], at: usize) -> &[u8; 16] {
    scales[at..].first_chunk().expect("a record of scales holds its arrays")
}
