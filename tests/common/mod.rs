//! What several test binaries share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod blocks;
pub mod gguf_writer;
pub mod naive;
