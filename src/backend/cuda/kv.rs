//! The KV cache on the device, and its rows as the CPU's backend would have them.

use super::driver::{Driver, Memory};
use super::kernels::SLOTS;
use crate::backend::{KvShape, KvType};
use anyhow::{Context, Result, ensure};
use std::ops::Range;
use std::sync::Arc;

/// Widest head that kernels take.
const WIDEST: usize = 256;
/// Elements of a `q8_0` block, and bytes of its scale.
const BLOCK: usize = 32;
const SCALE: usize = 2;

/// Keys and values of all layers: `[layers, 2, heads]` parts, each of so many slots.
pub struct Kv {
    shape: KvShape,
    memory: Memory,
}

impl Kv {
    /// A cache of this shape.
    pub fn new(driver: &Arc<Driver>, shape: KvShape) -> Result<Self> {
        let fits = shape.width.is_multiple_of(16) && shape.width <= WIDEST;
        ensure!(fits, "head width {} is not supported: multiples of 16 up to {WIDEST} are", shape.width);
        ensure!(
            shape.ty != KvType::Q8_0 || shape.width.is_multiple_of(BLOCK),
            "KV type q8_0 needs a head width that is a multiple of {BLOCK}, this model's is {}: use f16 or f32",
            shape.width
        );
        let shape = KvShape { slots: shape.slots.next_multiple_of(SLOTS), ..shape };
        let memory = driver.allocate(shape.bytes(), "KV cache")?;
        Ok(Self { shape, memory })
    }

    /// Its shape, slots rounded up.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    fn part_bytes(&self) -> usize {
        self.shape.slots * self.shape.ty.bytes(self.shape.width)
    }

    /// Where keys and values of a layer begin.
    pub fn layer(&self, layer: usize) -> [u64; 2] {
        assert!(layer < self.shape.layers);
        [0, 1].map(|which| self.address() + ((2 * layer + which) * self.shape.heads * self.part_bytes()) as u64)
    }

    /// For each array of a part where it begins and how many bytes a slot has in it.
    fn arrays(&self) -> Vec<(usize, usize)> {
        let KvShape { width, slots, ty, .. } = self.shape;
        match ty {
            KvType::Q8_0 => vec![(0, width), (slots * width, width / BLOCK * SCALE)],
            _ => vec![(0, ty.bytes(width))],
        }
    }

    /// Copies slots between the device and rows: per layer keys of all slots and heads, then values. `each` is told where
    /// in a part, how many bytes, and where those of each slot and head go in the rows.
    fn row_bytes(&self) -> usize {
        self.shape.heads * self.shape.ty.bytes(self.shape.width)
    }

    /// Between a slot of one head as the arrays of a part have it and as a row has it: `(array, from, to, bytes)`.
    fn pieces(&self) -> Vec<(usize, usize, usize, usize)> {
        let KvShape { width, ty, .. } = self.shape;
        match ty {
            KvType::Q8_0 => (0..width / BLOCK)
                .flat_map(|block| {
                    let row = block * (BLOCK + SCALE);
                    [(1, block * SCALE, row, SCALE), (0, block * BLOCK, row + SCALE, BLOCK)]
                })
                .collect(),
            _ => vec![(0, 0, 0, ty.bytes(width))],
        }
    }

    /// The stored bytes of `slots`.
    pub fn rows(&self, driver: &Driver, slots: Range<usize>) -> Result<Vec<u8>> {
        let KvShape { layers, heads, ty, width, .. } = self.shape;
        ensure!(slots.end <= self.shape.slots, "slot {} is beyond the cache", slots.end);
        let (head_bytes, row, count) = (ty.bytes(width), self.row_bytes(), slots.len());
        let mut all = vec![0; layers * 2 * count * row];
        if all.is_empty() {
            return Ok(all);
        }
        let (arrays, pieces) = (self.arrays(), self.pieces());
        for (half, rows) in all.chunks_exact_mut(count * row).enumerate() {
            for head in 0..heads {
                let part = (half * heads + head) * self.part_bytes();
                let mut read = vec![];
                for &(begin, bytes) in &arrays {
                    let mut array = vec![0u8; count * bytes];
                    driver.copy_out(&self.memory, part + begin + slots.start * bytes, &mut array)?;
                    read.push((array, bytes));
                }
                for slot in 0..count {
                    for &(array, from, to, bytes) in &pieces {
                        let (array, per_slot) = &read[array];
                        let to = slot * row + head * head_bytes + to;
                        rows[to..to + bytes].copy_from_slice(&array[slot * per_slot + from..][..bytes]);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Stores what [`Kv::rows`] gave.
    pub fn set_rows(&mut self, driver: &Driver, slots: Range<usize>, all: &[u8]) -> Result<()> {
        let KvShape { layers, heads, ty, width, .. } = self.shape;
        let (head_bytes, row, count) = (ty.bytes(width), self.row_bytes(), slots.len());
        let need = layers.checked_mul(2 * count * row).context("the size of a cache overflows")?;
        let fits = slots.end <= self.shape.slots && all.len() == need;
        ensure!(fits, "{} bytes of KV, {need} needed", all.len());
        if need == 0 {
            return Ok(());
        }
        let (arrays, pieces) = (self.arrays(), self.pieces());
        for (half, rows) in all.chunks_exact(count * row).enumerate() {
            for head in 0..heads {
                let part = (half * heads + head) * self.part_bytes();
                for (n, &(begin, per_slot)) in arrays.iter().enumerate() {
                    let mut array = vec![0; count * per_slot];
                    for slot in 0..count {
                        for &(_, from, to, bytes) in pieces.iter().filter(|piece| piece.0 == n) {
                            let to = slot * row + head * head_bytes + to;
                            array[slot * per_slot + from..][..bytes].copy_from_slice(&rows[to..to + bytes]);
                        }
                    }
                    driver.copy_in(&self.memory, part + begin + slots.start * per_slot, &array);
                }
            }
        }
        Ok(())
    }
}
