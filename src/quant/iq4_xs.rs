//! `IQ4_XS`: 256 weights in 136 bytes, quants as in [`super::iq4_nl`]; every 32 have a 6-bit scale around zero.
//!
//! ```text
//! offset  bytes  what
//!      0      2  d: f16
//!      2      2  scales, high 2 bits: u16 = |15 s[7] 14|...|3 s[1] 2|1 s[0] 0|
//!      4      4  scales, low 4 bits: byte j = |7 s[2j+1] 4|3 s[2j] 0|
//!      8    128  qs: eight runs of 16 bytes; byte l of run r = |7 q[32r+16+l] 4|3 q[32r+l] 0|
//!
//! w[i] = (d * (s[i/32] - 32)) * VALUES[q[i]]
//! ```

use super::{Format, f16_at, iq4_nl::VALUES, pairs};

const BLOCK: usize = 256;
const BYTES: usize = 136;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "IQ4_XS", ggml_id: 23, block: BLOCK, bytes: BYTES, dequant };

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = f16_at(block, 0);
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[8 + i / 32 * 16 + i % 16] >> (i / 16 % 2 * 4) & 15;
            *w = d * f32::from(scale(block, i / 32)) * f32::from(VALUES[usize::from(q)]);
        }
    }
}

/// Scale of weights `32j..32j+32`.
fn scale(block: &[u8; BYTES], j: usize) -> i8 {
    let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
    let high = block[2 + j / 4] >> (j % 4 * 2) & 3;
    (high << 4 | low) as i8 - 32
}
