//! The verbs in plain Rust: any CPU, and the oracle of the others.

use super::Simd;
use half::{bf16, f16};
use std::array::from_fn;

/// Plain Rust.
#[derive(Clone, Copy)]
pub struct Scalar;

#[inline(always)]
fn halve(a: [f32; 16], f: impl Fn(f32, f32) -> f32) -> f32 {
    let a: [f32; 8] = from_fn(|i| f(a[i], a[i + 8]));
    let a: [f32; 4] = from_fn(|i| f(a[i], a[i + 4]));
    f(f(a[0], a[2]), f(a[1], a[3]))
}

impl Simd for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];

    const WIDE_SHIFT: Option<u32> = None;
    const SUMS: usize = 6;
    const TILES: [usize; 2] = [4, 0];

    #[inline(always)]
    fn splat(x: f32) -> Self::F {
        [x; 16]
    }
    #[inline(always)]
    fn load(x: &[f32; 16]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(v: Self::F, out: &mut [f32; 16]) {
        *out = v;
    }
    #[inline(always)]
    fn load_f16(x: &[u16; 16]) -> Self::F {
        x.map(|x| f16::from_bits(x).to_f32())
    }
    #[inline(always)]
    fn store_f16(v: Self::F, out: &mut [u16; 16]) {
        *out = v.map(|x| f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn load_bf16(x: &[u16; 16]) -> Self::F {
        x.map(|x| bf16::from_bits(x).to_f32())
    }
    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn swap(a: Self::F) -> Self::F {
        from_fn(|i| a[i ^ 1])
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(a: Self::F) -> Self::F {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn sum(a: Self::F) -> f32 {
        halve(a, |x, y| x + y)
    }
    #[inline(always)]
    fn top(a: Self::F) -> f32 {
        halve(a, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn isplat(x: i32) -> Self::I {
        [x; 16]
    }
    #[inline(always)]
    fn iadd(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn isub(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn ishl(a: Self::I, n: u32) -> Self::I {
        a.map(|a| a << n)
    }
    #[inline(always)]
    fn ishr(a: Self::I, n: u32) -> Self::I {
        a.map(|a| (a as u32 >> n) as i32)
    }
    #[inline(always)]
    fn load_u8(x: &[u8; 16]) -> Self::I {
        x.map(i32::from)
    }
    #[inline(always)]
    fn load_i8(x: &[u8; 16]) -> Self::I {
        x.map(|x| i32::from(x as i8))
    }
    #[inline(always)]
    fn to_f32(a: Self::I) -> Self::F {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn to_i32(a: Self::F) -> Self::I {
        a.map(|a| a.round_ties_even() as i32)
    }
    #[inline(always)]
    fn to_i8(a: Self::F) -> [i8; 16] {
        a.map(|a| a.round_ties_even() as i8)
    }
    #[inline(always)]
    fn as_f32(a: Self::I) -> Self::F {
        a.map(|a| f32::from_bits(a as u32))
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        let _ = at;
    }
    #[inline(always)]
    fn bytes(x: &[u8; 64]) -> Self::B {
        *x
    }
    #[inline(always)]
    fn and(a: Self::B, mask: u8) -> Self::B {
        a.map(|a| a & mask)
    }
    #[inline(always)]
    fn or(a: Self::B, b: Self::B) -> Self::B {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn shr(a: Self::B, n: u32) -> Self::B {
        pairs(a, |x| x >> n)
    }
    #[inline(always)]
    fn shl(a: Self::B, n: u32) -> Self::B {
        pairs(a, |x| x << n)
    }
    #[inline(always)]
    fn lookup(table: &[u8; 16], a: Self::B) -> Self::B {
        a.map(|a| table[usize::from(a & 15)])
    }
    #[inline(always)]
    fn dot(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        let x = x.to_le_bytes().map(|x| i32::from(x as i8));
        from_fn(|i| acc[i] + (0..4).map(|c| i32::from(w[4 * i + c]) * x[c]).sum::<i32>())
    }
    #[inline(always)]
    fn dot_wide(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        let x = x.to_le_bytes().map(|x| i32::from(x as i8));
        from_fn(|i| acc[i] + (0..4).map(|c| (i32::from(w[4 * i + c]) - 128) * x[c]).sum::<i32>())
    }
}

#[inline(always)]
fn pairs(a: [u8; 64], f: impl Fn(u16) -> u16) -> [u8; 64] {
    let mut out = [0; 64];
    for (out, a) in out.as_chunks_mut::<2>().0.iter_mut().zip(a.as_chunks::<2>().0) {
        *out = f(u16::from_le_bytes(*a)).to_le_bytes();
    }
    out
}
