//! Packed weights of the integer formats, which the one kernel of `dot.rs` multiplies.
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
//! Scales of a block are structures of arrays over the sixteen rows.

use super::{Format, dot};
use crate::isa::{Kernel, Simd, load_part};

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
    /// The sums of all quants, of the first and of the last sixteen.
    pub totals: [i32; 3],
    /// `scale` times these: what a format's minima are multiplied by.
    pub sums: [f32; 3],
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
            for (i, part) in parts.into_iter().enumerate() {
                let (quants, words) = (S::to_i8(part), &mut out.quants[4 * i..4 * i + 4]);
                for (word, &[a, b, c, d]) in words.iter_mut().zip(quants.as_chunks().0) {
                    *word = i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8]);
                }
                // Whole numbers this small add up exactly.
                out.totals[1 + i] = S::sum(S::round(part)) as i32;
            }
            out.totals[0] = out.totals[1] + out.totals[2];
            out.scale = if inverse == 0.0 { 0.0 } else { top / 127.0 };
            out.sums = out.totals.map(|total| out.scale * total as f32);
        }
    }
}

/// What integer sums are multiplied by, per row: those of a step, or with [`Packed::HALVES`] those of its halves.
#[derive(Clone, Copy)]
pub struct Scales<S: Simd> {
    /// One scale, or one of each half.
    pub scale: [S::F; 2],
    /// With [`Packed::MIN`]: added once per unit of activation.
    pub min: [S::F; 2],
}

impl<S: Simd> Scales<S> {
    /// One scale for the whole step.
    #[inline(always)]
    pub fn whole(scale: S::F, min: S::F) -> Self {
        Self { scale: [scale; 2], min: [min; 2] }
    }
}

/// Scales of halves as `Q3_K` and `Q6_K` pack them: one of the block, by row, then for each half an integer to multiply it with.
#[inline(always)]
pub(super) fn half_scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S> {
    let (scale, mut by) = (halves::<S>(scales), Scales::whole(S::splat(0.0), S::splat(0.0)));
    for half in 0..2 {
        let quant = S::load_i8(sixteen(scales, 32 + 32 * step + 16 * half));
        by.scale[half] = S::mul(scale, S::to_f32(quant));
    }
    by
}

/// A format whose weights are integers of at most eight bits under scales. A weight is
/// `scale * (quant - 2^SHIFT) + min`, quants being what [`Packed::quants`] gives.
pub trait Packed: 'static {
    /// Columns of a block in the file.
    const BLOCK: usize;
    /// Bytes of a block in the file.
    const BYTES: usize;
    /// Bits of the quants that [`Packed::quants`] gives. Eight mean their value less 128 (then `SHIFT` is `None`).
    const BITS: u32;
    /// 64-byte slots of quants per step.
    const SLOTS: usize;
    /// Bytes of scales per block of a panel.
    const SCALES: usize;
    /// What is taken off a quant, as a power of two.
    const SHIFT: Option<u32>;
    /// The halves of a step have scales of their own.
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
        dot: dot::dot::<P>,
    }
}

/// Bytes of a panel of `cols` columns, a multiple of 64.
pub fn bytes<P: Packed>(cols: usize) -> usize {
    (quant_bytes::<P>(cols) + cols / P::BLOCK * P::SCALES).next_multiple_of(64)
}

/// How many of them are quants.
pub(super) fn quant_bytes<P: Packed>(cols: usize) -> usize {
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
