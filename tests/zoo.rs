//! Every architecture and weight format against llama.cpp's logits.

mod common;

use common::{naive::Naive, zoo};
use foretoken::backend::{Backend, KvType, cpu::Cpu};
use foretoken::isa::Isa;
use foretoken::model::{ARCHS, Input, Model, Rows};
use foretoken::quant;
use std::sync::Arc;

/// Logits of the kept rows of all prompts.
fn run<B: Backend>(backend: &Arc<B>, name: &str) -> Vec<f32> {
    let model = Model::load(backend.clone(), &zoo::open(name), &mut |_, _| ());
    let model = model.unwrap_or_else(|e| panic!("{name}: {e:#}"));
    assert_eq!(model.warnings(), [""; 0], "{name}");
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

/// Largest and root mean square distance, in parts of the range of `want`.
fn distance(got: &[f32], want: &[f32]) -> (f64, f64) {
    assert_eq!(got.len(), want.len());
    let (low, high) = want.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v as f64), h.max(v as f64)));
    let each = || got.iter().zip(want).map(|(&g, &w)| (g as f64 - w as f64).abs() / (high - low));
    assert!(each().all(|d| d.is_finite()), "logits that are no numbers");
    (each().fold(0.0, f64::max), (each().map(|d| d * d).sum::<f64>() / got.len() as f64).sqrt())
}

/// Float files. llama.cpp keeps keys, values and attention weights in f16, which costs up to 0.8e-3 of the range, and
/// rounds the input of products to the weights' own type, which costs as much again per bit lost.
fn check_floats<B: Backend>(backend: &Arc<B>) {
    let f32s = zoo::ARCHITECTURES.iter().map(|&name| (name, 2e-3));
    for (name, most) in f32s.chain([("llama.F16", 4e-3), ("llama.BF16", 12e-3)]) {
        let (worst, rms) = distance(&run(backend, name), &zoo::logits(name));
        println!("{name:16} worst {worst:.5} rms {rms:.5}");
        assert!(worst < most, "{name}: {worst} of the logits' range, more than {most}");
    }
}

/// Integer formats. llama.cpp rounds the input of every product to 8-bit integers. What that costs is measured: the plain
/// backend does the same to its own. A backend that computes in f32 must be within that noise, one that rounds as well
/// (`own` is its block) within the two noises together. A quarter is added for chance.
fn check_formats<B: Backend>(backend: &Arc<B>, own: Option<usize>) {
    for &(name, theirs) in zoo::FORMATS.iter().filter(|(_, block)| block.is_some()) {
        let exact = run(&Arc::new(Naive::default()), name);
        let noise = |block| match block {
            None => 0.0,
            int8_block => distance(&run(&Arc::new(Naive { int8_block }), name), &exact).1,
        };
        let (ours, theirs) = (noise(own), noise(theirs));
        let got = run(backend, name);
        let (worst, rms) = distance(&got, &zoo::logits(name));
        println!("{name:16} worst {worst:.5} rms {rms:.5}; noise theirs {theirs:.5} ours {ours:.5}");
        let most = 1.25 * theirs.hypot(ours);
        assert!(rms < most, "{name}: rms {rms} of the logits' range, more than {most}");
        assert!(worst < 10.0 * most, "{name}: {worst} of the logits' range, more than {}", 10.0 * most);
        // Against the plain backend, llama.cpp's noise is out of the way.
        let (_, rms) = distance(&got, &exact);
        let most = 1.25 * ours + 1e-4;
        assert!(rms < most, "{name}: rms {rms} of the logits' range from the plain backend, more than {most}");
    }
}

#[test]
fn plain_backend_on_floats() {
    check_floats(&Arc::new(Naive::default()));
}

#[test]
fn plain_backend_on_formats() {
    check_formats(&Arc::new(Naive::default()), None);
}

#[test]
fn cpu_on_every_instruction_set() {
    for isa in Isa::available() {
        println!("{}", isa.name());
        let cpu = Arc::new(Cpu::new(isa, 2).unwrap());
        check_floats(&cpu);
        check_formats(&cpu, Some(32));
    }
}

#[test]
fn cpu_with_exact_activations() {
    let cpu = Arc::new(Cpu::new(Isa::best(), 2).unwrap().exact());
    check_floats(&cpu);
    check_formats(&cpu, None);
}

#[test]
fn every_architecture_and_format_is_in_the_zoo() {
    let mut seen: Vec<&str> = vec![];
    for name in zoo::ARCHITECTURES.iter().chain(zoo::FORMATS.iter().map(|(name, _)| name)) {
        let gguf = zoo::open(name);
        seen.push(ARCHS.iter().find(|a| name.starts_with(a.name)).unwrap().name);
        seen.extend(gguf.tensors().filter_map(|t| quant::format(t.ggml_type)).map(|f| f.name));
    }
    for name in ARCHS.iter().map(|a| a.name).chain(quant::FORMATS.iter().map(|f| f.name)) {
        assert!(seen.contains(&name), "{name}");
    }
}

#[test]
fn unsupported_formats_are_named() {
    for (name, format) in zoo::UNSUPPORTED {
        let result = Model::load(Arc::new(Naive::default()), &zoo::open(name), &mut |_, _| ());
        let message = format!("{:#}", result.err().expect("a format that is not supported"));
        for part in ["tensor token_embd.weight", format, "supported: F32", "Q4_K"] {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }
}
