//! The CUDA backend: kernels of `cuda/*.cu`, run through the driver.

pub mod kernels;
pub mod pack;
