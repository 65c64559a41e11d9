//! The verbs on AVX2 with FMA and F16C, and with the byte products of AVX-VNNI: sixteen lanes are two registers.

// One obligation covers every block: verbs run only inside `enter`, whose caller has checked the CPU (see `super::Simd`).
#![allow(clippy::undocumented_unsafe_blocks)]

use super::{Kernel, Simd};
use std::arch::asm;
use std::arch::x86_64::*;

/// AVX2, FMA and F16C; `VNNI` says whether AVX-VNNI multiplies bytes.
#[derive(Clone, Copy)]
pub struct Avx2<const VNNI: bool>;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

pub(super) fn has_vnni() -> bool {
    is_available() && is_x86_feature_detected!("avxvnni")
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2<false>>()
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) fn enter_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2<true>>()
}

/// Sum of eight lanes, by halving.
#[inline(always)]
pub(super) fn sum8(a: __m256) -> f32 {
    unsafe {
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
    }
}

/// Largest of eight lanes.
#[inline(always)]
pub(super) fn top8(a: __m256) -> f32 {
    unsafe {
        let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
    }
}

/// `[f(0), f(1)]`, written out: see [`super`] on what must be inlined.
macro_rules! two {
    ($i:ident => $value:expr) => {
        unsafe {
            [
                {
                    let $i = 0;
                    $value
                },
                {
                    let $i = 1;
                    $value
                },
            ]
        }
    };
}

macro_rules! both {
    ($op:ident, $a:expr, $b:expr) => {
        unsafe { [$op($a[0], $b[0]), $op($a[1], $b[1])] }
    };
    ($op:ident, $a:expr) => {
        unsafe { [$op($a[0]), $op($a[1])] }
    };
}

/// The same sums, in their registers at this point of the program: the compiler regroups whole-number sums over a step, for
/// which it keeps every activation of it in memory.
#[inline]
#[target_feature(enable = "avx")]
fn here(mut sums: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: nothing is done.
    unsafe {
        asm!("/* {0} {1} */", inout(ymm_reg) sums[0], inout(ymm_reg) sums[1], options(nomem, nostack, preserves_flags));
    }
    sums
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    const WIDE_SHIFT: Option<u32> = if VNNI { Some(7) } else { None };
    const PAIRS: bool = !VNNI;
    const SUMS: usize = 4;
    const TILES: [usize; 2] = [6, 0];

    #[inline(always)]
    fn splat(x: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(x: &[f32; 16]) -> Self::F {
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())] }
    }
    #[inline(always)]
    fn store(v: Self::F, out: &mut [f32; 16]) {
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out[8..].as_mut_ptr(), v[1]);
        }
    }
    #[inline(always)]
    fn load_f16(x: &[u16; 16]) -> Self::F {
        two!(i => _mm256_cvtph_ps(_mm_loadu_si128(x[8 * i..].as_ptr().cast())))
    }
    #[inline(always)]
    fn store_f16(v: Self::F, out: &mut [u16; 16]) {
        for (i, v) in v.into_iter().enumerate() {
            let half = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) };
            unsafe { _mm_storeu_si128(out[8 * i..].as_mut_ptr().cast(), half) }
        }
    }
    #[inline(always)]
    fn load_bf16(x: &[u16; 16]) -> Self::F {
        two!(i => {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(x[8 * i..].as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        two!(i => _mm256_fmadd_ps(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn swap(a: Self::F) -> Self::F {
        unsafe { a.map(|a| _mm256_permute_ps::<0b10_11_00_01>(a)) }
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn round(a: Self::F) -> Self::F {
        two!(i => _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[i]))
    }
    #[inline(always)]
    fn sum(a: Self::F) -> f32 {
        sum8(unsafe { _mm256_add_ps(a[0], a[1]) })
    }
    #[inline(always)]
    fn top(a: Self::F) -> f32 {
        top8(unsafe { _mm256_max_ps(a[0], a[1]) })
    }

    #[inline(always)]
    fn isplat(x: i32) -> Self::I {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    fn iadd(a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    fn isub(a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    fn ishl(a: Self::I, n: u32) -> Self::I {
        two!(i => _mm256_sll_epi32(a[i], _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn ishr(a: Self::I, n: u32) -> Self::I {
        two!(i => _mm256_srl_epi32(a[i], _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn load_u8(x: &[u8; 16]) -> Self::I {
        two!(i => _mm256_cvtepu8_epi32(_mm_loadl_epi64(x[8 * i..].as_ptr().cast())))
    }
    #[inline(always)]
    fn load_i8(x: &[u8; 16]) -> Self::I {
        two!(i => _mm256_cvtepi8_epi32(_mm_loadl_epi64(x[8 * i..].as_ptr().cast())))
    }
    #[inline(always)]
    fn to_f32(a: Self::I) -> Self::F {
        both!(_mm256_cvtepi32_ps, a)
    }
    #[inline(always)]
    fn to_i32(a: Self::F) -> Self::I {
        both!(_mm256_cvtps_epi32, a)
    }
    #[inline(always)]
    fn to_i8(a: Self::F) -> [i8; 16] {
        let mut out = [0; 16];
        let a = Self::to_i32(a);
        unsafe {
            // Packing works within 128-bit halves: i32 to i16 leaves 0-3, 8-11, 4-7, 12-15, put right by the permutation.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a[0], a[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        }
        out
    }
    #[inline(always)]
    fn as_f32(a: Self::I) -> Self::F {
        both!(_mm256_castsi256_ps, a)
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn bytes(x: &[u8; 64]) -> Self::B {
        two!(i => _mm256_loadu_si256(x[32 * i..].as_ptr().cast()))
    }
    #[inline(always)]
    fn and(a: Self::B, mask: u8) -> Self::B {
        two!(i => _mm256_and_si256(a[i], _mm256_set1_epi8(mask as i8)))
    }
    #[inline(always)]
    fn or(a: Self::B, b: Self::B) -> Self::B {
        both!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    fn shr(a: Self::B, n: u32) -> Self::B {
        two!(i => _mm256_srl_epi16(a[i], _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn shl(a: Self::B, n: u32) -> Self::B {
        two!(i => _mm256_sll_epi16(a[i], _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn lookup(table: &[u8; 16], a: Self::B) -> Self::B {
        two!(i => {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, a[i])
        })
    }
    #[inline(always)]
    fn dot(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        if VNNI {
            return two!(i => _mm256_dpbusd_avx_epi32(acc[i], w[i], _mm256_set1_epi32(x)));
        }
        Self::widen(acc, Self::pairs(Self::isplat(0), w, x))
    }
    #[inline(always)]
    fn pairs(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        let sums = two!(i => _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(w[i], _mm256_set1_epi32(x))));
        unsafe { here(sums) }
    }
    #[inline(always)]
    fn widen(acc: Self::I, pairs: Self::I) -> Self::I {
        two!(i => _mm256_add_epi32(acc[i], _mm256_madd_epi16(pairs[i], _mm256_set1_epi16(1))))
    }
    #[inline(always)]
    fn dot_wide(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        if VNNI {
            return Self::dot(acc, w, x);
        }
        // |w| is at most 128 and |x| at most 127, so pairs fit in i16 once the sign has moved from w to x.
        let pairs = two!(i => {
            let w = _mm256_xor_si256(w[i], _mm256_set1_epi8(-128));
            let x = _mm256_sign_epi8(_mm256_set1_epi32(x), w);
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), x)
        });
        unsafe { here(Self::widen(acc, pairs)) }
    }
}
