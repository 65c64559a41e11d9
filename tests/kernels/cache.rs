//! The cache: what is stored is what the CPU stores, and slots move.

use super::common::blocks::Random;
use super::device::{Buffer, ORDERS, is_there, launch, set_order};
use super::{mat, scalar};
use crate::args;
use foretoken::backend::cuda::kernels::{self, Step};
use foretoken::backend::{Backend, KvShape, KvType};

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

/// Heads and widths; `q8_0` takes multiples of 32 only.
fn shapes(ty: KvType) -> impl Iterator<Item = (usize, usize)> {
    [(1, 64usize), (3, 32), (2, 128), (1, 256), (2, 80), (5, 16)]
        .into_iter()
        .filter(move |(_, width)| ty != KvType::Q8_0 || width.is_multiple_of(32))
}

/// One head of one slot of a part, as the CPU writes it.
fn row(ty: KvType, part: &[u8], slots: usize, width: usize, slot: usize) -> Vec<u8> {
    if ty != KvType::Q8_0 {
        let bytes = ty.bytes(width);
        return part[slot * bytes..(slot + 1) * bytes].to_vec();
    }
    let (quants, scales) = part.split_at(slots * width);
    let quants = &quants[slot * width..(slot + 1) * width];
    let scales = &scales[slot * width / 32 * 2..(slot + 1) * width / 32 * 2];
    scales.chunks(2).zip(quants.chunks(32)).flat_map(|(scale, quants)| [scale, quants].concat()).collect()
}

#[test]
fn stored_rows_are_the_cpus_and_slots_move() {
    if !is_there() {
        return;
    }
    let (cpu, mut random, mut cases) = (scalar(), Random(51), 0);
    for ty in TYPES {
        for (heads, width) in shapes(ty) {
            for rows in [1, 7] {
                set_order(ORDERS[cases % 3]);
                let (slots, slot, cols) = (16, 5, heads * width);
                let mut k = random.normals(rows * cols);
                k[..width.min(32)].fill(0.0);
                k[cols - 1] = 1e4;
                let v: Vec<f32> = random.normals(rows * cols).into_iter().map(|x| x * 1e-3).collect();
                // Two layers, of which the second is stored to.
                let layer = 2 * heads * slots * ty.bytes(width);
                let cache = Buffer::of(&vec![0xaau8; 2 * layer]);
                let (dk, dv) = (Buffer::of(&k), Buffer::of(&v));
                let step = Buffer::of(&[Step { base: 9, slot: slot as u32 }]);
                launch(
                    &kernels::store(ty, heads, width, rows),
                    args![&dk, &dv, cache.at(layer), cache.at(layer + layer / 2), &step, heads, width, slots, rows],
                );
                let mut kv = cpu.kv(KvShape { layers: 1, slots, heads, width, ty }).unwrap();
                cpu.store(&mut kv, 0, slot, &mat(&cpu, &k, cols), &mat(&cpu, &v, cols));
                let want = cpu.read_kv(&kv, slot..slot + rows).unwrap();
                let bytes = cache.read::<u8>(2 * layer);
                assert!(bytes[..layer].iter().all(|&b| b == 0xaa), "the other layer");
                let part_bytes = slots * ty.bytes(width);
                let rows_of = |bytes: &[u8], slots_read: &[usize]| -> Vec<u8> {
                    let parts: Vec<&[u8]> = bytes[layer..].chunks(part_bytes).collect();
                    let half = |parts: &[&[u8]]| -> Vec<u8> {
                        let each = slots_read.iter().flat_map(|&slot| parts.iter().map(move |part| (slot, *part)));
                        each.flat_map(|(slot, part)| row(ty, part, slots, width, slot)).collect()
                    };
                    [half(&parts[..heads]), half(&parts[heads..])].concat()
                };
                let stored: Vec<usize> = (slot..slot + rows).collect();
                assert!(rows_of(&bytes, &stored) == want, "{ty:?} {heads} x {width}, {rows} rows");

                let from: Vec<u32> = (0..rows as u32).filter(|i| i % 3 != 1).map(|i| slot as u32 + i).collect();
                let picked: Vec<usize> = from.iter().map(|&slot| slot as usize).collect();
                let parts = 4 * heads;
                let list = Buffer::of(&from);
                launch(&kernels::move_kv(ty, parts), args![&cache, &list, slot - 1, from.len(), parts, width, slots]);
                let moved: Vec<usize> = (slot - 1..).take(from.len()).collect();
                let after = cache.read::<u8>(2 * layer);
                assert!(rows_of(&after, &moved) == rows_of(&bytes, &picked), "{ty:?} {heads} x {width} moved");
                cases += 1;
            }
        }
    }
    println!("{cases} cases, all equal to the byte");
}
