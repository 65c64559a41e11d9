//! The CUDA backend on the emulated driver: whole models give the CPU's tokens, the three laws hold, and what is wrong with
//! a machine is said in one line.
#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod laws;
mod places;
mod tokens;

use common::zoo;
use foretoken::backend::cuda::{self, Cuda};
use foretoken::gguf::Gguf;
use foretoken::model::Model;
use std::sync::Arc;

/// The device.
fn device() -> Cuda {
    let found = cuda::probe().unwrap();
    Cuda::open(&found[0]).unwrap()
}

/// A model on it.
fn load(device: &Cuda, gguf: &Gguf) -> Arc<Model<Cuda>> {
    Arc::new(Model::load(Arc::new(device.clone()), gguf, &mut |_, _| ()).unwrap())
}

/// A model of the zoo on it.
fn open(device: &Cuda, name: &str) -> Arc<Model<Cuda>> {
    load(device, &zoo::open(name))
}
