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

use super::{Format, f16_at, pairs};

const BLOCK: usize = 32;
const BYTES: usize = 20;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "Q4_1", ggml_id: 3, block: BLOCK, bytes: BYTES, dequant };

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
