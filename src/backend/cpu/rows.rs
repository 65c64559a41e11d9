//! Kernels on one row of activations. Rows do not know of one another.

use super::math::{exp, tanh};
use crate::backend::{Activation, Pairing};
use crate::isa::{Kernel, Simd, load_part, store_part};

/// Root-mean-square norm of one head (or one whole row).
pub struct RmsNorm<'a> {
    /// What `out` holds, if nothing else.
    pub x: Option<&'a [f32]>,
    pub out: &'a mut [f32],
    pub weight: &'a [f32],
    pub eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut squares = S::splat(0.0);
        for x in self.x.unwrap_or(self.out).chunks(16) {
            let x = load_part::<S>(x);
            squares = S::fma(x, x, squares);
        }
        let mean = S::sum(squares) / self.out.len() as f32;
        let factor = S::splat(1.0 / (mean + self.eps).sqrt());
        for (i, (out, w)) in self.out.chunks_mut(16).zip(self.weight.chunks(16)).enumerate() {
            let x = match self.x {
                Some(x) => load_part::<S>(&x[16 * i..]),
                None => load_part::<S>(out),
            };
            store_part::<S>(S::mul(S::mul(x, factor), load_part::<S>(w)), out);
        }
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
    /// Cosines and sines, magnitude included: `[R/2]`, or for neighbours `[R]`, twice each, the first of two sines negated.
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub pairing: Pairing,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for head in self.x.chunks_exact_mut(self.width) {
            match self.pairing {
                Pairing::Halves => {
                    let half = self.cos.len();
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
                    let angles = self.cos.chunks(16).zip(self.sin.chunks(16));
                    for (pairs, (cos, sin)) in head[..self.cos.len()].chunks_mut(16).zip(angles) {
                        let x = load_part::<S>(pairs);
                        let turned = S::mul(S::swap(x), load_part::<S>(sin));
                        store_part::<S>(S::add(S::mul(x, load_part::<S>(cos)), turned), pairs);
                    }
                }
            }
        }
    }
}
