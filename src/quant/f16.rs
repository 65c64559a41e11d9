//! `F16`: IEEE half precision; every value, subnormals and infinities included, is exact in f32.
//!
//! ```text
//! offset  bytes  what
//!      0      2  |15 sign|14 exponent 10|9 mantissa 0|
//! ```

use super::{Format, f16_at, pairs};

const BLOCK: usize = 1;
const BYTES: usize = 2;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "F16", ggml_id: 1, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, w) in pairs::<BYTES, BLOCK>(blocks, out) {
        w[0] = f16_at(block, 0);
    }
}
