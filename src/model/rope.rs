//! Rotary position encodings: from metadata to angles.
//!
//! Pair i of a head of R rotated elements turns by `base^(-2i/R)` radians per position. The ways to reach beyond the
//! trained context change that frequency: divide it (linear, or factor by factor from a tensor: llama3, longrope), or
//! divide the slow ones only (YaRN, <https://arxiv.org/abs/2309.00071>), and enlarge the result a little.

use crate::backend::{Pairing, Rope};

/// Change of all frequencies by a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Divided by `factor`.
    Linear {
        /// At 1 nothing changes.
        factor: f64,
    },
    /// Divided pair by pair, by the tensors of [`Factors`] that come with the model (longrope).
    Tensors,
    /// Pairs that turn more than `beta_fast` times within the original context stay, those below `beta_slow` are
    /// divided by `factor`, with a ramp between.
    Yarn {
        /// Extension of the context.
        factor: f64,
        /// Turns above which a pair stays as it is.
        beta_fast: f64,
        /// Turns below which a pair is interpolated.
        beta_slow: f64,
    },
}

/// What the metadata says on position encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turning {
    /// Which elements pair up.
    pub pairing: Pairing,
    /// Rotated elements of a head, `R`.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// Base of windowed layers, unscaled, where it is their own.
    pub local_base: Option<f64>,
    /// Rule of change.
    pub scaling: Scaling,
    /// Context the file promises.
    pub context: usize,
    /// Context before it was extended.
    pub original_context: usize,
    /// Factor on sine and cosine, if stated.
    pub magnitude: Option<f64>,
}

/// Divisors of the frequencies that come as tensors, `[R/2]` each.
#[derive(Clone, Debug, Default)]
pub struct Factors {
    /// For every context (llama3).
    pub any: Option<Vec<f32>>,
    /// For sessions within the original context (longrope).
    pub short: Option<Vec<f32>>,
    /// For sessions beyond it.
    pub long: Option<Vec<f32>>,
}

impl Turning {
    /// The rotation of all layers, or of the windowed ones where `local`, in a session of `session` positions.
    pub fn rope(&self, factors: &Factors, session: usize, local: bool) -> Rope {
        let pairs = self.dims / 2;
        let frequency = |base: f64, i: usize| base.powf(-2.0 * i as f64 / self.dims as f64);
        if let Some(base) = self.local_base.filter(|_| local) {
            let frequencies = (0..pairs).map(|i| frequency(base, i)).collect();
            return Rope { frequencies, magnitude: 1.0, pairing: self.pairing };
        }
        let chosen = if session > self.original_context { &factors.long } else { &factors.short };
        let divisors = factors.any.as_ref().or(chosen.as_ref());
        let frequencies = (0..pairs)
            .map(|i| frequency(self.base, i) / divisors.map_or(1.0, |d| d[i] as f64) * self.share(i))
            .collect();
        Rope { frequencies, magnitude: self.magnitude(factors) as f32, pairing: self.pairing }
    }

    /// What the rule leaves of pair i's frequency.
    fn share(&self, i: usize) -> f64 {
        match self.scaling {
            Scaling::Linear { factor } => factor.recip(),
            Scaling::Tensors => 1.0,
            Scaling::Yarn { factor, beta_fast, beta_slow } => {
                let low = self.pair_turning(beta_fast).floor().max(0.0);
                let high = self.pair_turning(beta_slow).ceil().min(self.dims as f64 - 1.0);
                let kept = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                kept + (1.0 - kept) / factor
            }
        }
    }

    /// The (fractional) pair that turns `turns` times within the original context.
    fn pair_turning(&self, turns: f64) -> f64 {
        let radians = turns * std::f64::consts::TAU;
        self.dims as f64 * (self.original_context as f64 / radians).ln() / (2.0 * self.base.ln())
    }

