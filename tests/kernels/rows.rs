//! Kernels on rows: those without a sum give the CPU's bits.

use super::common::blocks::{Random, lengths, weights};
use super::device::{Buffer, NULL, ORDERS, is_there, launch, set_order};
use super::{mat, same_bits, scalar};
use crate::args;
use foretoken::backend::cuda::{kernels, pack::Layout};
use foretoken::backend::{Activation, Backend, Pairing, Rope};
use foretoken::gguf::TensorView;
use foretoken::isa::Isa;
use foretoken::quant::FORMATS;
use foretoken::quant::panel::{Activations, Quantise};

const COLUMNS: [usize; 7] = [1, 15, 16, 17, 64, 576, 900];

/// Rows of different size, some of zeros and subnormals, with far outliers.
fn rows(random: &mut Random, rows: usize, cols: usize) -> Vec<f32> {
    let mut x = random.normals(rows * cols);
    for (row, x) in x.chunks_exact_mut(cols).enumerate() {
        match row % 6 {
            0 | 1 => {}
            2 => x.iter_mut().for_each(|x| *x *= 40.0),
            3 => x.fill(0.0),
            4 => x.fill(1e-42),
            _ => x[cols / 2] = 1e4,
        }
    }
    x
}

#[test]
fn elementwise_kernels_are_the_cpus() {
    if !is_there() {
        return;
    }
    let (cpu, mut random, mut cases) = (scalar(), Random(31), 0);
    for (cols, order) in COLUMNS.into_iter().zip(ORDERS.into_iter().cycle()) {
        set_order(order);
        let n = 7 * cols;
        let (x, y) = (rows(&mut random, 7, cols), random.normals(n));
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let (gate, up) = (Buffer::of(&x), Buffer::of(&y));
            launch(&kernels::glu(activation, n), args![&gate, &up, n]);
            let mut want = mat(&cpu, &x, cols);
            cpu.glu(&mut want, &mat(&cpu, &y, cols), activation);
            same_bits("glu", &gate.read(n), want.values());
            let it = Buffer::of(&x);
            launch(&kernels::activate(activation, n), args![&it, n]);
            let mut want = mat(&cpu, &x, cols);
            cpu.activate(&mut want, activation);
            same_bits("activate", &it.read(n), want.values());
        }
        let (sum, other) = (Buffer::of(&x), Buffer::of(&y));
        launch(&kernels::add(n), args![&sum, &other, n]);
        let mut want = mat(&cpu, &x, cols);
        cpu.add(&mut want, &mat(&cpu, &y, cols));
        same_bits("add", &sum.read(n), want.values());
        let capped = Buffer::of(&x);
        launch(&kernels::softcap(n), args![&capped, 1.5, n]);
        let mut want = mat(&cpu, &x, cols);
        cpu.softcap(&mut want, 1.5);
        same_bits("softcap", &capped.read(n), want.values());

        let picked = [6u32, 0, 3, 3];
        let (from, indices, out) = (Buffer::of(&x), Buffer::of(&picked), Buffer::floats(4 * cols));
        launch(&kernels::gather(cols, 4), args![&from, &indices, &out, cols, 4usize]);
        let want: Vec<f32> = picked.iter().flat_map(|&row| x[row as usize * cols..][..cols].to_vec()).collect();
        same_bits("gather", &out.read(4 * cols), &want);
        // The second half of the columns to the start of a wider matrix.
        let (at, wide) = (cols / 2, cols + 3);
        let to = Buffer::of(&vec![-1.0f32; 7 * wide]);
        launch(&kernels::columns(cols - at, 7), args![&from, &to, cols, at, wide, 2usize, cols - at, 7usize]);
        let mut want = vec![-1.0; 7 * wide];
        for row in 0..7 {
            want[row * wide + 2..][..cols - at].copy_from_slice(&x[row * cols + at..(row + 1) * cols]);
        }
        same_bits("columns", &to.read(7 * wide), &want);
        cases += 8;
    }
    println!("{cases} cases, all equal to the bit");
}

#[test]
fn quantised_activations_are_the_cpus() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(32), 0);
    for cols in [32, 64, 576, 1536] {
        for count in [1, 3, 9] {
            for order in ORDERS {
                set_order(order);
                let x = rows(&mut random, count, cols);
                let blocks = count * cols / 32;
                let (from, quants, info) =
                    (Buffer::of(&x), Buffer::room(count * cols), Buffer::room(blocks * kernels::INFO_BYTES));
                launch(&kernels::quantise(count, cols), args![&from, &quants, &info, blocks]);
                let mut want = vec![Activations::default(); blocks];
                for (x, out) in x.chunks_exact(cols).zip(want.chunks_exact_mut(cols / 32)) {
                    Isa::Scalar.dispatch(Quantise { x, out });
                }
                let (quants, info): (Vec<i32>, Vec<u32>) = (quants.read(count * cols / 4), info.read(blocks * 4));
                for (i, want) in want.iter().enumerate() {
                    assert_eq!(quants[8 * i..8 * i + 8], want.quants, "block {i}");
                    let [_, low, high] = want.totals.map(|total| total as u32);
                    assert_eq!(
                        info[4 * i..4 * i + 4],
                        [want.scale.to_bits(), want.sums[0].to_bits(), low, high],
                        "block {i}"
                    );
                }
                cases += 1;
            }
        }
    }
    println!("{cases} cases, all equal to the bit");
}

