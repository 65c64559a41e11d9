//! Sidecars that do not fit, or are no good: each is refused with one line that names what is wrong, and nothing panics.
//! Then those that do, from outside: the same bytes with and without them, and from a prompt cache the same drafts.

mod common;

use common::cli;
use common::gguf_writer::{Tensor, VOCAB, Value, Writer};
use common::scratch;
use common::sidecars::{Medusa, Outputs, deep_tree, made_for};
use foretoken::gguf::Gguf;
use foretoken::tree::Token;
use std::path::{Path, PathBuf};

/// A change to a file.
type Change = Box<dyn Fn(Writer) -> Writer>;

fn target(test: &str) -> (PathBuf, Gguf) {
    let w = cli::tiny();
    (cli::save(&format!("target-{test}"), &w), Gguf::from_bytes(w.bytes()).unwrap())
}

/// Three heads with everything there can be.
fn full(outputs: Outputs) -> Medusa {
    let ids = Some((0..200).map(|i| (i * 3 % VOCAB) as Token).collect());
    Medusa {
        heads: 3,
        blocks: 2,
        outputs,
        ids,
        tree: Some(deep_tree()),
        accuracy: Some(vec![0.5; 6]),
        ..Medusa::default()
    }
}

fn line(model: &Path, draft: &str, more: &[&str]) -> Vec<String> {
    let text = format!("run -m {} -c 256 -n 24 -s 3 -q --raw --draft-max 9", model.display());
    let mut args: Vec<String> = text.split_whitespace().map(String::from).collect();
    args.extend(["-p", "in the other one of the"].map(String::from));
    args.extend(more.iter().map(|flag| flag.to_string()));
    if !draft.is_empty() {
        args.extend(["--draft".into(), draft.into()]);
    }
    args
}

fn set(key: &'static str, value: Value) -> Change {
    Box::new(move |w| w.set(key, value.clone()))
}

fn without(key: &'static str) -> Change {
    Box::new(move |w| w.without(key))
}

fn tensor(name: &str, change: impl Fn(&mut Tensor) + 'static) -> Change {
    let name = name.to_owned();
    Box::new(move |mut w| {
        change(w.tensor_mut(&name));
        w
    })
}

/// One row, or element of a vector, more or less.
fn resize(tensor: &mut Tensor, by: i64) {
    let last = tensor.dims.len() - 1;
    let unit = tensor.bytes.len() / tensor.dims[last] as usize;
    tensor.dims[last] = (tensor.dims[last] as i64 + by) as u64;
    tensor.bytes.resize(tensor.dims[last] as usize * unit, 0);
}

