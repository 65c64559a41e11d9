//! `Q4_K`: 256 weights in 144 bytes, 4 bits each; every 32 have a 6-bit scale and a 6-bit minimum.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      2  dmin: f16
//!      4      4  byte j = |7 s[j+4] high 6|5 s[j] 0|     j in 0..4
//!      8      4  byte j = |7 m[j+4] high 6|5 m[j] 0|
//!     12      4  byte j = |7 m[j+4] low 4|3 s[j+4] low 0|
//!     16    128  qs: four runs of 32 bytes; byte l of run r = |7 q[64r+32+l] 4|3 q[64r+l] 0|
//!
//! w[i] = (d * s[i/32]) * q[i] - dmin * m[i/32]
//! ```

use super::panel::{Packed, Scales, halves, nibbles, put_nibbles, put_u16, sixteen};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 256;
const BYTES: usize = 144;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q4K>("Q4_K", 12, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (i, w) in weights.iter_mut().enumerate() {
            let (scale, min) = scale_min(block, i / 32);
            let (run, shift, l) = (i / 64, i / 32 % 2 * 4, i % 32);
            let q = block[16 + run * 32 + l] >> shift & 15;
            *w = d * f32::from(scale) * f32::from(q) - dmin * f32::from(min);
        }
    }
}

/// Scale and minimum of weights `32j..32j+32`; `Q5_K` keeps its own in the same place.
pub(super) fn scale_min(block: &[u8], j: usize) -> (u8, u8) {
    let (s, m, low) = (block[4 + j % 4], block[8 + j % 4], block[12 + j % 4]);
    if j < 4 { (s & 63, m & 63) } else { ((s >> 6) << 4 | (low & 15), (m >> 6) << 4 | low >> 4) }
}

/// The packed form.
pub struct Q4K;

impl Packed for Q4K {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 4;
    const SLOTS: usize = 4;
    const SCALES: usize = 320;
    const SHIFT: Option<u32> = None;
    const MIN: bool = true;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        pack_scales(block, row, scales);
        for (step, slots) in quants.chunks_exact_mut(4).enumerate() {
            let (run, shift) = (16 + step / 2 * 32, step % 2 * 4);
            put_nibbles(slots, row, &block[run..run + 32], shift);
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        nibbles::<S>(slots, g)
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S> {
        step_scales::<S>(scales, step)
    }
}

/// Packed scales of a block of `Q4_K` or `Q5_K`: d, dmin, then scale and minimum of each step, all by row.
pub(super) fn pack_scales(block: &[u8], row: usize, scales: &mut [u8]) {
    put_u16(scales, row, block);
    put_u16(&mut scales[32..], row, &block[2..]);
    for step in 0..8 {
        let (scale, min) = scale_min(block, step);
        scales[64 + 32 * step + row] = scale;
        scales[80 + 32 * step + row] = min;
    }
}

/// What [`pack_scales`] has put there for one step.
#[inline(always)]
pub(super) fn step_scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S> {
    let scale = S::to_f32(S::load_u8(sixteen(scales, 64 + 32 * step)));
    let min = S::to_f32(S::load_u8(sixteen(scales, 80 + 32 * step)));
    let dmin = S::sub(S::splat(0.0), halves::<S>(&scales[32..]));
    Scales::whole(S::mul(halves::<S>(scales), scale), S::mul(dmin, min))
}
