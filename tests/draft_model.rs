//! A draft model that does not fit its target is refused with the first difference named; one that fits is taken, padding
//! and all. What is refused is never silently left out.

mod common;

use common::cli;
use common::gguf_writer::{VOCAB, Value, Writer, tiny_llama};
use std::path::{Path, PathBuf};

/// A change to a model.
type Change = fn(Writer) -> Writer;

fn tokens(mut w: Writer, change: impl Fn(&mut Vec<String>, &mut Vec<i32>)) -> Writer {
    let (mut texts, mut types) = (vec![], vec![]);
    for (key, value) in &w.keys {
        match value {
            Value::Strs(all) if key == b"tokenizer.ggml.tokens" => texts.clone_from(all),
            Value::I32s(all) if key == b"tokenizer.ggml.token_type" => types.clone_from(all),
            _ => {}
        }
    }
    change(&mut texts, &mut types);
    w = w.set("tokenizer.ggml.tokens", Value::Strs(texts));
    w.set("tokenizer.ggml.token_type", Value::I32s(types))
}

/// More or fewer tokens at the end, and rows of the embedding and the head to match.
fn resized(w: Writer, vocab: usize) -> Writer {
    let mut w = tokens(w, |texts, types| {
        texts.resize_with(vocab, || unreachable!("named below"));
        types.resize(vocab, 5);
    });
    for name in ["token_embd.weight", "output.weight"] {
        let tensor = w.tensor_mut(name);
        let row = tensor.bytes.len() / tensor.dims[1] as usize;
        tensor.bytes.resize(vocab * row, 0);
        tensor.dims[1] = vocab as u64;
    }
    w.set("llama.vocab_size", Value::U32(vocab as u32))
}

/// With `more` unused tokens at the end.
fn padded(w: Writer, more: usize) -> Writer {
    let w = tokens(w, |texts, types| {
        texts.extend((0..more).map(|i| format!("[PAD{i}]")));
        types.resize(VOCAB + more, 5);
    });
    resized(w, VOCAB + more)
}

fn line(model: &Path, draft: &str) -> Vec<String> {
    let line = format!("run -m {} -c 64 -n 12 -s 3 -q --raw --draft-max 4", model.display());
    let mut args: Vec<String> = line.split_whitespace().map(String::from).collect();
    args.extend(["-p".into(), "in the".into()]);
    if !draft.is_empty() {
        args.extend(["--draft".into(), draft.into()]);
    }
    args
}

#[test]
fn what_fits_is_taken_and_changes_nothing() {
    let table: [(&str, Change); 4] = [
        ("other weights", |_| tiny_llama(8, "F32")),
        ("padding", |w| padded(w, 70)),
        ("a short context", |w| w.set("llama.context_length", Value::U32(16))),
        ("no BOS", |w| w.set("tokenizer.ggml.add_bos_token", Value::Bool(false))),
    ];
    let target = cli::save("target", &cli::tiny());
    let plain = cli::answer(&line(&target, ""));
    let large = cli::save("large-target", &padded(cli::tiny(), 70));
    for (name, change) in table {
        let draft = cli::save("draft", &change(cli::tiny()));
        let args =
            [line(&target, &format!("model:{}", draft.display())), ["--stats", "json"].map(String::from).to_vec()];
        let output = cli::run(&args.concat());
        assert_eq!(output.status.code(), Some(0), "{name}: {}", cli::stderr(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), plain, "{name}");
        assert!(cli::stats(&output)["draft"]["drafted"].as_u64().unwrap() > 0, "{name}: it did guess");
    }
    // A draft model of fewer tokens than the target has.
    let draft = cli::save("small-draft", &cli::tiny());
    let plain = cli::answer(&line(&large, ""));
    assert_eq!(cli::answer(&line(&large, &format!("model:{}", draft.display()))), plain);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let table: [(&str, Change, &str); 7] = [
        (
            "another text",
            |w| tokens(w, |texts, _| texts[70] = "zebra".into()),
            "its token 70 is \"zebra\", the target's is",
        ),
        (
            "another special token",
            |w| tokens(w, |texts, _| texts[VOCAB - 2] = "<|stop|>".into()),
            "its token 318 is \"<|stop|>\", the target's is \"<|end|>\"",
        ),
        (
            "a text that is a control token there",
            |w| tokens(w, |_, types| types[80] = 3),
            "is a control token in its vocabulary only",
        ),
        ("far more tokens", |w| padded(w, 2000), "it has 2320 tokens, the target 320"),
        (
            "a head, not a model",
            |w| w.set("general.architecture", Value::Str("eagle3".into())),
            "\"eagle3\" is not supported",
        ),
        (
            "a missing tensor",
            |mut w| {
                w.tensors.retain(|t| t.name != b"blk.1.ffn_up.weight");
                w
            },
            "blk.1.ffn_up.weight",
        ),
        ("a missing key", |w| w.without("llama.block_count"), "llama.block_count"),
    ];
    let target = cli::save("strict-target", &cli::tiny());
    for (name, change, needle) in table {
        let draft = cli::save("misfit", &change(cli::tiny()));
        let choice = format!("model:{}", draft.display());
        cli::refused(&cli::run(&line(&target, &choice)), 1, &["--draft model:", needle], name);
    }
    let cut = cli::save("cut", &cli::tiny());
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    for (path, needle) in [(PathBuf::from("nowhere.gguf"), "cannot open"), (cut, "cut.gguf")] {
        let choice = format!("model:{}", path.display());
        cli::refused(&cli::run(&line(&target, &choice)), 1, &["--draft model:", needle], &choice);
    }
}
