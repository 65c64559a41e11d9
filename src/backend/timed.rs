//! A backend around another one that tells how long each of its ops takes and what work it has to do at least.
//!
//! It hands every call on as it is, so results are those of the backend within, to the bit. What it adds is a look at the
//! clock before and after each op and a note of it, some hundred nanoseconds together: cheap enough to profile with, and paid only by
//! those who load a model on it. Ops are told apart by the tensors they are about: the products of queries, keys and
//! values of all layers are one line, those of the feed-forward another.

use super::rates::Rates;
use super::{Activation, Attention, Backend, Description, KvShape, Largest, Product, Rope, Span};
use crate::gguf::TensorView;
use crate::quant;
use crate::tree::Token;
use anyhow::Result;
use std::ops::{AddAssign, Range};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What an op has to do at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights, as the file encodes them, and of keys and values in sight: each read once.
    pub bytes: u64,
    /// Bytes of activations read and written, once each; of ops other than products and attention, where they count for little.
    pub near: u64,
    /// Operations on int8: two for every element of a matrix and row.
    pub int8: u64,
    /// Operations on f32: as many where the matrix is of floats, and two for every product in attention.
    pub float: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.bytes += other.bytes;
        self.near += other.near;
        self.int8 += other.int8;
        self.float += other.float;
    }
}

/// All calls of one kind.
#[derive(Clone, Debug)]
pub struct Spent {
    /// The op, by the name of its function.
    pub op: &'static str,
    /// The tensors it is about, without the numbers of layers.
    pub of: Vec<Arc<str>>,
    /// How many they were.
    pub calls: u64,
    /// How long they took together.
    pub time: Duration,
    /// What they had to do together.
    pub work: Work,
}

impl Spent {
    /// Op and tensors.
    pub fn name(&self) -> String {
        let words = std::iter::once(self.op).chain(self.of.iter().map(|role| &**role));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The backend.
pub struct Timed<B> {
    inner: B,
    widened: bool,
    /// In the order of first calls.
    log: Mutex<Vec<Spent>>,
}

/// Activations, and how many.
pub struct Mat<B: Backend> {
    inner: B::Mat,
    rows: usize,
    cols: usize,
}

/// A matrix, and what it is.
pub struct Weight<B: Backend> {
    inner: B::Weight,
    role: Arc<str>,
    /// Of its product with one row.
    work: Work,
}

/// A vector, and what it is.
pub struct Vector<B: Backend> {
    inner: B::Vector,
    role: Arc<str>,
    bytes: u64,
}

/// A cache, and its shape.
pub struct Kv<B: Backend> {
    inner: B::Kv,
    shape: KvShape,
}

impl<B: Backend> Mat<B> {
    /// Bytes of so many f32s for each of its own.
    fn bytes(&self, times: usize) -> u64 {
        (4 * times * self.rows * self.cols) as u64
    }
}

/// What a tensor is for: its name without its layer.
fn role(tensor: &TensorView<'_>) -> Arc<str> {
    let name = tensor.name.strip_suffix(".weight").unwrap_or(tensor.name);
    let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    in_layer.map_or(name, |(_, name)| name).into()
}

fn near(bytes: u64) -> Work {
    Work { near: bytes, ..Work::default() }
}

/// Positions of a layer's cache that the rows of `span` see together, and one by one added up.
fn seen(span: Span<'_>, rows: usize, window: Option<usize>) -> (u64, u64) {
    let (base, window) = (span.base(), window.unwrap_or(usize::MAX));
    let behind = match span {
        Span::Chain { .. } => rows,
        Span::Tree { ancestors, .. } => ancestors.iter().fold(0, |all, set| all | set).count_ones() as usize,
    };
    let first = (base + 1).saturating_sub(window);
    let single = (0..rows).map(|row| (span.position(row) + 1).min(window) as u64);
    ((base + behind - first) as u64, single.sum())
}

impl<B: Backend> Timed<B> {
    /// Around `inner`; `widened` when that makes f32 of int8 weights.
    pub fn new(inner: B, widened: bool) -> Self {
        Self { inner, widened, log: Mutex::default() }
    }

    /// What was spent since the last time this was asked, in the order of first calls.
    pub fn take(&self) -> Vec<Spent> {
        std::mem::take(&mut *self.log())
    }

    fn log(&self) -> MutexGuard<'_, Vec<Spent>> {
        self.log.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, op: &'static str, of: &[&Arc<str>], time: Duration, work: Work) {
        let mut log = self.log();
        let same = |spent: &&mut Spent| spent.op == op && spent.of.iter().eq(of.iter().copied());
        match log.iter_mut().find(same) {
            Some(spent) => {
                spent.calls += 1;
                spent.time += time;
                spent.work += work;
            }
            None => log.push(Spent { op, of: of.iter().map(|&role| role.clone()).collect(), calls: 1, time, work }),
        }
    }

    /// Runs an op between two looks at the clock.
    fn timed<T>(&self, op: &'static str, of: &[&Arc<str>], work: Work, run: impl FnOnce(&B) -> T) -> T {
        let started = Instant::now();
        let result = run(&self.inner);
        self.inner.wait();
        let time = started.elapsed();
        self.note(op, of, time, work);
        result
    }
}

impl<B: Backend> Backend for Timed<B> {
    type Mat = Mat<B>;
    type Weight = Weight<B>;
    type Table = B::Table;
    type Vector = Vector<B>;
    type Kv = Kv<B>;

    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn own_memory(&self) -> Result<Option<u64>> {
        self.inner.own_memory()
    }

