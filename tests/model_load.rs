//! What `Model::load` makes of files whose metadata and tensors do not fit each other or ask for what is not there.

mod common;

use common::gguf_writer::{Tensor, Value, Writer, tiny_llama};
use common::naive::Naive;
use foretoken::backend::{Attention, KvType, Pairing};
use foretoken::gguf::Gguf;
use foretoken::model::{Input, Model, Rows};
use std::sync::Arc;

fn load(w: &Writer) -> anyhow::Result<Model<Naive>> {
    Model::load(Arc::new(Naive::default()), &Gguf::from_bytes(w.bytes())?, &mut |_, _| ())
}

fn tiny() -> Writer {
    tiny_llama(1, "F32")
}

fn zeros(name: &str, dims: &[u64]) -> Tensor {
    Tensor::new(name, dims, 0, vec![0; dims.iter().product::<u64>() as usize * 4])
}

/// Replaces a tensor by zeros of another shape.
fn reshaped(mut w: Writer, name: &str, dims: &[u64]) -> Writer {
    *w.tensor_mut(name) = zeros(name, dims);
    w
}

fn without(mut w: Writer, name: &str) -> Writer {
    w.tensors.retain(|t| t.name != name.as_bytes());
    w
}

/// The same model under another architecture's name and keys.
fn renamed(mut w: Writer, arch: &str) -> Writer {
    for (key, _) in &mut w.keys {
        if let Some(rest) = key.strip_prefix(b"llama.") {
            *key = [arch.as_bytes(), b".", rest].concat();
        }
    }
    w.set("general.architecture", Value::Str(arch.into()))
}

