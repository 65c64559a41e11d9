//! The CUDA backend: kernels of `cuda/*.cu`, run through the driver.
//!
//! Weights, activations and the KV cache live on the device; ops are launches on one stream, which nothing waits for but
//! [`Backend::read`] and the like. There what went wrong meanwhile is told too. Row counts and shapes choose among kernels
//! that give the same bits ([`kernels`]), so the laws hold as they do on the CPU.

#![allow(unsafe_code)] // calls of the driver

mod driver;
mod fuse;
mod graph;
pub mod kernels;
mod kv;
pub mod pack;
mod probe;
mod ptx;
mod rates;
mod room;
mod weight;

use super::rates::Rates;
use super::{Activation, Attention, Backend, Description, KvShape, Largest, Product, Rope, Span};
use crate::backend::cpu::{team, weight as on_cpu};
use crate::gguf::TensorView;
use crate::tree::{DraftTree, Token};
use anyhow::{Context, Result};
use driver::{Arguments, Driver, Memory};
use kernels::{ATTEND_BLOCK, AttendPlan, AttendShape, Products};
use room::{PICKED, Room};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use weight::Loaded;

pub use kv::Kv;
pub use probe::{Absent, Gpu, probe};
pub use weight::Weight;

/// Blocks of attention that grids grow by, so that launches stay the same for a while.
const GROWTH: usize = 8;

/// Bytes of the device's memory that are left alone: for room between kernels and what the driver takes with time.
const RESERVE: u64 = 96 << 20;

/// Activations `[rows, cols]`.
pub struct Mat {
    memory: Memory,
    most: usize,
    rows: usize,
    cols: usize,
}

impl Mat {
    fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.most, "{rows} rows do not fit {}", self.most);
        self.rows = rows;
    }

    fn len(&self) -> usize {
        self.rows * self.cols
    }

    fn address(&self) -> u64 {
        self.memory.address()
    }
}

/// Norm weights and biases.
pub struct Vector {
    memory: Memory,
    len: usize,
}

/// The backend. Clones share the device.
#[derive(Clone)]
pub struct Cuda {
    shared: Arc<Shared>,
    made_up: bool,
}

struct Shared {
    // First, for its memory is freed while there is a driver.
    room: Mutex<Room>,
    loaded: Loaded,
    pool: rayon::ThreadPool,
    driver: Arc<Driver>,
}

impl Cuda {
    /// Opens a GPU.
    pub fn open(gpu: &Gpu) -> Result<Self> {
        let driver = Arc::new(Driver::open(gpu)?);
        let threads = team::default_threads();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("starting threads")?;
        let room = Mutex::new(Room::new(driver.clone())?);
        let shared = Arc::new(Shared { room, loaded: Loaded::default(), pool, driver });
        Ok(Self { shared, made_up: false })
    }

    /// The same, but making up weights instead of loading them; for benchmarks of models that nobody has at hand.
    pub fn making_up(&self) -> Self {
        Self { made_up: true, ..self.clone() }
    }

    /// Launch graphs made and launched so far.
    pub fn graphs(&self) -> (usize, usize) {
        self.driver().graphs()
    }

