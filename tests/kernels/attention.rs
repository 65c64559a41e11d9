//! Attention: close to the CPU's, and laws 1 and 2 to the bit.

use super::common::blocks::Random;
use super::device::{Arg, Buffer, NULL, ORDERS, is_there, launch, set_order};
use super::{mat, scalar};
use crate::args;
use foretoken::backend::cuda::kernels::{self, AttendPlan, AttendShape, Launch, Step};
use foretoken::backend::{Attention, Backend, KvShape, KvType, Span};

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

/// Heads and what they compute.
#[derive(Clone, Copy, Debug)]
struct Kind {
    ty: KvType,
    /// Query heads of a KV head.
    group: usize,
    heads: usize,
    width: usize,
    how: Attention,
}

/// Keys and values of one layer, `[slots, heads * width]`.
struct Cache {
    keys: Buffer,
    values: Buffer,
    slots: usize,
}

impl Cache {
    fn new(kind: Kind, k: &[f32], v: &[f32]) -> Self {
        let rows = k.len() / (kind.heads * kind.width);
        let slots = rows.next_multiple_of(kernels::SLOTS);
        let bytes = kind.heads * slots * kind.ty.bytes(kind.width);
        let (keys, values) = (Buffer::room(bytes), Buffer::room(bytes));
        let (k, v, step) = (Buffer::of(k), Buffer::of(v), Buffer::of(&[Step::default()]));
        let shape = kernels::store(kind.ty, kind.heads, kind.width, rows);
        launch(&shape, args![&k, &v, &keys, &values, &step, kind.heads, kind.width, slots, rows]);
        Self { keys, values, slots }
    }

    /// `whole` says by which plan.
    fn attend(&self, kind: Kind, q: &[f32], span: Span<'_>, whole: bool) -> Vec<f32> {
        let cols = kind.heads * kind.group * kind.width;
        let rows = q.len() / cols;
        let last = (0..rows).map(|row| span.position(row)).max().unwrap();
        let shape = AttendShape {
            rows: rows as i32,
            heads: kind.heads as i32,
            group: kind.group as i32,
            width: kind.width as i32,
            slots: self.slots as i32,
            // One too many, as a captured launch may have.
            blocks: (last / kernels::ATTEND_BLOCK + 2) as i32,
            scale: kind.how.scale,
            softcap: kind.how.softcap.unwrap_or(0.0),
            window: kind.how.window.unwrap_or(0) as i32,
        };
        let (q, out) = (Buffer::of(q), Buffer::floats(rows * cols));
        let step = Buffer::of(&[Step { base: span.base() as u32, slot: span.base() as u32 }]);
        let list = match span {
            Span::Chain { .. } => None,
            Span::Tree { ancestors, .. } => Some(Buffer::of(ancestors)),
        };
        let ancestors = list.as_ref().map_or(NULL, Arg::from);
        let (k, v) = (&self.keys, &self.values);
        let plan = if whole { kernels::attend_whole } else { kernels::attend_split };
        match plan(kind.ty, &shape) {
            AttendPlan::Whole(kernel) => launch(&kernel, args![&q, k, v, &step, ancestors, &out, Arg::Shape(shape)]),
            AttendPlan::Split { split, merge } => {
                let scratch = Buffer::floats(kernels::split_floats(&shape));
                launch(&split, args![&q, k, v, &step, ancestors, &scratch, Arg::Shape(shape)]);
                launch(&merge, args![&scratch, &step, ancestors, &out, Arg::Shape(shape)]);
                if kind.width.is_multiple_of(32) {
                    self::quantises_as_well(&merge, args![&scratch, &step, ancestors], &out, shape, rows, cols);
                }
            }
        }
        out.read(rows * cols)
    }
}

/// The merging kernel that quantises, against merging and quantising.
fn quantises_as_well(merge: &Launch, operands: Vec<Arg>, out: &Buffer, shape: AttendShape, rows: usize, cols: usize) {
    let room = || (Buffer::room(rows * cols), Buffer::room(rows * cols / 32 * kernels::INFO_BYTES));
    let ((quants, info), (want, want_info)) = (room(), room());
    launch(&kernels::quantise(rows, cols), args![out, &want, &want_info, rows * cols / 32]);
    let fused = kernels::merge_quantised(merge);
    let again = Buffer::floats(rows * cols);
    launch(&fused, [operands, args![&again, Arg::Shape(shape), &quants, &info]].concat());
    assert!(same(&again.read(rows * cols), &out.read(rows * cols)));
    assert!(quants.read::<u8>(rows * cols) == want.read::<u8>(rows * cols));
    let bytes = rows * cols / 32 * kernels::INFO_BYTES;
    assert!(info.read::<u8>(bytes) == want_info.read::<u8>(bytes));
}