/// What is done to a file, and what the line about it must name.
fn misfits(w: &Writer) -> Vec<(String, Change, String)> {
    let number = Value::U32;
    let text = |text: &str| Value::Str(text.into());
    let mut table: Vec<(String, Change, String)> = vec![];
    let mut add = |what: &str, change: Change, needle: &str| table.push((what.into(), change, needle.into()));
    for key in ["architecture", "hidden_size", "vocab_size", "tokenizer", "vocab_hash"] {
        let key: &'static str = format!("spec.target.{key}").leak();
        add("no key", without(key), &format!("{key} is missing"));
    }
    for key in ["embedding_length", "head_count", "layer_count"] {
        let key: &'static str = format!("medusa.{key}").leak();
        add("no key", without(key), &format!("{key} is missing"));
        for (what, value) in
            [("zero", number(0)), ("huge", Value::U64(u64::MAX)), ("negative", Value::I32(-1)), ("text", text("x"))]
        {
            add(what, set(key, value), key);
        }
    }
    add(
        "another architecture",
        set("spec.target.architecture", text("qwen2")),
        "is \"qwen2\", the target's is \"llama\"",
    );
    add(
        "another width",
        set("spec.target.hidden_size", number(128)),
        "spec.target.hidden_size is 128, the target's is 64",
    );
    add("another vocabulary", set("spec.target.vocab_size", number(321)), "is 321, the target's is 320");
    add("another tokenizer", set("spec.target.tokenizer", text("llama")), "is \"llama\", the target's is \"gpt2\"");
    add(
        "other tokens",
        set("spec.target.vocab_hash", text("00ff")),
        "spec.target.vocab_hash is \"00ff\", the target's is",
    );
    add("another feature", set("spec.feature", text("residual_in")), "spec.feature is \"residual_in\"");
    add("no feature", without("spec.feature"), "spec.feature is missing");
    add(
        "another width",
        set("medusa.embedding_length", number(32)),
        "medusa.embedding_length is 32, the target's is 64",
    );
    add(
        "too many heads",
        set("medusa.head_count", number(5)),
        "medusa.head_count is 5, the file has tensors of 3 heads",
    );
    add(
        "too few heads",
        set("medusa.head_count", number(2)),
        "medusa.head_count is 2, the file has tensors of 3 heads",
    );
    add(
        "too many blocks",
        set("medusa.layer_count", number(3)),
        "tensor medusa.0.res.2.weight is missing, expected [64, 64]",
    );
    add("a flag that is none", set("medusa.shares_output", number(1)), "medusa.shares_output");
    add("no such architecture", set("general.architecture", text("hydra")), "\"hydra\", medusa is wanted");
    add(
        "another sidecar",
        set("general.architecture", text("eagle3")),
        "\"eagle3\", medusa is wanted: give it with --draft eagle:FILE",
    );
    add("no architecture", without("general.architecture"), "general.architecture is missing");
    for (what, tree) in
        [("not ended", vec![0]), ("empty", vec![]), ("orphaned", vec![0, 0, -1]), ("negative", vec![-7, -1])]
    {
        add(&format!("a tree that is {what}"), set("medusa.tree", Value::I32s(tree)), "medusa.tree");
    }
    add("a tree of text", set("medusa.tree", text("0")), "medusa.tree");
    add("accuracies to spare", set("medusa.accuracy", Value::F32s(vec![0.5; 7])), "medusa.accuracy has 7 shares");
    add("no accuracies", set("medusa.accuracy", Value::F32s(vec![])), "medusa.accuracy has 0 shares");
    add("no share", set("medusa.accuracy", Value::F32s(vec![0.5, f32::NAN, 0.1])), "medusa.accuracy[1] is NaN");
    let ids = |change: fn(&mut [[u8; 8]])| tensor("d2t", move |t| change(t.bytes.as_chunks_mut().0));
    add("an id twice", ids(|ids| ids[9] = ids[4]), "d2t: ids 4 and 9 are both 12");
    add("an id too large", ids(|ids| ids[9] = 320i64.to_le_bytes()), "d2t: id 9 is 320, the target has 320 tokens");
    add("an id below zero", ids(|ids| ids[9] = (-1i64).to_le_bytes()), "d2t: id 9 is -1");
    add("a huge id", ids(|ids| ids[9] = i64::MAX.to_le_bytes()), "d2t: id 9 is 9223372036854775807");
    add(
        "fewer ids than said",
        set("spec.draft_vocab_size", number(201)),
        "d2t has 200 ids, spec.draft_vocab_size is 201",
    );
    add("more ids than tokens", tensor("d2t", |t| resize(t, 200)), "d2t has shape [400]");
    add(
        "too large a draft vocabulary",
        set("spec.draft_vocab_size", number(999)),
        "spec.draft_vocab_size is 999, must lie in 1..=320",
    );
    add(
        "ids in floats",
        tensor("d2t", |t| (t.ty, t.bytes) = (0, vec![0; 800])),
        "d2t: format F32 is not supported here",
    );
    for t in &w.tensors {
        let name: &'static str = String::from_utf8(t.name.clone()).unwrap().leak();
        if !name.ends_with(".bias") {
            let gone: Change = Box::new(move |mut w| {
                w.tensors.retain(|t| t.name != name.as_bytes());
                w
            });
            add("missing", gone, &format!("tensor {name} is missing"));
        }
        for by in [-1, 1] {
            add("resized", tensor(name, move |t| resize(t, by)), name);
        }
        if name != "d2t" {
            add(
                "as bytes",
                tensor(name, |t| (t.ty, t.bytes) = (24, vec![0; t.bytes.len() / 4])),
                "format I8 is not supported",
            );
        }
    }
    table
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (model, gguf) = target("misfits");
    for outputs in [Outputs::Own, Outputs::Shared] {
        let good = || made_for(full(outputs).random(64, VOCAB, 5), &gguf);
        for (what, change, needle) in misfits(&good()) {
            let file = cli::save("misfit", &change(good()));
            let output = cli::run(&line(&model, &format!("medusa:{}", file.display()), &[]));
            cli::refused(&output, 1, &["--draft medusa:", &needle], &what);
            let text = cli::stderr(&output);
            println!(
                "{what}: {}",
                text.trim_end().rsplit_once("63: ").or(text.trim_end().rsplit_once(": ")).unwrap().1
            );
            // `inspect` shows it all the same.
            let shown = cli::run(&["inspect", file.to_str().unwrap()]);
            assert_eq!(shown.status.code(), Some(0), "{what}: {}", cli::stderr(&shown));
        }
    }
    // Reduced outputs cannot be the target's.
    let w = made_for(
        Medusa { ids: Some(vec![1, 2]), outputs: Outputs::Target, ..Medusa::default() }.random(64, VOCAB, 5),
        &gguf,
    );
    let file = cli::save("headless", &w);
    let output = cli::run(&line(&model, &format!("medusa:{}", file.display()), &[]));
    cli::refused(&output, 1, &["tensor output.weight is missing, expected [64, 2]"], "no output");
    // A static tree must be there.
    let w = made_for(Medusa::default().random(64, VOCAB, 5), &gguf);
    let file = cli::save("treeless", &w);
    let output = cli::run(&line(&model, &format!("medusa:{},tree=static", file.display()), &[]));
    cli::refused(&output, 1, &["medusa.tree is missing"], "no tree");
    // Files in each other's places.
    let output = cli::run(&line(&model, &format!("medusa:{}", model.display()), &[]));
    cli::refused(&output, 1, &["\"llama\", medusa is wanted: the file is a model"], "a model as a sidecar");
    let output = cli::run(&line(&file, "", &[]));
    cli::refused(
        &output,
        1,
        &["\"medusa\" is not supported as a model", "--draft medusa:FILE"],
        "a sidecar as a model",
    );
    let output = cli::run(&line(&model, "medusa:nowhere.gguf", &[]));
    cli::refused(&output, 1, &["--draft medusa:nowhere.gguf", "cannot open"], "no file");
    let bytes = std::fs::read(&file).unwrap();
    for n in (0..bytes.len()).step_by(bytes.len() / 40) {
        let cut = scratch("sidecars-cut").join("cut.gguf");
        std::fs::write(&cut, &bytes[..n]).unwrap();
        let output = cli::run(&line(&model, &format!("medusa:{}", cut.display()), &[]));
        cli::refused(&output, 1, &["--draft medusa:", "cut.gguf"], "cut");
    }
}

