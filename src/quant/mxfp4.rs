//! `MXFP4`: 32 weights in 17 bytes, a 4-bit float each and a power of two; the OCP microscaling format
//! (<https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>).
//!
//! ```text
//! offset  bytes  what
//!      0      1  e: the scale's exponent, biased by 127
//!      1     16  qs: byte i = |7 q[i+16] 4|3 q[i] 0|, q = |3 sign|2 exponent 1|0 mantissa|
//!
//! w[i] = 2^(e - 128) * VALUES[q[i]]
//! ```
//!
//! The values are doubled to make them integers, hence 128. Exponents 0 and 1 are subnormal scales. Two facts are the
//! reference's and not the standard's: minus zero comes out as plus zero, and e = 255 is one more power of two, not NaN.

use super::panel::{Packed, Scales, nibbles, put, sixteen, word};
use super::{Format, pairs, panel};
use crate::isa::Simd;

const BLOCK: usize = 32;
const BYTES: usize = 17;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = panel::format::<Mxfp4>("MXFP4", 39, dequant);

/// Twice what a quant stands for.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// [`VALUES`] plus 16.
const RAISED: [u8; 16] = {
    let mut raised = [0; 16];
    let mut i = 0;
    while i < 16 {
        raised[i] = (VALUES[i] + 16) as u8;
        i += 1;
    }
    raised
};

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = scale(block[0]);
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[1 + i % 16] >> (i / 16 * 4) & 15;
            *w = d * f32::from(VALUES[usize::from(q)]);
        }
    }
}

/// `2^(e - 128)`: one exponent below the f32 with the same biased exponent.
fn scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 1 << (21 + e) } else { u32::from(e - 1) << 23 })
}

/// The packed form.
pub struct Mxfp4;

impl Packed for Mxfp4 {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = BYTES;
    const BITS: u32 = 5;
    const SLOTS: usize = 4;
    const SCALES: usize = 16;
    const SHIFT: Option<u32> = Some(4);

    fn pack(block: &[u8], row: usize, quants: &mut [[u8; 64]], scales: &mut [u8]) {
        scales[row] = block[0];
        for (j, slot) in quants.iter_mut().enumerate() {
            put(slot, row, word(block, 1 + 4 * j));
        }
    }
    #[inline(always)]
    fn quants<S: Simd>(slots: &[[u8; 64]], g: usize) -> S::B {
        S::lookup(&RAISED, nibbles::<S>(slots, g))
    }
    #[inline(always)]
    fn scales<S: Simd>(scales: &[u8], _: usize) -> Scales<S> {
        // 2^(e - 128) as a product of two powers that are normal numbers for every e.
        let e = S::load_u8(sixteen(scales, 0));
        let half = S::ishr(e, 1);
        let product = S::mul(power::<S>(half), power::<S>(S::isub(e, half)));
        Scales::whole(product, S::splat(0.0))
    }
}

/// `2^(e - 64)`.
#[inline(always)]
fn power<S: Simd>(e: S::I) -> S::F {
    S::as_f32(S::ishl(S::iadd(e, S::isplat(63)), 23))
}
