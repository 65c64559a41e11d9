//! Constrained output: our GBNF against a matcher that tries everything, masks against trying every token, texts of a
//! real model against independent checkers; and that drafting changes nothing.

#[path = "../common/mod.rs"]
mod common;

mod cli;
mod drafting;
mod guides;
mod masks;
mod notation;
mod samples;
mod sampling;
mod words;
