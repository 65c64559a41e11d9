//! `Q6_K`: 256 weights in 210 bytes, 6 bits each around zero; every 16 have an 8-bit signed scale.
//!
//! ```text
//! offset  bytes  what
//!      0    128  ql: two runs of 64 bytes; byte l of run h = |7 q[128h+64+l] low 4|3 q[128h+l] low 0|
//!    128     64  qh: two runs of 32 bytes; byte l of run h, n = 128h + l, high 2 bits of
//!                    |7 q[n+96] 6|5 q[n+64] 4|3 q[n+32] 2|1 q[n] 0|
//!    192     16  s: i8, of weights 16j..16j+16
//!    208      2  d: f16
//!
//! w[i] = (d * s[i/16]) * (q[i] - 32)
//! ```

use super::{Format, f16_at, pairs};

const BLOCK: usize = 256;
const BYTES: usize = 210;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "Q6_K", ggml_id: 14, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 208);
        for (i, w) in weights.iter_mut().enumerate() {
            let run = i / 128;
            let low = block[run * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
            let high = block[128 + run * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            let q = (high << 4 | low) as i8 - 32;
            *w = d * f32::from(block[192 + i / 16] as i8) * f32::from(q);
        }
    }
}
