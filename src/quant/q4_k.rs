//! `Q4_K`: 256 weights in 144 bytes, 4 bits each; every 32 have a 6-bit scale and a 6-bit minimum.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      2  dmin: f16
//!      4      4  byte j = |7 s[j+4] high 6|5 s[j] 0|     j in 0..4
//!      8      4  byte j = |7 m[j+4] high 6|5 m[j] 0|
//!     12      4  byte j = |7 m[j+4] low 4|3 s[j+4] low 0|
//!     16    128  qs: four runs of 32 bytes; byte l of run r = |7 q[64r+32+l] 4|3 q[64r+l] 0|
//!
//! w[i] = (d * s[i/32]) * q[i] - dmin * m[i/32]
//! ```

use super::{Format, f16_at, pairs};

const BLOCK: usize = 256;
const BYTES: usize = 144;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "Q4_K", ggml_id: 12, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (i, w) in weights.iter_mut().enumerate() {
            let (scale, min) = scale_min(block, i / 32);
            let (run, shift, l) = (i / 64, i / 32 % 2 * 4, i % 32);
            let q = block[16 + run * 32 + l] >> shift & 15;
            *w = d * f32::from(scale) * f32::from(q) - dmin * f32::from(min);
        }
    }
}

/// Scale and minimum of weights `32j..32j+32`; `Q5_K` keeps its own in the same place.
pub(super) fn scale_min(block: &[u8], j: usize) -> (u8, u8) {
    let (s, m, low) = (block[4 + j % 4], block[8 + j % 4], block[12 + j % 4]);
    if j < 4 { (s & 63, m & 63) } else { ((s >> 6) << 4 | (low & 15), (m >> 6) << 4 | low >> 4) }
}
