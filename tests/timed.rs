//! The timed backend gives the bits of the one within, and what it tells adds up to what the model is made of.

mod common;

use common::zoo;
use foretoken::backend::cpu::Cpu;
use foretoken::backend::timed::{Spent, Timed, Work};
use foretoken::backend::{Backend, KvType};
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows, State};
use foretoken::tree::{DraftTree, Token};
use std::sync::Arc;
use std::time::Instant;

/// Every kind of block, and an integer format with a bias nowhere and one where products are fused.
const NAMES: &[&str] =
    &["llama", "llama-tied", "llama-gqa7", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "llama.Q4_0", "llama.Q6_K"];

const CONTEXT: usize = 40;
const ROWS: usize = 8;

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap()
}

fn load<B: Backend>(backend: B, name: &str) -> Model<B> {
    Model::load(Arc::new(backend), &zoo::open(name), &mut |_, _| ()).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

fn tree() -> DraftTree {
    let mut tree = DraftTree::new(3, ROWS);
    for i in 1..ROWS {
        tree.push((i - 1) / 2 * 2, i as Token, 0.0);
    }
    tree
}

fn start<B: Backend>(model: &Model<B>) -> (State<B>, Vec<f32>) {
    let mut state = model.state(100, 64, KvType::F16).unwrap();
    let tokens: Vec<Token> = (0..CONTEXT as Token).map(|i| i * 7 % 300).collect();
    let logits = model.forward(&mut state, Input::Chain(&tokens), Rows::All).unwrap();
    (state, logits)
}

/// All bits of a context, a tree on it, and the cache once a path of it is committed.
fn bits<B: Backend>(model: &Model<B>) -> (Vec<u32>, Vec<u8>) {
    let (mut state, mut logits) = start(model);
    let tree = tree();
    logits.extend(model.forward(&mut state, Input::Tree(&tree), Rows::All).unwrap());
    let path = tree.path(ROWS - 1);
    assert!(path.iter().enumerate().any(|(i, &node)| node != i), "something is to be moved");
    state.commit(&path).unwrap();
    logits.extend(model.forward(&mut state, Input::Chain(&[5]), Rows::Last).unwrap());
    let bytes = state.kv_bytes(0..state.len()).unwrap();
    (logits.into_iter().map(f32::to_bits).collect(), bytes)
}

#[test]
fn bits_are_those_of_the_backend_within() {
    for name in NAMES {
        let [bare, timed] = [bits(&load(cpu(), name)), bits(&load(Timed::new(cpu(), false), name))];
        assert!(bare == timed, "{name}");
        let [bare, timed] = [bits(&load(cpu().exact(), name)), bits(&load(Timed::new(cpu().exact(), true), name))];
        assert!(bare == timed, "{name}, widened");
    }
}

/// What a pass over the tree spends.
fn pass(model: &Model<Timed<Cpu>>, name: &str) -> Vec<Spent> {
    let (mut state, _) = start(model);
    model.backend().take();
    let started = Instant::now();
    model.forward(&mut state, Input::Tree(&tree()), Rows::All).unwrap();
    let whole = started.elapsed();
    let spent = model.backend().take();
    let ops: std::time::Duration = spent.iter().map(|spent| spent.time).sum();
    assert!(ops <= whole && !ops.is_zero(), "{name}: ops take {ops:?} of {whole:?}");
    assert!(model.backend().take().is_empty(), "{name}: what was taken is gone");
    spent
}

fn sum<'a>(spent: impl IntoIterator<Item = &'a Spent>) -> Work {
    spent.into_iter().fold(Work::default(), |mut all, spent| {
        all += spent.work;
        all
    })
}

#[test]
fn work_adds_up_to_the_weights() {
    for name in NAMES {
        for widened in [false, true] {
            let inner = if widened { cpu().exact() } else { cpu() };
            let model = load(Timed::new(inner, widened), name);
            let spent = pass(&model, name);
            let of = |op: &str| sum(spent.iter().filter(|spent| spent.op == op));
            let (layers, head) = (model.layer_matrices(), model.head_matrices());
            let (int8, float) = (layers.int8 + head.int8, layers.float + head.float);
            let bytes = layers.int8_bytes + layers.float_bytes + head.int8_bytes + head.float_bytes;
            let rows = ROWS as u64;
            let linear = of("linear");
            if widened {
                assert_eq!((linear.int8, linear.float), (0, 2 * rows * (int8 + float)), "{name}");
            } else {
                assert_eq!((linear.int8, linear.float), (2 * rows * int8, 2 * rows * float), "{name}");
                // Every weight once: products read matrices and biases, norms the rest.
                assert_eq!(linear.bytes + of("rms_norm").bytes, model.weight_bytes(), "{name}");
                let biases = linear.bytes - bytes;
                assert_eq!(biases > 0, *name == "qwen2", "{name}: {biases} bytes of biases");
            }
            let c = model.config();
            let seen: usize = (0..c.layers)
                .map(|layer| {
                    let window = c.attention(layer).window.unwrap_or(usize::MAX);
                    CONTEXT + ROWS - (CONTEXT + 1).saturating_sub(window)
                })
                .sum();
            assert_eq!(of("attend").bytes, (4 * seen * c.kv_heads * c.head_width) as u64, "{name}");
        }
    }
}

#[test]
fn ops_are_told_apart_in_the_order_of_the_pass() {
    let ends = ["rms_norm output_norm 1", "gather 1", "linear output 1", "read 1"];
    let llama = [
        "embed 1",
        "rms_norm attn_norm L",
        "linear attn_q attn_k attn_v L",
        "rope 2L",
        "store L",
        "attend L",
        "linear attn_output L",
        "add 2L",
        "rms_norm ffn_norm L",
        "linear ffn_gate ffn_up L",
        "glu L",
        "linear ffn_down L",
    ];
    let replaced = |old: &str, new: &[&'static str]| -> Vec<&'static str> {
        let parts = llama.iter().flat_map(|&op| if op == old { new.to_vec() } else { vec![op] });
        parts.chain(ends).collect()
    };
    for (name, want) in [
        ("llama", replaced("", &[])),
        ("qwen2", replaced("", &[])),
        ("qwen3", replaced("rope 2L", &["rms_norm attn_q_norm L", "rms_norm attn_k_norm L", "rope 2L"])),
    ] {
        let model = load(Timed::new(cpu(), false), name);
        let layers = model.config().layers as u64;
        let found: Vec<String> = pass(&model, name)
            .iter()
            .map(|spent| match spent.calls {
                calls if calls == layers => format!("{} L", spent.name()),
                calls if calls == 2 * layers => format!("{} 2L", spent.name()),
                calls => format!("{} {calls}", spent.name()),
            })
            .collect();
        // A tied head goes by the name of the embedding.
        let found: Vec<String> = found.iter().map(|op| op.replace("token_embd", "output")).collect();
        assert_eq!(found, want, "{name}");
    }
    for (name, op) in [
        ("phi3", "linear attn_qkv"),
        ("phi3", "split"),
        ("gemma2", "softcap"),
        ("gemma3", "rms_norm post_ffw_norm"),
        ("llama-tied", "linear token_embd"),
    ] {
        let spent = pass(&load(Timed::new(cpu(), false), name), name);
        assert!(spent.iter().any(|spent| spent.name() == op), "{name}: no {op}");
    }
}
