//! Every file of the zoo against llama.cpp's logits.

#[path = "common/naive.rs"]
mod naive;
#[path = "common/zoo.rs"]
mod zoo;

use foretoken::backend::{Backend, KvType};
use foretoken::model::{Input, Model, Rows};
use naive::Naive;
use std::sync::Arc;

const FORMATS: &[&str] = &[
    "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q4_K_S", "Q5_K_S", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4_MOE",
];

fn run<B: Backend>(backend: &Arc<B>, name: &str) -> Vec<f32> {
    let gguf = zoo::open(name);
    let model = Model::load(backend.clone(), &gguf, &mut |_, _| ()).unwrap_or_else(|e| panic!("{name}: {e:#}"));
    let vocab = model.config().vocab;
    let mut all = vec![];
    for tokens in zoo::prompts() {
        let mut state = model.state(512, 512, KvType::F16).unwrap();
        let logits = model.forward(&mut state, Input::Chain(&tokens), Rows::All).unwrap();
        for row in zoo::kept_rows(tokens.len()) {
            all.extend_from_slice(&logits[row * vocab..(row + 1) * vocab]);
        }
    }
    all
}

#[test]
fn explore() {
    let backend = Arc::new(Naive::default());
    let names = zoo::ARCHITECTURES.iter().map(|s| s.to_string()).chain(FORMATS.iter().map(|f| format!("llama.{f}")));
    for name in names {
        let (got, want) = (run(&backend, &name), zoo::logits(&name));
        assert_eq!(got.len(), want.len());
        let range = want.iter().copied().fold(f32::MIN, f32::max) - want.iter().copied().fold(f32::MAX, f32::min);
        let worst = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max);
        let rms = (got.iter().zip(&want).map(|(g, w)| ((g - w) as f64).powi(2)).sum::<f64>() / got.len() as f64).sqrt();
        for b in [32,256] {
        let fake = run(&Arc::new(Naive{int8_block:Some(b)}), &name);
        let rms2 = (fake.iter().zip(&want).map(|(g, w)| ((g - w) as f64).powi(2)).sum::<f64>() / got.len() as f64).sqrt();
        let rms3 = (fake.iter().zip(&got).map(|(g, w)| ((g - w) as f64).powi(2)).sum::<f64>() / got.len() as f64).sqrt();
        println!("    int8/{b}: against theirs {:.6} against ours f32 {:.6}", rms2 as f32/range, rms3 as f32/range);
        }
        println!("{name:20} range {range:8.2} worst/range {:.6} rms/range {:.6}", worst / range, rms as f32 / range);
    }
}
