//! Instruction sets: which ones this CPU has, and the verbs that kernels are written in.
//!
//! A kernel is written once, as a [`Kernel`] over [`Simd`], in terms of sixteen logical lanes; each instruction set says
//! how it moves sixteen lanes (one 512-bit register, two of 256 bits, an array). So every instruction set does the same
//! arithmetic in the same order, the scalar form is always there to compare with, and a test can ask for equal bits.
//!
//! [`Isa::dispatch`] is the only door: it compiles the kernel under the features of the chosen set, which works because
//! every verb and every [`Kernel::run`] is `#[inline(always)]`. What a kernel calls must be inlined into it as well, or its
//! verbs turn into calls, thirty times slower and just as right: no `array::from_fn`, no `map` over arrays, no iterator
//! that takes a closure around a verb. `for` loops, `#[inline(always)]` functions and macros are fine.

#![allow(unsafe_code)] // intrinsics

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

pub use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub use {avx2::Avx2, avx512::Avx512};

/// An instruction set with a full set of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum Isa {
    /// Plain Rust, any CPU; the oracle of the others.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL with VNNI.
    Avx512,
}

impl Isa {
    /// All there are, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512];

    /// Whether this CPU can run it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let x86 = match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2::is_available(),
            Isa::AvxVnni => avx2::has_vnni(),
            Isa::Avx512 => avx512::is_available(),
        };
        #[cfg(not(target_arch = "x86_64"))]
        let x86 = self == Isa::Scalar;
        x86
    }

    /// Those this CPU can run, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The fastest this CPU can run.
    pub fn best() -> Isa {
        Self::available().last().expect("scalar is always available")
    }

    /// The name that `--isa` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    ///
    /// # Panics
    /// When the CPU does not have it.
    pub fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Scalar => kernel.run::<Scalar>(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                debug_assert!(self.is_available());
                // SAFETY: an `Isa` other than scalar is taken from `available` or checked against it where it is parsed.
                unsafe { avx2::enter(kernel) }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => {
                debug_assert!(self.is_available());
                // SAFETY: as above.
                unsafe { avx2::enter_vnni(kernel) }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                debug_assert!(self.is_available());
                // SAFETY: as above.
                unsafe { avx512::enter(kernel) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("only scalar is available on this architecture"),
        }
    }
}

/// A piece of work written over [`Simd`].
pub trait Kernel {
    /// What it gives back.
    type Output;
    /// Does it with the verbs of `S`. Must be `#[inline(always)]`.
    fn run<S: Simd>(self) -> Self::Output;
}

