//! Constrained output: which tokens may come next, given those generated so far.
//!
//! A [`Constraint`] is one of two engines behind one question. GBNF is our own: `gbnf` reads the text into `rules`,
//! these become a `machine`, and a `recogniser` runs it over bytes, walking the trie of all tokens (`lexicon`) for a
//! [`Mask`]. JSON schemas, regular expressions and Lark grammars are llguidance's (`guide`).
//!
//! Invariants: an answer depends on the tokens asked about and on nothing asked before, so anyone may ask about any
//! node of a token tree in any order; end tokens are legal exactly where the text is complete; control tokens are
//! legal only where a grammar names them; where nothing is legal, that is an error.
//!
//! Knows only `text`.

#![forbid(unsafe_code)]

mod class;
mod constraint;
mod gbnf;
mod guide;
mod lexicon;
mod machine;
mod mask;
mod path;
mod recogniser;
mod rules;
mod source;

pub use constraint::{Constraint, Spec};
pub use lexicon::Lexicon;
pub use mask::Mask;