/// Sums of a row have another order than the CPU's: each of n terms rounds once, and the order of rounding is free.
#[test]
fn norms_are_close_and_rows_do_not_know_their_batch() {
    if !is_there() {
        return;
    }
    let (cpu, mut random, mut cases) = (scalar(), Random(33), 0);
    for width in [16, 64, 80, 96, 128, 256, 257, 576, 896, 4096] {
        for count in [1, 5, 20] {
            let (x, weight) = (random.normals(count * width), random.normals(width));
            let run = |x: &[f32]| {
                let (from, w, out) = (Buffer::of(x), Buffer::of(&weight), Buffer::floats(x.len()));
                let rows = x.len() / width;
                launch(&kernels::rms_norm(width, rows), args![&from, &w, &out, width, 1e-5, rows]);
                // In place as well.
                launch(&kernels::rms_norm(width, rows), args![&from, &w, &from, width, 1e-5, rows]);
                same_bits("in place", &from.read(x.len()), &out.read(x.len()));
                out.read::<f32>(x.len())
            };
            set_order(ORDERS[cases % 3]);
            let got = run(&x);
            let mut want = mat(&cpu, &x, width);
            cpu.rms_norm_in_place(&mut want, &weight, 1e-5);
            let tolerance = (width as f32 / 16.0 + 16.0) * f32::EPSILON;
            for (got, want) in got.iter().zip(want.values()) {
                assert!((got - want).abs() <= tolerance * want.abs(), "width {width}: {got}, not {want}");
            }
            set_order(ORDERS[(cases + 1) % 3]);
            for row in 0..count {
                let alone = run(&x[row * width..(row + 1) * width]);
                same_bits("a row alone", &alone, &got[row * width..(row + 1) * width]);
            }
            cases += 1;
        }
    }
    println!("{cases} cases within the tolerance, all rows equal alone");
}

#[test]
fn heads_are_turned_as_the_cpu_turns_them() {
    if !is_there() {
        return;
    }
    let (cpu, mut random, mut cases) = (scalar(), Random(34), 0);
    let positions = [0u32, 1, 511, 32_768, 131_071];
    for (heads, width) in [(1, 16), (3, 64), (9, 96), (2, 256)] {
        for (turned, pairing) in [(width, Pairing::Adjacent), (width, Pairing::Halves), (width / 2, Pairing::Halves)] {
            set_order(ORDERS[cases % 3]);
            let cols = heads * width;
            let x = random.normals(5 * cols);
            let frequencies: Vec<f64> =
                (0..turned / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / turned as f64)).collect();
            let angles = || positions.iter().flat_map(|&p| frequencies.iter().map(move |f| f64::from(p) * f));
            let cos: Vec<f32> = angles().map(|a| a.cos() as f32 * 1.19).collect();
            let sin: Vec<f32> = angles().map(|a| a.sin() as f32 * 1.19).collect();
            let (it, cos, sin) = (Buffer::of(&x), Buffer::of(&cos), Buffer::of(&sin));
            launch(
                &kernels::rope(pairing, cols, width, turned / 2, 5),
                args![&it, &cos, &sin, cols, width, turned / 2, 5usize],
            );
            let mut want = mat(&cpu, &x, cols);
            cpu.rope(
                &mut want,
                width,
                &Rope { frequencies: frequencies.clone(), magnitude: 1.19, pairing },
                &positions,
            );
            same_bits("rope", &it.read(5 * cols), want.values());
            cases += 1;
        }
    }
    println!("{cases} cases, all equal to the bit");
}