    fn driver(&self) -> &Arc<Driver> {
        &self.shared.driver
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.shared.room.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Copies `cols` columns of each row of a matrix to another, from and to a column of each.
    fn columns(&self, from: (u64, usize, usize), to: (u64, usize, usize), cols: usize, rows: usize) {
        let ((from, from_cols, from_at), (to, to_cols, to_at)) = (from, to);
        let arguments = Arguments::default().pointer(from).pointer(to);
        let arguments = arguments.int(from_cols).int(from_at).int(to_cols).int(to_at).int(cols).int(rows);
        self.driver().launch(&kernels::columns(cols, rows), arguments);
    }

    fn norm(&self, x: u64, weight: &Vector, eps: f32, out: u64, elements: usize) {
        let heads = elements / weight.len;
        let arguments = Arguments::default().pointer(x).pointer(weight.memory.address()).pointer(out);
        let arguments = arguments.int(weight.len).float(eps).int(heads);
        self.driver().launch(&kernels::rms_norm(weight.len, heads), arguments);
    }

    /// Up to `k` values of each row, picked by a kernel like [`kernels::top_k`]; `rest` adds to its first arguments, the rows and
    /// the results. Nothing where a row has no answer, or more than `k`.
    fn few(
        &self,
        m: &Mat,
        k: usize,
        kernel: &kernels::Launch,
        rest: impl FnOnce(Arguments) -> Arguments,
    ) -> Result<Option<Largest>> {
        let (rows, most) = PICKED;
        if k == 0 || k > most.min(m.cols) || m.rows == 0 || m.rows > rows {
            return Ok(None);
        }
        let room = self.room();
        let (at, some) = (room.largest().address(), m.rows * k);
        let arrays = [0, rows, rows + some].map(|words| at + 4 * words as u64);
        let results = arrays.iter().fold(Arguments::default().pointer(m.address()), |all, &at| all.pointer(at));
        self.driver().launch(kernel, rest(results));
        let mut words = vec![0u32; rows + 2 * some];
        self.driver().copy_out(room.largest(), 0, &mut words)?;
        let (counts, words) = words.split_at(rows);
        let (columns, values) = words.split_at(some);
        let all =
            counts[..m.rows].iter().zip(columns.chunks(k).zip(values.chunks(k))).map(|(&count, (columns, values))| {
                let count = usize::try_from(count as i32).ok().filter(|&count| count <= k)?;
                Some(columns.iter().zip(values).take(count).map(|(&col, &bits)| (col, f32::from_bits(bits))).collect())
            });
        Ok(all.collect())
    }

    fn product(&self, x: &Mat, quantised: [u64; 2], product: &mut Product<'_, Self>) {
        let Product { weight, bias, out } = product;
        assert_eq!((weight.cols, weight.rows), (x.cols, out.cols));
        out.set_rows(x.rows);
        let bias = bias.map_or(0, |bias| {
            assert_eq!(bias.len, weight.rows);
            bias.memory.address()
        });
        let arrays = weight.arrays();
        let arguments = if weight.format.int8 {
            let one = Products::one(arrays, bias, out.address(), weight.rows);
            quantised.into_iter().fold(Arguments::default().products(&one), Arguments::pointer)
        } else {
            let pointers = [arrays[0], x.address(), bias, out.address()];
            pointers.into_iter().fold(Arguments::default(), Arguments::pointer).int(weight.rows)
        };
        let arguments = arguments.int(weight.cols).int(x.rows);
        self.driver().launch(&kernels::product(weight.format, weight.rows, x.rows), arguments);
    }
}

impl Backend for Cuda {
    type Mat = Mat;
    type Weight = Arc<Weight>;
    type Table = Arc<Weight>;
    type Vector = Vector;
    type Kv = Kv;

    fn describe(&self) -> Description {
        let Gpu { number, name, arch: (major, minor), .. } = self.driver().gpu();
        let (device, isa, name) = (format!("cuda:{number}"), format!("sm_{major}{minor}"), Some(name.clone()));
        Description { device, isa, threads: 1, name }
    }

    fn own_memory(&self) -> Result<Option<u64>> {
        Ok(Some(self.driver().free()?.saturating_sub(RESERVE)))
    }

    fn packed_bytes(&self, tensor: &TensorView<'_>) -> u64 {
        weight::packed_bytes(tensor).unwrap_or(tensor.bytes.len() as u64)
    }

    fn rates(&self, _: u64, _: Duration) -> Result<Rates> {
        Ok(rates::of(self.driver()))
    }

    fn wait(&self) {
        // What went wrong is told where results are read.
        self.driver().settle();
    }

    fn weight(&self, tensor: &TensorView<'_>) -> Result<Arc<Weight>> {
        self.shared.loaded.load(self.driver(), tensor, &self.shared.pool, self.made_up)
    }

