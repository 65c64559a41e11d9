//! Products: close to plain arithmetic, and law 1 to the bit over row counts, kernels and orders of threads.

use super::common::blocks::{Random, weights};
use super::device::{Arg, Buffer, NULL, ORDERS, is_there, launch, set_order};
use crate::args;
use foretoken::backend::cuda::kernels::{self, Products, Unit};
use foretoken::backend::cuda::pack::Layout;
use foretoken::quant::{FORMATS, Format};

/// A weight on the device with an input of rows for it.
struct Case {
    format: &'static Format,
    cols: usize,
    outputs: usize,
    weights: Vec<u8>,
    layout: Layout,
    device: Buffer,
    bias: Vec<f32>,
    x: Vec<f32>,
}

impl Case {
    fn new(format: &'static Format, cols: usize, outputs: usize, rows: usize, random: &mut Random) -> Self {
        let weights = weights(format, cols * outputs, random);
        let layout = Layout::new(format, outputs, cols).unwrap();
        let mut packed = vec![0; layout.bytes];
        layout.pack(format, &weights, cols, &mut packed);
        let mut x = random.normals(rows * cols);
        // Rows of different size, one of zeros, one with a far outlier, one of subnormals.
        for (row, x) in x.chunks_exact_mut(cols).enumerate() {
            x.iter_mut().for_each(|x| *x *= [1.0, 30.0, 0.01][row % 3]);
            match row {
                3 => x.fill(0.0),
                5 => x[7 % cols] = 1e4,
                6 => x.fill(1e-42),
                _ => {}
            }
        }
        Self { format, cols, outputs, weights, layout, device: Buffer::of(&packed), bias: random.normals(outputs), x }
    }

    /// One product with this weight, of an integer format.
    fn product(&self, bias: u64, out: &Buffer) -> Products {
        let arrays = [0, self.layout.steps, self.layout.blocks].map(|at| self.device.address() + at as u64);
        Products::one(arrays, bias, out.address(), self.outputs)
    }

    /// Rows `range` of the input times the weight.
    fn times(&self, range: std::ops::Range<usize>, unit: Unit) -> Vec<f32> {
        let (rows, cols, outputs) = (range.len(), self.cols, self.outputs);
        let x = Buffer::of(&self.x[range.start * cols..range.end * cols]);
        let (bias, out) = (Buffer::of(&self.bias), Buffer::floats(rows * outputs));
        let shape = kernels::product_as(self.format, outputs, rows, unit);
        if self.format.int8 {
            let room = rows.next_multiple_of(kernels::ROOM);
            let (quants, info) = (Buffer::room(room * cols), Buffer::room(room * cols / 32 * kernels::INFO_BYTES));
            launch(&kernels::quantise(rows, cols), args![&x, &quants, &info, rows * cols / 32]);
            let products = Arg::Products(self.product(bias.address(), &out));
            launch(&shape, args![products, &quants, &info, cols, rows]);
        } else {
            launch(&shape, args![&self.device, &x, &bias, &out, outputs, cols, rows]);
        }
        out.read(rows * outputs)
    }

    /// The same in f64, activations rounded to int8 as is documented; and the sum of magnitudes.
    fn expected(&self) -> Vec<(f64, f64)> {
        let mut w = vec![0.0; self.cols * self.outputs];
        (self.format.dequant)(&self.weights, &mut w);
        let mut x: Vec<f64> = self.x.iter().map(|&x| f64::from(x)).collect();
        if self.format.int8 {
            for block in x.chunks_mut(32) {
                let top = block.iter().fold(0.0f64, |top, x| top.max(x.abs())) as f32;
                let (scale, inverse) = (f64::from(top / 127.0), 127.0 / top);
                let round = |x: f64| (x as f32 * inverse).round_ties_even() as f64 * scale;
                block.iter_mut().for_each(|x| *x = if inverse.is_finite() { round(*x) } else { 0.0 });
            }
        }
        let row = |x: &'_ [f64]| -> Vec<(f64, f64)> {
            let outputs = w.chunks_exact(self.cols).zip(&self.bias);
            outputs
                .map(|(w, &bias)| {
                    let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * x);
                    terms.fold((f64::from(bias), f64::from(bias).abs()), |(sum, size), t| (sum + t, size + t.abs()))
                })
                .collect()
        };
        x.chunks_exact(self.cols).flat_map(row).collect()
    }
}

fn units(format: &Format) -> &'static [Unit] {
    if format.int8 { &[Unit::Dot, Unit::Mma] } else { &[Unit::Dot] }
}

/// Row lengths: a step, part of a block of parts, odd numbers of steps, more than a step for each part.
fn lengths(format: &Format) -> Vec<usize> {
    let mut all = vec![32usize, 256, 320, 576, 1536];
    all.retain(|n| n.is_multiple_of(format.block));
    all.extend((format.block == 1).then_some(39));
    all
}

