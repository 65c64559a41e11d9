//! `Q4_1`: 32 weights in 20 bytes, 4 bits each above a minimum.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      2  m: f16
//!      4     16  qs: byte i = |7 q[i+16] 4|3 q[i] 0|
//!
//! w[i] = d * q[i] + m
//! ```

use super::panel::{Packed, Scales, halves, nibbles, put, put_u16, word};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 32;
const BYTES: usize = 20;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Q4_1>("Q4_1", 3, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[4 + i % 16] >> (i / 16 * 4) & 15;
            *w = d * f32::from(q) + m;
        }
    }
}

/// The packed form.
pub struct Q4_1;

impl Packed for Q4_1 {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 4;
    const SLOTS: usize = 4;
    const SCALES: usize = 64;
    const SHIFT: Option<u32> = None;
    const MIN: bool = true;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, block);
        put_u16(&mut scales[32..], row, &block[2..]);
        for (j, slot) in quants.iter_mut().enumerate() {
            put(slot, row, word(block, 4 + 4 * j));
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        nibbles::<S>(slots, g)
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], _: usize) -> Scales<S> {
        Scales::whole(halves::<S>(scales), halves::<S>(&scales[32..]))
    }
}
