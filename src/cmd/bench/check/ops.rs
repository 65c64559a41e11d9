//! Every op of the device against the CPU's on the same values, and products and attention against themselves on other
//! numbers of rows.

use super::Random;
use crate::backend::cpu::{Cpu, team};
use crate::backend::cuda::Cuda;
use crate::backend::{Activation, Attention, Backend, KvShape, KvType, Pairing, Product, Rope, Span};
use crate::gguf::TensorView;
use crate::isa::Isa;
use crate::quant::{FORMATS, Format};
use anyhow::{Result, bail, ensure};
use half::{bf16, f16};

/// How far from the CPU's, of the largest value: sums in another order.
const APART: f32 = 2e-5;
/// The same where values are rounded on the way, and one that lies between two may go to either.
const ROUNDED: f32 = 2e-2;

/// Numbers of rows that are tried: about every border of a kernel's.
pub const ROWS: &[usize] = &[1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 130];

/// What was compared.
#[derive(Default)]
pub struct Counted {
    /// Cases against the CPU.
    pub cases: usize,
    /// The largest distance.
    pub apart: f32,
    /// Cases of law 1.
    pub laws: usize,
}

struct Pair<'a> {
    device: &'a Cuda,
    cpu: Cpu,
    random: Random,
    counted: Counted,
}

/// Checks all ops; products of `shapes` (outputs, columns).
pub fn check(device: &Cuda, shapes: &[(usize, usize)], rows: &[usize]) -> Result<Counted> {
    let cpu = Cpu::new(Isa::best(), team::default_threads())?;
    let mut pair = Pair { device, cpu, random: Random(5), counted: Counted::default() };
    for format in FORMATS {
        for &(outputs, cols) in shapes.iter().filter(|(_, cols)| cols.is_multiple_of(format.block.max(32))) {
            pair.products(format, outputs, cols, rows)?;
        }
    }
    pair.elements()?;
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (heads, group, width) in [(2, 3, 64), (1, 7, 96), (2, 4, 128), (1, 2, 256)] {
            pair.attention(ty, heads, group, width)?;
        }
    }
    Ok(pair.counted)
}

fn tensor<'a>(format: &Format, dims: &'a [u64], bytes: &'a [u8]) -> Result<TensorView<'a>> {
    TensorView::new("checked", format.ggml_id, dims, bytes)
}

/// Random weights of about 0.1.
fn weights(format: &Format, elements: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![];
    for _ in 0..elements / format.block {
        let at = bytes.len();
        match format.name {
            "F32" => bytes.extend((0.1 * random.value()).to_le_bytes()),
            "F16" => bytes.extend(f16::from_f32(0.1 * random.value()).to_le_bytes()),
            "BF16" => bytes.extend(bf16::from_f32(0.1 * random.value()).to_le_bytes()),
            _ => bytes.extend((0..format.bytes).map(|_| random.below(256) as u8)),
        }
        // Where scales are; quants times sub-scales reach more in blocks of 256.
        let (scales, most): (&[usize], f32) = match format.name {
            "Q4_0" | "Q5_0" | "Q8_0" | "IQ4_NL" => (&[0], 0.02),
            "Q4_1" | "Q5_1" => (&[0, 2], 0.02),
            "IQ4_XS" => (&[0], 0.002),
            "Q4_K" | "Q5_K" => (&[0, 2], 0.002),
            "Q2_K" => (&[80, 82], 0.002),
            "Q3_K" => (&[108], 0.002),
            "Q6_K" => (&[208], 0.002),
            _ => (&[], 0.0),
        };
        for scale in scales {
            let value = f16::from_f32(most * random.value()).to_le_bytes();
            bytes[at + scale..at + scale + 2].copy_from_slice(&value);
        }
        if format.name == "MXFP4" {
            bytes[at] = 118 + random.below(6) as u8;
        }
    }
    bytes
}

fn mat<B: Backend>(b: &B, values: &[f32], cols: usize) -> Result<B::Mat> {
    let mut m = b.mat(values.len() / cols, cols)?;
    b.write(values, &mut m);
    Ok(m)
}

impl Pair<'_> {
    fn compare(&mut self, what: &str, apart: f32, got: &[f32], want: &[f32]) -> Result<()> {
        let size = want.iter().fold(1e-6f32, |top, x| top.max(x.abs()));
        ensure!(got.len() == want.len() && size > 1e-6, "{what}: nothing to compare");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let distance = (got - want).abs() / size;
            ensure!(distance <= apart, "{what}: value {i} is {got}, the CPU has {want}");
            self.counted.apart = self.counted.apart.max(distance);
        }
        self.counted.cases += 1;
        Ok(())
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.random.value()).collect()
    }
}