    fn table(&self, tensor: &TensorView<'_>) -> Result<Arc<Weight>> {
        self.weight(tensor)
    }

    fn vector(&self, tensor: &TensorView<'_>) -> Result<Vector> {
        let values = on_cpu::vector(tensor)?;
        let memory = self.driver().allocate(4 * values.len(), "weights")?;
        self.driver().copy_in(&memory, 0, driver::bytes_of(&values));
        Ok(Vector { memory, len: values.len() })
    }

    fn mat(&self, max_rows: usize, cols: usize) -> Result<Mat> {
        // Kernels count elements in 32 bits.
        let len = max_rows.checked_mul(cols).filter(|&len| i32::try_from(len).is_ok());
        let len = len.with_context(|| format!("{max_rows} rows of {cols} are more than supported"))?;
        self.room().for_mat(max_rows, cols)?;
        let memory = self.driver().allocate(4 * len, "activations")?;
        Ok(Mat { memory, most: max_rows, rows: 0, cols })
    }

    fn kv(&self, shape: KvShape) -> Result<Kv> {
        self.room().for_kv(&shape, ATTEND_BLOCK)?;
        Kv::new(self.driver(), shape)
    }

    fn read_into(&self, m: &Mat, out: &mut Vec<f32>) -> Result<()> {
        let start = out.len();
        out.resize(start + m.len(), 0.0);
        self.driver().copy_out(&m.memory, 0, &mut out[start..])
    }

    fn largest(&self, m: &Mat, k: usize) -> Result<Option<Largest>> {
        match k {
            1 => self.few(m, 1, &kernels::arg_max(m.rows), |results| results.int(m.cols)),
            _ => self.few(m, k, &kernels::top_k(m.rows), |results| results.int(m.cols).int(k)),
        }
    }

    fn drawn(&self, m: &Mat, temperature: f32, seed: u64, ordinals: &[u64]) -> Result<Option<Largest>> {
        /// More than one is rare already.
        const MOST: usize = 8;
        if m.rows != ordinals.len() || m.rows > PICKED.0 {
            return Ok(None);
        }
        let ordinals = self.room().ordinals(ordinals);
        self.few(m, MOST, &kernels::gumbel(m.rows), |results| {
            let what = results.pointer(ordinals).int(m.cols).int(MOST).float(temperature);
            what.bits(seed as u32).bits((seed >> 32) as u32)
        })
    }

    fn write(&self, values: &[f32], m: &mut Mat) {
        assert!(values.len().is_multiple_of(m.cols));
        m.set_rows(values.len() / m.cols);
        self.driver().copy_in(&m.memory, 0, driver::bytes_of(values));
    }

    fn read_kv(&self, kv: &Kv, slots: Range<usize>) -> Result<Vec<u8>> {
        kv.rows(self.driver(), slots)
    }

    fn write_kv(&self, kv: &mut Kv, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        kv.set_rows(self.driver(), slots, bytes)
    }

    fn embed(&self, table: &Arc<Weight>, tokens: &[Token], scale: f32, out: &mut Mat) {
        assert_eq!(table.cols, out.cols);
        assert!(tokens.iter().all(|&token| (token as usize) < table.rows));
        out.set_rows(tokens.len());
        let arrays = if table.format.int8 { 3 } else { 1 };
        let arguments = table.arrays()[..arrays].iter().fold(Arguments::default(), |all, &array| all.pointer(array));
        let tokens = self.room().tokens(tokens);
        let arguments = arguments.pointer(tokens).pointer(out.address()).int(out.cols).int(out.rows).float(scale);
        self.driver().launch(&kernels::embed(table.format, out.cols, out.rows), arguments);
    }

