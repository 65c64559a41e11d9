//! `Q5_0`: 32 weights in 22 bytes, 5 bits each around zero; the fifth bits lie together.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      4  qh: u32, bit i = bit 4 of q[i]
//!      6     16  qs: byte i = |7 q[i+16] low 4|3 q[i] low 0|
//!
//! w[i] = d * (q[i] - 16)
//! ```

use super::panel::{Packed, Scales, bits, five_bits, halves, put, put_u16, word};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 32;
const BYTES: usize = 22;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q5_0>("Q5_0", 6, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            let low = block[6 + i % 16] >> (i / 16 * 4) & 15;
            let high = block[2 + i / 8] >> (i % 8) & 1;
            *w = d * f32::from((high << 4 | low) as i8 - 16);
        }
    }
}

/// The packed form.
pub struct Q5_0;

impl Packed for Q5_0 {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 5;
    const SLOTS: usize = 5;
    const SCALES: usize = 32;
    const SHIFT: Option<u32> = Some(4);

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, block);
        let (low, high) = quants.split_at_mut(4);
        for (j, slot) in low.iter_mut().enumerate() {
            put(slot, row, word(block, 6 + 4 * j));
        }
        put(&mut high[0], row, bits(word(block, 2)));
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        five_bits::<S>(slots, g)
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], _: usize) -> Scales<S> {
        Scales::whole(halves::<S>(scales), S::splat(0.0))
    }
}