/// All rows of a product on a backend.
fn product<B: Backend>(
    b: &B,
    weight: &B::Weight,
    bias: &B::Vector,
    x: &[f32],
    shape: (usize, usize),
) -> Result<Vec<f32>> {
    let (outputs, cols) = shape;
    let mut out = b.mat(x.len() / cols, outputs)?;
    b.linear(&mat(b, x, cols)?, &mut [Product { weight, bias: Some(bias), out: &mut out }]);
    b.read(&out)
}

impl Pair<'_> {
    fn products(&mut self, format: &Format, outputs: usize, cols: usize, rows: &[usize]) -> Result<()> {
        let bytes = weights(format, outputs * cols, &mut self.random);
        let dims = [cols as u64, outputs as u64];
        let tensor = tensor(format, &dims, &bytes)?;
        let bias: Vec<u8> = self.values(outputs).iter().flat_map(|x| x.to_le_bytes()).collect();
        let dims = [outputs as u64];
        let bias = TensorView::new("bias", 0, &dims, &bias)?;
        let (weight, on_cpu) = (self.device.weight(&tensor)?, self.cpu.weight(&tensor)?);
        let (offset, cpu_offset) = (self.device.vector(&bias)?, self.cpu.vector(&bias)?);
        let most = rows.iter().copied().max().unwrap_or(1);
        let x = self.values(most * cols);
        let shape = (outputs, cols);
        let want = product(&self.cpu, &on_cpu, &cpu_offset, &x, shape)?;
        let all = product(self.device, &weight, &offset, &x, shape)?;
        let what = format!("{} [{outputs}, {cols}]", format.name);
        self.compare(&what, APART, &all, &want)?;
        for &rows in rows {
            let some = product(self.device, &weight, &offset, &x[..rows * cols], shape)?;
            let differs = some.iter().zip(&all).position(|(a, b)| a.to_bits() != b.to_bits());
            if let Some(at) = differs {
                bail!("{what}: value {at} is {} among {rows} rows, {} among {most}", some[at], all[at]);
            }
            self.counted.laws += 1;
        }
        // And rows looked up.
        let tokens = [0, outputs as u32 - 1, outputs as u32 / 2];
        let (table, on_cpu) = (self.device.table(&tensor)?, self.cpu.table(&tensor)?);
        let (mut rows, mut cpu_rows) = (self.device.mat(3, cols)?, self.cpu.mat(3, cols)?);
        self.device.embed(&table, &tokens, 0.5, &mut rows);
        self.cpu.embed(&on_cpu, &tokens, 0.5, &mut cpu_rows);
        let (rows, cpu_rows) = (self.device.read(&rows)?, self.cpu.read(&cpu_rows)?);
        self.compare(&format!("{what} embed"), 1e-6, &rows, &cpu_rows)
    }

    fn elements(&mut self) -> Result<()> {
        let ops: [(&str, Op<Cuda>, Op<Cpu>); 7] = [
            ("rms_norm", norm, norm),
            ("silu", gated::<_, true>, gated::<_, true>),
            ("gelu", gated::<_, false>, gated::<_, false>),
            ("add and softcap", add, add),
            ("rope", turn::<_, true>, turn::<_, true>),
            ("rope of halves", turn::<_, false>, turn::<_, false>),
            ("join, split, stack and gather", moved, moved),
        ];
        for (rows, cols) in [(1, 64), (3, 576), (70, 4096)] {
            let (x, y, w) = (self.values(rows * cols), self.values(rows * cols), self.values(cols));
            for (what, on_device, on_cpu) in ops {
                let values = [&x[..], &y, &w];
                let (got, want) = (on_device(self.device, values, cols)?, on_cpu(&self.cpu, values, cols)?);
                self.compare(&format!("{what} of [{rows}, {cols}]"), APART, &got, &want)?;
            }
        }
        Ok(())
    }

    fn attention(&mut self, ty: KvType, heads: usize, group: usize, width: usize) -> Result<()> {
        let (base, nodes) = (300, 24);
        let shape = KvShape { layers: 1, slots: 400, heads, width, ty };
        let (k, v) = (self.values((base + nodes) * heads * width), self.values((base + nodes) * heads * width));
        let q = self.values(nodes * heads * group * width);
        // Every node hangs below one of the three before it.
        let mut sets = vec![1u64];
        for node in 1..nodes {
            let parent = node - 1 - self.random.below(3.min(node));
            sets.push(sets[parent] | 1 << node);
        }
        for (window, softcap) in [(None, None), (Some(50), None), (None, Some(20.0))] {
            let how = Attention { scale: (width as f32).sqrt().recip(), softcap, window };
            let what = format!("attention over {ty:?}, {heads} x {group} heads of {width}, {window:?}, {softcap:?}");
            for span in [Span::Chain { base }, Span::Tree { base, ancestors: &sets }] {
                let got = attend(self.device, shape, [&q, &k, &v], span, how)?;
                let want = attend(&self.cpu, shape, [&q, &k, &v], span, how)?;
                self.compare(&what, if ty == KvType::F32 { APART } else { ROUNDED }, &got, &want)?;
            }
        }
        Ok(())
    }
}

