//! Kernels on one row of activations. Rows do not know of one another.

use super::math::{exp, tanh};
use crate::backend::{Activation, Pairing};
use crate::isa::{Kernel, Simd, load_part, store_part};

/// Root-mean-square norm of one head (or one whole row), in place.
pub struct RmsNorm<'a> {
    pub x: &'a mut [f32],
    pub weight: &'a [f32],
    pub eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut squares = S::splat(0.0);
        for x in self.x.chunks(16) {
            let x = load_part::<S>(x);
            squares = S::fma(x, x, squares);
        }
        let mean = S::sum(squares) / self.x.len() as f32;
        let factor = S::splat(1.0 / (mean + self.eps).sqrt());
        for (x, w) in self.x.chunks_mut(16).zip(self.weight.chunks(16)) {
            let y = S::mul(S::mul(load_part::<S>(x), factor), load_part::<S>(w));
            store_part::<S>(y, x);
        }
    }
}

/// The first column of the largest value, and that value; nothing of a row with NaN or +inf, or that is all -inf.
pub struct Largest<'a>(pub &'a [f32]);

impl Kernel for Largest<'_> {
    type Output = Option<(usize, f32)>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Option<(usize, f32)> {
        // Plain code that compilers make vectors of: NaN is told by a comparison.
        let (chunks, rest) = self.0.as_chunks::<64>();
        let mut lanes = [f32::NEG_INFINITY; 64];
        let mut sane = [true; 64];
        for chunk in chunks {
            for ((lane, sane), &x) in lanes.iter_mut().zip(&mut sane).zip(chunk) {
                *sane &= x < f32::INFINITY;
                *lane = if x > *lane { x } else { *lane };
            }
        }
        let top = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top });
        if top == f32::NEG_INFINITY || sane.contains(&false) || !rest.iter().all(|&x| x < f32::INFINITY) {
            return None;
        }
        let chunk = chunks.iter().position(|chunk| chunk.iter().fold(false, |found, &x| found | (x == top)));
        let start = chunk.map_or(64 * chunks.len(), |chunk| 64 * chunk);
        Some((start + self.0[start..].iter().position(|&x| x == top)?, top))
    }
}

/// `gate = activation(gate) * up`.
pub struct Glu<'a> {
    pub gate: &'a mut [f32],
    pub up: &'a [f32],
    pub activation: Activation,
}

impl Kernel for Glu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (gate, up) in self.gate.chunks_mut(16).zip(self.up.chunks(16)) {
            let y = activate::<S>(load_part::<S>(gate), self.activation);
            store_part::<S>(S::mul(y, load_part::<S>(up)), gate);
        }
    }
}

/// `x = activation(x)`.
pub struct Activate<'a> {
    pub x: &'a mut [f32],
    pub activation: Activation,
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for x in self.x.chunks_mut(16) {
            store_part::<S>(activate::<S>(load_part::<S>(x), self.activation), x);
        }
    }
}

#[inline(always)]
fn activate<S: Simd>(x: S::F, activation: Activation) -> S::F {
    let one = S::splat(1.0);
    match activation {
        Activation::Silu => S::div(x, S::add(one, exp::<S>(S::sub(S::splat(0.0), x)))),
        Activation::GeluTanh => {
            let cube = S::mul(S::mul(x, x), x);
            let inner = S::mul(S::splat(0.797_884_6), S::fma(S::splat(0.044_715), cube, x));
            S::mul(S::mul(S::splat(0.5), x), S::add(one, tanh::<S>(inner)))
        }
    }
}

/// `x += y`.
pub struct Add<'a> {
    pub x: &'a mut [f32],
    pub y: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (x, y) in self.x.chunks_mut(16).zip(self.y.chunks(16)) {
            store_part::<S>(S::add(load_part::<S>(x), load_part::<S>(y)), x);
        }
    }
}

/// `x = cap * tanh(x / cap)`.
pub struct Softcap<'a> {
    pub x: &'a mut [f32],
    pub cap: f32,
}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (cap, inverse) = (S::splat(self.cap), S::splat(1.0 / self.cap));
        for x in self.x.chunks_mut(16) {
            store_part::<S>(S::mul(cap, tanh::<S>(S::mul(load_part::<S>(x), inverse))), x);
        }
    }
}

/// Turns every head of a row by the angles of its position.
pub struct Rotate<'a> {
    pub x: &'a mut [f32],
    /// Head width.
    pub width: usize,
    /// `[R/2]` cosines and sines, magnitude included.
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub pairing: Pairing,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let half = self.cos.len();
        for head in self.x.chunks_exact_mut(self.width) {
            match self.pairing {
                Pairing::Halves => {
                    let (a, rest) = head.split_at_mut(half);
                    let pairs = a.chunks_mut(16).zip(rest[..half].chunks_mut(16));
                    let angles = self.cos.chunks(16).zip(self.sin.chunks(16));
                    for ((a, b), (cos, sin)) in pairs.zip(angles) {
                        let (x, y) = (load_part::<S>(a), load_part::<S>(b));
                        let (cos, sin) = (load_part::<S>(cos), load_part::<S>(sin));
                        store_part::<S>(S::sub(S::mul(x, cos), S::mul(y, sin)), a);
                        store_part::<S>(S::add(S::mul(x, sin), S::mul(y, cos)), b);
                    }
                }
                Pairing::Adjacent => {
                    let pairs = head.as_chunks_mut::<2>().0;
                    for (pair, (&cos, &sin)) in pairs.iter_mut().zip(self.cos.iter().zip(self.sin)) {
                        let [x, y] = *pair;
                        *pair = [x * cos - y * sin, x * sin + y * cos];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn the_largest_is_the_first_of_its_value_and_odd_rows_have_none() {
        for len in [1, 5, 63, 64, 65, 127, 200, 1000] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 + 11) % 23) as f32 - 40.0).collect();
            let first = (0..len).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            for isa in Isa::available() {
                let largest = |row: &[f32]| isa.dispatch(Largest(row));
                assert_eq!(largest(&row), Some((first, row[first])), "{len} on {}", isa.name());
                assert_eq!(largest(&vec![f32::NEG_INFINITY; len]), None);
                for at in [0, len / 2, len - 1] {
                    let with = |x: f32| {
                        let mut row = row.clone();
                        row[at] = x;
                        row
                    };
                    assert_eq!(largest(&with(7.5)), Some((at, 7.5)));
                    assert_eq!((largest(&with(f32::NAN)), largest(&with(f32::INFINITY))), (None, None));
                    if len > 1 {
                        assert!(largest(&with(f32::NEG_INFINITY)).is_some());
                    }
                }
            }
        }
    }
}
