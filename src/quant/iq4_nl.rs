//! `IQ4_NL`: 32 weights in 18 bytes, 4 bits each that index 16 unevenly spaced values.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2     16  qs: byte i = |7 q[i+16] 4|3 q[i] 0|
//!
//! w[i] = d * VALUES[q[i]]
//! ```

use super::panel::{Packed, Scales, halves, nibbles, put, put_u16, word};
use super::{Format, f16_at, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 32;
const BYTES: usize = 18;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Iq4Nl>("IQ4_NL", 20, dequant);

/// What a quant stands for, dense around zero as weights are; part of the format, shared with `IQ4_XS`.
pub(super) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// [`VALUES`] plus 128.
pub(super) const BIASED: [u8; 16] = {
    let mut biased = [0; 16];
    let mut i = 0;
    while i < 16 {
        biased[i] = (VALUES[i] as u8) ^ 0x80;
        i += 1;
    }
    biased
};

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[2 + i % 16] >> (i / 16 * 4) & 15;
            *w = d * f32::from(VALUES[usize::from(q)]);
        }
    }
}

/// The packed form.
pub struct Iq4Nl;

impl Packed for Iq4Nl {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 8;
    const SLOTS: usize = 4;
    const SCALES: usize = 32;
    const SHIFT: Option<u32> = None;

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        put_u16(scales, row, block);
        for (j, slot) in quants.iter_mut().enumerate() {
            put(slot, row, word(block, 2 + 4 * j));
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        S::lookup(&BIASED, nibbles::<S>(slots, g))
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], _: usize) -> Scales<S> {
        Scales::whole(halves::<S>(scales), S::splat(0.0))
    }
}
