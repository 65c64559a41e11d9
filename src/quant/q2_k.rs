//! `Q2_K`: 256 weights in 84 bytes, 2 bits each; every 16 have a 4-bit scale and a 4-bit minimum.
//!
//! ```text
//! offset  bytes  what
//!      0     16  scales: byte j = |7 m[j] 4|3 s[j] 0|, of weights 16j..16j+16
//!     16     64  qs: two runs of 32 bytes; byte l of run h, n = 128h + l:
//!                    |7 q[n+96] 6|5 q[n+64] 4|3 q[n+32] 2|1 q[n] 0|
//!     80      2  d: f16
//!     82      2  dmin: f16
//!
//! w[i] = (d * s[i/16]) * q[i] - dmin * m[i/16]
//! ```

use super::panel::{Packed, Scales, halves, pair, put_pairs, put_u16, sixteen};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 256;
const BYTES: usize = 84;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q2K>("Q2_K", 10, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (i, w) in weights.iter_mut().enumerate() {
            let scale = block[i / 16];
            let (run, shift, l) = (i / 128, i / 32 % 4 * 2, i % 32);
            let q = block[16 + run * 32 + l] >> shift & 3;
            *w = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
        }
    }
}

/// The packed form.
pub struct Q2K;

impl Packed for Q2K {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 2;
    const SLOTS: usize = 2;
    const SCALES: usize = 320;
    const SHIFT: Option<u32> = None;
    const HALVES: bool = true;
    const MIN: bool = true;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, &block[80..]);
        put_u16(&mut scales[32..], row, &block[82..]);
        for (step, slots) in quants.chunks_exact_mut(2).enumerate() {
            for half in 0..2 {
                scales[64 + 32 * step + 16 * half + row] = block[2 * step + half];
            }
            let run = 16 + step / 4 * 32;
            put_pairs(slots, row, &block[run..run + 32], step % 4 * 2);
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        pair::<S>(slots, g, 0)
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S> {
        let (scale, min) = (halves::<S>(scales), S::sub(S::splat(0.0), halves::<S>(&scales[32..])));
        let mut by = Scales::whole(scale, min);
        for half in 0..2 {
            let (quant, least) = nibbles_of::<S>(sixteen(scales, 64 + 32 * step + 16 * half));
            by.scale[half] = S::mul(scale, S::to_f32(quant));
            by.min[half] = S::mul(min, S::to_f32(least));
        }
        by
    }
}

/// Low and high nibbles: scales and minima.
#[inline(always)]
fn nibbles_of<S: Simd>(both: &[u8; 16]) -> (S::I, S::I) {
    let both = S::load_u8(both);
    let min = S::ishr(both, 4);
    (S::isub(both, S::ishl(min, 4)), min)
}
