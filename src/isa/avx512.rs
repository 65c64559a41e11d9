//! The verbs on AVX-512 with VNNI: sixteen lanes are one register.

// One obligation covers every block: verbs run only inside `enter`, whose caller has checked the CPU (see `super::Simd`).
#![allow(clippy::undocumented_unsafe_blocks)]

use super::{Kernel, Simd};
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub struct Avx512;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && super::avx2::is_available()
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
pub(super) fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const WIDE_SHIFT: Option<u32> = Some(7);
    const SUMS: usize = 16;
    const TILES: [usize; 2] = [8, 6];

    #[inline(always)]
    fn splat(x: f32) -> Self::F {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(x: &[f32; 16]) -> Self::F {
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(v: Self::F, out: &mut [f32; 16]) {
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(x: &[u16; 16]) -> Self::F {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn store_f16(v: Self::F, out: &mut [u16; 16]) {
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    fn load_bf16(x: &[u16; 16]) -> Self::F {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn swap(a: Self::F) -> Self::F {
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(a) }
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(a: Self::F) -> Self::F {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn sum(a: Self::F) -> f32 {
        unsafe {
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::sum8(a)
        }
    }
    #[inline(always)]
    fn top(a: Self::F) -> f32 {
        unsafe {
            let a = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::top8(a)
        }
    }

    #[inline(always)]
    fn isplat(x: i32) -> Self::I {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn iadd(a: Self::I, b: Self::I) -> Self::I {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn isub(a: Self::I, b: Self::I) -> Self::I {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    fn ishl(a: Self::I, n: u32) -> Self::I {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn ishr(a: Self::I, n: u32) -> Self::I {
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn load_u8(x: &[u8; 16]) -> Self::I {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_i8(x: &[u8; 16]) -> Self::I {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn to_f32(a: Self::I) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn to_i32(a: Self::F) -> Self::I {
        unsafe { _mm512_cvtps_epi32(a) }
    }
    #[inline(always)]
    fn to_i8(a: Self::F) -> [i8; 16] {
        let mut out = [0; 16];
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a))) }
        out
    }
    #[inline(always)]
    fn as_f32(a: Self::I) -> Self::F {
        unsafe { _mm512_castsi512_ps(a) }
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn bytes(x: &[u8; 64]) -> Self::B {
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }
    #[inline(always)]
    fn and(a: Self::B, mask: u8) -> Self::B {
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    fn or(a: Self::B, b: Self::B) -> Self::B {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn shr(a: Self::B, n: u32) -> Self::B {
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn shl(a: Self::B, n: u32) -> Self::B {
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn lookup(table: &[u8; 16], a: Self::B) -> Self::B {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a) }
    }
    #[inline(always)]
    fn dot(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        unsafe { _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    fn dot_wide(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        Self::dot(acc, w, x)
    }
}
