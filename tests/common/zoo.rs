//! The zoo: tiny random models of every architecture and weight format, with llama.cpp's logits for five prompts.
//! See `scripts/make_zoo_fixtures.py` for how they are stored.

use flate2::read::GzDecoder;
use foretoken::gguf::Gguf;
use foretoken::tree::Token;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Files in F32, one an architecture or position encoding. A new architecture adds its line here.
pub const ARCHITECTURES: &[&str] = &[
    "llama",
    "llama-tied",
    "llama-linear",
    "llama-yarn",
    "llama-freqs",
    "llama-gqa7",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
];

/// tiny-llama in every weight format; llama.cpp quantises the input of a product in integer blocks of so many, if at all.
pub const FORMATS: &[(&str, Option<usize>)] = &[
    ("llama.F16", None),
    ("llama.BF16", None),
    ("llama.Q4_0", Some(32)),
    ("llama.Q4_1", Some(32)),
    ("llama.Q5_0", Some(32)),
    ("llama.Q5_1", Some(32)),
    ("llama.Q8_0", Some(32)),
    ("llama.IQ4_NL", Some(32)),
    ("llama.MXFP4_MOE", Some(32)),
    ("llama.Q2_K", Some(256)),
    ("llama.Q3_K_S", Some(256)),
    ("llama.Q4_K_S", Some(256)),
    ("llama.Q5_K_S", Some(256)),
    ("llama.Q6_K", Some(256)),
    ("llama.IQ4_XS", Some(256)),
];

/// tiny-llama in formats that are not supported.
pub const UNSUPPORTED: &[(&str, &str)] = &[("llama.TQ1_0", "TQ1_0"), ("llama.TQ2_0", "TQ2_0")];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/zoo")
}

fn gunzip(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut bytes = vec![];
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The bytes of a model file, by the part of its name after `tiny-`.
pub fn bytes(name: &str) -> Vec<u8> {
    match name {
        "llama.F16" => narrowed(1, |v| half::f16::from_f32(v).to_bits()),
        "llama.BF16" => narrowed(30, |v| half::bf16::from_f32(v).to_bits()),
        "llama.TQ1_0" => narrowed(34, |_| 0),
        "llama.TQ2_0" => narrowed(35, |_| 0),
        _ if ARCHITECTURES.contains(&name) => {
            let planes = gunzip(&format!("tiny-{name}.gguf.planes.gz"));
            let words = planes.len() / 4;
            (0..planes.len()).map(|i| planes[i % 4 * words + i / 4]).collect()
        }
        _ => gunzip(&format!("tiny-{name}.gguf.gz")),
    }
}

/// tiny-llama with its matrices in a type of at most 16 bits: each stays at its offset and leaves half of its room unused.
fn narrowed(ggml_type: u32, narrow: impl Fn(f32) -> u16) -> Vec<u8> {
    let mut file = bytes("llama");
    let gguf = Gguf::from_bytes(file.clone()).unwrap();
    let find = |needle: &[u8]| file.windows(needle.len()).position(|w| w == needle).unwrap();
    let mut places = vec![];
    for tensor in gguf.tensors().filter(|t| t.dims.len() == 2) {
        let record = [&(tensor.name.len() as u64).to_le_bytes(), tensor.name.as_bytes()].concat();
        let type_at = find(&record) + record.len() + 4 + 8 * tensor.dims.len();
        places.push((type_at, find(&tensor.bytes[..64]), tensor.bytes));
    }
    for (type_at, data_at, bytes) in places {
        file[type_at..type_at + 4].copy_from_slice(&ggml_type.to_le_bytes());
        for (i, value) in bytes.chunks(4).enumerate() {
            let value = f32::from_le_bytes(value.try_into().unwrap());
            file[data_at + 2 * i..data_at + 2 * i + 2].copy_from_slice(&narrow(value).to_le_bytes());
        }
    }
    file
}

/// A model file, opened.
pub fn open(name: &str) -> Gguf {
    Gguf::from_bytes(bytes(name)).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

/// The five prompts.
pub fn prompts() -> Vec<Vec<Token>> {
    let text = std::fs::read_to_string(folder().join("tokens.txt")).unwrap();
    text.lines().map(|line| line.split_whitespace().map(|t| t.parse().unwrap()).collect()).collect()
}

/// Rows of a prompt of `n` tokens whose logits are kept.
pub fn kept_rows(n: usize) -> Vec<usize> {
    (0..n).filter(|&i| i % 3 == 0 || i == n - 1).collect()
}

/// llama.cpp's logits of the kept rows of all prompts, one after the other.
pub fn logits(name: &str) -> Vec<f32> {
    let bytes = gunzip(&format!("tiny-{name}.bin.gz"));
    let (scale, steps) = bytes.split_at(4);
    let scale = f32::from_le_bytes(scale.try_into().unwrap());
    steps.chunks(2).map(|s| i16::from_le_bytes([s[0], s[1]]) as f32 * scale).collect()
}