#[test]
fn text_is_the_same_with_heads_and_from_a_cache() {
    let (model, gguf) = target("fits");
    let cache = scratch("sidecars-cache").join("cache");
    for outputs in [Outputs::Own, Outputs::Shared, Outputs::Target] {
        let ids = full(outputs).ids.filter(|_| outputs != Outputs::Target);
        let medusa = Medusa { ids, ..full(outputs) };
        let file = cli::save(&format!("fits-{outputs:?}"), &made_for(medusa.random(64, VOCAB, 6), &gguf));
        for tree in ["auto", "static", "chain"] {
            for sampling in [&["--temp", "0"][..], &["--temp", "1.2"], &["--repeat-penalty", "1.4", "--temp", "0.7"]] {
                let draft = format!("medusa:{},tree={tree}", file.display());
                let plain = cli::answer(&line(&model, "", sampling));
                let stats = [sampling, &["--stats", "json"]].concat();
                let cached = [&stats[..], &["--prompt-cache", cache.to_str().unwrap()]].concat();
                let _ = std::fs::remove_file(&cache);
                let runs = [&stats, &cached, &cached].map(|flags| cli::run(&line(&model, &draft, flags)));
                for output in &runs {
                    assert_eq!(String::from_utf8_lossy(&output.stdout), plain, "{draft}: {}", cli::stderr(output));
                }
                let [first, second, third] = runs.map(|output| cli::stats(&output));
                assert!(first["draft"]["drafted"].as_u64().unwrap() > 40, "{draft}");
                for got in [&second, &third] {
                    for key in ["drafted", "accepted", "rejected", "tokens_per_round", "by_depth"] {
                        assert_eq!(got["draft"][key], first["draft"][key], "{draft}: {key}");
                    }
                }
                assert!(third["reused_tokens"].as_u64().unwrap() > 0);
            }
        }
    }
}

