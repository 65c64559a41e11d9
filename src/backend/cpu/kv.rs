//! The KV cache: rounded keys and values of every layer, head by head.
//!
//! Slots are cut into pages, and a page has per layer and head its keys, then its values: memory fills up from its start
//! as slots do, so that it can be of huge pages and still take no more than is used. Values of a head are rows, one a
//! slot. Keys lie across: sixteen slots make a strip, and a strip holds for each element of the head the sixteen slots'
//! values side by side, so that one register takes one element of sixteen keys and scores need no sums across lanes.
//! A `q8_0` strip has, for every 32 elements, first the sixteen scales, then the quants.

use super::weight::{Arena, Piece};
use crate::backend::{KvShape, KvType};
use crate::isa::{self, Isa, Kernel, Simd};
use crate::quant::panel::{halves, sixteen};
use anyhow::{Context, Result, ensure};
use std::ops::Range;

/// Elements of a `q8_0` block.
const BLOCK: usize = 32;
/// Bytes of a `q8_0` block: an f16 scale, then the quants.
const BLOCK_BYTES: usize = 34;

/// Slots of a strip of keys.
pub const LANES: usize = 16;
/// Slots of a page.
pub const PAGE: usize = 128;

/// Keys and values of all layers.
pub struct Kv {
    shape: KvShape,
    /// Memory that was never written takes none.
    data: Piece,
    /// Room for one head's key.
    key: Vec<u8>,
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
        let rounded = KvShape { slots: shape.slots.next_multiple_of(PAGE), ..shape };
        let bytes = rounded.bytes().max(1);
        let data = Arena::default().take(bytes).with_context(|| format!("allocating {bytes} bytes of KV cache"))?;
        Ok(Self { shape: rounded, data, key: vec![0; rounded.ty.bytes(rounded.width)] })
    }

    /// Its shape, slots rounded up to whole pages.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Bytes of one head of one slot.
    pub fn head_bytes(&self) -> usize {
        self.shape.ty.bytes(self.shape.width)
    }

    /// Bytes of one head's keys in a page, and of its values, which follow them.
    pub fn page_bytes(&self) -> usize {
        PAGE * self.head_bytes()
    }

    /// Bytes from a head's values in a page to its keys in the next.
    pub fn next_page(&self) -> usize {
        (2 * self.shape.layers * self.shape.heads - 1) * self.page_bytes()
    }

    /// Where the keys of a head begin in the page of `slot`; its values follow them.
    fn at(&self, layer: usize, head: usize, slot: usize) -> usize {
        let KvShape { layers, heads, .. } = self.shape;
        debug_assert!(layer < layers && head < heads);
        ((slot / PAGE * layers + layer) * heads + head) * 2 * self.page_bytes()
    }

    /// Where the value of a slot begins.
    fn value_at(&self, layer: usize, head: usize, slot: usize) -> usize {
        self.at(layer, head, slot) + self.page_bytes() + slot % PAGE * self.head_bytes()
    }

    /// Where the strip of a slot begins.
    fn strip_at(&self, layer: usize, head: usize, slot: usize) -> usize {
        self.at(layer, head, slot) + slot % PAGE / LANES * LANES * self.head_bytes()
    }

    /// A strip of keys: those of slots from `LANES * strip` on.
    pub fn strip(&self, layer: usize, head: usize, strip: usize) -> &[u8] {
        &self.data.bytes()[self.strip_at(layer, head, strip * LANES)..][..LANES * self.head_bytes()]
    }

    /// Values of slots of one page: a row a slot.
    pub fn values(&self, layer: usize, head: usize, slot: usize, count: usize) -> &[u8] {
        assert!(slot % PAGE + count <= PAGE, "a run of values ends with its page");
        &self.data.bytes()[self.value_at(layer, head, slot)..][..count * self.head_bytes()]
    }

    fn value_mut(&mut self, layer: usize, head: usize, slot: usize) -> &mut [u8] {
        let (at, bytes) = (self.value_at(layer, head, slot), self.head_bytes());
        &mut self.data.bytes_mut()[at..at + bytes]
    }

    fn strip_mut(&mut self, layer: usize, head: usize, slot: usize) -> &mut [u8] {
        let (at, bytes) = (self.strip_at(layer, head, slot), LANES * self.head_bytes());
        &mut self.data.bytes_mut()[at..at + bytes]
    }

    /// Asks for where the keys and values of `slots` belong: a key lies across many cache lines, all far away.
    pub fn ask(&self, layer: usize, slots: Range<usize>) {
        let ask = |bytes: &[u8]| bytes.chunks(64).for_each(|line| isa::prefetch_near(line.as_ptr()));
        for strip in slots.start / LANES..slots.end.div_ceil(LANES) {
            let (first, end) = (slots.start.max(strip * LANES), slots.end.min((strip + 1) * LANES));
            for head in 0..self.shape.heads {
                ask(self.strip(layer, head, strip));
                ask(self.values(layer, head, first, end - first));
            }
        }
    }

    /// Rounds one slot's `keys` and `values` `[G*K]` and stores them.
    pub fn store(&mut self, isa: Isa, layer: usize, slot: usize, keys: &[f32], values: &[f32]) {
        let KvShape { width, ty, .. } = self.shape;
        let mut key = std::mem::take(&mut self.key);
        for (head, (keys, values)) in keys.chunks_exact(width).zip(values.chunks_exact(width)).enumerate() {
            isa.dispatch(Round { ty, x: values, out: self.value_mut(layer, head, slot) });
            isa.dispatch(Round { ty, x: keys, out: &mut key });
            self.set_key(layer, head, slot, &key);
        }
        self.key = key;
    }

    /// Lays one head's key of one slot across its strip.
    fn set_key(&mut self, layer: usize, head: usize, slot: usize, key: &[u8]) {
        let KvShape { width, ty, .. } = self.shape;
        let (strip, lane) = (self.strip_mut(layer, head, slot), slot % LANES);
        match ty {
            KvType::F32 => lay::<4>(strip, lane, key),
            KvType::F16 => lay::<2>(strip, lane, key),
            KvType::Q8_0 => for_units(ty, width, |at, size, across| {
                strip[across + lane * size..][..size].copy_from_slice(&key[at..at + size]);
            }),
        }
    }

    /// One head's key of one slot, as a row.
    fn key(&self, layer: usize, head: usize, slot: usize) -> Vec<u8> {
        let bytes = self.head_bytes();
        let strip = self.strip(layer, head, slot / LANES);
        let mut key = vec![0; bytes];
        for_units(self.shape.ty, self.shape.width, |at, size, across| {
            let lane = across + slot % LANES * size;
            key[at..at + size].copy_from_slice(&strip[lane..lane + size]);
        });
        key
    }

    /// Rows `slots` of a layer, keys of all of them and then values.
    pub fn rows(&self, layer: usize, slots: Range<usize>) -> Vec<u8> {
        let heads = self.shape.heads;
        let each = || slots.clone().flat_map(|slot| (0..heads).map(move |head| (slot, head)));
        let keys = each().flat_map(|(slot, head)| self.key(layer, head, slot));
        let values = each().flat_map(|(slot, head)| self.values(layer, head, slot, 1));
        keys.chain(values.copied()).collect()
    }

    /// Stores what [`Kv::rows`] gave.
    pub fn set_rows(&mut self, layer: usize, slots: Range<usize>, rows: &[u8]) {
        let (heads, bytes) = (self.shape.heads, self.head_bytes());
        let (keys, values) = rows.split_at(slots.len() * heads * bytes);
        let places = slots.flat_map(|slot| (0..heads).map(move |head| (slot, head)));
        for ((slot, head), (key, value)) in places.zip(keys.chunks_exact(bytes).zip(values.chunks_exact(bytes))) {
            self.set_key(layer, head, slot, key);
            self.value_mut(layer, head, slot).copy_from_slice(value);
        }
    }

    /// Moves one slot of every layer.
    pub fn move_slot(&mut self, from: usize, to: usize) {
        let KvShape { layers, heads, width, ty, .. } = self.shape;
        let bytes = self.head_bytes();
        for (layer, head) in (0..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head))) {
            let [value_from, value_to] = [from, to].map(|slot| self.value_at(layer, head, slot));
            let [strip_from, strip_to] = [from, to].map(|slot| self.strip_at(layer, head, slot));
            let data = self.data.bytes_mut();
            data.copy_within(value_from..value_from + bytes, value_to);
            for_units(ty, width, |_, size, across| {
                let at = strip_from + across + from % LANES * size;
                data.copy_within(at..at + size, strip_to + across + to % LANES * size);
            });
        }
    }
}

