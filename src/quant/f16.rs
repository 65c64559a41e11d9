//! `F16`: IEEE half precision; every value, subnormals and infinities included, is exact in f32.
//!
//! ```text
//! offset  bytes  what
//!      0      2  |15 sign|14 exponent 10|9 mantissa 0|
//! ```

use super::panel::halves;
use super::{
    Format, f16_at,
    float::{self, Float},
    pairs,
};
use crate::isa::Simd;

const BLOCK: usize = 1;
const BYTES: usize = 2;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = float::format::<F16>("F16", 1, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, w) in pairs::<BYTES, BLOCK>(blocks, out) {
        w[0] = f16_at(block, 0);
    }
}

/// The packed form.
pub struct F16;

impl Float for F16 {
    const BYTES: usize = BYTES;

    #[inline(always)]
    fn load<S: Simd>(weights: &[u8]) -> S::F {
        halves::<S>(weights)
    }
}
