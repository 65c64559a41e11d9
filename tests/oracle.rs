//! Real models against independent programs: a plain f32 forward in NumPy (`f32_*`, the truth) and llama.cpp (`greedy`).
//!
//! The models are looked for in the folder `FORETOKEN_MODELS` and in `models/`; absent ones are skipped, with a line.

mod common;

use common::{models, naive::Naive};
use flate2::read::GzDecoder;
use foretoken::backend::{Backend, KvType, cpu::Cpu};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::tree::Token;
use std::path::Path;
use std::sync::Arc;

/// Names of the fixtures and of the models they were made with.
const MODELS: &[(&str, &str)] = &[
    ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("gemma3", "gemma-3-270m-q4_k_m.gguf"),
    ("qwen05", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    ("qwen15", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
];

/// How close logits must be to the f32 forward's.
struct Closeness {
    /// Mean absolute difference of the log-probabilities of the prompt's own tokens.
    mean: f64,
    /// The first choice is the same wherever the first two differ by more than this.
    gap: f64,
}

/// Of a backend that keeps activations in f32: what remains is rounding.
const F32: Closeness = Closeness { mean: 0.002, gap: 0.02 };

/// One that rounds them to 8-bit integers in blocks of 32, which costs 0.03 to 0.06 on these models.
const INT8: Closeness = Closeness { mean: 0.08, gap: 1.0 };

#[derive(serde::Deserialize)]
struct Prompt {
    name: String,
    tokens: Vec<Token>,
    greedy: Vec<Token>,
    greedy_gap: Vec<f64>,
    f32_next_logprob: Vec<f64>,
    f32_top: Vec<Vec<(Token, f64)>>,
}

fn prompts(fixture: &str) -> Vec<Prompt> {
    let path = format!("{}/tests/fixtures/oracle/{fixture}.json.gz", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_reader(GzDecoder::new(std::fs::File::open(path).unwrap())).unwrap()
}

fn load<B: Backend>(backend: &Arc<B>, path: &Path) -> Model<B> {
    Model::load(backend.clone(), &Gguf::open(path).unwrap(), &mut |_, _| ()).unwrap()
}

fn arg_max(row: &[f32]) -> Token {
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap() as Token
}

fn log_probability(row: &[f32], token: Token) -> f64 {
    let top = row.iter().copied().fold(f32::MIN, f32::max) as f64;
    let total: f64 = row.iter().map(|&v| (v as f64 - top).exp()).sum();
    row[token as usize] as f64 - top - total.ln()
}

/// Log-probabilities and first choices on every prompt against the f32 forward.
fn check_prompts<B: Backend>(model: &Model<B>, fixture: &str, close: Closeness) {
    let vocab = model.config().vocab;
    let (mut differences, mut wrong) = (vec![], vec![]);
    for prompt in prompts(fixture) {
        let mut state = model.state(512, 64, KvType::F16).unwrap();
        let logits = model.forward(&mut state, Input::Chain(&prompt.tokens), Rows::All).unwrap();
        let rows: Vec<&[f32]> = logits.chunks(vocab).collect();
        for (i, want) in prompt.f32_next_logprob.iter().enumerate() {
            differences.push((log_probability(rows[i], prompt.tokens[i + 1]) - want).abs());
        }
        for (i, top) in prompt.f32_top.iter().enumerate() {
            let (first, second) = (top[0], top[1]);
            if first.1 - second.1 > close.gap && arg_max(rows[i]) != first.0 {
                wrong.push(format!("{} {i}: {} for {}", prompt.name, arg_max(rows[i]), first.0));
            }
        }
    }
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    println!("{fixture}: mean difference {mean:.5} over {} tokens", differences.len());
    assert!(mean <= close.mean, "{fixture}: mean difference {mean}, more than {}", close.mean);
    assert!(wrong.is_empty(), "{fixture}: other first choices than the f32 forward's: {wrong:?}");
}

/// Greedy continuations of the first `prompts_used` prompts against llama.cpp's, up to where it was itself in doubt.
fn check_greedy<B: Backend>(model: &Model<B>, fixture: &str, prompts_used: usize) {
    for prompt in prompts(fixture).iter().take(prompts_used) {
        let sure = prompt.greedy_gap.iter().position(|&gap| gap < 0.3).unwrap_or(prompt.greedy.len());
        let mut state = model.state(512, 64, KvType::F16).unwrap();
        let mut logits = model.forward(&mut state, Input::Chain(&prompt.tokens), Rows::Last).unwrap();
        let mut got = vec![];
        for _ in 0..sure {
            got.push(arg_max(&logits));
            logits = model.forward(&mut state, Input::Chain(&got[got.len() - 1..]), Rows::Last).unwrap();
        }
        println!("{fixture} {}: {sure} of {} compared", prompt.name, prompt.greedy.len());
        assert_eq!(got, prompt.greedy[..sure], "{fixture} {}", prompt.name);
    }
}

#[test]
fn cpu() {
    for &(fixture, file) in MODELS {
        let Some(path) = models::find(file) else { continue };
        let model = load(&Arc::new(Cpu::new(Isa::best(), 2).unwrap()), &path);
        check_prompts(&model, fixture, INT8);
        check_greedy(&model, fixture, usize::MAX);
    }
}

/// The largest model would take 7 GB.
#[test]
fn cpu_with_exact_activations() {
    for &(fixture, file) in &MODELS[..3] {
        let Some(path) = models::find(file) else { continue };
        check_prompts(&load(&Arc::new(Cpu::new(Isa::best(), 2).unwrap().exact()), &path), fixture, F32);
    }
}

/// The plain backend takes a second for a few tokens of the smallest model: the larger ones only when asked for.
#[test]
fn plain_backend() {
    let all = std::env::var_os("FORETOKEN_SLOW_TESTS").is_some();
    for &(fixture, file) in MODELS.iter().take(if all { MODELS.len() } else { 1 }) {
        let Some(path) = models::find(file) else { continue };
        let model = load(&Arc::new(Naive::default()), &path);
        check_prompts(&model, fixture, F32);
        check_greedy(&model, fixture, 1);
    }
}
