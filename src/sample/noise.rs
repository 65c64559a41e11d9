//! Keyed noise: a pure function from a key to random bits, so that a draw never depends on how many draws came before.
//!
//! The generator is Philox4x64-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
//! a ten-round bijection of a 256-bit counter under a 128-bit key. The key is (seed, purpose), the counter is (ordinal
//! of the generated token in the session, token / 4, and two more numbers where a place has several draws); the four
//! words of a block belong to four neighbouring tokens.

use crate::tree::Token;
use std::hash::{BuildHasher, Hasher};

const MULTIPLIERS: [u64; 2] = [0xD2E7_470E_E14C_6C93, 0xCA5A_8263_9512_1157];
const WEYL: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B];
const ROUNDS: usize = 10;

/// What a random number is for. Each purpose has a key of its own, so no two share noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Choosing the token.
    Draw = 0,
    /// The coin that decides whether XTC applies.
    Xtc = 1,
    /// Making a seed out of another one.
    Seed = 2,
    /// What a drafter draws for the rejection rule, by drafter and node.
    Draft = 3,
    /// The coins that decide whether drawn guesses are accepted.
    Coin = 4,
    /// Choosing the token after all guesses at a place were rejected.
    Residual = 5,
    /// Choosing the token at a place without guesses.
    Bonus = 6,
}

/// The noise of one seed.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    seed: u64,
}

impl Noise {
    /// All the noise there is under `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Its seed.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// 64 uniform bits for each of the tokens `4 * quad ..= 4 * quad + 3`.
    fn words(&self, ordinal: u64, quad: u32, [a, b]: [u64; 2], purpose: Purpose) -> [u64; 4] {
        philox([ordinal, quad.into(), a, b], [self.seed, purpose as u64])
    }

    /// 64 uniform bits.
    pub fn bits(&self, ordinal: u64, token: Token, purpose: Purpose) -> u64 {
        self.words(ordinal, token / 4, [0; 2], purpose)[token as usize % 4]
    }

