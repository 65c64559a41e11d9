//! Tokenizers, streams and chat templates against independent programs' results: llama.cpp's and Hugging Face's ids,
//! Python jinja2's prompts. Real models come from the folder `FORETOKEN_MODELS`, or `models/` of this repository; what
//! is not there is skipped, and said so.

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod chat;
mod files;
mod ids;
mod metadata;
mod stream;
mod templates;
mod time;
