//! Speculation: what is guessed (drafters) and what is kept of it (verification).

#![forbid(unsafe_code)]

pub mod verify;

pub use verify::{Verdict, walk};
