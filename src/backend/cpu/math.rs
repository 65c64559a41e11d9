//! exp and tanh over sixteen lanes: our own, so that every lane and every instruction set gives the same bits.

use crate::isa::Simd;

/// e^x to about 2 ulp; below -87.3 it stays at the smallest normal number, above 88.3 at the largest power of two.
///
/// With n = round(x / ln 2), e^x = 2^n e^r and |r| <= ln 2 / 2; e^r by a polynomial of degree 6 (Taylor coefficients
/// to the last three, which absorb the remainder over the interval).
#[inline(always)]
pub fn exp<S: Simd>(x: S::F) -> S::F {
    let x = S::max(S::min(x, S::splat(88.3)), S::splat(-87.3));
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, the first with few enough bits that n times it is exact.
    let r = S::fma(n, S::splat(-0.693_359_4), x);
    let r = S::fma(n, S::splat(2.121_944_4e-4), r);
    let mut p = S::splat(1.388_888_9e-3);
    for c in [8.333_334e-3, 4.166_666_8e-2, 1.666_666_7e-1, 0.5, 1.0, 1.0] {
        p = S::fma(p, r, S::splat(c));
    }
    let power = S::ishl(S::iadd(S::to_i32(n), S::isplat(127)), 23);
    S::mul(p, S::as_f32(power))
}

/// tanh x = 1 - 2 / (e^2x + 1), to about 1e-7 absolute.
#[inline(always)]
pub fn tanh<S: Simd>(x: S::F) -> S::F {
    let one = S::splat(1.0);
    let e = exp::<S>(S::add(x, x));
    S::sub(one, S::div(S::splat(2.0), S::add(e, one)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Kernel};

    struct Both<'a>(&'a [f32; 16]);

    impl Kernel for Both<'_> {
        type Output = [[f32; 16]; 2];

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            let mut out = [[0.0; 16]; 2];
            S::store(exp::<S>(S::load(self.0)), &mut out[0]);
            S::store(tanh::<S>(S::load(self.0)), &mut out[1]);
            out
        }
    }

    #[test]
    fn close_to_the_library_and_equal_in_every_lane() {
        for i in -120_000..=120_000 {
            let x = i as f32 * 1e-3;
            for isa in Isa::available() {
                let [exp, tanh] = isa.dispatch(Both(&[x; 16]));
                assert!(exp.iter().chain(&tanh).all(|v| v.is_finite()));
                assert!(exp.iter().all(|v| v.to_bits() == exp[0].to_bits()));
                assert!(tanh.iter().all(|v| v.to_bits() == tanh[0].to_bits()));
                if x.abs() < 87.0 {
                    let exact = f64::from(x).exp();
                    assert!((f64::from(exp[0]) - exact).abs() <= exact * 3e-7, "exp({x}) = {}", exp[0]);
                }
                assert!((f64::from(tanh[0]) - f64::from(x).tanh()).abs() < 3e-7, "tanh({x}) = {}", tanh[0]);
                assert_eq!(isa.dispatch(Both(&[x; 16])), Isa::Scalar.dispatch(Both(&[x; 16])));
            }
        }
    }
}
