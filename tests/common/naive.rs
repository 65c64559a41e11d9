//! The oracle: every op as plain loops over widened f32 weights, sums in f64. Slow, and short enough to be read as the
//! definition of what a backend computes.

use anyhow::Result;
use foretoken::backend::rates::{Rate, Rates, Read};
use foretoken::backend::{Activation, Attention, Backend, Description, KvShape, KvType, Pairing, Product, Rope, Span};
use foretoken::gguf::TensorView;
use foretoken::quant;
use foretoken::tree::Token;
use std::ops::Range;
use std::time::Duration;

/// The plain backend.
#[derive(Default)]
pub struct Naive {
    /// Rounds the input of every product to 8-bit integers in blocks of so many, as integer kernels do.
    pub int8_block: Option<usize>,
}

/// `[rows, cols]`.
pub struct Mat {
    pub rows: usize,
    pub cols: usize,
    pub max_rows: usize,
    pub data: Vec<f32>,
}

/// Keys, then values, `[2, layers, slots, heads * width]`, rounded to the cache's type and widened again.
pub struct Kv {
    shape: KvShape,
    data: Vec<f32>,
}

impl Mat {
    fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.max_rows, "{rows} rows in a matrix of at most {}", self.max_rows);
        self.rows = rows;
    }

    fn active(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.cols]
    }
}

impl Kv {
    /// Index of a slot's first element; `part` 0 for keys, 1 for values.
    fn at(&self, part: usize, layer: usize, slot: usize) -> usize {
        assert!(layer < self.shape.layers && slot < self.shape.slots);
        ((part * self.shape.layers + layer) * self.shape.slots + slot) * self.cols()
    }

    fn cols(&self) -> usize {
        self.shape.heads * self.shape.width
    }

    fn head(&self, part: usize, layer: usize, slot: usize, head: usize) -> &[f32] {
        let start = self.at(part, layer, slot) + head * self.shape.width;
        &self.data[start..start + self.shape.width]
    }
}

/// A tensor's values.
fn widen(tensor: &TensorView<'_>) -> Vec<f32> {
    let format = quant::format(tensor.ggml_type).expect("checked before");
    let mut values = vec![0.0; tensor.bytes.len() / format.bytes * format.block];
    (format.dequant)(tensor.bytes, &mut values);
    values
}

/// Eight partial sums, for speed only.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let mut sums = [0f64; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a as f64 * b as f64;
        }
    }
    sums.iter().sum()
}

fn norm(x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(weight.len()));
    for head in x.chunks_mut(weight.len()) {
        let mean = dot(head, head) / head.len() as f64;
        let factor = (mean + eps as f64).sqrt().recip();
        for (x, &w) in head.iter_mut().zip(weight) {
            *x = (*x as f64 * factor * w as f64) as f32;
        }
    }
}

/// To multiples of a 127th of the largest, which is itself rounded to f16.
fn round_block(block: &mut [f32]) {
    let scale = block.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let stored = half::f16::from_f32(scale).to_f32();
    for v in block {
        *v = (*v * inverse).round_ties_even() * stored;
    }
}

/// What the cache makes of a value.
fn round(values: &[f32], ty: KvType) -> Vec<f32> {
    match ty {
        KvType::F32 => values.to_vec(),
        KvType::F16 => values.iter().map(|&v| half::f16::from_f32(v).to_f32()).collect(),
        KvType::Q8_0 => {
            let mut values = values.to_vec();
            values.chunks_mut(32).for_each(round_block);
            values
        }
    }
}

impl Backend for Naive {
    type Mat = Mat;
    type Weight = Mat;
    type Table = Mat;
    type Vector = Vec<f32>;
    type Kv = Kv;

    fn describe(&self) -> Description {
        Description { device: "naive".into(), isa: "f64".into(), threads: 1, name: None }
    }

