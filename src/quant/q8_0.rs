//! `Q8_0`: 32 weights in 34 bytes, a signed byte each.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2     32  q: i8, in order
//!
//! w[i] = d * q[i]
//! ```

use super::{Format, f16_at, pairs};

const BLOCK: usize = 32;
const BYTES: usize = 34;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "Q8_0", ggml_id: 8, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            *w = d * f32::from(block[2 + i] as i8);
        }
    }
}