    /// A uniform number strictly between 0 and 1 that belongs to no token: number `n` of its place.
    pub fn coin(&self, ordinal: u64, n: u32, purpose: Purpose) -> f64 {
        ((self.bits(ordinal, n, purpose) >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// The bits of one position, for callers that ask token after token. `key` tells apart the draws of one place.
    pub(super) fn at(&self, ordinal: u64, purpose: Purpose, key: [u64; 2]) -> Position {
        Position { noise: *self, ordinal, purpose, key, quad: 0, words: self.words(ordinal, 0, key, purpose) }
    }

    /// A token of a distribution (probabilities above 0, which need not sum to one).
    pub fn draw(&self, ordinal: u64, purpose: Purpose, distribution: &[(Token, f64)]) -> Token {
        self.draw_some(ordinal, purpose, [0; 2], distribution, 1)[0]
    }

    /// Up to `n` different tokens of a distribution, as drawn one after the other without replacement: those with the
    /// largest `ln p + noise` (Gumbel top-k: Kool, van Hoof, Welling, <https://arxiv.org/abs/1903.06059>).
    pub fn draw_some(
        &self,
        ordinal: u64,
        purpose: Purpose,
        key: [u64; 2],
        distribution: &[(Token, f64)],
        n: usize,
    ) -> Vec<Token> {
        let mut position = self.at(ordinal, purpose, key);
        let score = |&(token, p): &(Token, f64)| (p.ln() + gumbel(position.bits(token)), token);
        let mut scored: Vec<(f64, Token)> = distribution.iter().map(score).collect();
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored.truncate(n);
        scored.into_iter().map(|(_, token)| token).collect()
    }
}

/// [`Noise::bits`] of one ordinal; neighbouring tokens cost a quarter of a block each.
pub(super) struct Position {
    noise: Noise,
    ordinal: u64,
    purpose: Purpose,
    key: [u64; 2],
    quad: u32,
    words: [u64; 4],
}

impl Position {
    pub(super) fn bits(&mut self, token: Token) -> u64 {
        if token / 4 != self.quad {
            self.quad = token / 4;
            self.words = self.noise.words(self.ordinal, self.quad, self.key, self.purpose);
        }
        self.words[token as usize % 4]
    }
}

/// Uniform bits to a standard Gumbel variate, `-ln(-ln u)` with `1 - u = (bits + 1/2) / 2^64`.
///
/// Small `bits` are the upper tail. Whichever of u and 1 - u is the smaller is the one computed from the integer, so
/// both tails are resolved down to 2^-65 and neither logarithm ever sees 0 or 1.
pub fn gumbel(bits: u64) -> f64 {
    const STEP: f64 = 1.0 / (1u128 << 64) as f64;
    let exponential =
        if bits >> 63 == 0 { -(-(bits as f64 + 0.5) * STEP).ln_1p() } else { -((!bits as f64 + 0.5) * STEP).ln() };
    -exponential.ln()
}

/// A number that [`gumbel`] of the same bits never exceeds, without its logarithms.
///
/// `-ln u >= 1 - u >= 2^-(z + 1)` for z leading zeros; the last term covers the rounding of both sides.
pub(super) fn gumbel_bound(bits: u64) -> f64 {
    f64::from(bits.leading_zeros() + 1) * std::f64::consts::LN_2 + 1e-9
}

/// A seed for the `n`-th of several independent generations under one seed (the lines of a batch).
pub fn derive_seed(seed: u64, n: u64) -> u64 {
    Noise::new(seed).bits(n, 0, Purpose::Seed)
}

/// A seed nobody chose. The standard library draws its hash keys from the system.
pub fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn philox(mut counter: [u64; 4], mut key: [u64; 2]) -> [u64; 4] {
    for _ in 0..ROUNDS {
        let [a, b] = [0, 1].map(|i| u128::from(MULTIPLIERS[i]) * u128::from(counter[2 * i]));
        let high = |product: u128| (product >> 64) as u64;
        counter = [high(b) ^ counter[1] ^ key[0], b as u64, high(a) ^ counter[3] ^ key[1], a as u64];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value a chi-square statistic of `df` degrees exceeds once in 30,000 (Wilson and Hilferty's cube).
    fn chi_limit(df: f64) -> f64 {
        let v = 2.0 / (9.0 * df);
        df * (1.0 - v + 4.0 * v.sqrt()).powi(3)
    }

    fn chi(counts: &[u32]) -> f64 {
        let mean = counts.iter().sum::<u32>() as f64 / counts.len() as f64;
        counts.iter().map(|&c| (c as f64 - mean).powi(2) / mean).sum()
    }

    #[test]
    fn philox_gives_the_published_vectors() {
        // Random123, tests/kat_vectors, "philox4x64 10": nothing, everything, the digits of pi.
        let (zeros, ones) = (0, u64::MAX);
        let pi = [
            0x243f_6a88_85a3_08d3,
            0x1319_8a2e_0370_7344,
            0xa409_3822_299f_31d0,
            0x082e_fa98_ec4e_6c89,
            0x4528_21e6_38d0_1377,
            0xbe54_66cf_34e9_0c6c,
        ];
        let table = [
            ([zeros; 6], [0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b, 0x7e68b68aec7ba23b]),
            ([ones; 6], [0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6, 0xa09caebf594f0ba0]),
            (pi, [0xa528f45403e61d95, 0x38c72dbd566e9788, 0xa5a1610e72fd18b5, 0x57bd43b5e52b7fe6]),
        ];
        for ([a, b, c, d, k, l], want) in table {
            assert_eq!(philox([a, b, c, d], [k, l]), want);
        }
    }

    type Sequence = (&'static str, fn(u32) -> u64);

    /// One coordinate of the key walks, the others stay: four sequences that must each look random.
    fn sequences() -> [Sequence; 4] {
        [
            ("token", |i| Noise::new(7).bits(3, i, Purpose::Draw)),
            ("ordinal", |i| Noise::new(7).bits(i.into(), 5, Purpose::Draw)),
            ("seed", |i| Noise::new(i.into()).bits(3, 5, Purpose::Draw)),
            ("high seed bits", |i| Noise::new(u64::from(i) << 32).bits(3, 5, Purpose::Xtc)),
        ]
    }

    #[test]
    fn bits_are_uniform_along_every_coordinate() {
        for (name, bits) in sequences() {
            for shift in [56, 28, 0] {
                let mut counts = [0u32; 256];
                (0..1 << 17).for_each(|i| counts[(bits(i) >> shift) as u8 as usize] += 1);
                assert!(chi(&counts) < chi_limit(255.0), "{name}, bits from {shift}: {}", chi(&counts));
            }
        }
    }

    #[test]
    fn neighbours_along_every_coordinate_are_independent() {
        for (name, bits) in sequences() {
            for lag in [1, 2, 4, 5] {
                let mut pairs = [0u32; 256];
                (0..1 << 16).for_each(|i| pairs[(bits(i) >> 60 << 4 | bits(i + lag) >> 60) as usize] += 1);
                assert!(chi(&pairs) < chi_limit(255.0), "{name}, lag {lag}: {}", chi(&pairs));
            }
        }
    }

    #[test]
    fn purposes_and_coordinates_do_not_share_noise() {
        const N: u32 = 1 << 16;
        let base = |i: u32| Noise::new(11).bits(i.into(), 9, Purpose::Draw);
        let others: [Sequence; 5] = [
            ("purpose", |i| Noise::new(11).bits(i.into(), 9, Purpose::Xtc)),
            ("seeding", |i| Noise::new(11).bits(i.into(), 9, Purpose::Seed)),
            ("seed", |i| Noise::new(12).bits(i.into(), 9, Purpose::Draw)),
            ("token", |i| Noise::new(11).bits(i.into(), 10, Purpose::Draw)),
            ("swapped", |i| Noise::new(11).bits(9, i, Purpose::Draw)),
        ];
        let centred = |bits: u64| gumbel(bits) - 0.577_215_664_901_532_9;
        let variance = std::f64::consts::PI.powi(2) / 6.0;
        for (name, other) in others {
            let product: f64 = (0..N).map(|i| centred(base(i)) * centred(other(i))).sum();
            let z = product / (variance * f64::from(N).sqrt());
            assert!(z.abs() < 4.0, "{name}: correlation of {z} standard errors");
            let mut pairs = [0u32; 64];
            (0..N).for_each(|i| pairs[(base(i) >> 61 << 3 | other(i) >> 61) as usize] += 1);
            assert!(chi(&pairs) < chi_limit(63.0), "{name}: {}", chi(&pairs));
        }
    }

    #[test]
    fn one_bit_of_the_key_flips_half_of_the_result() {
        for bit in 0..64 {
            let flips: u32 = (0..256)
                .map(|i| {
                    let (seed, ordinal) = (derive_seed(1, i), derive_seed(2, i));
                    let base = Noise::new(seed).bits(ordinal, 40, Purpose::Draw);
                    let other_seed = Noise::new(seed ^ 1 << bit).bits(ordinal, 40, Purpose::Draw);
                    let other_ordinal = Noise::new(seed).bits(ordinal ^ 1 << bit, 40, Purpose::Draw);
                    (base ^ other_seed).count_ones() + (base ^ other_ordinal).count_ones()
                })
                .sum();
            // 2 * 256 * 64 fair coins: mean 16384, deviation 90.
            assert!(flips.abs_diff(16384) < 400, "bit {bit}: {flips}");
        }
    }

    #[test]
    fn gumbel_resolves_both_tails_below_1e_9() {
        for tail in [1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 1e-18] {
            let bits = (tail * 2f64.powi(64)) as u64;
            // P(G > x) = tail and P(G < x) = tail, solved for x.
            let (upper, lower) = (-(-f64::ln_1p(-tail)).ln(), -(-tail.ln()).ln());
            assert!((gumbel(bits) - upper).abs() < 0.06 * (1e-18 / tail).max(1e-9), "upper {tail}: {}", gumbel(bits));
            assert!((gumbel(!bits) - lower).abs() < 0.06 * (1e-18 / tail).max(1e-9), "lower {tail}: {}", gumbel(!bits));
            assert!(gumbel(bits) > gumbel(bits + bits / 1000 + 1) && gumbel(!bits) < gumbel(!(bits + bits / 1000 + 1)));
        }
        assert!((gumbel(0) - 65.0 * std::f64::consts::LN_2).abs() < 1e-9);
        assert!((gumbel(u64::MAX) + (65.0 * std::f64::consts::LN_2).ln()).abs() < 1e-9);
        for edge in [0, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, u64::MAX - 1] {
            assert!(gumbel(edge) >= gumbel(edge + 1) && gumbel(edge).is_finite(), "{edge}");
        }
    }

    #[test]
    fn the_bound_holds() {
        for i in 0..100_000 {
            let bits = Noise::new(1).bits(i, 0, Purpose::Draw) >> (i % 64);
            for bits in [bits, !bits] {
                assert!(gumbel(bits) <= gumbel_bound(bits), "{bits}");
            }
        }
    }

    /// How many of `4 << log_quads` words fall in each of the 8 outermost cells of width `2^-cell` at either end.
    fn tail_counts(log_quads: u32, cell: u32) -> [u32; 16] {
        let mut counts = [0; 16];
        for quad in 0..1u32 << log_quads {
            for word in Noise::new(2024).words(1, quad, [0; 2], Purpose::Draw) {
                let (upper, lower) = (word >> (64 - cell), !word >> (64 - cell));
                if upper.min(lower) < 8 {
                    counts[upper.min(lower) as usize + if upper < lower { 0 } else { 8 }] += 1;
                }
            }
        }
        counts
    }

    #[test]
    fn tails_are_as_full_as_they_should_be() {
        let counts = tail_counts(22, 18); // 2^24 words: 64 expected in a cell of 4e-6
        assert!(
            counts.iter().map(|&c| (f64::from(c) - 64.0).powi(2) / 64.0).sum::<f64>() < chi_limit(16.0),
            "{counts:?}"
        );
    }

    #[test]
    fn tails_below_1e_9_are_as_full_as_they_should_be() {
        if std::env::var_os("FORETOKEN_SLOW_TESTS").is_none() {
            println!("skipped: 2^33 words of noise take a minute, FORETOKEN_SLOW_TESTS is not set");
            return;
        }
        let counts = tail_counts(31, 30); // 2^33 words: 8 expected in a cell of 9e-10
        assert!(
            counts.iter().map(|&c| (f64::from(c) - 8.0).powi(2) / 8.0).sum::<f64>() < chi_limit(16.0),
            "{counts:?}"
        );
    }

    #[test]
    fn coins_and_seeds() {
        assert_eq!(derive_seed(5, 6), derive_seed(5, 6));
        assert_ne!(derive_seed(5, 6), derive_seed(5, 7));
        assert_ne!(derive_seed(5, 6), derive_seed(6, 5));
        assert_ne!(random_seed(), random_seed());
        let mut counts = [0; 100];
        (0..100_000).for_each(|i| counts[(Noise::new(3).coin(i, 0, Purpose::Xtc) * 100.0) as usize] += 1);
        assert!(chi(&counts) < chi_limit(99.0));
    }
}
