//! Every verb of every instruction set against the scalar one, bit for bit.

use super::*;

/// All verbs on one set of inputs, folded into words.
struct Verbs<'a> {
    f: &'a [[f32; 16]; 3],
    h: &'a [u16; 16],
    b: &'a [[u8; 64]; 2],
    x: i32,
}

impl Kernel for Verbs<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<u32> {
        let mut out = Vec::new();
        let mut f = |v: S::F| {
            let mut lanes = [0.0; 16];
            S::store(v, &mut lanes);
            out.extend(lanes.map(f32::to_bits));
        };
        let [a, b, c] = [S::load(&self.f[0]), S::load(&self.f[1]), S::load(&self.f[2])];
        for v in [
            S::splat(self.f[0][3]),
            S::load_f16(self.h),
            S::load_bf16(self.h),
            S::add(a, b),
            S::sub(a, b),
            S::mul(a, b),
            S::div(a, b),
            S::fma(a, b, c),
            S::max(a, b),
            S::min(a, b),
            S::round(a),
            S::swap(a),
            S::splat(S::sum(a)),
            S::splat(S::top(a)),
            load_part::<S>(&self.f[0][..5]),
        ] {
            f(v);
        }
        let bytes = self.b[0].first_chunk::<16>().expect("64 bytes");
        let (i, j) = (S::load_i8(bytes), S::load_u8(bytes));
        for v in [S::iadd(i, j), S::isub(i, j), S::ishl(i, 5), S::ishr(i, 7), S::isplat(self.x), S::to_i32(a)] {
            f(S::to_f32(v));
            f(S::as_f32(S::iadd(S::ishl(v, 16), S::isplat(1 << 30))));
        }
        let mut halves = [0; 16];
        S::store_f16(a, &mut halves);
        out.extend(halves.map(u32::from));
        out.extend(S::to_i8(a).map(|x| x as u32));
        let mut part = [7.0; 5];
        store_part::<S>(b, &mut part);
        out.extend(part.map(f32::to_bits));

        let mut i = |v: S::I| {
            let mut lanes = [0.0; 16];
            S::store(S::to_f32(v), &mut lanes);
            out.extend(lanes.map(f32::to_bits));
        };
        let w = S::bytes(&self.b[0]);
        let v = S::bytes(&self.b[1]);
        let table: &[u8; 16] = self.b[1].first_chunk().expect("64 bytes");
        for w in [S::and(w, 15), S::and(S::shr(w, 4), 15), S::and(S::shl(w, 3), 0x38), S::and(S::or(w, v), 63)] {
            i(S::dot(S::isplat(3), w, self.x));
        }
        for bits in 4..7 {
            let (mut sum, mut largest) = (S::isplat(0), S::isplat(0));
            for group in 0..1 << (7 - bits) {
                let mask = (1 << bits) - 1;
                sum = S::pairs(sum, S::and(if group % 2 == 0 { w } else { v }, mask), self.x);
                largest = S::pairs(largest, S::and(S::bytes(&[255; 64]), mask), i32::from_le_bytes([127; 4]));
            }
            i(S::widen(S::isplat(-5), sum));
            i(S::widen(S::isplat(5), largest));
        }
        for w in [w, v, S::lookup(table, S::and(w, 15))] {
            let mut sum = S::dot_wide(S::isplat(-9), w, self.x);
            if let Some(shift) = S::WIDE_SHIFT {
                let x: i32 = self.x.to_le_bytes().iter().map(|&x| i32::from(x as i8)).sum();
                sum = S::isub(sum, S::ishl(S::isplat(x), shift));
            }
            i(sum);
        }
        out
    }
}

#[test]
fn every_verb_equals_the_scalar_one() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    for _ in 0..200 {
        let f: [[f32; 16]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| (next() as f32 / 1e7) - 100.0));
        // Finite halves only: the two formats' infinities and NaNs are not weights.
        let h: [u16; 16] = std::array::from_fn(|_| (next() as u16) & 0xbbff);
        let b: [[u8; 64]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| next() as u8));
        let x = i32::from_le_bytes(std::array::from_fn(|_| (next() as u8).max(129) ^ ((next() as u8) & 0x80)));
        let run = |isa: Isa| isa.dispatch(Verbs { f: &f, h: &h, b: &b, x });
        let expected = run(Isa::Scalar);
        for isa in Isa::available() {
            assert_eq!(run(isa), expected, "{}", isa.name());
        }
    }
}

#[test]
fn best_is_available() {
    assert!(Isa::best().is_available());
    assert_eq!(Isa::available().next(), Some(Isa::Scalar));
}
