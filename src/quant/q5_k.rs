//! `Q5_K`: 256 weights in 176 bytes, 5 bits each; every 32 have a 6-bit scale and a 6-bit minimum.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      2  dmin: f16
//!      4     12  scales s and minima m, packed as in [`super::q4_k`]
//!     16     32  qh: byte l = bit 4 of |7 q[l+224]|6 q[l+192]|...|1 q[l+32]|0 q[l]|
//!     48    128  qs: four runs of 32 bytes; byte l of run r = |7 q[64r+32+l] low 4|3 q[64r+l] low 0|
//!
//! w[i] = (d * s[i/32]) * q[i] - dmin * m[i/32]
//! ```

use super::panel::{Packed, Scales, bits, five_bits, plane, put, put_nibbles};
use super::{
    Format, f16_at, pairs, panel,
    q4_k::{pack_scales, scale_min, step_scales},
};
use crate::isa::Simd;

const BLOCK: usize = 256;
const BYTES: usize = 176;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q5K>("Q5_K", 13, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (i, w) in weights.iter_mut().enumerate() {
            let (scale, min) = scale_min(block, i / 32);
            let (run, shift, l) = (i / 64, i / 32 % 2 * 4, i % 32);
            let low = block[48 + run * 32 + l] >> shift & 15;
            let high = block[16 + l] >> (i / 32) & 1;
            *w = d * f32::from(scale) * f32::from(high << 4 | low) - dmin * f32::from(min);
        }
    }
}

/// The packed form.
pub struct Q5K;

impl Packed for Q5K {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 5;
    const SLOTS: usize = 5;
    const SCALES: usize = 320;
    const SHIFT: Option<u32> = None;
    const MIN: bool = true;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        pack_scales(block, row, scales);
        for (step, slots) in quants.chunks_exact_mut(5).enumerate() {
            let (run, shift) = (48 + step / 2 * 32, step % 2 * 4);
            put_nibbles(slots, row, &block[run..run + 32], shift);
            put(&mut slots[4], row, bits(plane(&block[16..48], step)));
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        five_bits::<S>(slots, g)
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S> {
        step_scales::<S>(scales, step)
    }
}