    fn packed_bytes(&self, tensor: &TensorView<'_>) -> u64 {
        self.inner.packed_bytes(tensor)
    }

    fn rates(&self, room: u64, each: Duration) -> Result<Rates> {
        self.inner.rates(room, each)
    }

    fn wait(&self) {
        self.inner.wait();
    }

    fn weight(&self, tensor: &TensorView<'_>) -> Result<Weight<B>> {
        let inner = self.inner.weight(tensor)?;
        let (elements, bytes) = ((tensor.rows() * tensor.cols()) as u64, tensor.bytes.len() as u64);
        let work = match quant::format(tensor.ggml_type).is_some_and(|format| format.int8) {
            true if self.widened => Work { bytes: 4 * elements, float: 2 * elements, ..Work::default() },
            true => Work { bytes, int8: 2 * elements, ..Work::default() },
            false => Work { bytes, float: 2 * elements, ..Work::default() },
        };
        Ok(Weight { inner, role: role(tensor), work })
    }

    fn table(&self, tensor: &TensorView<'_>) -> Result<B::Table> {
        self.inner.table(tensor)
    }

    fn vector(&self, tensor: &TensorView<'_>) -> Result<Vector<B>> {
        Ok(Vector { inner: self.inner.vector(tensor)?, role: role(tensor), bytes: tensor.bytes.len() as u64 })
    }

    fn mat(&self, max_rows: usize, cols: usize) -> Result<Mat<B>> {
        Ok(Mat { inner: self.inner.mat(max_rows, cols)?, rows: 0, cols })
    }

    fn kv(&self, shape: KvShape) -> Result<Kv<B>> {
        Ok(Kv { inner: self.inner.kv(shape)?, shape })
    }

    fn read_into(&self, m: &Mat<B>, out: &mut Vec<f32>) -> Result<()> {
        self.timed("read", &[], near(m.bytes(2)), |b| b.read_into(&m.inner, out))
    }

    fn largest(&self, m: &Mat<B>, k: usize) -> Result<Option<Largest>> {
        self.timed("largest", &[], near(m.bytes(1)), |b| b.largest(&m.inner, k))
    }

    fn drawn(&self, m: &Mat<B>, temperature: f32, seed: u64, ordinals: &[u64]) -> Result<Option<Largest>> {
        self.timed("drawn", &[], near(m.bytes(1)), |b| b.drawn(&m.inner, temperature, seed, ordinals))
    }

