//! Weights as the kernels want them: tiles of 32 rows, lane beside lane.
//!
//! A warp takes a tile, and its lanes a row each (`dot`) or a fragment each (`mma`); either way the words a warp loads
//! together lie together. The columns come in steps of 32, as on the CPU ([`crate::quant::panel`]), whose packed words are
//! used as they are, in another order:
//!
//! ```text
//! quants   for each tile and step the format's planes one after the other, a plane being [32 rows][1, 2 or 4 words]
//! steps    for each tile and step [32 rows][bytes of scales of a step]
//! blocks   for each tile and block of 256 [32 rows][d: f16, or d and dmin]      (formats of blocks of 32: none)
//! ```
//!
//! Float formats have `quants` only: for each tile, step and 16 bytes of a row's step `[32 rows][16 bytes]`. Rows and columns
//! that are missing at the edges weigh nothing.

use super::kernels::TILE;
use crate::quant::{Format, ROWS, panel::STEP};
use rayon::prelude::*;

/// How a format's packed panel is cut up.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    /// Words a row has in each plane.
    planes: &'static [usize],
    /// 16-bit scales of a block.
    halves: usize,
    /// Bytes of scales of a step.
    bytes: usize,
    /// What is to be flipped in every quant: the CPU keeps some signed bytes with their sign bit turned over.
    flip: u32,
}

/// The recipe of an integer format.
fn recipe(format: &Format) -> Recipe {
    let of = |planes, halves, bytes| Recipe { planes, halves, bytes, flip: 0 };
    match format.name {
        "Q4_0" | "IQ4_NL" => of(&[4], 1, 0),
        "Q4_1" => of(&[4], 2, 0),
        "Q5_0" => of(&[4, 1], 1, 0),
        "Q5_1" => of(&[4, 1], 2, 0),
        "Q8_0" => Recipe { flip: 0x8080_8080, ..of(&[4, 4], 1, 0) },
        "MXFP4" => of(&[4], 0, 1),
        "Q2_K" => of(&[2], 2, 2),
        "Q3_K" => of(&[2, 1], 1, 2),
        "Q4_K" => of(&[4], 2, 2),
        "Q5_K" => of(&[4, 1], 2, 2),
        "Q6_K" => of(&[4, 2], 1, 2),
        "IQ4_XS" => of(&[4], 1, 1),
        name => unreachable!("no device layout for {name}"),
    }
}

/// Bytes of a weight on the device and of its three arrays in it, each of which begins at a multiple of 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where the scales of steps begin; quants begin at 0.
    pub steps: usize,
    /// Where the scales of blocks begin.
    pub blocks: usize,
    /// Bytes in all.
    pub bytes: usize,
    /// Bytes of a tile in each of the arrays.
    pub tile: [usize; 3],
}

impl Layout {
    /// The layout of `[rows, cols]` weights; `None` when its size overflows.
    pub fn new(format: &Format, rows: usize, cols: usize) -> Option<Self> {
        let steps = cols.div_ceil(STEP);
        let tile = if format.int8 {
            let Recipe { planes, halves, bytes, .. } = recipe(format);
            let words: usize = planes.iter().sum();
            let (per_step, per_block) =
                if format.block == STEP { (2 * halves + bytes, 0) } else { (bytes, 2 * halves) };
            [steps * words * 4, steps * per_step, cols / format.block * per_block]
        } else {
            [steps * STEP * format.bytes, 0, 0]
        };
        let tile = tile.map(|bytes| bytes * TILE);
        let tiles = rows.div_ceil(TILE);
        let array = |bytes: usize| tiles.checked_mul(bytes)?.checked_next_multiple_of(256);
        let steps = array(tile[0])?;
        let blocks = steps.checked_add(array(tile[1])?)?;
        // At least one byte, for the pointer to be one.
        let bytes = blocks.checked_add(array(tile[2])?)?.max(256);
        Some(Self { steps, blocks, bytes, tile })
    }

