//! `F32`: IEEE single precision, as it is.
//!
//! ```text
//! offset  bytes  what
//!      0      4  |31 sign|30 exponent 23|22 mantissa 0|
//! ```

use super::{
    Format,
    float::{self, Float},
    pairs,
};
use crate::isa::Simd;

const BLOCK: usize = 1;
const BYTES: usize = 4;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = float::format::<F32>("F32", 0, dequant);

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, w) in pairs::<BYTES, BLOCK>(blocks, out) {
        w[0] = f32::from_le_bytes(*block);
    }
}

/// The packed form.
pub struct F32;

impl Float for F32 {
    const BYTES: usize = BYTES;

    #[inline(always)]
    fn load<S: Simd>(weights: &[u8]) -> S::F {
        let mut x = [0.0; 16];
        for (x, bytes) in x.iter_mut().zip(weights.as_chunks().0) {
            *x = f32::from_le_bytes(*bytes);
        }
        S::load(&x)
    }
}
