//! `Q5_K`: 256 weights in 176 bytes, 5 bits each; every 32 have a 6-bit scale and a 6-bit minimum.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      2  dmin: f16
//!      4     12  scales s and minima m, packed as in [`super::q4_k`]
//!     16     32  qh: byte l = bit 4 of |7 q[l+224]|6 q[l+192]|...|1 q[l+32]|0 q[l]|
//!     48    128  qs: four runs of 32 bytes; byte l of run r = |7 q[64r+32+l] low 4|3 q[64r+l] low 0|
//!
//! w[i] = (d * s[i/32]) * q[i] - dmin * m[i/32]
//! ```

use super::{Format, f16_at, pairs, q4_k::scale_min};

const BLOCK: usize = 256;
const BYTES: usize = 176;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "Q5_K", ggml_id: 13, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (i, w) in weights.iter_mut().enumerate() {
            let (scale, min) = scale_min(block, i / 32);
            let (run, shift, l) = (i / 64, i / 32 % 2 * 4, i % 32);
            let low = block[48 + run * 32 + l] >> shift & 15;
            let high = block[16 + l] >> (i / 32) & 1;
            *w = d * f32::from(scale) * f32::from(high << 4 | low) - dmin * f32::from(min);
        }
    }
}
