//! Packed weights in memory, and tables of rows as the file has them.

use crate::gguf::{TensorBytes, TensorView};
use crate::quant::{self, Format, ROWS};
use anyhow::{Context, Result, ensure};
use memmap2::{MmapMut, MmapOptions};
use std::sync::Arc;

/// What the arena asks of the system at a time.
const CHUNK: usize = 32 << 20;
/// What is packed of a tensor at a time.
const PIECE: usize = 8 << 20;
/// Huge pages, and so chunks, start at multiples of this.
const HUGE: usize = 2 << 20;

/// Hands out zeroed memory on huge pages: reading through 4 KiB pages costs one thread half its bandwidth.
#[derive(Default)]
pub struct Arena {
    chunk: Option<Arc<MmapMut>>,
    /// First free byte of the chunk.
    free: usize,
}

/// A piece of an arena, never handed out twice.
pub struct Piece {
    start: *mut u8,
    len: usize,
    _chunk: Arc<MmapMut>,
}

// SAFETY: a piece owns its bytes, as a `Box<[u8]>` would.
unsafe impl Send for Piece {}
// SAFETY: shared, it is only read.
unsafe impl Sync for Piece {}

impl Arena {
    /// `len` zeroed bytes, 64-byte aligned.
    pub fn take(&mut self, len: usize) -> Result<Piece> {
        let len = len.next_multiple_of(64);
        if self.chunk.as_ref().is_none_or(|chunk| chunk.len() - self.free < len) {
            let size = len.max(CHUNK).next_multiple_of(HUGE) + HUGE;
            let map = MmapOptions::new().len(size).map_anon();
            let map = map.with_context(|| format!("allocating {len} bytes"))?;
            // Only advice: without huge pages everything works, slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            self.free = map.as_ptr().align_offset(HUGE);
            self.chunk = Some(Arc::new(map));
        }
        let chunk = self.chunk.clone().expect("made above");
        // SAFETY: `free + len` is within the chunk. Writing through a pointer of a shared map is fine because the map
        // is anonymous memory that nothing else refers to, and each byte of it belongs to one piece.
        let start = unsafe { chunk.as_ptr().cast_mut().add(self.free) };
        self.free += len;
        Ok(Piece { start, len, _chunk: chunk })
    }
}

impl Piece {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the piece's own bytes, initialised (zeroed by the system).
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// A packed matrix `[rows, cols]`.
pub struct Weight {
    /// The format it is packed in.
    pub format: &'static Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    panels: Piece,
}

impl Weight {
    /// Packs a tensor, `pool` helping. With `widen`, formats of int8 activations become F32 first.
    pub fn pack(tensor: &TensorView<'_>, widen: bool, arena: &mut Arena, pool: &rayon::ThreadPool) -> Result<Self> {
        let from = format_of(tensor)?;
        let to = if widen && from.int8 { &quant::f32::FORMAT } else { from };
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let panel_bytes = (to.panel_bytes)(cols);
        let size = rows.div_ceil(ROWS).checked_mul(panel_bytes).context("the packed size overflows")?;
        let mut panels = arena.take(size)?;
        let group = ROWS * cols / from.block * from.bytes;
        // In pieces, each dropped from the file's pages once packed, so that a large tensor is never there twice.
        let piece = (PIECE / group).max(1);
        let pieces = panels.bytes_mut()[..size].chunks_mut(piece * panel_bytes).zip(tensor.bytes.chunks(piece * group));
        for (panels, bytes) in pieces {
            pool.install(|| {
                use rayon::prelude::*;
                let jobs = panels.par_chunks_mut(panel_bytes).zip(bytes.par_chunks(group));
                jobs.with_min_len(4).for_each(|(panel, rows)| {
                    if std::ptr::eq(from, to) {
                        (to.pack)(rows, cols, panel);
                    } else {
                        let mut wide = vec![0.0; rows.len() / from.bytes * from.block];
                        (from.dequant)(rows, &mut wide);
                        let bytes: Vec<u8> = wide.into_iter().flat_map(f32::to_le_bytes).collect();
                        (to.pack)(&bytes, cols, panel);
                    }
                });
            });
            let mut packed = *tensor;
            packed.bytes = bytes;
            packed.release();
        }
        Ok(Self { format: to, rows, cols, panels })
    }

    /// Panels of sixteen rows.
    pub fn panel_count(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    /// Consecutive panels.
    pub fn panels(&self, range: std::ops::Range<usize>) -> &[u8] {
        let bytes = (self.format.panel_bytes)(self.cols);
        &self.panels.bytes()[range.start * bytes..range.end * bytes]
    }
}

/// A matrix `[rows, cols]` as the file has it, for look-ups of rows.
pub struct Table {
    format: &'static Format,
    cols: usize,
    bytes: TensorBytes,
}

impl Table {
    /// The rows of `tensor`, where they are.
    pub fn open(tensor: &TensorView<'_>) -> Result<Self> {
        Ok(Self { format: format_of(tensor)?, cols: tensor.cols(), bytes: tensor.keep() })
    }

    /// Length of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Widens one row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let len = self.cols / self.format.block * self.format.bytes;
        (self.format.dequant)(&self.bytes[row * len..(row + 1) * len], out);
    }
}

/// The format of a tensor whose rows are whole blocks of it.
pub fn format_of(tensor: &TensorView<'_>) -> Result<&'static Format> {
    let format = quant::format(tensor.ggml_type).with_context(|| {
        let (name, ty) = (tensor.name, tensor.type_name());
        format!("tensor {name}: type {ty} is not supported; supported are {}", quant::supported())
    })?;
    ensure!(
        tensor.cols().is_multiple_of(format.block),
        "tensor {}: a row of {} is no multiple of {}'s block of {}",
        tensor.name,
        tensor.cols(),
        format.name,
        format.block
    );
    Ok(format)
}

/// Reads a vector of floats.
pub fn vector(tensor: &TensorView<'_>) -> Result<Vec<f32>> {
    let format = format_of(tensor)?;
    ensure!(
        !format.int8,
        "tensor {}: a vector of type {} is not supported; supported are F32, F16, BF16",
        tensor.name,
        format.name
    );
    let mut out = vec![0.0; tensor.rows() * tensor.cols()];
    (format.dequant)(tensor.bytes, &mut out);
    Ok(out)
}
