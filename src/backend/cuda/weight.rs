//! Weights on the device.

use super::driver::{Arguments, Driver, Memory, PIECE};
use super::kernels::{self, TILE};
use super::pack::Layout;
use crate::backend::cpu::weight::format_of;
use crate::gguf::{TensorBytes, TensorView};
use crate::quant::Format;
use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, Weak};

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
    bytes: Option<TensorBytes>,
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

/// Weights that were loaded: one that is a table too is loaded once.
#[derive(Default)]
pub struct Loaded(Mutex<Vec<Weak<Weight>>>);

impl Loaded {
    /// Loads a tensor, `pool` packing it, piece by piece; or makes its content up.
    pub fn load(
        &self,
        driver: &Arc<Driver>,
        tensor: &TensorView<'_>,
        pool: &rayon::ThreadPool,
        made_up: bool,
    ) -> Result<Arc<Weight>> {
        let mut loaded = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loaded.retain(|weight| weight.strong_count() > 0);
        // The file of a weight stays mapped, so that no other bytes can be where its bytes were.
        let same = |weight: &Arc<Weight>| {
            let bytes = weight.bytes.as_ref().is_some_and(|bytes| std::ptr::eq(&**bytes, tensor.bytes));
            bytes
                && (weight.rows, weight.cols, weight.format.ggml_id) == (tensor.rows(), tensor.cols(), tensor.ggml_type)
        };
        if let Some(weight) = loaded.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(weight);
        }
        let weight = Arc::new(if made_up { make_up(driver, tensor)? } else { load(driver, tensor, pool)? });
        loaded.push(Arc::downgrade(&weight));
        Ok(weight)
    }
}

/// Room for a tensor.
fn allocate(driver: &Arc<Driver>, tensor: &TensorView<'_>) -> Result<Weight> {
    let format = format_of(tensor)?;
    driver.load(&kernels::module(format))?;
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let layout = Layout::new(format, rows, cols).context("the packed size overflows")?;
    let memory = driver.allocate(layout.bytes, "weights")?;
    Ok(Weight { format, rows, cols, layout, memory, bytes: tensor.keep_in_file() })
}

/// Largest scale of weights that are made up.
const MADE_UP: f32 = 1.0 / 4096.0;

/// Fills a weight with random bits under small scales: what a benchmark needs of one.
fn make_up(driver: &Arc<Driver>, tensor: &TensorView<'_>) -> Result<Weight> {
    let weight = allocate(driver, tensor)?;
    let (layout, at) = (weight.layout, weight.memory.address());
    let seed = tensor.name.bytes().fold(1usize, |seed, byte| (seed * 31 + usize::from(byte)) & 0xffff);
    let words = layout.bytes / 4;
    let bits = Arguments::default().pointer(at).int(words).int(seed);
    driver.launch(&kernels::fill_bits(words), bits);
    // Scales in f16 are with the steps, or with the blocks where there are such; wide formats are f16 as a whole.
    let (from, to) = match weight.format.block {
        1 => (0, layout.steps),
        32 => (layout.steps, layout.blocks),
        _ => (layout.blocks, layout.bytes),
    };
    let halves = (to - from) / 2;
    let scales = Arguments::default().pointer(at + from as u64).int(halves).float(MADE_UP).int(seed);
    driver.launch(&kernels::fill_halves(halves), scales);
    Ok(weight)
}

fn load(driver: &Arc<Driver>, tensor: &TensorView<'_>, pool: &rayon::ThreadPool) -> Result<Weight> {
    let weight = allocate(driver, tensor)?;
    let Weight { format, cols, layout: whole, .. } = weight;
    let layout = |rows| Layout::new(format, rows, cols).context("the packed size overflows");
    let tile = whole.tile;
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
            driver.copy_in(
                &weight.memory,
                to[array] + i * tiles * tile[array],
                &packed[from[array]..from[array] + bytes],
            );
        }
        // What is packed need not stay in memory.
        let mut done = *tensor;
        done.bytes = bytes;
        done.release();
    }
    Ok(weight)
}
