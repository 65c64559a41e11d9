//! Foretoken: quantised GGUF language models on the command line, built around lossless speculative decoding.

#![deny(unsafe_code)]

pub mod tree;
pub mod isa;
pub mod gguf;
pub mod quant;
pub mod backend;
pub mod model;
pub mod text;
pub mod sample;
pub mod spec;
pub mod engine;
pub mod cmd;