    fn magnitude(&self, factors: &Factors) -> f64 {
        let original = self.original_context as f64;
        let extension = self.context as f64 / original;
        let stated = self.magnitude.unwrap_or(1.0);
        match self.scaling {
            Scaling::Yarn { factor, .. } => (1.0 + 0.1 * factor.max(1.0).ln()) * stated,
            // Old longrope files do not state theirs. It holds for the short factors as well as for the long ones.
            _ if self.magnitude.is_none() && factors.long.is_some() && extension > 1.0 => {
                (1.0 + extension.ln() / original.max(2.0).ln()).sqrt()
            }
            _ => stated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turning(scaling: Scaling) -> Turning {
        Turning {
            pairing: Pairing::Halves,
            dims: 8,
            base: 10_000.0,
            local_base: None,
            scaling,
            context: 4096,
            original_context: 1024,
            magnitude: None,
        }
    }

    fn close(got: &Rope, frequencies: [f64; 4], magnitude: f32) {
        for (g, w) in got.frequencies.iter().zip(frequencies) {
            assert!((g / w - 1.0).abs() < 1e-9, "{:?}, expected {frequencies:?}", got.frequencies);
        }
        assert!((got.magnitude - magnitude).abs() < 1e-6, "{}, expected {magnitude}", got.magnitude);
    }

    #[test]
    fn plain_and_linear() {
        let none = Factors::default();
        close(&turning(Scaling::Linear { factor: 1.0 }).rope(&none, 100, false), [1.0, 0.1, 0.01, 0.001], 1.0);
        close(&turning(Scaling::Linear { factor: 4.0 }).rope(&none, 100, false), [0.25, 0.025, 0.0025, 0.00025], 1.0);
    }

    #[test]
    fn local_layers_have_their_own_base_and_no_scale() {
        let t = Turning { local_base: Some(16.0), ..turning(Scaling::Linear { factor: 4.0 }) };
        close(&t.rope(&Factors::default(), 100, true), [1.0, 0.5, 0.25, 0.125], 1.0);
        close(&t.rope(&Factors::default(), 100, false), [0.25, 0.025, 0.0025, 0.00025], 1.0);
        let shared = turning(Scaling::Linear { factor: 4.0 });
        assert_eq!(shared.rope(&Factors::default(), 100, true), shared.rope(&Factors::default(), 100, false));
    }

    #[test]
    fn tensors_divide_and_the_session_chooses() {
        let llama3 = Factors { any: Some(vec![1.0, 2.0, 4.0, 8.0]), ..Factors::default() };
        let plain = turning(Scaling::Linear { factor: 1.0 });
        close(&plain.rope(&llama3, 4096, false), [1.0, 0.05, 0.0025, 0.000125], 1.0);

        let long = Factors { short: Some(vec![1.0; 4]), long: Some(vec![2.0; 4]), any: None };
        // sqrt(1 + ln 4 / ln 1024) = sqrt(1.2)
        let magnitude = 1.2f32.sqrt();
        for scaling in [Scaling::Tensors, Scaling::Linear { factor: 1.0 }] {
            close(&turning(scaling).rope(&long, 1024, false), [1.0, 0.1, 0.01, 0.001], magnitude);
            close(&turning(scaling).rope(&long, 1025, false), [0.5, 0.05, 0.005, 0.0005], magnitude);
        }
        let stated = Turning { magnitude: Some(1.5), ..turning(Scaling::Tensors) };
        close(&stated.rope(&long, 1025, false), [0.5, 0.05, 0.005, 0.0005], 1.5);
    }

    #[test]
    fn yarn_ramps_from_kept_to_divided() {
        let t = turning(Scaling::Yarn { factor: 4.0, beta_fast: 32.0, beta_slow: 1.0 });
        // 8 ln(1024 / (32 * 2 pi)) / (2 ln 10000) = 0.71 and 8 ln(1024 / 2 pi) / (2 ln 10000) = 2.21: from pair 0 to 3.
        let (third, divided) = (1.0 / 3.0, 0.25);
        let kept = |share: f64| share + (1.0 - share) * divided;
        let frequencies = [1.0, 0.1 * kept(2.0 * third), 0.01 * kept(third), 0.001 * divided];
        close(&t.rope(&Factors::default(), 100, false), frequencies, 1.0 + 0.1 * 4f32.ln());
        let stated = Turning { magnitude: Some(0.5), ..t };
        close(&stated.rope(&Factors::default(), 100, false), frequencies, 0.5 + 0.05 * 4f32.ln());
    }
}
