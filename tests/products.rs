//! Matrix products of the CPU backend: against plain arithmetic, and law 1 to the bit, over every format, instruction
//! set, batch width, thread count, row length and output count.

mod common;

use common::blocks::{Random, shapes, weights};
use foretoken::backend::{Backend, Product, cpu::Cpu, cpu::Mat};
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

    fn product(&self, cpu: &Cpu, rows: std::ops::Range<usize>) -> Vec<f32> {
        let dims = [self.cols as u64, self.outputs as u64];
        let weight = cpu.weight(&TensorView::new("w", self.format.ggml_id, &dims, &self.weights).unwrap()).unwrap();
        self.product_with(cpu, &weight, rows)
    }

    fn product_with(&self, cpu: &Cpu, weight: &<Cpu as Backend>::Weight, rows: std::ops::Range<usize>) -> Vec<f32> {
        let x = matrix(cpu, &self.x[rows.start * self.cols..rows.end * self.cols], self.cols);
        let mut out = cpu.mat(rows.len(), self.outputs).unwrap();
        cpu.linear(&x, &mut [Product { weight, bias: Some(&self.bias), out: &mut out }]);
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
                let rows = 0..if outputs == 17 { 64 } else { 8 };
                let got = case.product(&cpu, rows);
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
    for isa in Isa::available() {
        let mut random = Random(2);
        let cpus = [1, 2, 3].map(|threads| Cpu::new(isa, threads).unwrap());
        for (format, cols) in shapes() {
            for outputs in OUTPUTS {
                let case = Case::new(format, cols, outputs, &mut random);
                let dims = [cols as u64, outputs as u64];
                let view = TensorView::new("w", format.ggml_id, &dims, &case.weights).unwrap();
                let weight = cpus[0].weight(&view).unwrap();
                let alone: Vec<f32> =
                    (0..64).flat_map(|row| case.product_with(&cpus[0], &weight, row..row + 1)).collect();
                // Every width at one shape, the borders of tiles at the others; scalar has no tiles of its own.
                let all = outputs == 17 && cols <= 320;
                let widths = (1..=64).filter(|n| all || [2, 3, 5, 8, 9, 16, 31, 64].contains(n));
                for n in widths.filter(|n| isa != Isa::Scalar || n % 8 < 4 || all) {
                    let threads = if n % 2 == 0 { &cpus[..] } else { &cpus[1..2] };
                    for cpu in threads {
                        // The last rows, so that a row's place in the batch changes with the width.
                        let batch = case.product_with(cpu, &weight, 64 - n..64);
                        let same =
                            batch.iter().zip(&alone[(64 - n) * outputs..]).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{} {cols}x{outputs} {}: {n} rows", format.name, isa.name());
                    }
                }
            }
        }
    }
}
