//! Every CUDA kernel, run on the emulated driver, against the CPU's scalar op on the same inputs; laws 1 and 2 to the bit.
#![cfg(all(feature = "cuda", target_os = "linux"))]

#[path = "kernels/attention.rs"]
mod attention;
#[path = "kernels/cache.rs"]
mod cache;
mod common;
#[path = "kernels/device.rs"]
mod device;
#[path = "kernels/emulator.rs"]
mod emulator;
#[path = "kernels/products.rs"]
mod products;
#[path = "kernels/rows.rs"]
mod rows;
#[path = "kernels/sampling.rs"]
mod sampling;

use foretoken::backend::Backend;
use foretoken::backend::cpu::{Cpu, Mat};
use foretoken::isa::Isa;

/// The oracle.
fn scalar() -> Cpu {
    Cpu::new(Isa::Scalar, 1).unwrap()
}

/// A matrix of the oracle's.
fn mat(cpu: &Cpu, values: &[f32], cols: usize) -> Mat {
    let mut m = cpu.mat(values.len() / cols, cols).unwrap();
    cpu.write(values, &mut m);
    m
}

/// Fails where two results differ in a bit.
#[track_caller]
fn same_bits(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(got.to_bits() == want.to_bits(), "{what}: element {i} is {got:e}, not {want:e}");
    }
}
