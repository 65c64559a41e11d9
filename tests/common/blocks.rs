//! Random numbers and random weights with finite scales.

use foretoken::quant::{FORMATS, Format};
use half::{bf16, f16};

/// SplitMix64: seeded, the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// About normal, about one.
    pub fn normal(&mut self) -> f32 {
        (0..6).map(|_| (self.bits() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum::<f32>() * 1.4
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Where a format keeps its 16-bit scales in a block; a format of the table without an entry here fails the test.
fn scale_offsets(format: &Format) -> &'static [usize] {
    match format.name {
        "Q4_0" | "Q5_0" | "Q8_0" | "IQ4_NL" | "IQ4_XS" => &[0],
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" => &[0, 2],
        "Q2_K" => &[80, 82],
        "Q3_K" => &[108],
        "Q6_K" => &[208],
        "MXFP4" | "F32" | "F16" | "BF16" => &[],
        name => panic!("say where {name} keeps its scales"),
    }
}

/// `elements` weights of a format, about 0.1 in size: random bits under scales of both signs.
pub fn weights(format: &Format, elements: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements / format.block * format.bytes);
    for _ in 0..elements / format.block {
        let w = random.normal() * 0.1;
        match format.name {
            "F32" => bytes.extend(w.to_le_bytes()),
            "F16" => bytes.extend(f16::from_f32(w).to_le_bytes()),
            "BF16" => bytes.extend(bf16::from_f32(w).to_le_bytes()),
            _ => {
                let start = bytes.len();
                bytes.extend((0..format.bytes).map(|_| random.bits() as u8));
                let block = &mut bytes[start..];
                // Quants times sub-scales reach about 2^(bits per weight + 5) in the K formats.
                let most = if format.block == 256 { 0.002 } else { 0.02 };
                for &at in scale_offsets(format) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(random.normal() * most).to_le_bytes());
                }
                if format.name == "MXFP4" {
                    block[0] = 118 + random.below(6) as u8;
                }
            }
        }
    }
    bytes
}

/// Row lengths that the laws are tried on and a format can have.
pub fn lengths(format: &Format) -> impl Iterator<Item = usize> {
    [32usize, 256, 320, 576, 896, 1536].into_iter().filter(|n| n.is_multiple_of(format.block))
}

/// All formats, `(format, length)` pairs of [`lengths`].
pub fn shapes() -> impl Iterator<Item = (&'static Format, usize)> {
    FORMATS.iter().flat_map(|&format| lengths(format).map(move |n| (format, n)))
}
