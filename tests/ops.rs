//! Every op of the CPU backend against the plain backend of `tests/common`, on every instruction set. (Products have a test
//! of their own.)

mod common;

use common::blocks::Random;
use common::naive::Naive;
use foretoken::backend::{Activation, Attention, Backend, KvShape, KvType, Pairing, Rope, Span, cpu::Cpu};
use foretoken::gguf::TensorView;
use foretoken::isa::Isa;

fn mat<B: Backend>(b: &B, values: &[f32], cols: usize) -> B::Mat {
    let rows = values.len() / cols;
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let table = b.table(&TensorView::new("x", 0, &[cols as u64, rows as u64], &bytes).unwrap()).unwrap();
    let mut m = b.mat(rows, cols).unwrap();
    b.embed(&table, &(0..rows as u32).collect::<Vec<_>>(), 1.0, &mut m);
    m
}

fn vector<B: Backend>(b: &B, values: &[f32]) -> B::Vector {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    b.vector(&TensorView::new("v", 0, &[values.len() as u64], &bytes).unwrap()).unwrap()
}

/// Runs `op` on both backends and compares: at most `tolerance` of the largest expected value apart.
#[track_caller]
fn compare(what: &str, tolerance: f32, cpu: &Cpu, got: &[f32], want: &[f32]) {
    let size = want.iter().fold(1e-6f32, |top, x| top.max(x.abs()));
    assert_eq!(got.len(), want.len());
    assert!(want.iter().any(|x| *x != 0.0), "{what}: nothing to compare");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let close = (got - want).abs() <= tolerance * size;
        assert!(close, "{what} on {}: element {i} is {got}, not {want}", cpu.isa().name());
    }
}

fn cpus() -> impl Iterator<Item = Cpu> {
    Isa::available().flat_map(|isa| [1, 2].map(|threads| Cpu::new(isa, threads).unwrap()))
}

/// Defines `fn NAME<B: Backend>(b) -> Vec<f32>` and compares its result on both backends.
macro_rules! same {
    ($what:expr, $tolerance:expr, |$b:ident| $body:expr) => {{
        let want = {
            let $b = &Naive::default();
            $body
        };
        for cpu in cpus() {
            let got = {
                let $b = &cpu;
                $body
            };
            compare($what, $tolerance, &cpu, &got, &want);
        }
    }};
}

#[test]
fn rows_of_any_length() {
    let mut random = Random(11);
    for cols in [1, 15, 16, 17, 64, 576, 900] {
        let rows = 2 + random.below(40);
        let (x, y) = (random.normals(rows * cols), random.normals(rows * cols));
        let weight = random.normals(cols);
        same!("rms_norm", 1e-5, |b| {
            let (x, w) = (mat(b, &x, cols), vector(b, &weight));
            let mut out = b.mat(rows, cols).unwrap();
            b.rms_norm(&x, &w, 1e-5, &mut out);
            b.read(&out).unwrap()
        });
        for activation in [Activation::Silu, Activation::GeluTanh] {
            same!("glu", 1e-5, |b| {
                let (mut gate, up) = (mat(b, &x, cols), mat(b, &y, cols));
                b.glu(&mut gate, &up, activation);
                b.read(&gate).unwrap()
            });
        }
        for activation in [Activation::Silu, Activation::GeluTanh] {
            same!("activate", 1e-5, |b| {
                let mut x = mat(b, &x, cols);
                b.activate(&mut x, activation);
                b.read(&x).unwrap()
            });
        }
        same!("stack", 0.0, |b| {
            let (x, y) = (mat(b, &x, cols), mat(b, &y[..cols], cols));
            let mut out = b.mat(2 * rows + 1, cols).unwrap();
            b.stack(&[&y, &x, &x], &mut out);
            b.read(&out).unwrap()
        });
        same!("add", 0.0, |b| {
            let (mut x, y) = (mat(b, &x, cols), mat(b, &y, cols));
            b.add(&mut x, &y);
            b.read(&x).unwrap()
        });
        same!("softcap", 1e-5, |b| {
            let mut x = mat(b, &x, cols);
            b.softcap(&mut x, 1.5);
            b.read(&x).unwrap()
        });
        let picked: Vec<usize> = (0..rows).rev().step_by(2).collect();
        same!("gather", 0.0, |b| {
            let (x, mut out) = (mat(b, &x, cols), b.mat(rows, cols).unwrap());
            b.gather(&x, &picked, &mut out);
            b.read(&out).unwrap()
        });
        same!("write", 0.0, |b| {
            let mut out = b.mat(rows + 1, cols).unwrap();
            b.write(&y, &mut out);
            b.write(&x[cols..], &mut out);
            b.read(&out).unwrap()
        });
        same!("join", 0.0, |b| {
            let (x, y, mut out) = (mat(b, &x, cols), mat(b, &y, cols), b.mat(rows, 3 * cols).unwrap());
            b.join(&[&x, &y, &x], &mut out);
            b.read(&out).unwrap()
        });
        if cols > 1 {
            same!("split", 0.0, |b| {
                let x = mat(b, &x, cols);
                let (mut left, mut right) = (b.mat(rows, 1).unwrap(), b.mat(rows, cols - 1).unwrap());
                b.split(&x, &mut [&mut left, &mut right]);
                [b.read(&left).unwrap(), b.read(&right).unwrap()].concat()
            });
        }
    }
}