#[test]
fn inspect_explains_them() {
    let (_, gguf) = target("inspect");
    let w = made_for(full(Outputs::Own).random(64, VOCAB, 5), &gguf)
        .key("spec.training.data", Value::Str("all of it".into()))
        .key("spec.training.tokens", Value::U64(12_000_000))
        .key("spec.training.loss", Value::F32(1.25))
        .key("spec.training.accuracy", Value::F32s(vec![0.6, 0.5, 0.25]));
    let out = cli::answer(&["inspect", cli::save("inspected", &w).to_str().unwrap()]);
    let sidecar = "sidecar     medusa: drafts for a model with --draft medusa:FILE\n";
    let target = "target      llama: width 64, vocabulary 320 (gpt2, hash ";
    let heads = "heads       3 of 2 residual blocks, an output each, over 200 of 320 tokens\n";
    let tree = "tree        12 nodes, 5 levels: [0] [0, 0] [1] [0, 2] [0, 0, 0] [0, 0, 0, 0] [3] [3, 1] ..\n";
    let accuracy = "accuracy    of each head's best guess: 0.500 0.500 0.500\n";
    let training = "training    on \"all of it\", 12000000 tokens, loss 1.2500, held-out accuracy 0.600 0.500 0.250\n";
    for part in [sidecar, target, heads, tree, accuracy, training, "ids of the target", "medusa.2.res.1.weight"] {
        assert!(out.contains(part), "no {part:?} in {out}");
    }
    assert!(!out.contains("not supported") && !out.contains("runs  "), "{out}");
    let broken = cli::save("inspected-broken", &w.set("medusa.head_count", Value::U32(9)));
    let out = cli::answer(&["inspect", broken.to_str().unwrap()]);
    assert!(out.contains("runs        no: medusa.head_count is 9"), "{out}");
}

/// What a pass of heads costs beside a pass of the target. Run in release on a quiet machine: `cargo test --release --test
/// sidecars -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_heads() {
    let Some(model) = common::models::find("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let gguf = Gguf::open(&model).unwrap();
    for heads in [3, 4] {
        let ids = Some((0..8192).map(|i| i * 5).collect());
        let medusa = Medusa { heads, outputs: Outputs::Shared, ids, encoding: "Q4_0", ..Medusa::default() };
        let file = cli::save("cost", &made_for(medusa.random(576, 49_152, 5), &gguf));
        let bytes = std::fs::metadata(&file).unwrap().len() as f64;
        let seconds = |draft: &[&str]| {
            let more = ["-n", "200", "--temp", "0", "--stats", "json"];
            let mut args =
                vec!["run", "-m", model.to_str().unwrap(), "--raw", "-q", "-p", "Once upon a time there was"];
            args.extend(more.iter().chain(draft));
            let output = cli::run(&args);
            assert_eq!(output.status.code(), Some(0), "{}", cli::stderr(&output));
            cli::stats(&output)
        };
        let plain = seconds(&[]);
        let step = plain["decode_s"].as_f64().unwrap() / plain["rounds"].as_f64().unwrap();
        for tree in ["chain", "auto"] {
            let draft = format!("medusa:{},tree={tree}", file.display());
            let got = seconds(&["--draft", &draft, "--draft-max", "63"]);
            let pass = got["draft"]["draft_s"].as_f64().unwrap() / got["rounds"].as_f64().unwrap();
            println!(
                "{heads} heads of {:.1} MB, {tree}: {:.2} ms of a step of {:.1} ms: {:.1} %",
                bytes / 1e6,
                1e3 * pass,
                1e3 * step,
                100.0 * pass / step
            );
        }
    }
}
