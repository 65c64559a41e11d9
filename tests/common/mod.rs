//! What several test binaries share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod blocks;
pub mod cli;
pub mod drafters;
pub mod eagles;
pub mod emulator;
pub mod gbnf;
pub mod gguf_writer;
pub mod laws;
pub mod limits;
pub mod models;
pub mod naive;
pub mod plain_eagle;
#[cfg(target_os = "linux")]
pub mod pty;
pub mod sidecars;
pub mod zoo;

use std::path::PathBuf;

/// An empty folder of this name for a test's files.
pub fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder for test files");
    dir
}
