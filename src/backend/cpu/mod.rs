//! The CPU backend: packed int8 dot products, a spinning team of threads, everything written over [`crate::isa::Simd`].
//!
//! Work is split by output columns (products), by block of positions and head (attention), by row (the rest); every unit is computed
//! whole by one thread, so nothing depends on how many there are. Rows of at most `TILE` are taken through a product
//! at a time, for their quantised activations to stay in the second-level cache.

#![allow(unsafe_code)] // disjoint parts of one result, written by several threads

mod ahead;
mod attend;
mod kv;
mod math;
mod part;
mod rates;
mod rows;
pub mod team;
pub(super) mod weight;

use super::rates::Rates;
use super::{Activation, Attention, Backend, Description, KvShape, KvType, Largest, Pairing, Product, Rope, Span};
use crate::gguf::TensorView;
use crate::isa::{Isa, Kernel};
use crate::quant::panel::{Activations, Quantise, STEP};
use crate::sample;
use crate::tree::Token;
use ahead::{Order, PIECES};
use anyhow::{Context, Result};
use attend::Rooms;
use part::Part;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use team::Team;

pub use kv::Kv;
pub use weight::{Table, Weight};

/// Rows of a batch that share one pass over a weight.
const TILE: usize = 128;
/// Bytes of panels that are handed out together at least.
const RUN: usize = 8 * 1024;
/// Floats of activations below which waking the team costs more than it brings.
const SMALL: usize = 16 * 1024;

/// Activations `[rows, cols]`.
pub struct Mat {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
}

impl Mat {
    fn set_rows(&mut self, rows: usize) {
        assert!(rows * self.cols <= self.data.len(), "{rows} rows of {} do not fit", self.cols);
        self.rows = rows;
    }

    /// Row `i` of them.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values()[i * self.cols..(i + 1) * self.cols]
    }

    /// `[rows, cols]`, the rows in use.
    pub fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.cols]
    }

    /// For rows written by several threads.
    fn shared(&mut self) -> SharedRows {
        SharedRows { base: self.data.as_mut_ptr(), rows: self.rows, cols: self.cols }
    }
}

/// Rows of one matrix, each written by one thread.
#[derive(Clone, Copy)]
struct SharedRows {
    base: *mut f32,
    rows: usize,
    cols: usize,
}

// SAFETY: a pointer to floats; see `part`.
unsafe impl Sync for SharedRows {}

impl SharedRows {
    /// # Safety
    /// No one else touches this part of this row, and the matrix lives.
    unsafe fn part<'a>(self, row: usize, cols: Range<usize>) -> &'a mut [f32] {
        assert!(row < self.rows && cols.end <= self.cols);
        // SAFETY: within the matrix, as asserted; the caller's alone, by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.cols + cols.start), cols.len()) }
    }

    /// # Safety
    /// No one else touches this row, and the matrix lives.
    unsafe fn row<'a>(self, row: usize) -> &'a mut [f32] {
        // SAFETY: the caller's contract.
        unsafe { self.part(row, 0..self.cols) }
    }
}

/// What ops work with beside their operands; one op runs at a time.
struct Work {
    team: Team,
    /// `[T, ceil(D / 32)]`: the last quantised input.
    activations: Vec<Activations>,
    attention: Rooms,
    angles: Vec<Angles>,
    order: Order,
}

/// Cosines and sines of one batch, kept because every layer asks for the same.
struct Angles {
    rope: Rope,
    positions: Vec<u32>,
    /// As [`rows::Rotate`] takes them, of `T` rows.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The backend.
pub struct Cpu {
    isa: Isa,
    exact: bool,
    arena: Mutex<weight::Arena>,
    pool: rayon::ThreadPool,
    work: Mutex<Work>,
}

impl Cpu {
    /// A backend of `threads` threads (the caller's included) on instruction set `isa`.
    pub fn new(isa: Isa, threads: usize) -> Result<Self> {
        anyhow::ensure!(isa.is_available(), "this CPU has no {}", isa.name());
        let threads = threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("starting threads")?;
        let work = Work {
            team: Team::new(threads).context("starting threads")?,
            activations: Vec::new(),
            attention: Rooms::new(threads),
            angles: Vec::new(),
            order: Order::default(),
        };
        Ok(Self { isa, exact: false, arena: Mutex::default(), pool, work: Mutex::new(work) })
    }

