//! `MXFP4`: 32 weights in 17 bytes, a 4-bit float each and a power of two; the OCP microscaling format
//! (<https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>).
//!
//! ```text
//! offset  bytes  what
//!      0      1  e: the scale's exponent, biased by 127
//!      1     16  qs: byte i = |7 q[i+16] 4|3 q[i] 0|, q = |3 sign|2 exponent 1|0 mantissa|
//!
//! w[i] = 2^(e - 128) * VALUES[q[i]]
//! ```
//!
//! The values are doubled to make them integers, hence 128. Exponents 0 and 1 are subnormal scales. Two facts are the
//! reference's and not the standard's: minus zero comes out as plus zero, and e = 255 is one more power of two, not NaN.

use super::{Format, pairs};

const BLOCK: usize = 32;
const BYTES: usize = 17;

/// The row of [`super::FORMATS`].
pub static FORMAT: Format = Format { name: "MXFP4", ggml_id: 39, block: BLOCK, bytes: BYTES, dequant };

/// Twice what a quant stands for.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Widens whole blocks to f32.
pub fn dequant(blocks: &[u8], out: &mut [f32]) {
    for (block, weights) in pairs::<BYTES, BLOCK>(blocks, out) {
        let d = scale(block[0]);
        for (i, w) in weights.iter_mut().enumerate() {
            let q = block[1 + i % 16] >> (i / 16 * 4) & 15;
            *w = d * f32::from(VALUES[usize::from(q)]);
        }
    }
}

/// `2^(e - 128)`: one exponent below the f32 with the same biased exponent.
fn scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 1 << (21 + e) } else { u32::from(e - 1) << 23 })
}