/// Lays a key of elements of `N` bytes across lane `lane` of a strip.
fn lay<const N: usize>(strip: &mut [u8], lane: usize, key: &[u8]) {
    let (lanes, _) = strip.as_chunks_mut::<N>().0.as_chunks_mut::<LANES>();
    for (lanes, element) in lanes.iter_mut().zip(key.as_chunks::<N>().0) {
        lanes[lane] = *element;
    }
}

/// Calls `f(offset in a row, bytes, offset of lane 0 in a strip)` for every unit of a head: an element, or a scale. Inlined for
/// copies of so many bytes to be single instructions.
#[inline(always)]
fn for_units(ty: KvType, width: usize, mut f: impl FnMut(usize, usize, usize)) {
    match ty {
        KvType::F32 => (0..width).for_each(|d| f(4 * d, 4, 4 * LANES * d)),
        KvType::F16 => (0..width).for_each(|d| f(2 * d, 2, 2 * LANES * d)),
        KvType::Q8_0 => {
            for start in (0..width / BLOCK).map(|block| block * BLOCK_BYTES) {
                f(start, 2, LANES * start);
                (0..BLOCK).for_each(|i| f(start + 2 + i, 1, LANES * (start + 2 + i)));
            }
        }
    }
}

/// Rounds one row to the cache's type.
struct Round<'a> {
    ty: KvType,
    x: &'a [f32],
    out: &'a mut [u8],
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

