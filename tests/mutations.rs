//! Ten thousand random mutations of a small model, each taken all the way to its logits. A mutant is an error, or a load
//! whose logits are those of the sound file, unless a mutated byte explains the difference: one of a tensor, of its record,
//! or of a hyper-parameter.

mod common;

use common::gguf_writer::{Rng, tiny_llama};
use common::limits::{Counting, MEGABYTE, Step, alone, attempt};
use common::scratch;
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::text::Tokenizer;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn cpu() -> Arc<Cpu> {
    static CPU: OnceLock<Arc<Cpu>> = OnceLock::new();
    CPU.get_or_init(|| Arc::new(Cpu::new(Isa::best(), 1).unwrap())).clone()
}

/// Everything in a file that may change its logits.
#[derive(PartialEq)]
struct Numbers {
    keys: Vec<(String, String)>,
    tensors: Vec<(String, u32, Vec<u64>, Vec<u8>)>,
}

/// The logits of a few tokens, and what they come from.
fn logits(path: &Path) -> anyhow::Result<(Vec<u32>, Numbers)> {
    let gguf = Gguf::open(path)?;
    let keys = gguf.meta().iter().filter(|(key, _)| key.starts_with("llama.") || *key == "general.architecture");
    let keys = keys.map(|(key, shown)| (key.to_string(), shown)).collect();
    let tensors =
        gguf.tensors().map(|t| (t.name.to_string(), t.ggml_type, t.dims.to_vec(), t.bytes.to_vec())).collect();
    let model = Model::load(cpu(), &gguf, &mut |_, _| {}).map_err(|e| e.context(path.display().to_string()))?;
    let mut state = model.state(64, 64, KvType::F16).map_err(|e| e.context(path.display().to_string()))?;
    let logits = model.forward(&mut state, Input::Chain(&[1, 5, 9, 200]), Rows::All)?;
    Ok((logits.into_iter().map(f32::to_bits).collect(), Numbers { keys, tensors }))
}

/// What the last step found, for the test to look at.
static FOUND: Mutex<Option<(Vec<u32>, Numbers)>> = Mutex::new(None);

const STEPS: &[(&str, Step)] = &[
    ("tokenizer", |path| {
        let gguf = Gguf::open(path)?;
        // A file whose vocabulary is broken may still have a sound model, and the other way round.
        if let Ok(tokenizer) = Tokenizer::from_gguf(gguf.meta()) {
            let ids = tokenizer.encode("the tests <|end|>", true)?;
            std::hint::black_box(tokenizer.decode(&ids));
        }
        Ok(())
    }),
    ("logits", |path| {
        let found = logits(path)?;
        *FOUND.lock().unwrap() = Some(found);
        Ok(())
    }),
];

/// A few random edits, most of them in the header.
fn mutate(rng: &mut Rng, good: &[u8], base: usize) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=rng.below(4) {
        let reach = if rng.below(5) > 0 { base } else { bytes.len() };
        let at = rng.below(reach.min(bytes.len()).max(1));
        let until = (at + 1 + rng.below(64)).min(bytes.len());
        match rng.below(7) {
            _ if bytes.is_empty() => {}
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next() as u8,
            2 => {
                let value = [0, 1, u64::MAX, 1 << 63, rng.next(), rng.next() >> 40][rng.below(6)].to_le_bytes();
                let n = value.len().min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&value[..n]);
            }
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..until)),
            5 => {
                let copy = bytes[at..until].to_vec();
                let to = rng.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => bytes.swap(at, until - 1),
        }
    }
    bytes
}

#[test]
fn ten_thousand_mutations() {
    let _turn = alone();
    let path = scratch("mutations").join("mutant.gguf");
    let (good, _, base) = tiny_llama(4, "Q4_0").layout();
    std::fs::write(&path, &good).unwrap();
    let (sound, sound_numbers) = logits(&path).unwrap();
    let (mut same, mut explained) = (0, 0);
    for seed in 0..10_000 {
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, mutate(&mut Rng(seed), &good, base)).unwrap();
        if attempt(STEPS, &path, 200 * MEGABYTE, &|| format!("mutation of seed {seed}")).is_err() {
            continue;
        }
        let (found, numbers) = FOUND.lock().unwrap().take().expect("the last step succeeded");
        if found == sound {
            same += 1;
        } else {
            assert!(numbers != sound_numbers, "mutation of seed {seed} changed logits for no reason");
            explained += 1;
        }
    }
    println!("{same} mutants gave the logits of the sound file, {explained} others by what was mutated");
    // A test in which nearly all files load, or nearly none, would show little.
    assert!((500..9000).contains(&same) && explained > 20, "{same} same, {explained} explained");
}