    fn write(&self, values: &[f32], m: &mut Mat<B>) {
        m.rows = values.len() / m.cols;
        self.timed("write", &[], near(m.bytes(2)), |b| b.write(values, &mut m.inner));
    }

    fn read_kv(&self, kv: &Kv<B>, slots: Range<usize>) -> Result<Vec<u8>> {
        self.inner.read_kv(&kv.inner, slots)
    }

    fn write_kv(&self, kv: &mut Kv<B>, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        self.inner.write_kv(&mut kv.inner, slots, bytes)
    }

    fn embed(&self, table: &B::Table, tokens: &[Token], scale: f32, out: &mut Mat<B>) {
        out.rows = tokens.len();
        self.timed("embed", &[], near(out.bytes(1)), |b| b.embed(table, tokens, scale, &mut out.inner));
    }

    fn linear(&self, x: &Mat<B>, products: &mut [Product<'_, Self>]) {
        let (mut work, rows) = (Work::default(), x.rows as u64);
        for p in products.iter_mut() {
            p.out.rows = x.rows;
            let Work { bytes, int8, float, near } = p.weight.work;
            let bias = p.bias.map_or(0, |bias| bias.bytes);
            work += Work { bytes: bytes + bias, int8: int8 * rows, float: float * rows, near };
        }
        let of: Vec<&Arc<str>> = products.iter().map(|p| &p.weight.role).collect();
        let inner = products.iter_mut().map(|p| Product {
            weight: &p.weight.inner,
            bias: p.bias.map(|bias| &bias.inner),
            out: &mut p.out.inner,
        });
        let mut inner: Vec<Product<'_, B>> = inner.collect();
        self.timed("linear", &of, work, |b| b.linear(&x.inner, &mut inner));
    }

    fn rms_norm(&self, x: &Mat<B>, weight: &Vector<B>, eps: f32, out: &mut Mat<B>) {
        out.rows = x.rows;
        let work = Work { bytes: weight.bytes, ..near(x.bytes(2)) };
        let run = |b: &B| b.rms_norm(&x.inner, &weight.inner, eps, &mut out.inner);
        self.timed("rms_norm", &[&weight.role], work, run);
    }

    fn rms_norm_in_place(&self, x: &mut Mat<B>, weight: &Vector<B>, eps: f32) {
        let work = Work { bytes: weight.bytes, ..near(x.bytes(2)) };
        let run = |b: &B| b.rms_norm_in_place(&mut x.inner, &weight.inner, eps);
        self.timed("rms_norm", &[&weight.role], work, run);
    }

    fn rope(&self, x: &mut Mat<B>, width: usize, rope: &Rope, positions: &[u32]) {
        self.timed("rope", &[], near(x.bytes(2)), |b| b.rope(&mut x.inner, width, rope, positions));
    }

    fn store(&self, kv: &mut Kv<B>, layer: usize, slot: usize, k: &Mat<B>, v: &Mat<B>) {
        let stored = 2 * kv.shape.ty.bytes(k.rows * k.cols) as u64;
        let work = near(k.bytes(1) + v.bytes(1) + stored);
        self.timed("store", &[], work, |b| b.store(&mut kv.inner, layer, slot, &k.inner, &v.inner));
    }

    fn attend(&self, q: &Mat<B>, kv: &Kv<B>, layer: usize, span: Span<'_>, how: Attention, out: &mut Mat<B>) {
        out.rows = q.rows;
        let KvShape { heads, width, ty, .. } = kv.shape;
        let (together, single) = seen(span, q.rows, how.window);
        let bytes = together * 2 * ty.bytes(heads * width) as u64;
        let work = Work { bytes, float: 4 * single * q.cols as u64, ..Work::default() };
        let run = |b: &B| b.attend(&q.inner, &kv.inner, layer, span, how, &mut out.inner);
        self.timed("attend", &[], work, run);
    }

    fn glu(&self, gate: &mut Mat<B>, up: &Mat<B>, activation: Activation) {
        self.timed("glu", &[], near(gate.bytes(3)), |b| b.glu(&mut gate.inner, &up.inner, activation));
    }

    fn activate(&self, x: &mut Mat<B>, activation: Activation) {
        self.timed("activate", &[], near(x.bytes(2)), |b| b.activate(&mut x.inner, activation));
    }

    fn stack(&self, parts: &[&Mat<B>], out: &mut Mat<B>) {
        out.rows = parts.iter().map(|part| part.rows).sum();
        let inner: Vec<&B::Mat> = parts.iter().map(|part| &part.inner).collect();
        self.timed("stack", &[], near(out.bytes(2)), |b| b.stack(&inner, &mut out.inner));
    }

    fn split(&self, x: &Mat<B>, parts: &mut [&mut Mat<B>]) {
        let inner = parts.iter_mut().map(|part| {
            part.rows = x.rows;
            &mut part.inner
        });
        let mut inner: Vec<&mut B::Mat> = inner.collect();
        self.timed("split", &[], near(x.bytes(2)), |b| b.split(&x.inner, &mut inner));
    }

    fn join(&self, parts: &[&Mat<B>], out: &mut Mat<B>) {
        out.rows = parts.first().map_or(0, |part| part.rows);
        let inner: Vec<&B::Mat> = parts.iter().map(|part| &part.inner).collect();
        self.timed("join", &[], near(out.bytes(2)), |b| b.join(&inner, &mut out.inner));
    }

    fn add(&self, x: &mut Mat<B>, y: &Mat<B>) {
        self.timed("add", &[], near(x.bytes(3)), |b| b.add(&mut x.inner, &y.inner));
    }

    fn gather(&self, x: &Mat<B>, rows: &[usize], out: &mut Mat<B>) {
        out.rows = rows.len();
        self.timed("gather", &[], near(out.bytes(2)), |b| b.gather(&x.inner, rows, &mut out.inner));
    }

    fn softcap(&self, x: &mut Mat<B>, cap: f32) {
        self.timed("softcap", &[], near(x.bytes(2)), |b| b.softcap(&mut x.inner, cap));
    }

    fn move_kv(&self, kv: &mut Kv<B>, from: &[usize], to: usize) {
        let moved = (to..).zip(from).filter(|(to, from)| to != *from).count();
        let work = near(2 * KvShape { slots: moved, ..kv.shape }.bytes() as u64);
        self.timed("move_kv", &[], work, |b| b.move_kv(&mut kv.inner, from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rows_see_is_counted_once_and_row_by_row() {
        let fan = [0b1, 0b11, 0b101, 0b1101]; // depths 0, 1, 1, 2
        for (span, rows, window, want) in [
            (Span::Chain { base: 0 }, 1, None, (1, 1)),
            (Span::Chain { base: 10 }, 3, None, (13, 11 + 12 + 13)),
            (Span::Chain { base: 10 }, 3, Some(4), (6, 12)),
            (Span::Chain { base: 1 }, 4, Some(4), (5, 2 + 3 + 4 + 4)),
            (Span::Tree { base: 10, ancestors: &fan }, 4, None, (14, 11 + 12 + 12 + 13)),
            // The last rows of a tree see nodes that were run before them.
            (Span::Tree { base: 10, ancestors: &fan[3..] }, 1, None, (13, 13)),
        ] {
            assert_eq!(seen(span, rows, window), want, "{span:?} {rows} {window:?}");
        }
    }

    #[test]
    fn roles_are_names_without_layers() {
        for (name, want) in [
            ("blk.12.attn_q.weight", "attn_q"),
            ("blk.0.attn_q.bias", "attn_q.bias"),
            ("output.weight", "output"),
            ("blk", "blk"),
        ] {
            assert_eq!(&*role(&TensorView::new(name, 0, &[1], &[0; 4]).unwrap()), want);
        }
    }
}
