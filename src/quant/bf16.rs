//! `BF16`: the upper half of an f32.
//!
//! ```text
//! offset  bytes  what
//!      0      2  |15 sign|14 exponent 7|6 mantissa 0|
//! ```
//!
//! Widening is a shift. `half::bf16::to_f32` is not used: it turns signalling NaNs into quiet ones, other bits than the
//! reference's.

use super::panel::words;
use super::{
    Format,
    float::{self, Float},
    pairs,
};
use crate::isa::Simd;

const BLOCK: usize = 1;
const BYTES: usize = 2;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = float::format::<Bf16>("BF16", 30, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, w) in pairs::<BYTES, BLOCK>(blocks, out) {
        w[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
    }
}

/// The packed form.
pub struct Bf16;

impl Float for Bf16 {
    const BYTES: usize = BYTES;

    #[inline(always)]
    fn load<S: Simd>(weights: &[u8]) -> S::F {
        S::load_bf16(&words(weights))
    }
}