#[test]
fn heads_normed_in_place_and_turned() {
    let mut random = Random(12);
    for (heads, width) in [(1, 16), (3, 64), (9, 96), (2, 256)] {
        let x = random.normals(5 * heads * width);
        let weight = random.normals(width);
        same!("rms_norm by head", 1e-5, |b| {
            let (mut x, w) = (mat(b, &x, heads * width), vector(b, &weight));
            b.rms_norm_in_place(&mut x, &w, 1e-6);
            b.read(&x).unwrap()
        });
        // N6: far positions keep their angles exact; part of a head can stay as it is.
        for (turned, pairing) in [(width, Pairing::Adjacent), (width, Pairing::Halves), (width / 2, Pairing::Halves)] {
            let frequencies = (0..turned / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / turned as f64)).collect();
            let rope = Rope { frequencies, magnitude: 1.19, pairing };
            same!("rope", 1e-6, |b| {
                let mut x = mat(b, &x, heads * width);
                b.rope(&mut x, width, &rope, &[0, 1, 511, 32_768, 131_071]);
                b.read(&x).unwrap()
            });
        }
    }
}

/// Chains and trees over a filled cache: every KV type, groups of heads, windows, soft caps, and scores beyond f16 (N5).
#[test]
fn attention() {
    let mut random = Random(13);
    for (heads, kv_heads, width) in [(3, 1, 64), (4, 4, 32), (14, 2, 64), (8, 1, 256), (7, 1, 96)] {
        for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
            for (base, rows, window, softcap, size) in [
                (0, 1, None, None, 1.0),
                (0, 20, None, Some(5.0), 1.0),
                (70, 9, Some(16), None, 1.0),
                (70, 9, Some(3), None, 1.0),
                (130, 5, None, None, 300.0),
                (15, 40, Some(20), Some(30.0), 4.0),
                (300, 3, None, None, 1.0),
                (250, 50, Some(140), None, 1.0),
            ] {
                let shape = KvShape { layers: 2, slots: base + rows, heads: kv_heads, width, ty };
                let q: Vec<f32> = random.normals(rows * heads * width).into_iter().map(|x| x * size).collect();
                let k: Vec<f32> =
                    random.normals((base + rows) * kv_heads * width).into_iter().map(|x| x * size).collect();
                let v = random.normals((base + rows) * kv_heads * width);
                // Each row follows the one before it or the one before that.
                let mut ancestors = vec![1u64];
                for row in 1..rows {
                    let parent = row - 1 - random.below(2).min(row - 1);
                    ancestors.push(ancestors[parent] | 1 << row);
                }
                let how = Attention { scale: 1.0 / (width as f32).sqrt(), softcap, window };
                for span in [Span::Chain { base }, Span::Tree { base, ancestors: &ancestors }] {
                    let what = format!("attend {heads}/{kv_heads} x {width}, {ty:?}, window {window:?}, {span:?}");
                    same!(&what, 3e-5, |b| {
                        let (k, v) = (mat(b, &k, kv_heads * width), mat(b, &v, kv_heads * width));
                        let q = mat(b, &q, heads * width);
                        let (mut kv, mut out) = (b.kv(shape).unwrap(), b.mat(rows, heads * width).unwrap());
                        b.store(&mut kv, 1, 0, &k, &v);
                        b.attend(&q, &kv, 1, span, how, &mut out);
                        b.read(&out).unwrap()
                    });
                }
            }
        }
    }
}

