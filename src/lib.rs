//! Foretoken: quantised GGUF language models on the command line, built around lossless speculative decoding.

#![deny(unsafe_code)]

pub mod backend;
pub mod cli;
pub mod cmd;
pub mod engine;
pub mod gguf;
pub mod isa;
pub mod model;
pub mod quant;
pub mod sample;
pub mod spec;
pub mod text;
pub mod tree;
