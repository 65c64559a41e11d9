//! What a GPU can do at most, by what its driver says it is made of.

use super::driver::Driver;
use crate::backend::rates::{Rate, Rates, Read};
use cudarc::driver::sys::CUdevice_attribute as Attribute;

/// Operations that a multiprocessor does a cycle, dense: of int8 on tensor cores, and of f32.
fn per_cycle(arch: (i32, i32)) -> (u64, u64) {
    match arch {
        (8, 0) => (4096, 128),
        (8, _) => (2048, 256),
        (9, _) => (8192, 256),
        (10, _) => (16384, 256),
        _ => (2048, 256),
    }
}

/// The rates; those that the driver tells nothing about are small.
pub fn of(driver: &Driver) -> Rates {
    let has = |which| driver.attribute(which) as f64;
    let cycles =
        has(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) * has(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE) * 1e3;
    // Twice a cycle.
    let bytes = has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
        * 1e3
        * 2.0
        * has(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
        / 8.0;
    let (int8, float) = per_cycle(driver.gpu().arch);
    let rate = |n: f64| Rate { one: n.max(1e9), all: n.max(1e9) };
    Rates {
        reads: vec![Read { bytes: 1 << 30, rate: rate(bytes) }],
        int8: rate(cycles * int8 as f64),
        f32: rate(cycles * float as f64),
    }
}