    /// Keeps activations in f32: quantised weights are widened when they are loaded. Many times slower and larger; for
    /// telling what the int8 activations cost.
    pub fn exact(mut self) -> Self {
        self.exact = true;
        self
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.work().team.threads()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        // A panic in an op leaves nothing half-done that the next op reads.
        self.work.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs `f` on every row, on several threads when there is enough to do.
    fn per_row(&self, rows: usize, cols: usize, f: impl Fn(usize) + Sync) {
        if rows * cols <= SMALL {
            (0..rows).for_each(f);
        } else {
            let grain = rows.div_ceil(4 * self.threads()).max(1);
            self.work().team.spread(rows, grain, |_, range| range.for_each(&f));
        }
    }

    /// Runs a kernel on every row of `x` in place.
    fn in_place<'a, K: Kernel<Output = ()>>(&self, x: &'a mut Mat, kernel: impl Fn(usize, &'a mut [f32]) -> K + Sync) {
        let shared = x.shared();
        // SAFETY: `per_row` calls for each row once.
        self.per_row(x.rows, x.cols, |row| self.isa.dispatch(kernel(row, unsafe { shared.row(row) })));
    }
}

impl Backend for Cpu {
    type Mat = Mat;
    type Weight = Weight;
    type Table = Table;
    type Vector = Vec<f32>;
    type Kv = Kv;

    fn describe(&self) -> Description {
        let (isa, threads) = (self.isa.name().to_owned(), self.threads());
        Description { device: "cpu".into(), isa, threads, name: None }
    }

