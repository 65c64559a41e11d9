//! `IQ4_NL`: 32 weights in 18 bytes, 4 bits each that index 16 unevenly spaced values.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2     16  qs: byte i = |7 q[i+16] 4|3 q[i] 0|
//!
//! w[i] = d * VALUES[q[i]]
//! ```

use super::{Format, f16_at, pairs};

const BLOCK: usize = 32;
const BYTES: usize = 18;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "IQ4_NL", ggml_id: 20, block: BLOCK, bytes: BYTES, dequant };

/// What a quant stands for, dense around zero as weights are; part of the format, shared with `IQ4_XS`.
pub(super) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[2 + i % 16] >> (i / 16 * 4) & 15;
            *w = d * f32::from(VALUES[usize::from(q)]);
        }
    }
}
