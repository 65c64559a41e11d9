//! `BF16`: the upper half of an f32.
//!
//! ```text
//! offset  bytes  what
//!      0      2  |15 sign|14 exponent 7|6 mantissa 0|
//! ```
//!
//! Widening is a shift. `half::bf16::to_f32` is not used: it turns signalling NaNs into quiet ones, other bits than the
//! reference's.

use super::{Format, pairs};

const BLOCK: usize = 1;
const BYTES: usize = 2;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "BF16", ggml_id: 30, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, w) in pairs::<BYTES, BLOCK>(blocks, out) {
        w[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
    }
}