    fn own_memory(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Packed weights are as large as in the file, or four bytes an element when widened.
    fn packed_bytes(&self, tensor: &TensorView<'_>) -> u64 {
        match self.exact && tensor.dims.len() > 1 {
            true => 4 * tensor.dims.iter().product::<u64>(),
            false => tensor.bytes.len() as u64,
        }
    }

    fn rates(&self, room: u64, each: Duration) -> Result<Rates> {
        self.measure(room, each)
    }

    fn weight(&self, tensor: &TensorView<'_>) -> Result<Weight> {
        let mut arena = self.arena.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Weight::pack(tensor, self.exact, &mut arena, &self.pool)
    }

    fn table(&self, tensor: &TensorView<'_>) -> Result<Table> {
        Table::open(tensor)
    }

    fn vector(&self, tensor: &TensorView<'_>) -> Result<Vec<f32>> {
        weight::vector(tensor)
    }

    fn mat(&self, max_rows: usize, cols: usize) -> Result<Mat> {
        let len = max_rows.checked_mul(cols).context("the size of an activation overflows")?;
        Ok(Mat { data: vec![0.0; len], rows: 0, cols })
    }

    fn kv(&self, shape: KvShape) -> Result<Kv> {
        Kv::new(shape)
    }

    fn read_into(&self, m: &Mat, out: &mut Vec<f32>) -> Result<()> {
        out.extend_from_slice(m.values());
        Ok(())
    }

    fn largest(&self, m: &Mat, k: usize) -> Result<Option<Largest>> {
        if k != 1 {
            return Ok(None);
        }
        let mut tops = vec![None; m.rows];
        let jobs: Vec<_> = tops.iter_mut().map(Mutex::new).collect();
        self.per_row(m.rows, m.cols, |row| {
            **jobs[row].lock().expect("taken once") = sample::largest(m.row(row));
        });
        Ok(tops.into_iter().map(|top| Some(vec![top?])).collect())
    }

    fn write(&self, values: &[f32], m: &mut Mat) {
        assert!(values.len().is_multiple_of(m.cols));
        m.set_rows(values.len() / m.cols);
        m.data[..values.len()].copy_from_slice(values);
    }

    fn read_kv(&self, kv: &Kv, slots: Range<usize>) -> Result<Vec<u8>> {
        Ok((0..kv.shape().layers).flat_map(|layer| kv.rows(layer, slots.clone())).collect())
    }

    fn write_kv(&self, kv: &mut Kv, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        let shape = *kv.shape();
        let layer_bytes = KvShape { layers: 1, slots: slots.len(), ..shape }.bytes();
        let need = shape.layers * layer_bytes;
        anyhow::ensure!(slots.end <= shape.slots && bytes.len() == need, "{} bytes of KV, {need} needed", bytes.len());
        if need > 0 {
            bytes
                .chunks_exact(layer_bytes)
                .enumerate()
                .for_each(|(layer, rows)| kv.set_rows(layer, slots.clone(), rows));
        }
        Ok(())
    }

    fn embed(&self, table: &Table, tokens: &[Token], scale: f32, out: &mut Mat) {
        assert_eq!(table.cols(), out.cols);
        out.set_rows(tokens.len());
        for (&token, row) in tokens.iter().zip(out.data.chunks_exact_mut(out.cols)) {
            table.row(token as usize, row);
            if scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }

    fn linear(&self, x: &Mat, products: &mut [Product<'_, Self>]) {
        let (rows, cols) = (x.rows, x.cols);
        let blocks = cols.div_ceil(STEP);
        let Work { team, activations, order, .. } = &mut *self.work();
        if products.iter().any(|p| p.weight.format.int8) {
            if activations.len() < rows * blocks {
                activations.resize(rows * blocks, Activations::default());
            }
            let quantised = activations.chunks_exact_mut(blocks).zip(x.values().chunks_exact(cols));
            if rows * cols <= SMALL {
                quantised.for_each(|(out, x)| self.isa.dispatch(Quantise { x, out }));
            } else {
                let jobs: Vec<_> = quantised.map(|(out, x)| Mutex::new(Quantise { x, out })).collect();
                team.spread(rows, rows.div_ceil(4 * team.threads()), |_, range| {
                    for job in &jobs[range] {
                        let Quantise { x, out } = &mut *job.lock().expect("taken once");
                        self.isa.dispatch(Quantise { x, out });
                    }
                });
            }
        }
        let (isa, activations) = (self.isa, &*activations);
        for products in products.chunks_mut(PIECES) {
            // Every product's panels in one row of units, so that threads are woken once.
            let (mut parts, mut panels) = ([None; PIECES], 0);
            for (part, p) in parts.iter_mut().zip(&mut *products) {
                assert!(p.weight.cols == cols && p.weight.rows == p.out.cols);
                p.out.set_rows(rows);
                let first = panels;
                panels += p.weight.panel_count();
                *part = Some(Part::new(p, first));
            }
            let soon = order.note(products, panels, team.threads());
            // A run of panels is worth the call.
            let grain = parts[0].map_or(1, |part| RUN.div_ceil(part.size.max(1)));
            for first in (0..rows).step_by(TILE) {
                let tile = first..rows.min(first + TILE);
                let quants = activations.get(tile.start * blocks..tile.end * blocks).unwrap_or_default();
                let x = &x.values()[tile.start * cols..tile.end * cols];
                team.spread_near(panels, grain, quants, soon, move |_, units| {
                    for part in parts.iter().flatten() {
                        // SAFETY: units are given out once.
                        unsafe { part.run(isa, units.clone(), tile.clone(), cols, quants, x) };
                    }
                });
            }
            parts.iter().flatten().for_each(|part| part.ask(rows));
        }
    }

    fn rms_norm(&self, x: &Mat, weight: &Vec<f32>, eps: f32, out: &mut Mat) {
        assert_eq!(x.cols, out.cols);
        out.set_rows(x.rows);
        self.norm(Some(x), weight, eps, out);
    }

    fn rms_norm_in_place(&self, x: &mut Mat, weight: &Vec<f32>, eps: f32) {
        self.norm(None, weight, eps, x);
    }

    fn rope(&self, x: &mut Mat, width: usize, rope: &Rope, positions: &[u32]) {
        assert!(positions.len() == x.rows && x.cols.is_multiple_of(width) && 2 * rope.frequencies.len() <= width);
        let angles = self.angles(rope, positions);
        let each = angles.cos.len() / positions.len().max(1);
        self.in_place(x, |row, x| {
            let angle = row * each..(row + 1) * each;
            let (cos, sin) = (&angles.cos[angle.clone()], &angles.sin[angle]);
            rows::Rotate { x, width, cos, sin, pairing: rope.pairing }
        });
        self.work().angles.push(angles);
    }

    fn store(&self, kv: &mut Kv, layer: usize, slot: usize, k: &Mat, v: &Mat) {
        assert!(slot + k.rows <= kv.shape().slots && k.rows == v.rows);
        kv.ask(layer, slot..slot + k.rows);
        for row in 0..k.rows {
            kv.store(self.isa, layer, slot + row, k.row(row), v.row(row));
        }
    }

    fn attend(&self, q: &Mat, kv: &Kv, layer: usize, span: Span<'_>, how: Attention, out: &mut Mat) {
        match kv.shape().ty {
            KvType::F32 => self.attend_as::<kv::F32>(q, kv, layer, span, how, out),
            KvType::F16 => self.attend_as::<kv::F16>(q, kv, layer, span, how, out),
            KvType::Q8_0 => self.attend_as::<kv::Q8>(q, kv, layer, span, how, out),
        }
    }

    fn glu(&self, gate: &mut Mat, up: &Mat, activation: Activation) {
        assert_eq!((gate.rows, gate.cols), (up.rows, up.cols));
        self.in_place(gate, |row, gate| rows::Glu { gate, up: up.row(row), activation });
    }

    fn activate(&self, x: &mut Mat, activation: Activation) {
        self.in_place(x, |_, x| rows::Activate { x, activation });
    }

    fn stack(&self, parts: &[&Mat], out: &mut Mat) {
        assert!(parts.iter().all(|part| part.cols == out.cols));
        out.set_rows(parts.iter().map(|part| part.rows).sum());
        let mut at = 0;
        for part in parts {
            let values = part.values();
            out.data[at..at + values.len()].copy_from_slice(values);
            at += values.len();
        }
    }

    fn split(&self, x: &Mat, parts: &mut [&mut Mat]) {
        assert_eq!(parts.iter().map(|p| p.cols).sum::<usize>(), x.cols);
        let mut start = 0;
        for part in parts {
            part.set_rows(x.rows);
            for (row, out) in part.data.chunks_exact_mut(part.cols).take(x.rows).enumerate() {
                out.copy_from_slice(&x.row(row)[start..start + out.len()]);
            }
            start += part.cols;
        }
    }

    fn join(&self, parts: &[&Mat], out: &mut Mat) {
        assert_eq!(parts.iter().map(|p| p.cols).sum::<usize>(), out.cols);
        out.set_rows(parts[0].rows);
        let mut start = 0;
        for part in parts {
            assert_eq!(part.rows, out.rows);
            for (row, out) in out.data.chunks_exact_mut(out.cols).take(part.rows).enumerate() {
                out[start..start + part.cols].copy_from_slice(part.row(row));
            }
            start += part.cols;
        }
    }

    fn add(&self, x: &mut Mat, y: &Mat) {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols));
        self.in_place(x, |row, x| rows::Add { x, y: y.row(row) });
    }

    fn gather(&self, x: &Mat, rows: &[usize], out: &mut Mat) {
        assert_eq!(x.cols, out.cols);
        out.set_rows(rows.len());
        for (&row, out) in rows.iter().zip(out.data.chunks_exact_mut(x.cols)) {
            out.copy_from_slice(x.row(row));
        }
    }

    fn softcap(&self, x: &mut Mat, cap: f32) {
        self.in_place(x, |_, x| rows::Softcap { x, cap });
    }

    fn move_kv(&self, kv: &mut Kv, from: &[usize], to: usize) {
        for (to, &from) in (to..).zip(from).filter(|&(to, &from)| from != to) {
            kv.move_slot(from, to);
        }
    }
}

impl Cpu {
    /// Norms the rows of `x`, or those of `out` in place.
    fn norm(&self, x: Option<&Mat>, weight: &[f32], eps: f32, out: &mut Mat) {
        let width = weight.len();
        assert!(out.cols.is_multiple_of(width));
        let shared = out.shared();
        self.per_row(out.rows, out.cols, |row| {
            // SAFETY: `per_row` calls for each row once.
            for (i, out) in unsafe { shared.row(row) }.chunks_exact_mut(width).enumerate() {
                let x = x.map(|x| &x.row(row)[i * width..][..width]);
                self.isa.dispatch(rows::RmsNorm { x, out, weight, eps });
            }
        });
    }

    /// The angles of a batch, out of the cache or made. The caller puts them back.
    fn angles(&self, rope: &Rope, positions: &[u32]) -> Angles {
        /// A model has two kinds of layers at most, and so two sets of angles a batch.
        const KEPT: usize = 2;
        let cached = &mut self.work().angles;
        if let Some(i) = cached.iter().position(|a| a.positions == positions && a.rope == *rope) {
            return cached.remove(i);
        }
        if cached.len() == KEPT {
            cached.remove(0);
        }
        let [mut cos, mut sin] = rope.angles(positions);
        if rope.pairing == Pairing::Adjacent {
            cos = cos.iter().flat_map(|&cos| [cos, cos]).collect();
            sin = sin.iter().flat_map(|&sin| [-sin, sin]).collect();
        }
        Angles { rope: rope.clone(), positions: positions.to_vec(), cos, sin }
    }
}
