//! Whole models: what the device says is what the CPU says.

use crate::common::{emulator, zoo};
use crate::{device, open};
use foretoken::backend::{Backend, KvType, cpu::Cpu};
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::tree::Token;
use std::sync::Arc;

/// Tokens that are generated.
const LONG: usize = 6;

/// The likeliest tokens after a prompt, and the logits they were taken from.
fn greedy<B: Backend>(model: &Model<B>, prompt: &[Token], kv: KvType) -> (Vec<Token>, Vec<Vec<f32>>) {
    let mut state = model.state(64, 64, kv).unwrap();
    let mut logits = model.forward(&mut state, Input::Chain(prompt), Rows::Last).unwrap();
    let (mut tokens, mut all) = (vec![], vec![]);
    for _ in 0..LONG {
        let (best, _) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).unwrap();
        tokens.push(best as Token);
        all.push(logits);
        logits = model.forward(&mut state, Input::Chain(&[best as Token]), Rows::Last).unwrap();
    }
    (tokens, all)
}

/// Largest difference of two rows of logits over the spread of one.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let top = a.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / top
}

fn same(name: &str, kv: KvType) {
    let device = device();
    let on_device = open(&device, name);
    let cpu = Arc::new(Cpu::new(Isa::Scalar, 1).unwrap());
    let on_cpu = Model::load(cpu, &zoo::open(name), &mut |_, _| ()).unwrap();
    let prompt = &zoo::prompts()[1];
    let prompt = &prompt[..prompt.len().min(20)];
    let (want, wanted) = greedy(&on_cpu, prompt, kv);
    let (got, logits) = greedy(&on_device, prompt, kv);
    let most = wanted.iter().zip(&logits).map(|(a, b)| apart(a, b)).fold(0.0, f32::max);
    assert_eq!(got, want, "{name} with {kv:?}: logits are {most} apart");
    // A value that lies between two of its rounded ones may go to either: of a cache's f16, or of int8 activations.
    let bound = if name.contains('.') { 3e-2 } else { 2e-3 };
    assert!(most < bound, "{name} with {kv:?}: logits are {most} apart");
    println!("{name} with {kv:?}: {LONG} tokens alike, logits at most {most:.1e} apart");
}

#[test]
fn every_architecture_gives_the_cpu_s_tokens() {
    if emulator::within("tokens::every_architecture_gives_the_cpu_s_tokens", &[]) {
        zoo::ARCHITECTURES.iter().for_each(|name| same(name, KvType::F16));
    }
}

#[test]
fn every_format_gives_the_cpu_s_tokens() {
    if emulator::within("tokens::every_format_gives_the_cpu_s_tokens", &[("EMULATED_ORDER", "reverse")]) {
        zoo::FORMATS.iter().for_each(|(name, _)| same(name, KvType::F16));
    }
}

#[test]
fn every_type_of_cache_gives_the_cpu_s_tokens() {
    if emulator::within("tokens::every_type_of_cache_gives_the_cpu_s_tokens", &[("EMULATED_ORDER", "7")]) {
        for name in ["llama", "gemma3"] {
            [KvType::F32, KvType::Q8_0].into_iter().for_each(|kv| same(name, kv));
        }
    }
}
