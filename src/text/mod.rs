//! Text in, text out: tokenizers rebuilt from GGUF metadata, streaming decode, chat templates.
//!
//! Knows only `gguf`. Reading order: `vocab` (what each id is and stands for), the two algorithms (byte-level
//! BPE and SentencePiece), special texts and how a text is cut at them, [`Tokenizer`], [`TextStream`], [`ChatTemplate`] (with
//! `marks`, which keep what people write apart, and `python`, which templates are written for, and `answers`, which finds in conversations what models wrote).
//!
//! Invariants: ids never depend on how a text reached us (no normalisation of line ends, byte-order marks or NULs);
//! time is linear or n log n in the text for any input; user text in a chat never becomes a control token; a stream's
//! output concatenated equals the decoding of all its tokens at once.

mod answers;
mod bpe;
mod marks;
mod message;
mod pre;
mod python;
mod special;
mod spm;
mod stream;
mod template;
mod tokenizer;
mod vocab;

pub use answers::Conversation;
pub use message::{Message, kind};
pub use stream::TextStream;
pub use template::{ChatTemplate, Prompt, System};
pub use tokenizer::Tokenizer;
