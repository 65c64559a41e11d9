//! `Q8_0`: 32 weights in 34 bytes, a signed byte each.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2     32  q: i8, in order
//!
//! w[i] = d * q[i]
//! ```

use super::panel::{Packed, Scales, halves, put, put_u16, word};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 32;
const BYTES: usize = 34;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q8_0>("Q8_0", 8, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            *w = d * f32::from(block[2 + i] as i8);
        }
    }
}

/// The packed form.
pub struct Q8_0;

impl Packed for Q8_0 {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 8;
    const SLOTS: usize = 8;
    const SCALES: usize = 32;
    const SHIFT: Option<u32> = None;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, block);
        for (g, slot) in quants.iter_mut().enumerate() {
            put(slot, row, word(block, 2 + 4 * g) ^ 0x8080_8080);
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        S::bytes(&slots[g])
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], _: usize) -> Scales<S> {
        Scales::whole(halves::<S>(scales), S::splat(0.0))
    }
}
