//! `Q5_0`: 32 weights in 22 bytes, 5 bits each around zero; the fifth bits lie together.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      4  qh: u32, bit i = bit 4 of q[i]
//!      6     16  qs: byte i = |7 q[i+16] low 4|3 q[i] low 0|
//!
//! w[i] = d * (q[i] - 16)
//! ```

use super::{Format, f16_at, pairs};

const BLOCK: usize = 32;
const BYTES: usize = 22;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "Q5_0", ggml_id: 6, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            let low = block[6 + i % 16] >> (i / 16 * 4) & 15;
            let high = block[2 + i / 8] >> (i % 8) & 1;
            *w = d * f32::from((high << 4 | low) as i8 - 16);
        }
    }
}
