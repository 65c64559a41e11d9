//! Weights on the device.

use super::driver::{Driver, Memory, PIECE};
use super::kernels::{self, TILE};
use super::pack::Layout;
use crate::backend::cpu::weight::format_of;
use crate::gguf::TensorView;
use crate::quant::Format;
use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, Weak};

/// Tiles for which arrays of a layout have no gaps between them.
const EVEN: usize = 256;

/// A matrix `[rows, cols]`, packed: for products and for look-ups of rows.
pub struct Weight {
    /// Its format.
    pub format: &'static Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    layout: Layout,
    memory: Memory,
}

impl Weight {
    /// Where its arrays begin: quants, scales of steps, scales of blocks.
    pub fn arrays(&self) -> [u64; 3] {
        [0, self.layout.steps, self.layout.blocks].map(|at| self.memory.address() + at as u64)
    }
}

/// Bytes that a tensor takes on the device, if it is a matrix that can be packed.
pub fn packed_bytes(tensor: &TensorView<'_>) -> Option<u64> {
    let format = format_of(tensor).ok()?;
    Some(Layout::new(format, tensor.rows(), tensor.cols())?.bytes as u64)
}

/// Weights that were loaded, by where their bytes are: one that is a table too is loaded once.
#[derive(Default)]
pub struct Loaded(Mutex<Vec<(*const u8, u32, Weak<Weight>)>>);

// SAFETY: the pointers are compared, never followed.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// Loads a tensor, `pool` packing it, piece by piece.
    pub fn load(&self, driver: &Arc<Driver>, tensor: &TensorView<'_>, pool: &rayon::ThreadPool) -> Result<Arc<Weight>> {
        let mut loaded = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loaded.retain(|(_, _, weight)| weight.strong_count() > 0);
        let key = (tensor.bytes.as_ptr(), tensor.ggml_type);
        let same = |weight: &Arc<Weight>| (weight.rows, weight.cols) == (tensor.rows(), tensor.cols());
        let mut known = loaded.iter().filter(|(at, ty, _)| (*at, *ty) == key).filter_map(|(_, _, weak)| weak.upgrade());
        if let Some(weight) = known.find(same) {
            return Ok(weight);
        }
        let weight = Arc::new(load(driver, tensor, pool)?);
        loaded.push((key.0, key.1, Arc::downgrade(&weight)));
        Ok(weight)
    }
}

fn load(driver: &Arc<Driver>, tensor: &TensorView<'_>, pool: &rayon::ThreadPool) -> Result<Weight> {
    let format = format_of(tensor)?;
    driver.load(&kernels::module(format))?;
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let layout = |rows| Layout::new(format, rows, cols).context("the packed size overflows");
    let (whole, even) = (layout(rows)?, layout(EVEN * TILE)?);
    // Bytes of a tile in each array.
    let tile = [even.steps, even.blocks - even.steps, even.bytes - even.blocks].map(|bytes| bytes / EVEN);
    let memory = driver.allocate(whole.bytes, "weights")?;
    let tiles = (PIECE / tile.iter().sum::<usize>().max(1)).max(1);
    let row_bytes = cols / format.block * format.bytes;
    let mut packed = vec![];
    for (i, bytes) in tensor.bytes.chunks(tiles * TILE * row_bytes).enumerate() {
        let count = bytes.len() / row_bytes;
        let part = layout(count)?;
        packed.clear();
        packed.resize(part.bytes, 0);
        pool.install(|| part.pack(format, bytes, cols, &mut packed));
        let (from, to) = ([0, part.steps, part.blocks], [0, whole.steps, whole.blocks]);
        for array in 0..3 {
            let bytes = count.div_ceil(TILE) * tile[array];
            driver.copy_in(&memory, to[array] + i * tiles * tile[array], &packed[from[array]..from[array] + bytes]);
        }
        // What is packed need not stay in memory.
        let mut done = *tensor;
        done.bytes = bytes;
        done.release();
    }
    Ok(Weight { format, rows, cols, layout: whole, memory })
}