/// Rows `x` and `y` of `cols` values, and one more such row.
type Op<B> = fn(&B, [&[f32]; 3], usize) -> Result<Vec<f32>>;

fn norm<B: Backend>(b: &B, [x, _, w]: [&[f32]; 3], cols: usize) -> Result<Vec<f32>> {
    let bytes: Vec<u8> = w.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weight = b.vector(&TensorView::new("w", 0, &[cols as u64], &bytes)?)?;
    let (mut out, x) = (b.mat(x.len() / cols, cols)?, mat(b, x, cols)?);
    b.rms_norm(&x, &weight, 1e-5, &mut out);
    b.rms_norm_in_place(&mut out, &weight, 1e-5);
    b.read(&out)
}

fn gated<B: Backend, const SILU: bool>(b: &B, [x, y, _]: [&[f32]; 3], cols: usize) -> Result<Vec<f32>> {
    let (mut x, y) = (mat(b, x, cols)?, mat(b, y, cols)?);
    let activation = if SILU { Activation::Silu } else { Activation::GeluTanh };
    b.glu(&mut x, &y, activation);
    b.activate(&mut x, activation);
    b.read(&x)
}

fn add<B: Backend>(b: &B, [x, y, _]: [&[f32]; 3], cols: usize) -> Result<Vec<f32>> {
    let (mut x, y) = (mat(b, x, cols)?, mat(b, y, cols)?);
    b.add(&mut x, &y);
    b.softcap(&mut x, 1.5);
    b.read(&x)
}

fn turn<B: Backend, const ADJACENT: bool>(b: &B, [x, _, _]: [&[f32]; 3], cols: usize) -> Result<Vec<f32>> {
    let pairing = if ADJACENT { Pairing::Adjacent } else { Pairing::Halves };
    let frequencies = (0..24).map(|i| 10_000f64.powf(-f64::from(i) / 24.0)).collect();
    let positions: Vec<u32> = (0..x.len() / cols).map(|i| 37 * i as u32).collect();
    let mut x = mat(b, x, cols)?;
    b.rope(&mut x, 64, &Rope { frequencies, magnitude: 1.25, pairing }, &positions);
    b.read(&x)
}

fn moved<B: Backend>(b: &B, [x, y, _]: [&[f32]; 3], cols: usize) -> Result<Vec<f32>> {
    let rows = x.len() / cols;
    let (x, y) = (mat(b, x, cols)?, mat(b, y, cols)?);
    let (mut wide, mut tall) = (b.mat(rows, 2 * cols)?, b.mat(2 * rows, cols)?);
    let (mut first, mut second, mut picked) = (b.mat(rows, cols)?, b.mat(rows, cols)?, b.mat(2 * rows, cols)?);
    b.join(&[&x, &y], &mut wide);
    b.split(&wide, &mut [&mut first, &mut second]);
    b.stack(&[&second, &first], &mut tall);
    b.gather(&tall, &(0..2 * rows).rev().collect::<Vec<_>>(), &mut picked);
    b.read(&picked)
}

/// What `q` sees of `k` and `v`, which are stored in one go, the tree's behind the rest.
fn attend<B: Backend>(
    b: &B,
    shape: KvShape,
    [q, k, v]: [&[f32]; 3],
    span: Span<'_>,
    how: Attention,
) -> Result<Vec<f32>> {
    let cols = shape.heads * shape.width;
    let mut kv = b.kv(shape)?;
    b.store(&mut kv, 0, 0, &mat(b, k, cols)?, &mat(b, v, cols)?);
    let rows = k.len() / cols - span.base();
    let mut out = b.mat(rows, q.len() / rows)?;
    b.attend(&mat(b, q, q.len() / rows)?, &kv, 0, span, how, &mut out);
    b.read(&out)
}
