//! Matrix products of the CPU backend: against plain arithmetic, and law 1 to the bit, over every format, instruction
//! set, batch width, thread count, row length and output count.

mod common;

use common::blocks::{Random, shapes, weights};
use foretoken::backend::cpu::{Cpu, Mat, Weight};
use foretoken::backend::{Backend, Product};
use foretoken::gguf::TensorView;
use foretoken::isa::Isa;
use foretoken::quant::Format;

const OUTPUTS: [usize; 5] = [1, 15, 16, 17, 100];

fn matrix(cpu: &Cpu, values: &[f32], cols: usize) -> Mat {
    let rows = values.len() / cols;
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let table = cpu.table(&TensorView::new("x", 0, &[cols as u64, rows as u64], &bytes).unwrap()).unwrap();
    let mut m = cpu.mat(rows, cols).unwrap();
    cpu.embed(&table, &(0..rows as u32).collect::<Vec<_>>(), 1.0, &mut m);
    m
}

struct Case {
    format: &'static Format,
    cols: usize,
    outputs: usize,
    weights: Vec<u8>,
    bias: Vec<f32>,
    /// `[64, cols]`
    x: Vec<f32>,
}

impl Case {
    fn new(format: &'static Format, cols: usize, outputs: usize, random: &mut Random) -> Self {
        let weights = weights(format, cols * outputs, random);
        let mut x = random.normals(64 * cols);
        // Rows of different size, one of zeros, one with a far outlier, one of subnormals.
        for (row, x) in x.chunks_exact_mut(cols).enumerate() {
            x.iter_mut().for_each(|x| *x *= [1.0, 30.0, 0.01][row % 3]);
        }
        x[3 * cols..4 * cols].fill(0.0);
        x[5 * cols + 7] = 1e4;
        x[6 * cols..7 * cols].fill(1e-42);
        Self { format, cols, outputs, weights, bias: random.normals(outputs), x }
    }

    fn times(&self, cpu: &Cpu, weight: &Weight, x: &Mat) -> Vec<f32> {
        let mut out = cpu.mat(64, self.outputs).unwrap();
        cpu.linear(x, &mut [Product { weight, bias: Some(&self.bias), out: &mut out }]);
        cpu.read(&out).unwrap()
    }

    /// The same in f64 from dequantised weights and activations rounded to int8 as the backend documents it; and the sum
    /// of magnitudes, which bounds the rounding errors of f32.
    fn expected(&self) -> Vec<(f64, f64)> {
        let mut w = vec![0.0; self.cols * self.outputs];
        (self.format.dequant)(&self.weights, &mut w);
        let mut x: Vec<f64> = self.x.iter().map(|&x| f64::from(x)).collect();
        if self.format.int8 {
            for row in x.chunks_exact_mut(self.cols) {
                for block in row.chunks_mut(32) {
                    let top = block.iter().fold(0.0f64, |top, x| top.max(x.abs()));
                    let scale = f64::from(top as f32 / 127.0);
                    // Subnormals count as zero.
                    let inverse = 127.0 / top as f32;
                    for x in block {
                        *x = if inverse.is_finite() {
                            (*x as f32 * inverse).round_ties_even() as f64 * scale
                        } else {
                            0.0
                        };
                    }
                }
            }
        }
        let outputs = |x: &'_ [f64]| -> Vec<(f64, f64)> {
            w.chunks_exact(self.cols)
                .zip(&self.bias)
                .map(|(w, &bias)| {
                    let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * x);
                    terms.fold((f64::from(bias), f64::from(bias).abs()), |(sum, size), t| (sum + t, size + t.abs()))
                })
                .collect()
        };
        x.chunks_exact(self.cols).flat_map(outputs).collect()
    }
}

#[test]
fn products_are_right_and_equal_on_every_instruction_set() {
    let mut random = Random(1);
    for (format, cols) in shapes() {
        for outputs in OUTPUTS {
            let case = Case::new(format, cols, outputs, &mut random);
            let expected = case.expected();
            let mut first = None;
            for isa in Isa::available() {
                let cpu = Cpu::new(isa, 1).unwrap();
                let rows = if outputs == 17 { 64 } else { 8 };
                let dims = [cols as u64, outputs as u64];
                let view = TensorView::new("w", format.ggml_id, &dims, &case.weights).unwrap();
                let x = matrix(&cpu, &case.x[..rows * cols], cols);
                let got = case.times(&cpu, &cpu.weight(&view).unwrap(), &x);
                for (i, (&got, &(want, size))) in got.iter().zip(&expected).enumerate() {
                    // Each of cols / 32 steps rounds a few times; formats with a minimum add terms larger than their
                    // sum, which the factor of ten covers.
                    let tolerance = (size * 10.0 + f64::from(f32::MIN_POSITIVE)) * 6e-8 * (4.0 + cols as f64 / 32.0);
                    assert!(
                        (f64::from(got) - want).abs() <= tolerance,
                        "{} {cols}x{outputs} {}: output {i} is {got}, not {want}",
                        format.name,
                        isa.name()
                    );
                }
                let bits: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
                let first = first.get_or_insert_with(|| bits.clone());
                assert!(*first == bits, "{} {cols}x{outputs}: {} differs from scalar", format.name, isa.name());
            }
        }
    }
}

/// Law 1: a row's result is the same alone and in any batch, on any number of threads.
#[test]
fn rows_do_not_know_their_batch() {
    let cpus: Vec<Vec<Cpu>> =
        Isa::available().map(|isa| [1, 2, 3].map(|threads| Cpu::new(isa, threads).unwrap()).into()).collect();
    let mut random = Random(2);
    for (format, cols) in shapes() {
        for outputs in OUTPUTS {
            let case = Case::new(format, cols, outputs, &mut random);
            let dims = [cols as u64, outputs as u64];
            let view = TensorView::new("w", format.ggml_id, &dims, &case.weights).unwrap();
            // Packed weights and inputs are the same for every instruction set and team.
            let weight = cpus[0][0].weight(&view).unwrap();
            let input =
                |rows: std::ops::Range<usize>| matrix(&cpus[0][0], &case.x[rows.start * cols..rows.end * cols], cols);
            // The last rows, so that a row's place in the batch changes with the width.
            let batches: Vec<Mat> = (1..=64).map(|n| input(64 - n..64)).collect();
            for cpus in &cpus {
                let alone: Vec<f32> =
                    (0..64).flat_map(|row| case.times(&cpus[0], &weight, &input(row..row + 1))).collect();
                for (cpu, batch) in cpus.iter().flat_map(|cpu| batches.iter().map(move |batch| (cpu, batch))) {
                    let got = case.times(cpu, &weight, batch);
                    let want = &alone[alone.len() - got.len()..];
                    let same = got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
                    let (name, isa, threads) = (format.name, cpu.isa().name(), cpu.threads());
                    assert!(same, "{name} {cols}x{outputs} {isa}: {} rows, {threads} threads", got.len() / outputs);
                }
            }
        }
    }
}
