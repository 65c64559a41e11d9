//! A model: hyper-parameters, weights and the forward pass over a token tree.
//!
//! What differs between architectures is data. [`arch`] is a table with one row of flags for each; [`config`] reads the
//! numbers from the file's metadata; [`tensors`] says which tensors a file must have and checks every shape before
//! anything is built; [`weights`] hands them to the backend; [`rope`] turns the metadata of position encodings into
//! angles; [`forward`] is the one pass that all of them share. A [`Model`] is immutable; a [`State`] is one session on it.
//!
//! The invariant: whatever a file can get wrong is an error of [`Model::load`], so that the pass itself cannot fail
//! on a file's account, only on a caller's (a token outside the vocabulary, a full context).

pub mod arch;
pub mod config;
pub mod forward;
pub mod rope;
pub mod state;
pub mod tensors;
pub mod weights;

pub use arch::{ARCHS, Arch};
pub use config::Config;
pub use forward::{Few, Input, Logits, Rows};
pub use state::State;
pub use weights::{Matrices, Model};