    fn linear(&self, x: &Mat, products: &mut [Product<'_, Self>]) {
        let mut quantised = [0; 2];
        if products.iter().any(|p| p.weight.format.int8) {
            quantised = self.room().quantised(x.rows, x.cols);
            let [quants, info] = quantised;
            let arguments = Arguments::default().pointer(x.address()).pointer(quants).pointer(info);
            self.driver().launch(&kernels::quantise(x.rows, x.cols), arguments.int(x.len() / 32));
        }
        products.iter_mut().for_each(|product| self.product(x, quantised, product));
    }

    fn rms_norm(&self, x: &Mat, weight: &Vector, eps: f32, out: &mut Mat) {
        assert!(x.cols == out.cols && x.cols.is_multiple_of(weight.len));
        out.set_rows(x.rows);
        self.norm(x.address(), weight, eps, out.address(), x.len());
    }

    fn rms_norm_in_place(&self, x: &mut Mat, weight: &Vector, eps: f32) {
        assert!(x.cols.is_multiple_of(weight.len));
        self.norm(x.address(), weight, eps, x.address(), x.len());
    }

    fn rope(&self, x: &mut Mat, width: usize, rope: &Rope, positions: &[u32]) {
        let half = rope.frequencies.len();
        assert!(positions.len() == x.rows && x.cols.is_multiple_of(width) && 2 * half <= width);
        if half == 0 {
            return;
        }
        let [cos, sin] = self.room().angles(rope, positions);
        let arguments = Arguments::default().pointer(x.address()).pointer(cos).pointer(sin);
        let arguments = arguments.int(x.cols).int(width).int(half).int(x.rows);
        self.driver().launch(&kernels::rope(rope.pairing, x.cols, width, half, x.rows), arguments);
    }

    fn store(&self, kv: &mut Kv, layer: usize, slot: usize, k: &Mat, v: &Mat) {
        let KvShape { heads, width, slots, ty, .. } = *kv.shape();
        assert!(slot + k.rows <= slots && k.rows == v.rows && (k.cols, v.cols) == (heads * width, heads * width));
        let step = self.room().store(slot);
        let [keys, values] = kv.layer(layer);
        let arguments = [k.address(), v.address(), keys, values, step];
        let arguments = arguments.into_iter().fold(Arguments::default(), Arguments::pointer);
        let arguments = arguments.int(heads).int(width).int(slots).int(k.rows);
        self.driver().launch(&kernels::store(ty, heads, width, k.rows), arguments);
    }

    fn attend(&self, q: &Mat, kv: &Kv, layer: usize, span: Span<'_>, how: Attention, out: &mut Mat) {
        let KvShape { heads, width, slots, ty, .. } = *kv.shape();
        assert!(q.cols.is_multiple_of(heads * width) && q.cols == out.cols);
        out.set_rows(q.rows);
        let positions = (0..q.rows).map(|row| span.position(row) + 1).max().unwrap_or(0);
        assert!(positions <= slots);
        let blocks = positions.div_ceil(ATTEND_BLOCK).next_multiple_of(GROWTH).min(slots.div_ceil(ATTEND_BLOCK));
        let int = |n: usize| i32::try_from(n).expect("shapes are checked when they are made");
        let shape = AttendShape {
            rows: int(q.rows),
            heads: int(heads),
            group: int(q.cols / heads / width),
            width: int(width),
            slots: int(slots),
            blocks: int(blocks),
            scale: how.scale,
            softcap: how.softcap.unwrap_or(0.0),
            // No cache is so long that a longer window means something.
            window: how.window.map_or(0, |window| int(window.clamp(1, slots + 1))),
        };
        let mut room = self.room();
        let step = room.attend(span.base());
        let ancestors = match span {
            Span::Chain { .. } => 0,
            Span::Tree { ancestors, .. } => room.ancestors(ancestors),
        };
        let (parts, floats) = room.split();
        drop(room);
        let [keys, values] = kv.layer(layer);
        let pointers = |all: &[u64]| all.iter().fold(Arguments::default(), |all, &one| all.pointer(one)).shape(&shape);
        let operands = [q.address(), keys, values, step, ancestors];
        match kernels::attend(ty, &shape, floats) {
            AttendPlan::Whole(whole) => {
                self.driver().launch(&whole, pointers(&[&operands[..], &[out.address()]].concat()));
            }
            AttendPlan::Split { split, merge } => {
                self.driver().launch(&split, pointers(&[&operands[..], &[parts]].concat()));
                self.driver().launch(&merge, pointers(&[parts, step, ancestors, out.address()]));
            }
        }
    }

    fn glu(&self, gate: &mut Mat, up: &Mat, activation: Activation) {
        assert_eq!((gate.rows, gate.cols), (up.rows, up.cols));
        let arguments = Arguments::default().pointer(gate.address()).pointer(up.address()).int(gate.len());
        self.driver().launch(&kernels::glu(activation, gate.len()), arguments);
    }

    fn activate(&self, x: &mut Mat, activation: Activation) {
        let arguments = Arguments::default().pointer(x.address()).int(x.len());
        self.driver().launch(&kernels::activate(activation, x.len()), arguments);
    }

    fn stack(&self, parts: &[&Mat], out: &mut Mat) {
        assert!(parts.iter().all(|part| part.cols == out.cols));
        out.set_rows(parts.iter().map(|part| part.rows).sum());
        let mut to = out.address();
        for part in parts.iter().filter(|part| part.rows > 0) {
            self.columns((part.address(), part.cols, 0), (to, out.cols, 0), part.cols, part.rows);
            to += 4 * part.len() as u64;
        }
    }

    fn split(&self, x: &Mat, parts: &mut [&mut Mat]) {
        assert_eq!(parts.iter().map(|p| p.cols).sum::<usize>(), x.cols);
        let mut at = 0;
        for part in parts {
            part.set_rows(x.rows);
            self.columns((x.address(), x.cols, at), (part.address(), part.cols, 0), part.cols, x.rows);
            at += part.cols;
        }
    }

    fn join(&self, parts: &[&Mat], out: &mut Mat) {
        assert_eq!(parts.iter().map(|p| p.cols).sum::<usize>(), out.cols);
        out.set_rows(parts[0].rows);
        let mut at = 0;
        for part in parts {
            assert_eq!(part.rows, out.rows);
            self.columns((part.address(), part.cols, 0), (out.address(), out.cols, at), part.cols, part.rows);
            at += part.cols;
        }
    }

    fn add(&self, x: &mut Mat, y: &Mat) {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols));
        let arguments = Arguments::default().pointer(x.address()).pointer(y.address()).int(x.len());
        self.driver().launch(&kernels::add(x.len()), arguments);
    }

