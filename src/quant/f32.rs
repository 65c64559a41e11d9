//! `F32`: IEEE single precision, as it is.
//!
//! ```text
//! offset  bytes  what
//!      0      4  |31 sign|30 exponent 23|22 mantissa 0|
//! ```

use super::{Format, pairs};

const BLOCK: usize = 1;
const BYTES: usize = 4;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "F32", ggml_id: 0, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, w) in pairs::<BYTES, BLOCK>(blocks, out) {
        w[0] = f32::from_le_bytes(*block);
    }
}