#[test]
fn table_rows_are_widened_as_the_cpu_widens_them() {
    if !is_there() {
        return;
    }
    let (cpu, mut random, mut cases) = (scalar(), Random(35), 0);
    for format in FORMATS {
        let odd = (format.block == 1).then_some(37);
        for cols in lengths(format).chain(odd).filter(|&cols| cols <= 896) {
            for scale in [1.0f32, 27.7] {
                set_order(ORDERS[cases % 3]);
                let vocab = 71;
                let bytes = weights(format, vocab * cols, &mut random);
                let layout = Layout::new(format, vocab, cols).unwrap();
                let mut packed = vec![0; layout.bytes];
                layout.pack(format, &bytes, cols, &mut packed);
                let tokens = [0u32, 70, 31, 32, 5, 64];
                let (w, t) = (Buffer::of(&packed), Buffer::of(&tokens));
                let out = Buffer::floats(tokens.len() * cols);
                let shape = kernels::embed(format, cols, tokens.len());
                if format.int8 {
                    let (steps, blocks) = (w.at(layout.steps), w.at(layout.blocks));
                    launch(&shape, args![&w, steps, blocks, &t, &out, cols, tokens.len(), scale]);
                } else {
                    launch(&shape, args![&w, &t, &out, cols, tokens.len(), scale]);
                }
                let dims = [cols as u64, vocab as u64];
                let view = TensorView::new("t", format.ggml_id, &dims, &bytes).unwrap();
                let mut want = cpu.mat(tokens.len(), cols).unwrap();
                cpu.embed(&cpu.table(&view).unwrap(), &tokens, scale, &mut want);
                same_bits(format.name, &out.read(tokens.len() * cols), want.values());
                cases += 1;
            }
        }
    }
    println!("{cases} cases, all equal to the bit");
}

#[test]
fn filled_memory_is_spread_and_within_bounds() {
    if !is_there() {
        return;
    }
    let n = 5000usize;
    let (words, halves) = (Buffer::room(4 * n), Buffer::room(2 * n));
    launch(&kernels::fill_bits(n), args![&words, n, 3usize]);
    launch(&kernels::fill_halves(n), args![&halves, n, 0.25, 3usize]);
    let words = words.read::<u32>(n);
    let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
    // 160,000 fair coins: deviation 200.
    assert!(ones.abs_diff(80_000) < 1000 && words.iter().collect::<std::collections::HashSet<_>>().len() > n - 5);
    let values: Vec<f32> = halves.read::<u16>(n).into_iter().map(|x| half::f16::from_bits(x).to_f32()).collect();
    assert!(values.iter().all(|x| x.abs() <= 0.25));
    assert!(values.iter().sum::<f32>().abs() < 0.25 * 5.0 * (n as f32).sqrt() && values.iter().any(|x| *x < -0.2));
}

/// Kernels that do the work of several give the same bits.
#[test]
fn fused_kernels_are_their_parts() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(37), 0);
    for width in [288, 576, 1024, 4096] {
        for count in [1, 3] {
            let n = count * width;
            let (x, y, weight) = (rows(&mut random, count, width), random.normals(n), random.normals(width));
            let (quant_bytes, info_bytes) = (n, n / 32 * kernels::INFO_BYTES);
            let quantised = |x: &Buffer| -> (Vec<u8>, Vec<u8>) {
                let (quants, info) = (Buffer::room(quant_bytes), Buffer::room(info_bytes));
                launch(&kernels::quantise(count, width), args![x, &quants, &info, n / 32]);
                (quants.read(quant_bytes), info.read(info_bytes))
            };
            for (adds, order) in [(false, ORDERS[0]), (true, ORDERS[1]), (true, ORDERS[2])] {
                set_order(order);
                let (a, b, other, w) = (Buffer::of(&x), Buffer::of(&x), Buffer::of(&y), Buffer::of(&weight));
                let (out, want) = (Buffer::floats(n), Buffer::floats(n));
                let (quants, info) = (Buffer::room(quant_bytes), Buffer::room(info_bytes));
                let y = if adds { other.at(0) } else { NULL };
                launch(&kernels::rms_norm_fused(count), args![&a, y, &w, &out, &quants, &info, width, 1e-6, count]);
                if adds {
                    launch(&kernels::add(n), args![&b, &other, n]);
                }
                launch(&kernels::rms_norm(width, count), args![&b, &w, &want, width, 1e-6, count]);
                same_bits("the stream", &a.read(n), &b.read(n));
                same_bits("the norm", &out.read(n), &want.read(n));
                assert!((quants.read(quant_bytes), info.read(info_bytes)) == quantised(&want), "quants, {width}");
                cases += 1;
            }
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let (a, b, up) = (Buffer::of(&x), Buffer::of(&x), Buffer::of(&y));
                let (quants, info) = (Buffer::room(quant_bytes), Buffer::room(info_bytes));
                launch(&kernels::glu_quantised(activation, n), args![&a, &up, &quants, &info, n]);
                launch(&kernels::glu(activation, n), args![&b, &up, n]);
                same_bits("glu", &a.read(n), &b.read(n));
                assert!((quants.read(quant_bytes), info.read(info_bytes)) == quantised(&b), "quants, {width}");
                cases += 1;
            }
        }
    }
    println!("{cases} cases, all equal to the bit");
}
