//! `IQ4_XS`: 256 weights in 136 bytes, quants as in [`super::iq4_nl`]; every 32 have a 6-bit scale around zero.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      2  scales, high 2 bits: u16 = |15 s[7] 14|...|3 s[1] 2|1 s[0] 0|
//!      4      4  scales, low 4 bits: byte j = |7 s[2j+1] 4|3 s[2j] 0|
//!      8    128  qs: eight runs of 16 bytes; byte l of run r = |7 q[32r+16+l] 4|3 q[32r+l] 0|
//!
//! w[i] = (d * (s[i/32] - 32)) * VALUES[q[i]]
//! ```

use super::panel::{Packed, Scales, halves, nibbles, put, put_u16, sixteen, word};
use super::{
    Format, f16_at,
    iq4_nl::{BIASED, VALUES},
    pairs, panel,
};
use crate::isa::Simd;

const BLOCK: usize = 256;
const BYTES: usize = 136;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Iq4Xs>("IQ4_XS", 23, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[8 + i / 32 * 16 + i % 16] >> (i / 16 % 2 * 4) & 15;
            *w = d * f32::from(scale(block, i / 32)) * f32::from(VALUES[usize::from(q)]);
        }
    }
}

/// Scale of weights `32j..32j+32`.
fn scale(block: &[u8], j: usize) -> i8 {
    let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
    let high = block[2 + j / 4] >> (j % 4 * 2) & 3;
    (high << 4 | low) as i8 - 32
}

/// The packed form.
pub struct Iq4Xs;

impl Packed for Iq4Xs {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 8;
    const SLOTS: usize = 4;
    const SCALES: usize = 160;
    const SHIFT: Option<u32> = None;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, block);
        for (step, slots) in quants.chunks_exact_mut(4).enumerate() {
            scales[32 + 16 * step + row] = scale(block, step) as u8;
            for (j, slot) in slots.iter_mut().enumerate() {
                put(slot, row, word(block, 8 + 16 * step + 4 * j));
            }
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        S::lookup(&BIASED, nibbles::<S>(slots, g))
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], step: usize) -> Scales<S> {
        let by_step = S::to_f32(S::load_i8(sixteen(scales, 32 + 16 * step)));
        Scales::whole(S::mul(halves::<S>(scales), by_step), S::splat(0.0))
    }
}