/// Laws 1 and 2 across borders of blocks and pages: a row among others, alone, and at the end of its own chain, on one thread
/// and on several.
#[test]
fn attention_of_a_row_has_the_same_bits_in_any_company() {
    let mut random = Random(15);
    let (heads, kv_heads, width) = (6, 2, 32);
    let sets: Vec<[Cpu; 2]> =
        Isa::available().map(|isa| [1, 3].map(|threads| Cpu::new(isa, threads).unwrap())).collect();
    let mut tried = 0;
    for (base, rows) in [(0, 40), (100, 60), (126, 9), (255, 3), (390, 50), (380, 8)] {
        for (window, ty) in
            [(None, KvType::F16), (Some(150), KvType::F32), (Some(7), KvType::F16), (None, KvType::Q8_0)]
        {
            let how = Attention { scale: 0.2, softcap: None, window };
            let (q, k, v) = (
                random.normals(rows * heads * width),
                random.normals((base + rows) * kv_heads * width),
                random.normals((base + rows) * kv_heads * width),
            );
            let mut ancestors = vec![1u64];
            for row in 1..rows {
                ancestors.push(ancestors[row - 1 - random.below(3).min(row - 1)] | 1 << row);
            }
            for [one, three] in &sets {
                let run = |b: &Cpu, slots: &[usize], rows: &[usize], span: Span<'_>| {
                    let pick = |x: &[f32], cols: usize, rows: &[usize]| {
                        let picked: Vec<f32> =
                            rows.iter().flat_map(|&r| &x[r * cols..(r + 1) * cols]).copied().collect();
                        mat(b, &picked, cols)
                    };
                    let shape = KvShape { layers: 2, slots: 500, heads: kv_heads, width, ty };
                    let (mut kv, mut out) = (b.kv(shape).unwrap(), b.mat(rows.len(), heads * width).unwrap());
                    b.store(&mut kv, 1, 0, &pick(&k, kv_heads * width, slots), &pick(&v, kv_heads * width, slots));
                    b.attend(&pick(&q, heads * width, rows), &kv, 1, span, how, &mut out);
                    let out = b.read(&out).unwrap();
                    out.chunks(heads * width)
                        .map(|row| row.iter().map(|x| x.to_bits()).collect())
                        .collect::<Vec<Vec<u32>>>()
                };
                let all: Vec<usize> = (0..base + rows).collect();
                let each: Vec<usize> = (0..rows).collect();
                let chain = run(one, &all, &each, Span::Chain { base });
                let tree = run(three, &all, &each, Span::Tree { base, ancestors: &ancestors });
                assert!(chain == run(three, &all, &each, Span::Chain { base }), "threads");
                for row in (0..rows).rev().step_by(9) {
                    let what =
                        format!("row {row} of {rows} at {base}, {ty:?}, window {window:?}, {}", one.isa().name());
                    let alone = run(three, &all, &[row], Span::Chain { base: base + row });
                    assert!(chain[row] == alone[0], "chain, {what}");
                    let alone = run(three, &all, &[row], Span::Tree { base, ancestors: &ancestors[row..=row] });
                    assert!(tree[row] == alone[0], "tree, {what}");
                    let path = (0..rows).filter(|&node| ancestors[row] >> node & 1 == 1).map(|node| base + node);
                    let slots: Vec<usize> = (0..base).chain(path).collect();
                    let alone = run(three, &slots, &[row], Span::Chain { base: slots.len() - 1 });
                    assert!(tree[row] == alone[0], "its own chain, {what}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 50);
}

#[test]
fn moved_slots_are_read_where_they_are() {
    let mut random = Random(14);
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let (k, v) = (random.normals(8 * 64), random.normals(8 * 64));
        let bytes = |b: &Cpu, from: Option<&[usize]>| {
            let mut kv = b.kv(KvShape { layers: 2, slots: 8, heads: 2, width: 32, ty }).unwrap();
            for layer in 0..2 {
                b.store(&mut kv, layer, 0, &mat(b, &k, 64), &mat(b, &v, 64));
            }
            match from {
                Some(from) => {
                    b.move_kv(&mut kv, from, 2);
                    b.read_kv(&kv, 2..2 + from.len()).unwrap()
                }
                None => [3, 5, 6]
                    .into_iter()
                    .map(|slot| b.read_kv(&kv, slot..slot + 1).unwrap())
                    .collect::<Vec<_>>()
                    .concat(),
            }
        };
        for cpu in cpus() {
            // By layer and part after the move, by slot before: put into one order.
            let moved = bytes(&cpu, Some(&[3, 5, 6]));
            let parts = 4;
            let row = moved.len() / 3 / parts;
            let by_slot: Vec<u8> = (0..3)
                .flat_map(|slot| (0..parts).flat_map(move |part| (part * 3 + slot) * row..(part * 3 + slot + 1) * row))
                .map(|i| moved[i])
                .collect();
            assert!(by_slot == bytes(&cpu, None), "{ty:?} on {}", cpu.isa().name());
        }
    }
}