#[test]
fn products_are_right() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(41), 0);
    for format in FORMATS {
        for cols in lengths(format) {
            for outputs in [1, 31, 33, 100] {
                let case = Case::new(format, cols, outputs, 9, &mut random);
                set_order(ORDERS[cases % 3]);
                for &unit in units(format) {
                    let got = case.times(0..9, unit);
                    for (i, (&got, (want, size))) in got.iter().zip(case.expected()).enumerate() {
                        // As for the CPU: each step rounds a few times; minima add terms larger than their sum.
                        let steps = cols as f64 / 32.0 * if format.int8 { 1.0 } else { 32.0 };
                        let tolerance = (size * 10.0 + f64::from(f32::MIN_POSITIVE)) * 6e-8 * (4.0 + steps);
                        let close = (f64::from(got) - want).abs() <= tolerance;
                        assert!(close, "{} {cols}x{outputs} {unit:?}: {i} is {got}, not {want}", format.name);
                    }
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} cases within the tolerance");
}

/// Law 1: a row's result is the same alone and in any batch, by either kernel, in any order of threads.
#[test]
fn rows_do_not_know_their_batch() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(42), 0);
    for format in FORMATS {
        for (cols, outputs, most) in [(256, 33, 64), (768, 40, 20), (1536, 7, 9)] {
            let case = Case::new(format, cols, outputs, most.max(70), &mut random);
            set_order(ORDERS[0]);
            let alone: Vec<f32> = (0..most).flat_map(|row| case.times(row..row + 1, Unit::Dot)).collect();
            for rows in 1..=most {
                for &unit in units(format) {
                    set_order(ORDERS[cases % 3]);
                    // The last rows, so that a row's place changes with the count.
                    let got = case.times(most - rows..most, unit);
                    let want = &alone[alone.len() - got.len()..];
                    let same = got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{} {cols}x{outputs} {unit:?}: {rows} rows", format.name);
                    cases += 1;
                }
            }
            // More rows than any kernel takes at once.
            for &unit in units(format) {
                let got = case.times(0..70, unit);
                let same = got.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{} {cols}x{outputs} {unit:?}: 70 rows", format.name);
                cases += 1;
            }
        }
    }
    println!("{cases} batches, all rows equal to the bit");
}

/// A bias may be missing, and what is chosen by default is one of the above.
#[test]
fn no_bias_is_a_bias_of_nothing() {
    if !is_there() {
        return;
    }
    set_order(ORDERS[0]);
    let mut random = Random(43);
    for format in FORMATS {
        let mut case = Case::new(format, 256, 32, 8, &mut random);
        case.bias.fill(0.0);
        let want = case.times(0..1, Unit::Dot);
        let (x, out) = (Buffer::of(&case.x[..256]), Buffer::floats(32));
        let shape = kernels::product(format, 32, 1);
        if format.int8 {
            let (quants, info) = (Buffer::room(64 * 256), Buffer::room(64 * 8 * 16));
            launch(&kernels::quantise(1, 256), args![&x, &quants, &info, 8usize]);
            let products = Arg::Products(case.product(0, &out));
            launch(&shape, args![products, &quants, &info, 256usize, 1usize]);
        } else {
            launch(&shape, args![&case.device, &x, NULL, &out, 32usize, 256usize, 1usize]);
        }
        super::same_bits(format.name, &out.read(32), &want);
    }
}

/// Weights that share an input give in one launch what they give in one each.
#[test]
fn products_together_are_products_alone() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(44), 0);
    for format in FORMATS.iter().filter(|format| format.int8) {
        let cols = 512;
        let mut all: Vec<Case> = [33, 7, 64].map(|outputs| Case::new(format, cols, outputs, 9, &mut random)).into();
        let x = all[0].x.clone();
        all.iter_mut().for_each(|case| case.x.clone_from(&x));
        for (count, rows) in [(2, 1), (3, 2), (3, 4), (2, 8), (3, 5)] {
            set_order(ORDERS[cases % 3]);
            let unit = if rows > 4 { Unit::Mma } else { Unit::Dot };
            let (input, quants, info) =
                (Buffer::of(&x[..rows * cols]), Buffer::room(64 * cols), Buffer::room(64 * cols / 32 * 16));
            launch(&kernels::quantise(rows, cols), args![&input, &quants, &info, rows * cols / 32]);
            let (mut together, mut grid, mut outs) = (Products::default(), 0, vec![]);
            for case in &all[..count] {
                let (bias, out) = (Buffer::of(&case.bias), Buffer::floats(rows * case.outputs));
                together = together.and(&case.product(bias.address(), &out)).unwrap();
                grid += kernels::product_as(format, case.outputs, rows, unit).grid.1;
                outs.push((bias, out));
            }
            assert_eq!((together.count(), together.and(&together)), (count, None));
            let mut shape = kernels::product_as(format, 1, rows, unit);
            shape.grid.1 = grid;
            launch(&shape, args![Arg::Products(together), &quants, &info, cols, rows]);
            for (case, (_, out)) in all.iter().zip(&outs) {
                super::same_bits(format.name, &out.read(rows * case.outputs), &case.times(0..rows, unit));
            }
            cases += 1;
        }
    }
    println!("{cases} launches, all equal to the bit");
}
