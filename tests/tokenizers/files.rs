//! Where vocabularies come from.

use crate::common::gguf_writer::{Value, Writer};
use flate2::read::GzDecoder;
use foretoken::{gguf::Gguf, text::Tokenizer};
use serde::de::DeserializeOwned;
use std::{io::Read, path::PathBuf};

pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
pub const QWEN05: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

/// Vocabularies in `fixtures/vocab`, each named after its pre-tokeniser.
pub const VOCABULARIES: [&str; 9] =
    ["deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-spm", "mpt", "phi-3", "refact", "starcoder"];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn unpack(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub fn json<T: DeserializeOwned>(name: &str) -> T {
    let bytes = if name.ends_with(".gz") { unpack(name) } else { bytes(name) };
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub fn vocabulary(name: &str) -> Tokenizer {
    let gguf = Gguf::from_bytes(unpack(&format!("vocab/{name}.gguf.gz"))).unwrap();
    Tokenizer::from_gguf(gguf.meta()).unwrap()
}

pub fn tokenizer(w: &Writer) -> anyhow::Result<Tokenizer> {
    Tokenizer::from_gguf(Gguf::from_bytes(w.bytes())?.meta())
}

/// The kinds of `tokenizer.ggml.token_type`.
pub const NORMAL: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER: i32 = 4;
pub const BYTE: i32 = 6;

/// A SentencePiece vocabulary: `<unk> <s> </s>`, 256 bytes, then `more` as (text, kind, score).
pub fn sentence_pieces(more: &[(&str, i32, f32)]) -> Writer {
    let mut tokens: Vec<(String, i32, f32)> =
        vec![("<unk>".into(), UNKNOWN, 0.0), ("<s>".into(), CONTROL, 0.0), ("</s>".into(), CONTROL, 0.0)];
    tokens.extend((0..=255).map(|b| (format!("<0x{b:02X}>"), BYTE, 0.0)));
    tokens.extend(more.iter().map(|&(text, kind, score)| (text.into(), kind, score)));
    Writer::default()
        .key("general.architecture", Value::Str("llama".into()))
        .key("tokenizer.ggml.model", Value::Str("llama".into()))
        .key("tokenizer.ggml.tokens", Value::Strs(tokens.iter().map(|t| t.0.clone()).collect()))
        .key("tokenizer.ggml.token_type", Value::I32s(tokens.iter().map(|t| t.1).collect()))
        .key("tokenizer.ggml.scores", Value::F32s(tokens.iter().map(|t| t.2).collect()))
}

/// A byte-level vocabulary: the 256 bytes, `merges`, then `special` control tokens.
pub fn byte_level(pre: Option<&str>, merges: &[&str], special: &[&str]) -> Writer {
    let shifted = |b: u32| match b {
        0..=32 => 256 + b,
        127..=160 => 256 + b - 94,
        173 => 323,
        _ => b,
    };
    let mut tokens: Vec<String> = (0..256).map(|b| char::from_u32(shifted(b)).unwrap().into()).collect();
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    let mut kinds = vec![NORMAL; tokens.len()];
    tokens.extend(special.iter().map(|&s| s.to_owned()));
    kinds.resize(tokens.len(), CONTROL);
    let w = Writer::default()
        .key("general.architecture", Value::Str("llama".into()))
        .key("tokenizer.ggml.model", Value::Str("gpt2".into()))
        .key("tokenizer.ggml.tokens", Value::Strs(tokens))
        .key("tokenizer.ggml.token_type", Value::I32s(kinds))
        .key("tokenizer.ggml.merges", Value::Strs(merges.iter().map(|&m| m.to_owned()).collect()));
    match pre {
        Some(pre) => w.key("tokenizer.ggml.pre", Value::Str(pre.into())),
        None => w,
    }
}