    fn own_memory(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn packed_bytes(&self, tensor: &TensorView<'_>) -> u64 {
        4 * tensor.dims.iter().product::<u64>()
    }

    fn rates(&self, _: u64, _: Duration) -> Result<Rates> {
        let rate = Rate { one: 1.0, all: 1.0 };
        Ok(Rates { reads: vec![Read { bytes: 1, rate }], int8: rate, f32: rate })
    }

    fn weight(&self, t: &TensorView<'_>) -> Result<Mat> {
        Ok(Mat { rows: t.rows(), cols: t.cols(), max_rows: t.rows(), data: widen(t) })
    }

    fn table(&self, t: &TensorView<'_>) -> Result<Mat> {
        self.weight(t)
    }

    fn vector(&self, t: &TensorView<'_>) -> Result<Vec<f32>> {
        Ok(widen(t))
    }

    fn mat(&self, max_rows: usize, cols: usize) -> Result<Mat> {
        Ok(Mat { rows: 0, cols, max_rows, data: vec![0.0; max_rows * cols] })
    }

    fn kv(&self, shape: KvShape) -> Result<Kv> {
        Ok(Kv { shape, data: vec![0.0; 2 * shape.layers * shape.slots * shape.heads * shape.width] })
    }

    fn read_into(&self, m: &Mat, out: &mut Vec<f32>) -> Result<()> {
        out.extend_from_slice(&m.data[..m.rows * m.cols]);
        Ok(())
    }

    fn write(&self, values: &[f32], m: &mut Mat) {
        m.set_rows(values.len() / m.cols);
        m.active().copy_from_slice(values);
    }

    fn read_kv(&self, kv: &Kv, slots: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![];
        for part in 0..2 {
            for layer in 0..kv.shape.layers {
                let values = &kv.data[kv.at(part, layer, 0)..][slots.start * kv.cols()..slots.end * kv.cols()];
                bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            }
        }
        Ok(bytes)
    }

    fn write_kv(&self, kv: &mut Kv, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        let mut values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        for part in 0..2 {
            for layer in 0..kv.shape.layers {
                let at = kv.at(part, layer, 0) + slots.start * kv.cols();
                let len = slots.len() * kv.cols();
                let row = &mut kv.data[at..at + len];
                row.iter_mut().zip(&mut values).for_each(|(to, value)| *to = value);
            }
        }
        Ok(())
    }

    fn embed(&self, table: &Mat, tokens: &[Token], scale: f32, out: &mut Mat) {
        out.set_rows(tokens.len());
        for (i, &token) in tokens.iter().enumerate() {
            for (o, &v) in out.row_mut(i).iter_mut().zip(table.row(token as usize)) {
                *o = v * scale;
            }
        }
    }

    fn linear(&self, x: &Mat, products: &mut [Product<'_, Self>]) {
        let mut x = Mat { data: x.data.clone(), ..*x };
        if let Some(block) = self.int8_block {
            for block in x.active().chunks_mut(block) {
                round_block(block);
            }
        }
        for product in products {
            let (weight, out) = (product.weight, &mut *product.out);
            assert!(weight.cols == x.cols && weight.rows == out.cols);
            out.set_rows(x.rows);
            for i in 0..x.rows {
                for n in 0..weight.rows {
                    let bias = product.bias.map_or(0.0, |b| b[n] as f64);
                    out.row_mut(i)[n] = (dot(x.row(i), weight.row(n)) + bias) as f32;
                }
            }
        }
    }

    fn rms_norm(&self, x: &Mat, weight: &Vec<f32>, eps: f32, out: &mut Mat) {
        out.set_rows(x.rows);
        out.active().copy_from_slice(&x.data[..x.rows * x.cols]);
        self.rms_norm_in_place(out, weight, eps);
    }

    fn rms_norm_in_place(&self, x: &mut Mat, weight: &Vec<f32>, eps: f32) {
        norm(x.active(), weight, eps);
    }

    fn rope(&self, x: &mut Mat, width: usize, rope: &Rope, positions: &[u32]) {
        assert_eq!(positions.len(), x.rows);
        let pairs = rope.frequencies.len();
        for (i, &position) in positions.iter().enumerate() {
            for head in x.row_mut(i).chunks_mut(width) {
                for (p, frequency) in rope.frequencies.iter().enumerate() {
                    let (first, second) = match rope.pairing {
                        Pairing::Adjacent => (2 * p, 2 * p + 1),
                        Pairing::Halves => (p, p + pairs),
                    };
                    let (sin, cos) = (position as f64 * frequency).sin_cos();
                    let (a, b, m) = (head[first] as f64, head[second] as f64, rope.magnitude as f64);
                    head[first] = ((a * cos - b * sin) * m) as f32;
                    head[second] = ((a * sin + b * cos) * m) as f32;
                }
            }
        }
    }

    fn store(&self, kv: &mut Kv, layer: usize, slot: usize, k: &Mat, v: &Mat) {
        for (part, m) in [k, v].into_iter().enumerate() {
            assert_eq!(m.cols, kv.cols());
            for i in 0..m.rows {
                let at = kv.at(part, layer, slot + i);
                kv.data[at..at + m.cols].copy_from_slice(&round(m.row(i), kv.shape.ty));
            }
        }
    }

    fn attend(&self, q: &Mat, kv: &Kv, layer: usize, span: Span<'_>, how: Attention, out: &mut Mat) {
        let width = kv.shape.width;
        let share = q.cols / width / kv.shape.heads;
        out.set_rows(q.rows);
        for i in 0..q.rows {
            let here = span.position(i);
            // (logical position, slot) of all this row sees.
            let mut seen: Vec<(usize, usize)> = (0..span.base()).map(|p| (p, p)).collect();
            match span {
                Span::Chain { base } => seen.extend((base..=here).map(|p| (p, p))),
                Span::Tree { base, ancestors } => {
                    let nodes = (0..64).filter(|j| ancestors[i] >> j & 1 == 1);
                    seen.extend(nodes.enumerate().map(|(depth, j)| (base + depth, base + j)));
                }
            }
            seen.retain(|&(p, _)| how.window.is_none_or(|w| here - p < w));
            for (h, (query, out)) in q.row(i).chunks(width).zip(out.row_mut(i).chunks_mut(width)).enumerate() {
                let score = |&(_, slot): &(usize, usize)| {
                    let score = dot(query, kv.head(0, layer, slot, h / share)) * how.scale as f64;
                    how.softcap.map_or(score, |c| c as f64 * (score / c as f64).tanh())
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (d, out) in out.iter_mut().enumerate() {
                    let value = |&(_, slot): &(usize, usize)| kv.head(1, layer, slot, h / share)[d] as f64;
                    let sum: f64 = seen.iter().zip(&weights).map(|(s, w)| w * value(s)).sum();
                    *out = (sum / total) as f32;
                }
            }
        }
    }

    fn activate(&self, x: &mut Mat, activation: Activation) {
        x.active().iter_mut().for_each(|x| *x = activated(*x, activation) as f32);
    }

    fn stack(&self, parts: &[&Mat], out: &mut Mat) {
        out.set_rows(parts.iter().map(|part| part.rows).sum());
        for (to, row) in parts.iter().flat_map(|part| (0..part.rows).map(|row| part.row(row))).enumerate() {
            out.row_mut(to).copy_from_slice(row);
        }
    }

    fn glu(&self, gate: &mut Mat, up: &Mat, activation: Activation) {
        for (g, &u) in gate.active().iter_mut().zip(&up.data) {
            *g = (activated(*g, activation) * u as f64) as f32;
        }
    }

    fn split(&self, x: &Mat, parts: &mut [&mut Mat]) {
        let mut from = 0;
        for part in parts {
            part.set_rows(x.rows);
            for i in 0..x.rows {
                let cols = part.cols;
                part.row_mut(i).copy_from_slice(&x.row(i)[from..from + cols]);
            }
            from += part.cols;
        }
        assert_eq!(from, x.cols);
    }

    fn join(&self, parts: &[&Mat], out: &mut Mat) {
        out.set_rows(parts[0].rows);
        for i in 0..out.rows {
            let row: Vec<f32> = parts.iter().flat_map(|part| part.row(i)).copied().collect();
            out.row_mut(i).copy_from_slice(&row);
        }
    }

    fn add(&self, x: &mut Mat, y: &Mat) {
        assert!(x.rows == y.rows && x.cols == y.cols);
        for (x, &y) in x.active().iter_mut().zip(&y.data) {
            *x += y;
        }
    }

    fn gather(&self, x: &Mat, rows: &[usize], out: &mut Mat) {
        out.set_rows(rows.len());
        for (i, &row) in rows.iter().enumerate() {
            assert!(row < x.rows);
            out.row_mut(i).copy_from_slice(x.row(row));
        }
    }

    fn softcap(&self, x: &mut Mat, cap: f32) {
        for x in x.active() {
            *x = cap * (*x / cap).tanh();
        }
    }

    fn move_kv(&self, kv: &mut Kv, from: &[usize], to: usize) {
        let cols = kv.cols();
        for part in 0..2 {
            for layer in 0..kv.shape.layers {
                for (i, &slot) in from.iter().enumerate() {
                    assert!(slot >= to + i);
                    let (source, target) = (kv.at(part, layer, slot), kv.at(part, layer, to + i));
                    kv.data.copy_within(source..source + cols, target);
                }
            }
        }
    }
}

fn activated(x: f32, activation: Activation) -> f64 {
    let x = x as f64;
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}
