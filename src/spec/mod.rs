//! Speculation: what is guessed (drafters) and what is kept of it (verification).
//!
//! A drafter only ever adds nodes to the tree of a [`Round`]. What becomes text is decided by [`verify`] alone, so the
//! worst a drafter can do is cost time. Adding one takes a file with its [`Kind`] and its `open`, and a word in the table
//! of [`choice`].

#![forbid(unsafe_code)]

mod automaton;
pub mod budget;
pub mod choice;
pub mod corpus;
pub mod describe;
pub mod eagle;
pub mod lookup;
pub mod medusa;
pub mod output;
pub mod rejection;
mod resume;
pub mod round;
mod score;
pub mod sidecar;
pub mod standalone;
pub mod tally;
pub mod typical;
pub mod verify;

pub use budget::{Budget, Nodes};
pub use choice::{Choice, KINDS, Kind};
pub use output::Output;
pub use round::Round;
pub use sidecar::Sidecar;
pub use tally::Tally;
pub use verify::{Accept, Verdict, walk};

use crate::backend::{Backend, KvType};
use crate::model::Model;
use crate::text::Tokenizer;
use crate::tree::Token;
use anyhow::Result;
use std::sync::Arc;

/// Guesses what comes next.
pub trait Drafter<B: Backend>: Send {
    /// Tells what has become context, prompts included: every token once, in order.
    fn observe(&mut self, tokens: &[Token]) -> Result<()>;
    /// Layers whose input it reads beside the hidden rows, in the order of [`Features::taps`]; the number of layers itself
    /// stands for what the last one puts out. `None` for a drafter that reads nothing of the target's.
    fn taps(&self) -> Option<&[usize]> {
        None
    }
    /// Shows what the target computed for tokens that have become context: every token but the anchor once, in order, each
    /// after the token that follows it was observed. So the row of token *i* and token *i + 1* are known together.
    /// Rows that it [lacks](Drafter::lacks) are shown later.
    fn see(&mut self, features: &Features<'_, B>) -> Result<()> {
        let _ = features;
        Ok(())
    }
    /// Adds guesses below the anchor of the round's tree, which is the last token of the context, until there is no more
    /// to say or the tree takes no more. All of the context has been observed. Other drafters' nodes may be there already.
    fn draft(&mut self, round: &mut Round<'_>) -> Result<()>;
    /// May do now what the next draft would have to do first: the prompt has been observed.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    /// Forgets what was observed beyond `kept`, which is how it began, and what was seen of its last token and beyond.
    fn rewind(&mut self, kept: &[Token]) -> Result<()>;
    /// The first token whose row it has to see before it can draft and has not seen, of those that were observed before the
    /// last one; the session then computes the rows from there on again, as after a rewind or when it was restored. `None`
    /// if it lacks nothing.
    fn lacks(&self) -> Option<usize> {
        None
    }
    /// What it has made of the rows it saw, for [`Drafter::restore`] of another like it; nothing if that is not worth keeping.
    fn save(&self) -> Result<Vec<u8>> {
        Ok(vec![])
    }
    /// Takes up what another gave by [`Drafter::save`] when that had observed and seen what this one has observed, all rows
    /// but the last token's. False if these bytes are not its own kind's: those of other drafters are offered, too.
    fn restore(&mut self, bytes: &[u8]) -> Result<bool> {
        let _ = bytes;
        Ok(false)
    }
    /// Bytes of memory it takes beyond what the target takes.
    fn memory(&self) -> u64 {
        0
    }
}

/// Rows of the target's last pass.
pub struct Features<'a, B: Backend> {
    /// Place in the context of the first row's token; those of the others follow.
    pub first: usize,
    /// Where in the matrices the rows are, one for each token.
    pub rows: &'a [usize],
    /// The last layer's output after the output norm, which the head reads: `[T, D]`.
    pub hidden: &'a B::Mat,
    /// The residual stream entering each of the layers that the drafter taps: `[T, D]` each.
    pub taps: &'a [&'a B::Mat],
}

/// What a drafter is made for.
pub struct Target<'a, B: Backend> {
    /// The model whose tokens are to be guessed.
    pub model: &'a Arc<Model<B>>,
    /// Its vocabulary.
    pub tokenizer: &'a Tokenizer,
    /// Positions of its sessions.
    pub context: usize,
    /// Element type of their caches.
    pub kv: KvType,
    /// Asked before a drafter takes so many bytes of memory.
    pub admit: &'a dyn Fn(u64) -> Result<()>,
    /// Told how the making of a drafter goes.
    pub tell: &'a dyn Fn(Tell),
}

/// What there is to say while a drafter is made.
pub enum Tell {
    /// What is being done, so many bytes of it, of so many.
    Progress(&'static str, u64, u64),
    /// One line for everyone.
    Note(String),
    /// Something is odd.
    Warning(String),
}