    /// Packs the rows of the file, back to back, into zeroed memory of [`Layout::bytes`] bytes, on rayon's threads.
    ///
    /// # Panics
    /// When lengths do not match.
    pub fn pack(&self, format: &Format, rows: &[u8], cols: usize, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes);
        let row_bytes = cols / format.block * format.bytes;
        let (quants, rest) = out.split_at_mut(self.steps);
        let (steps, blocks) = rest.split_at_mut(self.blocks - self.steps);
        let jobs = rows.par_chunks(TILE * row_bytes).zip(quants.par_chunks_mut(self.tile[0]));
        if !format.int8 {
            return jobs.for_each(|(rows, quants)| pack_floats(format, rows, cols, quants));
        }
        let scales = chunks(steps, self.tile[1], rows.len()).into_par_iter();
        let scales = scales.zip(chunks(blocks, self.tile[2], rows.len()));
        jobs.zip(scales).for_each(|((rows, quants), (steps, blocks))| {
            let mut panel = vec![0; (format.panel_bytes)(cols)];
            for (half, rows) in rows.chunks(ROWS * row_bytes).enumerate() {
                panel.fill(0);
                (format.pack)(rows, cols, &mut panel);
                pack_panel(format, &panel, half * ROWS, cols, [&mut *quants, &mut *steps, &mut *blocks]);
            }
        });
    }
}

/// Pieces of `size` bytes; as many empty ones as are asked for when there are none.
fn chunks(bytes: &mut [u8], size: usize, most: usize) -> Vec<&mut [u8]> {
    if size == 0 { (0..most).map(|_| &mut [][..]).collect() } else { bytes.chunks_mut(size).collect() }
}

/// Puts a panel of the CPU's into rows `first ..` of a tile.
fn pack_panel(format: &Format, panel: &[u8], first: usize, cols: usize, [quants, steps, blocks]: [&mut [u8]; 3]) {
    let Recipe { planes, halves, bytes, flip } = recipe(format);
    let words: usize = planes.iter().sum();
    let count = cols / STEP;
    let (slots, scales) = panel.split_at(count * words * 64);
    for (record, slots) in quants.chunks_exact_mut(TILE * words * 4).zip(slots.chunks_exact(words * 64)) {
        let mut slot = 0;
        for &plane in planes {
            let start = TILE * slot * 4;
            for word in 0..plane {
                for row in 0..ROWS {
                    let bytes = slots[(slot + word) * 64 + 4 * row..].first_chunk::<4>().expect("a word");
                    let to = start + ((first + row) * plane + word) * 4;
                    let value = u32::from_le_bytes(*bytes) ^ flip;
                    record[to..to + 4].copy_from_slice(&value.to_le_bytes());
                }
            }
            slot += plane;
        }
    }
    // Of a block the 16-bit scales first, `[halves][16 rows]`, then for each step its bytes, `[bytes][16 rows]`.
    let per_block = format.block / STEP;
    let size = (halves * 2 + per_block * bytes) * ROWS;
    for (block, scales) in scales.chunks_exact(size).take(cols / format.block).enumerate() {
        let (wide, narrow) = scales.split_at(halves * 2 * ROWS);
        for row in 0..ROWS {
            let lane = first + row;
            let to = if per_block == 1 { &mut *steps } else { &mut *blocks };
            let stride = 2 * halves + if per_block == 1 { bytes } else { 0 };
            for half in 0..halves {
                let at = (block * TILE + lane) * stride + 2 * half;
                to[at..at + 2].copy_from_slice(&wide[(half * ROWS + row) * 2..][..2]);
            }
            let stride = bytes + if per_block == 1 { 2 * halves } else { 0 };
            for step in 0..per_block {
                for byte in 0..bytes {
                    let at = ((block * per_block + step) * TILE + lane) * stride + byte;
                    steps[at] = narrow[(step * bytes + byte) * ROWS + row];
                }
            }
        }
    }
}

/// Bytes that a lane of a float format's kernel loads at once.
const CHUNK: usize = 16;

fn pack_floats(format: &Format, rows: &[u8], cols: usize, tile: &mut [u8]) {
    let row_bytes = cols * format.bytes;
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (chunk, bytes) in row.chunks(CHUNK).enumerate() {
            let at = (chunk * TILE + lane) * CHUNK;
            tile[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}
