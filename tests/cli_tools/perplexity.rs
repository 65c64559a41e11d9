//! Perplexity against a naive computation, and against independent programs.

use crate::common::gguf_writer::{Rng, Value, tiny_llama};
use crate::common::{models, scratch};
use crate::{fails, json, ok, run, words, write};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::tree::Token;
use std::path::Path;
use std::sync::Arc;

/// Real models, by the oracle's names.
const MODELS: [(&str, &str); 3] = [
    ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("gemma3", "gemma-3-270m-q4_k_m.gguf"),
    ("qwen05", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
];

/// Words without meaning.
fn text(n: usize) -> String {
    let mut rng = Rng(7);
    (0..n).map(|_| *b"the ina<|>end\nst".get(rng.below(16)).unwrap() as char).collect()
}

/// Perplexity from whole windows in one pass each, by products of probabilities.
fn naive_perplexity(model: &Path, ids: &[Token], window: usize, chunks: usize, bos: Option<Token>) -> f64 {
    let gguf = Gguf::open(model).unwrap();
    let model = Model::load(Arc::new(Cpu::new(Isa::best(), 1).unwrap()), &gguf, &mut |_, _| ()).unwrap();
    let vocab = model.config().vocab;
    let (mut log, mut scored) = (0.0, 0);
    for chunk in 0..chunks {
        let mut tokens = ids[chunk * window..(chunk + 1) * window].to_vec();
        if let Some(bos) = bos {
            tokens[0] = bos;
        }
        let mut state = model.state(window, window, KvType::F16).unwrap();
        let logits = model.forward(&mut state, Input::Chain(&tokens), Rows::All).unwrap();
        for position in window / 2..window - 1 {
            let row = &logits[position * vocab..(position + 1) * vocab];
            let all: f64 = row.iter().map(|&x| (x as f64).exp()).sum();
            log += ((row[tokens[position + 1] as usize] as f64).exp() / all).ln();
            scored += 1;
        }
    }
    (-log / scored as f64).exp()
}

#[test]
fn perplexity_equals_a_naive_computation() {
    let dir = scratch("perplexity");
    let text = write(&dir, "text", text(1500).as_bytes());
    let plain = write(&dir, "plain.gguf", &tiny_llama(3, "Q4_0").bytes());
    let with_bos = tiny_llama(3, "Q4_0").set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    let with_bos = write(&dir, "bos.gguf", &with_bos.bytes());
    for (model, bos) in [(&plain, None), (&with_bos, Some(319))] {
        let ids = json("tokenize -m @ -f @ --plain --json", &[model, &text]);
        let ids: Vec<Token> = serde_json::from_value(ids).unwrap();
        let ids: Vec<Token> = bos.into_iter().chain(ids).collect();
        assert!(ids.len() > 1024 && (ids[1..].iter().all(|&id| id < 317)), "special text is plain here");
        for (flags, window, most) in [
            ("", 512, usize::MAX),
            ("-c 0", 512, usize::MAX),
            ("-c 300", 300, usize::MAX),
            ("-c 33 --chunks 4", 33, 4),
            ("-c 3", 3, usize::MAX),
            ("-c 128 --chunks -1 -t 1", 128, usize::MAX),
        ] {
            let chunks = (ids.len() / window).min(most);
            let want = naive_perplexity(model, &ids, window, chunks, bos);
            let got = json(&format!("perplexity -m @ -f @ --json {flags}"), &[model, &text]);
            let ppl = got["ppl"].as_f64().unwrap();
            assert!((ppl / want - 1.0).abs() < 1e-9, "{flags}: {ppl}, naively {want}");
            assert_eq!(got["chunks"], chunks, "{flags}");
            assert_eq!(got["tokens"], chunks * (window - window / 2 - 1), "{flags}");
            assert_eq!(got["ctx"], window, "{flags}");
            assert!(got["uncertainty"].as_f64().unwrap() > 0.0, "{flags}");
        }
    }
    let out = ok("perplexity -m @ -f @ -c 128 --chunks 2", &[&plain, &text]);
    assert!(out.starts_with("perplexity ") && out.ends_with(" 126 tokens scored in 2 windows of 128\n"), "{out}");
}

#[test]
fn perplexity_says_what_is_wrong() {
    let dir = scratch("perplexity-wrong");
    let model = write(&dir, "tiny.gguf", &tiny_llama(3, "F32").bytes());
    let file = write(&dir, "long", text(1500).as_bytes());
    let short = write(&dir, "short", &[b'x'; 100]);
    let empty = write(&dir, "empty", b"");
    fails("perplexity -m @ -f @", &[&model, &short], 1, &["short", "100 tokens", "512"]);
    fails("perplexity -m @ -f @ -c 64", &[&model, &empty], 1, &["empty", "0 tokens", "64"]);
    fails("perplexity -m @ -f @ -c 2", &[&model, &file], 1, &["window of 2"]);
    fails("perplexity -m @ -f @ --chunks 0", &[&model, &file], 2, &["--chunks 0"]);
    fails("perplexity -m @ -f @", &[&model, &dir.join("none")], 1, &["none"]);
    assert_eq!(run(&words("perplexity -m @", &[&model]), b"").code, Some(2));

    let mut broken = tiny_llama(3, "F32");
    broken.tensor_mut("output_norm.weight").bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let broken = write(&dir, "broken.gguf", &broken.bytes());
    fails("perplexity -m @ -f @ -c 64", &[&broken, &file], 1, &["position 32", "NaN"]);
}

#[test]
fn perplexity_of_real_models_is_that_of_independent_programs() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracle");
    let oracle = std::fs::read_to_string(fixtures.join("ppl.json")).unwrap();
    let oracle: serde_json::Value = serde_json::from_str(&oracle).unwrap();
    for (name, file) in MODELS {
        let Some(model) = models::find(file) else { continue };
        let (theirs, f32) = (&oracle["llama.cpp"][name], &oracle["f32"][name]);
        let line = format!("perplexity -m @ -f @ --json --chunks {}", theirs["chunks"]);
        let got = json(&line, &[&model, &fixtures.join("ppl.txt")]);
        assert_eq!(got["chunks"], theirs["chunks"], "{name}");
        assert_eq!(got["tokens"], 255 * theirs["chunks"].as_u64().unwrap(), "{name}");
        let ppl = got["ppl"].as_f64().unwrap();
        for (want, most) in [(f32, 0.005), (&theirs["ppl"], 0.0075)] {
            let off = ppl / want.as_f64().unwrap() - 1.0;
            println!("{name}: perplexity {ppl:.4}, {:+.3} % from {want}", 100.0 * off);
            assert!(off.abs() < most, "{name}: {ppl} is not within {most} of {want}");
        }
    }
}
