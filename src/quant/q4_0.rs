//! `Q4_0`: 32 weights in 18 bytes, 4 bits each around zero.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2     16  qs: byte i = |7 q[i+16] 4|3 q[i] 0|
//!
//! w[i] = d * (q[i] - 8)
//! ```

use super::panel::{Packed, Scales, halves, nibbles, put, put_u16, word};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 32;
const BYTES: usize = 18;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q4_0>("Q4_0", 2, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[2 + i % 16] >> (i / 16 * 4) & 15;
            *w = d * f32::from(q as i8 - 8);
        }
    }
}

/// The packed form.
pub struct Q4_0;

impl Packed for Q4_0 {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 4;
    const SLOTS: usize = 4;
    const SCALES: usize = 32;
    const SHIFT: Option<u32> = Some(3);

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, block);
        for (j, slot) in quants.iter_mut().enumerate() {
            put(slot, row, word(block, 2 + 4 * j));
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        nibbles::<S>(slots, g)
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], _: usize) -> Scales<S> {
        Scales::whole(halves::<S>(scales), S::splat(0.0))
    }
}
