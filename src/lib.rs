//! Foretoken: quantised GGUF language models on the command line, built around lossless speculative decoding.
//!
//! # Three ideas
//!
//! 1. Everything the model is asked to run is a token tree ([`tree::DraftTree`]): prefill is a chain, plain decoding a
//!    tree of one node, verification a tree of many. One forward pass, one attention op, one rule for the cache.
//! 2. Plain decoding is speculation with an empty draft. There is one generation loop ([`engine::Session::generate`]).
//! 3. The verifier is a walk ([`spec::walk`]): at each node ask the sampler for the target's token, emit it, go down if a
//!    child carries it, else stop. Every token the sampler picks is emitted, so nothing ever rolls back.
//!
//! # The path of the data
//!
//! ```text
//! prompt text -> Tokenizer::encode -> tokens
//!    prefill: chunks of tokens -> Model::forward(Chain)                     (last token kept back: the anchor)
//!    step:    Drafter::observe(new tokens)
//!             Round::new(context, room, sampler, budget), Drafter::draft(&mut round)     each drafter in turn
//!             Round::finish -> Draft { tree, ... }                   without the guesses that do not pay
//!             Model::forward(Tree) -> logits [N, V]                  K, V of the nodes go to scratch slots
//!             walk(tree, |node| sampler.pick(row of node)) -> Verdict { path, tokens }   (or another rule)
//!             State::commit(path)                                    scratch rows become context
//!             context += tokens; anchor = the last one
//!             Budget::learn(draft, tokens, times), Drafter::see(hidden rows of the path)
//!    TextStream::push(tokens)  (holds back incomplete UTF-8 and possible stop strings) -> stdout
//! ```
//!
//! Between steps `context.len() == cache.len() + 1`; that invariant replaces position arithmetic.
//!
//! # Three laws
//!
//! - **Rows**: row *i* of a batch of *n* rows is bit-equal to the same row alone, for any n, weight format and thread
//!   count, within an instruction set. Accumulation order never depends on the batch or on how work is split.
//! - **Trees**: a node's logits are bit-equal to those of its token at the end of its own chain. Attention accumulates by
//!   logical position, never by cache slot.
//! - **Text**: sampling is Gumbel-max under noise keyed by (seed, ordinal of the token, token, purpose), so a text depends on
//!   model, prompt, options and seed, and on nothing that a drafter does.
//!
//! `tests/products.rs` and `tests/laws.rs` prove the first two by comparing bits, `tests/law3.rs` the third;
//! `tests/acceptance.rs` proves the rules of acceptance by enumeration.
//!
//! # Modules, in reading order
//!
//! Imports only point down this list's layers: `cmd -> engine -> {spec, sample} -> model -> backend -> quant -> {tree, isa,
//! gguf}`; `text` knows only `gguf`, `grammar` only `text`, `sample` uses `grammar`. `unsafe` lives in `isa`, `quant`, `backend` and the map of `gguf`, nowhere else.

#![deny(unsafe_code)]

pub mod tree;

pub mod gguf;
pub mod isa;

pub mod quant;

pub mod backend;

pub mod model;

pub mod text;

pub mod grammar;

pub mod sample;

pub mod spec;

pub mod engine;

pub mod cli;
pub mod cmd;