/// A tree of so many nodes in which each hangs on one of the few before it.
fn tree(rows: usize, random: &mut Random) -> Vec<u64> {
    let mut ancestors = vec![1u64];
    for row in 1..rows {
        let parent = row - 1 - random.below(3).min(row - 1);
        ancestors.push(ancestors[parent] | 1 << row);
    }
    ancestors
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Runs everything on one shape: `base` committed positions, then `rows` more.
fn check(kind: Kind, base: usize, rows: usize, size: f32, random: &mut Random, cases: &mut usize) {
    let (kv_cols, cols) = (kind.heads * kind.width, kind.heads * kind.group * kind.width);
    let normals =
        |n, size: f32, random: &mut Random| -> Vec<f32> { random.normals(n).into_iter().map(|x| x * size).collect() };
    let q = normals(rows * cols, size, random);
    let (k, v) = (normals((base + rows) * kv_cols, size, random), normals((base + rows) * kv_cols, 1.0, random));
    let ancestors = tree(rows.min(64), random);
    let cache = Cache::new(kind, &k, &v);
    let cpu = scalar();
    let mut kv =
        cpu.kv(KvShape { layers: 1, slots: base + rows, heads: kind.heads, width: kind.width, ty: kind.ty }).unwrap();
    cpu.store(&mut kv, 0, 0, &mat(&cpu, &k, kv_cols), &mat(&cpu, &v, kv_cols));
    for span in [Span::Chain { base }, Span::Tree { base, ancestors: &ancestors }] {
        if matches!(span, Span::Tree { .. }) && rows > 64 {
            continue;
        }
        set_order(ORDERS[*cases % 3]);
        let got = cache.attend(kind, &q, span, true);
        let mut want = cpu.mat(rows, cols).unwrap();
        cpu.attend(&mat(&cpu, &q, cols), &kv, 0, span, kind.how, &mut want);
        // Scores are sums of `width` products, exponentials of differences of them: both sides round differently.
        let tolerance = 3e-5 * want.values().iter().fold(1e-6f32, |top, x| top.max(x.abs()));
        for (i, (got, want)) in got.iter().zip(want.values()).enumerate() {
            assert!((got - want).abs() <= tolerance, "{kind:?} {span:?}: element {i} is {got}, not {want}");
        }
        set_order(ORDERS[(*cases + 1) % 3]);
        assert!(same(&cache.attend(kind, &q, span, false), &got), "{kind:?} {span:?}: split and whole differ");
        // Some rows alone, each at the end of its own chain.
        for row in [0, rows / 2, rows - 1] {
            let slots: Vec<usize> = match span {
                Span::Chain { .. } => (0..base + row + 1).collect(),
                Span::Tree { ancestors, .. } => {
                    let nodes = (0..64).filter(|&node| ancestors[row] >> node & 1 == 1);
                    (0..base).chain(nodes.map(|node| base + node)).collect()
                }
            };
            let pick = |all: &[f32]| -> Vec<f32> {
                slots.iter().flat_map(|&slot| all[slot * kv_cols..(slot + 1) * kv_cols].to_vec()).collect()
            };
            let chain = Cache::new(kind, &pick(&k), &pick(&v));
            let alone = Span::Chain { base: slots.len() - 1 };
            let cut = row * cols..(row + 1) * cols;
            for whole in [true, false] {
                let of_row = chain.attend(kind, &q[cut.clone()], alone, whole);
                assert!(same(&of_row, &got[cut.clone()]), "{kind:?} {span:?}: row {row} differs from its chain's");
            }
        }
        *cases += 1;
    }
}

#[test]
fn trees_are_chains_and_close_to_the_cpus() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(61), 0);
    for ty in TYPES {
        for (heads, group, width) in [(1, 3, 64), (2, 1, 32), (2, 4, 128), (1, 2, 256), (1, 7, 96), (1, 1, 80)] {
            if ty == KvType::Q8_0 && width % 32 != 0 {
                continue;
            }
            for (base, rows, window, softcap, size) in [
                (0, 1, None, None, 1.0),
                (0, 20, None, Some(5.0), 1.0),
                (120, 9, Some(16), None, 1.0),
                (127, 5, Some(3), None, 1.0),
                (260, 4, None, None, 300.0),
                (300, 3, Some(140), Some(30.0), 4.0),
            ] {
                let how = Attention { scale: 1.0 / (width as f32).sqrt(), softcap, window };
                check(Kind { ty, group, heads, width, how }, base, rows, size, &mut random, &mut cases);
            }
        }
    }
    println!("{cases} cases within the tolerance, by both plans and alone to the bit");
}

#[test]
fn wide_trees_and_long_chains() {
    if !is_there() {
        return;
    }
    let (mut random, mut cases) = (Random(62), 0);
    let how = Attention { scale: 0.125, softcap: None, window: None };
    let kind = |ty, window| Kind { ty, group: 3, heads: 1, width: 64, how: Attention { window, ..how } };
    for (ty, base, rows, window) in [
        (KvType::F16, 100, 64, None),
        (KvType::F16, 64, 64, Some(30)),
        (KvType::Q8_0, 250, 33, None),
        (KvType::F16, 30, 150, Some(100)),
        (KvType::F32, 0, 130, None),
    ] {
        check(kind(ty, window), base, rows, 1.0, &mut random, &mut cases);
    }
    println!("{cases} cases within the tolerance, by both plans and alone to the bit");
}
