//! `Q3_K`: 256 weights in 110 bytes, 3 bits each around zero; every 16 have a 6-bit scale around zero.
//!
//! ```text
//! offset  bytes  what
//!      0     32  hmask: byte l = bit 2 of |7 q[l+224]|6 q[l+192]|...|1 q[l+32]|0 q[l]|
//!     32     64  qs: two runs of 32 bytes; byte l of run h, n = 128h + l, low 2 bits of
//!                    |7 q[n+96] 6|5 q[n+64] 4|3 q[n+32] 2|1 q[n] 0|
//!     96      8  scales, low 4 bits: byte j = |7 s[j+8] 4|3 s[j] 0|
//!    104      4  scales, high 2 bits: byte j = |7 s[j+12] 6|5 s[j+8] 4|3 s[j+4] 2|1 s[j] 0|
//!    108      2  d: f16
//!
//! w[i] = (d * (s[i/16] - 32)) * (q[i] - 4)
//! ```

use super::panel::{Packed, Scales, bit, bits, half_scales, pair, plane, put, put_pairs, put_u16};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 256;
const BYTES: usize = 110;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q3K>("Q3_K", 11, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 108);
        for (i, w) in weights.iter_mut().enumerate() {
            let (run, shift, l) = (i / 128, i / 32 % 4 * 2, i % 32);
            let low = block[32 + run * 32 + l] >> shift & 3;
            let high = block[l] >> (i / 32) & 1;
            let q = (high << 2 | low) as i8 - 4;
            *w = d * f32::from(scale(block, i / 16)) * f32::from(q);
        }
    }
}

/// Scale of weights `16j..16j+16`.
fn scale(block: &[u8], j: usize) -> i8 {
    let low = block[96 + j % 8] >> (j / 8 * 4) & 15;
    let high = block[104 + j % 4] >> (j / 4 * 2) & 3;
    (high << 4 | low) as i8 - 32
}

/// The packed form.
pub struct Q3K;

impl Packed for Q3K {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 3;
    const SLOTS: usize = 3;
    const SCALES: usize = 288;
    const SHIFT: Option<u32> = Some(2);
    const HALVES: bool = true;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, &block[108..]);
        for (step, slots) in quants.chunks_exact_mut(3).enumerate() {
            for half in 0..2 {
                scales[32 + 32 * step + 16 * half + row] = scale(block, 2 * step + half) as u8;
            }
            let run = 32 + step / 4 * 32;
            put_pairs(&mut slots[..2], row, &block[run..run + 32], step % 4 * 2);
            put(&mut slots[2], row, bits(plane(&block[..32], step)));
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        S::or(pair::<S>(slots, g, 0), bit::<S>(&slots[2], g, 2))
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S> {
        half_scales::<S>(scales, step)
    }
}