/// Reads sixteen stored elements at a time.
pub trait Stored: Sync + 'static {
    /// What sixteen elements take, scales aside.
    const BYTES: usize;
    /// Elements `16 * chunk ..` of a row.
    fn row<S: Simd>(row: &[u8], chunk: usize) -> S::F;
    /// Element `d` of the sixteen keys of a strip.
    fn across<S: Simd>(strip: &[u8], d: usize) -> S::F;
}

pub struct F32;
pub struct F16;
pub struct Q8;

#[inline(always)]
fn floats<S: Simd>(bytes: &[u8]) -> S::F {
    let mut x = [0.0; 16];
    for (x, bytes) in x.iter_mut().zip(bytes[..64].as_chunks().0) {
        *x = f32::from_le_bytes(*bytes);
    }
    S::load(&x)
}

impl Stored for F32 {
    const BYTES: usize = 64;

    #[inline(always)]
    fn row<S: Simd>(row: &[u8], chunk: usize) -> S::F {
        floats::<S>(&row[64 * chunk..])
    }
    #[inline(always)]
    fn across<S: Simd>(strip: &[u8], d: usize) -> S::F {
        floats::<S>(&strip[64 * d..])
    }
}

impl Stored for F16 {
    const BYTES: usize = 32;

    #[inline(always)]
    fn row<S: Simd>(row: &[u8], chunk: usize) -> S::F {
        halves::<S>(&row[32 * chunk..])
    }
    #[inline(always)]
    fn across<S: Simd>(strip: &[u8], d: usize) -> S::F {
        halves::<S>(&strip[32 * d..])
    }
}

impl Stored for Q8 {
    const BYTES: usize = 16;

    #[inline(always)]
    fn row<S: Simd>(row: &[u8], chunk: usize) -> S::F {
        let block = &row[chunk / 2 * BLOCK_BYTES..][..BLOCK_BYTES];
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        S::mul(S::to_f32(S::load_i8(sixteen(block, 2 + chunk % 2 * 16))), S::splat(scale))
    }
    #[inline(always)]
    fn across<S: Simd>(strip: &[u8], d: usize) -> S::F {
        let part = &strip[d / BLOCK * LANES * BLOCK_BYTES..][..LANES * BLOCK_BYTES];
        let quants = S::load_i8(sixteen(part, LANES * (2 + d % BLOCK)));
        S::mul(S::to_f32(quants), halves::<S>(part))
    }
}
