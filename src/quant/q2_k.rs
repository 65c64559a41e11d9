//! `Q2_K`: 256 weights in 84 bytes, 2 bits each; every 16 have a 4-bit scale and a 4-bit minimum.
//!
//! ```text
//! offset  bytes  what
//!      0     16  scales: byte j = |7 m[j] 4|3 s[j] 0|, of weights 16j..16j+16
//!     16     64  qs: two runs of 32 bytes; byte l of run h, n = 128h + l:
//!                    |7 q[n+96] 6|5 q[n+64] 4|3 q[n+32] 2|1 q[n] 0|
//!     80      2  d: f16
//!     82      2  dmin: f16
//!
//! w[i] = (d * s[i/16]) * q[i] - dmin * m[i/16]
//! ```

use super::{Format, f16_at, pairs};

const BLOCK: usize = 256;
const BYTES: usize = 84;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "Q2_K", ggml_id: 10, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (i, w) in weights.iter_mut().enumerate() {
            let scale = block[i / 16];
            let (run, shift, l) = (i / 128, i / 32 % 4 * 2, i % 32);
            let q = block[16 + run * 32 + l] >> shift & 3;
            *w = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
        }
    }
}