/// What is wrong with a file, the file, and what the message must say.
type Fault = (&'static str, Change, &'static [&'static str]);

type Change = fn(Writer) -> Writer;

const FAULTS: &[Fault] = &[
    ("no architecture", |w| w.without("general.architecture"), &["general.architecture", "missing", "qwen3"]),
    ("another architecture", |w| renamed(w, "mamba"), &["general.architecture", "mamba", "llama qwen2 qwen3"]),
    ("no tensors", |w| Writer { tensors: vec![], ..w }, &["vocabulary-only"]),
    ("experts", |w| w.key("llama.expert_count", Value::U32(8)), &["llama.expert_count", "8", "experts"]),
    ("not causal", |w| w.key("llama.attention.causal", Value::Bool(false)), &["llama.attention.causal"]),
    ("no layers", |w| w.set("llama.block_count", Value::U32(0)), &["llama.block_count", "0", "1..=512"]),
    ("513 layers", |w| w.set("llama.block_count", Value::U32(513)), &["llama.block_count", "513", "1..=512"]),
    ("2^31 layers", |w| w.set("llama.block_count", Value::U32(1 << 31)), &["llama.block_count", "2147483648"]),
    ("2^64 - 1 layers", |w| w.set("llama.block_count", Value::U64(u64::MAX)), &["llama.block_count"]),
    ("a negative count", |w| w.set("llama.block_count", Value::I32(-1)), &["llama.block_count", "-1"]),
    ("a count that is text", |w| w.set("llama.block_count", Value::Str("2".into())), &["llama.block_count", "string"]),
    ("more layers than tensors", |w| w.set("llama.block_count", Value::U32(3)), &["blk.2.", "missing"]),
    ("no heads", |w| w.set("llama.attention.head_count", Value::U32(0)), &["llama.attention.head_count is 0"]),
    ("no KV heads", |w| w.set("llama.attention.head_count_kv", Value::U32(0)), &["llama.attention.head_count_kv is 0"]),
    (
        "KV heads that do not divide heads",
        |w| w.set("llama.attention.head_count_kv", Value::U32(3)),
        &["llama.attention.head_count is 4", "llama.attention.head_count_kv 3"],
    ),
    (
        "heads that do not divide the width",
        |w| {
            w.set("llama.attention.head_count", Value::U32(3))
                .set("llama.attention.head_count_kv", Value::U32(3))
                .without("llama.attention.key_length")
                .without("llama.attention.value_length")
        },
        &["llama.embedding_length is 64", "llama.attention.head_count 3"],
    ),
    (
        "layers that differ",
        |w| w.set("llama.attention.head_count_kv", Value::I32s(vec![2, 1])),
        &["llama.attention.head_count_kv differs between layers"],
    ),
    (
        "an empty array",
        |w| w.set("llama.feed_forward_length", Value::I32s(vec![])),
        &["llama.feed_forward_length", "empty"],
    ),
    ("a negative array", |w| w.set("llama.feed_forward_length", Value::I32s(vec![-1])), &["llama.feed_forward_length"]),
    ("no width", |w| w.without("llama.embedding_length"), &["llama.embedding_length is missing"]),
    ("no context", |w| w.set("llama.context_length", Value::U32(0)), &["llama.context_length is 0"]),
    (
        "values of another width",
        |w| w.set("llama.attention.value_length", Value::U32(32)),
        &["llama.attention.key_length 16", "llama.attention.value_length 32"],
    ),
    (
        "no epsilon",
        |w| w.without("llama.attention.layer_norm_rms_epsilon"),
        &["llama.attention.layer_norm_rms_epsilon is missing"],
    ),
    (
        "an epsilon that is no number",
        |w| w.set("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
        &["llama.attention.layer_norm_rms_epsilon is NaN"],
    ),
    ("a base of 0", |w| w.set("llama.rope.freq_base", Value::F32(0.0)), &["llama.rope.freq_base is 0"]),
    ("a base of 1", |w| w.set("llama.rope.freq_base", Value::F32(1.0)), &["llama.rope.freq_base is 1"]),
    (
        "an infinite base",
        |w| w.set("llama.rope.freq_base", Value::F32(f32::INFINITY)),
        &["llama.rope.freq_base is inf"],
    ),
    ("odd rotation", |w| w.set("llama.rope.dimension_count", Value::U32(15)), &["llama.rope.dimension_count is 15"]),
    (
        "wide rotation",
        |w| w.set("llama.rope.dimension_count", Value::U32(18)),
        &["llama.rope.dimension_count is 18", "16"],
    ),
    (
        "unknown scaling",
        |w| w.key("llama.rope.scaling.type", Value::Str("ntk".into())),
        &["llama.rope.scaling.type", "ntk", "none linear yarn longrope"],
    ),
    (
        "longrope without factors",
        |w| w.key("llama.rope.scaling.type", Value::Str("longrope".into())),
        &["rope_factors_long.weight is missing"],
    ),
    (
        "negative scaling",
        |w| w.key("llama.rope.scaling.factor", Value::F32(-2.0)),
        &["llama.rope.scaling.factor is -2"],
    ),
    (
        "half of the longrope factors",
        |mut w| {
            w.tensors.push(Tensor::new("rope_factors_long.weight", &[8], 0, 1f32.to_le_bytes().repeat(8)));
            w
        },
        &["rope_factors_long.weight", "rope_factors_short.weight", "missing"],
    ),
    (
        "frequency factors of zero",
        |mut w| {
            w.tensors.push(zeros("rope_freqs.weight", &[8]));
            w
        },
        &["rope_freqs.weight", "above zero"],
    ),
    (
        "no size of the vocabulary",
        |w| w.without("tokenizer.ggml.tokens").without("llama.vocab_size"),
        &["llama.vocab_size is missing"],
    ),
    (
        "an embedding of other height than the vocabulary",
        |w| reshaped(w, "token_embd.weight", &[64, 319]),
        &["token_embd.weight", "[64, 319]", "[64, 320]"],
    ),
    (
        "a transposed matrix",
        |w| reshaped(w, "blk.1.attn_k.weight", &[32, 64]),
        &["blk.1.attn_k.weight", "[32, 64]", "[64, 32]"],
    ),
    (
        "a third dimension",
        |w| reshaped(w, "blk.1.attn_k.weight", &[64, 32, 2]),
        &["blk.1.attn_k.weight", "[64, 32, 2]", "[64, 32]"],
    ),
    ("a short norm", |w| reshaped(w, "output_norm.weight", &[32]), &["output_norm.weight", "[32]", "[64]"]),
    (
        "a quantised norm",
        |mut w| {
            *w.tensor_mut("blk.0.ffn_norm.weight") = Tensor::new("blk.0.ffn_norm.weight", &[64], 8, vec![0; 68]);
            w
        },
        &["blk.0.ffn_norm.weight", "Q8_0", "F32 F16 BF16"],
    ),
    (
        "an integer matrix",
        |mut w| {
            *w.tensor_mut("blk.0.attn_q.weight") = Tensor::new("blk.0.attn_q.weight", &[64, 64], 24, vec![0; 4096]);
            w
        },
        &["blk.0.attn_q.weight", "I8", "supported: F32"],
    ),
    ("a missing tensor", |w| without(w, "blk.1.ffn_down.weight"), &["blk.1.ffn_down.weight", "missing", "[128, 64]"]),
    ("a missing gate", |w| without(w, "blk.0.ffn_gate.weight"), &["blk.0.ffn_gate.weight", "missing"]),
    ("a missing norm", |w| without(w, "output_norm.weight"), &["output_norm.weight", "missing"]),
    (
        "a bias in one layer only",
        |mut w| {
            w.tensors.push(zeros("blk.1.attn_q.bias", &[64]));
            w
        },
        &["blk.0.attn_q.bias", "missing"],
    ),
    ("qwen2 without biases", |w| renamed(w, "qwen2"), &["blk.0.attn_q.bias", "missing"]),
    ("qwen3 without q/k norms", |w| renamed(w, "qwen3"), &["blk.0.attn_q_norm.weight", "missing"]),
    ("gemma2 without post norms", |w| renamed(w, "gemma2"), &["blk.0.post_attention_norm.weight", "missing"]),
];

#[test]
fn faults_are_errors_that_name_them() {
    load(&tiny()).expect("the file as it was");
    for (what, spoil, parts) in FAULTS {
        let message = format!("{:#}", load(&spoil(tiny())).err().unwrap_or_else(|| panic!("{what} loads")));
        assert!(!message.contains('\n'), "{what}: {message:?}");
        for part in *parts {
            assert!(message.contains(part), "{what}: {message:?} does not say {part:?}");
        }
    }
}

fn logits(model: &Model<Naive>) -> Vec<f32> {
    let mut state = model.state(64, 64, KvType::F16).unwrap();
    model.forward(&mut state, Input::Chain(&[1, 2, 3, 4]), Rows::All).unwrap()
}

#[test]
fn harmless_oddities_change_nothing() {
    let plain = logits(&load(&tiny()).unwrap());
    let table: &[(&str, Change)] = &[
        ("one value per layer", |w| {
            w.set("llama.attention.head_count_kv", Value::I32s(vec![2, 2]))
                .set("llama.feed_forward_length", Value::I32s(vec![128, 128]))
        }),
        ("head width left to D/H", |w| {
            w.without("llama.attention.key_length")
                .without("llama.attention.value_length")
                .without("llama.rope.dimension_count")
        }),
        ("no scaling", |w| w.key("llama.rope.scaling.type", Value::Str("none".into()))),
        ("a base left to its default", |w| w.without("llama.rope.freq_base")),
        ("a trailing dimension of 1", |mut w| {
            w.tensor_mut("blk.0.attn_q.weight").dims.push(1);
            w
        }),
    ];
    for (what, change) in table {
        let model = load(&change(tiny())).unwrap_or_else(|e| panic!("{what}: {e:#}"));
        assert_eq!(logits(&model), plain, "{what}");
        assert_eq!(model.warnings(), [""; 0], "{what}");
    }
    let legacy = load(&tiny().key("llama.rope.scale_linear", Value::F32(4.0))).unwrap();
    let linear = tiny().key("llama.rope.scaling.type", Value::Str("linear".into()));
    let linear = load(&linear.key("llama.rope.scaling.factor", Value::F32(4.0))).unwrap();
    assert_eq!(logits(&legacy), logits(&linear));
    assert_ne!(logits(&legacy), plain);
}

#[test]
fn unknown_tensors_are_one_warning() {
    let mut w = tiny();
    w.tensors.push(zeros("blk.0.mystery.weight", &[4]));
    w.tensors.push(zeros("blk.1.mystery.weight", &[4]));
    let model = load(&w).unwrap();
    assert_eq!(model.warnings(), ["tensor blk.0.mystery.weight and 1 more are not used by llama"]);
}

#[test]
fn head_width_of_the_file_wins() {
    // Twice the share of a head: q is [128, 64], and so on.
    let mut w = tiny()
        .set("llama.attention.key_length", Value::U32(32))
        .set("llama.attention.value_length", Value::U32(32))
        .set("llama.rope.dimension_count", Value::U32(32));
    for layer in 0..2 {
        for (part, dims) in [("q", [64, 128]), ("k", [64, 64]), ("v", [64, 64]), ("output", [128, 64])] {
            w = reshaped(w, &format!("blk.{layer}.attn_{part}.weight"), &dims);
        }
    }
    let model = load(&w).unwrap();
    assert_eq!(model.config().head_width, 32);
    assert_eq!(logits(&model).len(), 4 * 320);
}

#[test]
fn tied_heads_read_the_embedding_and_report_progress() {
    let untied = tiny();
    let tied = without(tiny(), "output.weight");
    let mut copied = tiny();
    copied.tensor_mut("output.weight").bytes = untied.clone().tensor_mut("token_embd.weight").bytes.clone();
    let (tied, copied) = (load(&tied).unwrap(), load(&copied).unwrap());
    assert_eq!(logits(&tied), logits(&copied));
    assert_eq!(tied.weight_bytes(), copied.weight_bytes());

    let gguf = Gguf::from_bytes(untied.bytes()).unwrap();
    let mut calls = vec![];
    Model::load(Arc::new(Naive::default()), &gguf, &mut |done, total| calls.push((done, total))).unwrap();
    let total: u64 = gguf.tensors().map(|t| t.bytes.len() as u64).sum();
    assert!(calls.windows(2).all(|w| w[0].0 <= w[1].0) && calls.iter().all(|c| c.0 <= total && c.1 == total));
    assert_eq!(calls[calls.len() - 2], (total, total), "all tensors are accounted for");
}

/// Largest sizes of two families scale scores by the share of a head, not by its width.
#[test]
fn attention_follows_its_row() {
    let metadata = |arch: &str, layers: u32| {
        renamed(tiny(), arch)
            .set(&format!("{arch}.block_count"), Value::U32(layers))
            .set(&format!("{arch}.embedding_length"), Value::U32(4608))
            .set(&format!("{arch}.attention.head_count"), Value::U32(32))
            .set(&format!("{arch}.attention.key_length"), Value::U32(128))
            .set(&format!("{arch}.attention.value_length"), Value::U32(128))
            .set(&format!("{arch}.rope.dimension_count"), Value::U32(128))
    };
    let config = |w: Writer| foretoken::model::Config::read(&Gguf::from_bytes(w.bytes()).unwrap()).unwrap();
    let scale = |w: f64| w.sqrt().recip() as f32;
    for (arch, layers, want) in
        [("gemma2", 46, 144.0), ("gemma2", 42, 128.0), ("gemma3", 62, 144.0), ("gemma3", 26, 128.0)]
    {
        assert_eq!(config(metadata(arch, layers)).attention_scale, scale(want), "{arch} of {layers} layers");
    }

    let gemma2 = config(metadata("gemma2", 26));
    assert_eq!((gemma2.attention_softcap, gemma2.final_softcap, gemma2.window), (Some(50.0), Some(30.0), Some(4096)));
    let windows = |c: &foretoken::model::Config| -> Vec<Option<usize>> {
        (0..7).map(|i| c.attention(i)).map(|Attention { window, .. }| window).collect()
    };
    let w = Some(4096);
    assert_eq!(windows(&gemma2), [w, None, w, None, w, None, w]);
    assert_eq!(gemma2.embedding_scale, 4608f32.sqrt());
    let off = metadata("gemma2", 26).key("gemma2.attn_logit_softcapping", Value::F32(0.0));
    assert_eq!(config(off).attention_softcap, None);

    let w = Some(512);
    let gemma3 = config(metadata("gemma3", 26).key("gemma3.attention.sliding_window", Value::U32(512)));
    assert_eq!(windows(&gemma3), [w, w, w, w, w, None, w]);
    assert_eq!((gemma3.attention_softcap, gemma3.turning.local_base), (None, Some(10_000.0)));
    let own = metadata("gemma3", 26).key("gemma3.rope.freq_base_swa", Value::F32(5000.0));
    assert_eq!(config(own).turning.local_base, Some(5000.0));
    assert_eq!(windows(&config(metadata("gemma3", 26))), [None; 7], "no window in the file: all layers see everything");

    let w = Some(2047);
    let phi3 = config(metadata("phi3", 2).key("phi3.attention.sliding_window", Value::U32(2047)));
    assert_eq!((windows(&phi3), phi3.turning.pairing), (vec![w; 7], Pairing::Halves));
    let qwen2 = config(metadata("qwen2", 2).key("qwen2.attention.sliding_window", Value::U32(2047)));
    assert_eq!(windows(&qwen2), [None; 7]);
}