    fn gather(&self, x: &Mat, rows: &[usize], out: &mut Mat) {
        assert!(x.cols == out.cols && rows.iter().all(|&row| row < x.rows));
        out.set_rows(rows.len());
        if rows.is_empty() {
            return;
        }
        let picked = self.room().picked(rows);
        let arguments = Arguments::default().pointer(x.address()).pointer(picked).pointer(out.address());
        self.driver().launch(&kernels::gather(x.cols, rows.len()), arguments.int(x.cols).int(rows.len()));
    }

    fn softcap(&self, x: &mut Mat, cap: f32) {
        let arguments = Arguments::default().pointer(x.address()).float(cap).int(x.len());
        self.driver().launch(&kernels::softcap(x.len()), arguments);
    }

    fn move_kv(&self, kv: &mut Kv, from: &[usize], to: usize) {
        let still = (to..).zip(from).take_while(|&(to, &from)| from == to).count();
        let KvShape { layers, heads, width, slots, ty } = *kv.shape();
        assert!(from.iter().all(|&slot| slot < slots));
        let parts = layers * 2 * heads;
        // What does not fit the room at once goes in order.
        for (i, from) in from[still..].chunks(DraftTree::MAX).enumerate() {
            let to = to + still + i * DraftTree::MAX;
            let moved = self.room().moved(from);
            let arguments = Arguments::default().pointer(kv.address()).pointer(moved);
            let arguments = arguments.int(to).int(from.len()).int(parts).int(width).int(slots);
            self.driver().launch(&kernels::move_kv(ty, parts), arguments);
        }
    }
}