/// The verbs: sixteen f32 lanes `F`, sixteen i32 lanes `I`, sixty-four bytes `B`.
///
/// All are safe to call from a [`Kernel`] that [`Isa::dispatch`] runs, and from nowhere else: that is the one obligation.
/// Lane-wise arithmetic rounds as IEEE says, `fma` once; [`Simd::sum`] adds halves, then quarters, and so on.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixty-four u8: four bytes for each of sixteen rows.
    type B: Copy;

    /// What [`Simd::dot_wide`] leaves in its sum: `Some(7)` means 128 times the sum of `x`, `None` means nothing.
    const WIDE_SHIFT: Option<u32>;
    /// Whether [`Simd::pairs`] of several groups, widened together, cost less than as many [`Simd::dot`].
    const PAIRS: bool = false;
    /// Sums that fit into the registers, beside what a kernel reads.
    const SUMS: usize;
    /// Rows, at most eight, whose sums of a product fit into the registers beside one panel of weights, and beside two of them,
    /// if two pay at all.
    const TILES: [usize; 2];

    /// All lanes `x`.
    fn splat(x: f32) -> Self::F;
    /// Sixteen consecutive values.
    fn load(x: &[f32; 16]) -> Self::F;
    /// Stores sixteen consecutive values.
    fn store(v: Self::F, out: &mut [f32; 16]);
    /// Sixteen IEEE halves, widened.
    fn load_f16(x: &[u16; 16]) -> Self::F;
    /// Rounds to IEEE halves, ties to even.
    fn store_f16(v: Self::F, out: &mut [u16; 16]);
    /// Sixteen bfloat16, widened.
    fn load_bf16(x: &[u16; 16]) -> Self::F;
    /// Lane-wise sum.
    fn add(a: Self::F, b: Self::F) -> Self::F;
    /// Lane-wise difference.
    fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// Lane-wise product.
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// Lane-wise quotient.
    fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Lane-wise larger value (operands are not NaN).
    fn max(a: Self::F, b: Self::F) -> Self::F;
    /// Lane-wise smaller value (operands are not NaN).
    fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Nearest integer, ties to even.
    fn round(a: Self::F) -> Self::F;
    /// Lanes 2i and 2i + 1 change places.
    fn swap(a: Self::F) -> Self::F;
    /// Sum of the lanes, by halving.
    fn sum(a: Self::F) -> f32;
    /// Largest lane.
    fn top(a: Self::F) -> f32;

    /// All lanes `x`.
    fn isplat(x: i32) -> Self::I;
    /// Lane-wise sum, wrapping.
    fn iadd(a: Self::I, b: Self::I) -> Self::I;
    /// Lane-wise difference, wrapping.
    fn isub(a: Self::I, b: Self::I) -> Self::I;
    /// Lane-wise left shift.
    fn ishl(a: Self::I, n: u32) -> Self::I;
    /// Lane-wise right shift, zeros coming in.
    fn ishr(a: Self::I, n: u32) -> Self::I;
    /// Sixteen u8, widened.
    fn load_u8(x: &[u8; 16]) -> Self::I;
    /// Sixteen i8, widened.
    fn load_i8(x: &[u8; 16]) -> Self::I;
    /// The nearest f32 of each lane.
    fn to_f32(a: Self::I) -> Self::F;
    /// The nearest integer of each lane, ties to even; lanes are within i32.
    fn to_i32(a: Self::F) -> Self::I;
    /// The nearest integer of each lane, ties to even; lanes are within i8.
    fn to_i8(a: Self::F) -> [i8; 16];
    /// The same bits seen as f32.
    fn as_f32(a: Self::I) -> Self::F;

    /// Asks for the cache line at `at`, which need not exist.
    fn prefetch(at: *const u8);
    /// Sixty-four bytes.
    fn bytes(x: &[u8; 64]) -> Self::B;
    /// Byte-wise and with `mask`.
    fn and(a: Self::B, mask: u8) -> Self::B;
    /// Bit-wise or.
    fn or(a: Self::B, b: Self::B) -> Self::B;
    /// 16-bit right shift; bits cross from the upper byte of a pair into the lower, so mask afterwards.
    fn shr(a: Self::B, n: u32) -> Self::B;
    /// 16-bit left shift; mask afterwards.
    fn shl(a: Self::B, n: u32) -> Self::B;
    /// `table[byte]` for bytes below 16.
    fn lookup(table: &[u8; 16], a: Self::B) -> Self::B;
    /// Adds to each lane the four products of its unsigned bytes of `w` (at most 63) and the signed bytes of `x`.
    fn dot(acc: Self::I, w: Self::B, x: i32) -> Self::I;
    /// Like [`Simd::dot`] in a narrower form that begins with zero: with [`Simd::PAIRS`], sixteen bits for each two products,
    /// which hold 8 groups with `w` below 16, 4 below 32, 2 below 64.
    #[inline(always)]
    fn pairs(acc: Self::I, w: Self::B, x: i32) -> Self::I {
        Self::dot(acc, w, x)
    }
    /// Adds what [`Simd::pairs`] gave to sums of [`Simd::dot`].
    #[inline(always)]
    fn widen(acc: Self::I, pairs: Self::I) -> Self::I {
        Self::iadd(acc, pairs)
    }
    /// Adds to each lane the four products of its bytes of `w`, each meaning its value less 128, and the signed bytes of
    /// `x` (above -128); up to what [`Simd::WIDE_SHIFT`] says has to be taken off afterwards.
    fn dot_wide(acc: Self::I, w: Self::B, x: i32) -> Self::I;
}

/// Asks for the cache line at `at`, which need not exist, as far as the second-level cache.
#[inline(always)]
pub fn prefetch_near(at: *const u8) {
    // SAFETY: a hint that reads nothing, which every x86-64 has.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Up to sixteen values, the rest zero.
#[inline(always)]
pub fn load_part<S: Simd>(x: &[f32]) -> S::F {
    match x.first_chunk::<16>() {
        Some(full) => S::load(full),
        None => {
            let mut padded = [0.0; 16];
            padded[..x.len()].copy_from_slice(x);
            S::load(&padded)
        }
    }
}

/// Stores the first lanes, as many as fit in `out`.
#[inline(always)]
pub fn store_part<S: Simd>(v: S::F, out: &mut [f32]) {
    match out.first_chunk_mut::<16>() {
        Some(full) => S::store(v, full),
        None => {
            let mut padded = [0.0; 16];
            S::store(v, &mut padded);
            let n = out.len();
            out.copy_from_slice(&padded[..n]);
        }
    }
}

#[cfg(test)]
mod tests;
