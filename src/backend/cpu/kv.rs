//! The KV cache: rows of rounded keys and values, by layer and slot.

use crate::backend::{KvShape, KvType};
use crate::isa::{Kernel, Simd};
use anyhow::{Context, Result, ensure};
use memmap2::MmapMut;
use std::ops::Range;

/// Elements of a `q8_0` block.
const BLOCK: usize = 32;
/// Bytes of a `q8_0` block: an f16 scale, then the quants.
const BLOCK_BYTES: usize = 34;

/// Which of the two a row belongs to.
#[derive(Clone, Copy)]
pub enum Part {
    Keys,
    Values,
}

/// Keys and values of all layers, `[layers, 2, slots, G*K]`.
pub struct Kv {
    shape: KvShape,
    /// Anonymous memory: slots that were never used take none.
    data: MmapMut,
}

impl Kv {
    /// An empty cache.
    pub fn new(shape: KvShape) -> Result<Self> {
        ensure!(
            shape.width.is_multiple_of(16),
            "head width {} is not supported: a multiple of 16 is needed",
            shape.width
        );
        ensure!(
            shape.ty != KvType::Q8_0 || shape.width.is_multiple_of(BLOCK),
            "KV type q8_0 needs a head width that is a multiple of {BLOCK}, this model's is {}: use f16 or f32",
            shape.width
        );
        let data = MmapMut::map_anon(shape.bytes().max(1))
            .with_context(|| format!("allocating {} bytes of KV cache", shape.bytes()))?;
        Ok(Self { shape, data })
    }

    /// Its shape.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    fn row_bytes(&self) -> usize {
        self.shape.ty.bytes(self.shape.heads * self.shape.width)
    }

    fn at(&self, layer: usize, part: Part, slot: usize) -> usize {
        debug_assert!(layer < self.shape.layers && slot <= self.shape.slots);
        ((layer * 2 + part as usize) * self.shape.slots + slot) * self.row_bytes()
    }

    /// Bytes of the rows `slots` of one layer.
    pub fn rows(&self, layer: usize, part: Part, slots: Range<usize>) -> &[u8] {
        &self.data[self.at(layer, part, slots.start)..self.at(layer, part, slots.end)]
    }

    /// Bytes of one row.
    pub fn row_mut(&mut self, layer: usize, part: Part, slot: usize) -> &mut [u8] {
        let at = self.at(layer, part, slot);
        let bytes = self.row_bytes();
        &mut self.data[at..at + bytes]
    }

    /// Moves one slot of every layer.
    pub fn move_slot(&mut self, from: usize, to: usize) {
        let bytes = self.row_bytes();
        for layer in 0..self.shape.layers {
            for part in [Part::Keys, Part::Values] {
                let (from, to) = (self.at(layer, part, from), self.at(layer, part, to));
                self.data.copy_within(from..from + bytes, to);
            }
        }
    }
}

/// Rounds one row to the cache's type.
pub struct Round<'a> {
    pub ty: KvType,
    pub x: &'a [f32],
    pub out: &'a mut [u8],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let x = self.x.as_chunks::<16>().0;
        match self.ty {
            KvType::F32 => {
                for (out, x) in self.out.as_chunks_mut::<4>().0.iter_mut().zip(self.x) {
                    *out = x.to_le_bytes();
                }
            }
            KvType::F16 => {
                for (out, x) in self.out.chunks_exact_mut(32).zip(x) {
                    let mut halves = [0; 16];
                    S::store_f16(S::load(x), &mut halves);
                    for (out, half) in out.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
                        *out = half.to_le_bytes();
                    }
                }
            }
            KvType::Q8_0 => {
                for (out, x) in self.out.chunks_exact_mut(BLOCK_BYTES).zip(x.chunks_exact(2)) {
                    let (a, b) = (S::load(&x[0]), S::load(&x[1]));
                    let zero = S::splat(0.0);
                    let top = S::top(S::max(S::max(a, S::sub(zero, a)), S::max(b, S::sub(zero, b))));
                    // Quants go with the scale as it is before it is rounded to f16, as ggml has it.
                    let scale = top / 127.0;
                    let inverse = if scale > 0.0 && (1.0 / scale).is_finite() { 1.0 / scale } else { 0.0 };
                    out[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
                    for (i, v) in [a, b].into_iter().enumerate() {
                        let quants = S::to_i8(S::mul(v, S::splat(inverse)));
                        out[2 + 16 * i..][..16].copy_from_slice(&quants.map(|q| q as u8));
                    }
                }
            }
        }
    }
}

/// Reads sixteen elements of a stored row at a time.
pub trait Stored: 'static {
    /// Elements `16 * chunk ..` of a head that starts at `head`.
    fn load<S: Simd>(head: &[u8], chunk: usize) -> S::F;
}

pub struct F32;
pub struct F16;
pub struct Q8;

impl Stored for F32 {
    #[inline(always)]
    fn load<S: Simd>(head: &[u8], chunk: usize) -> S::F {
        let mut x = [0.0; 16];
        for (x, bytes) in x.iter_mut().zip(head[64 * chunk..][..64].as_chunks().0) {
            *x = f32::from_le_bytes(*bytes);
        }
        S::load(&x)
    }
}

impl Stored for F16 {
    #[inline(always)]
    fn load<S: Simd>(head: &[u8], chunk: usize) -> S::F {
        crate::quant::panel::halves::<S>(&head[32 * chunk..][..32])
    }
}

impl Stored for Q8 {
    #[inline(always)]
    fn load<S: Simd>(head: &[u8], chunk: usize) -> S::F {
        let block = &head[chunk / 2 * BLOCK_BYTES..][..BLOCK_BYTES];
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        let quants = block[2 + chunk % 2 * 16..].first_chunk().expect("a block holds 32 quants");
        S::mul(S::to_f32(S::load_i8(quants)), S::splat(scale))
    }
}
