//! What `inspect` says of files that run, that do not, and that are none.

use crate::common::gguf_writer::{Value, Writer, split, tiny_llama, vocabulary};
use crate::common::{scratch, zoo};
use crate::{fails, ok, vocabulary_only, write};
use foretoken::isa::Isa;
use std::path::PathBuf;

/// The line of `out` that starts with this word.
fn line<'a>(out: &'a str, word: &str) -> &'a str {
    let mut lines = out.lines().filter(|line| line.split_whitespace().next() == Some(word));
    lines.next().unwrap_or_else(|| panic!("no line {word:?}: {out}"))
}

#[test]
fn inspect_shows_what_runs_each_tensor() {
    let dir = scratch("inspect");
    for (format, input) in [("F32", "f32"), ("BF16", "f32"), ("Q4_1", "int8"), ("Q6_K", "int8"), ("IQ4_XS", "int8")] {
        let writer = tiny_llama(5, format);
        let model = write(&dir, "tiny.gguf", &writer.bytes());
        for isa in Isa::ALL {
            let out = ok(&format!("inspect @ --isa {}", isa.name()), &[&model]);
            assert!(line(&out, "runs").ends_with(" yes"), "{out}");
            let kernel = format!("{} x {input}, {}", format.to_lowercase(), isa.name());
            for tensor in &writer.tensors {
                let name = std::str::from_utf8(&tensor.name).unwrap();
                let want = match name {
                    "token_embd.weight" => "look-up",
                    _ if tensor.dims.len() == 1 => "widened to f32",
                    _ => &kernel,
                };
                let line = line(&out, name);
                assert!(line.ends_with(&format!("{}  {want}", tensor.bytes.len())), "{line}");
            }
        }
        let out = ok("inspect @ -c 100", &[&model]);
        let bytes: usize = writer.tensors.iter().map(|t| t.bytes.len()).sum();
        let weights: u64 = writer.tensors.iter().map(|t| t.dims.iter().product::<u64>()).sum();
        let bits = format!("{:.2}", bytes as f64 * 8.0 / weights as f64);
        // The first line of this name: memory has one too.
        let totals: Vec<&str> = line(&out, "all").split_whitespace().skip(1).collect();
        let want = [writer.tensors.len().to_string(), weights.to_string(), bytes.to_string(), bits];
        assert_eq!(totals, want, "{format}");
    }
}

#[test]
fn inspect_computes_memory() {
    let dir = scratch("inspect-memory");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "Q4_0").bytes());
    // Keys and values of 2 layers and 2 heads of 16, and the slots of a tree.
    for (flags, positions, element) in
        [("", 512, 2), ("-c 0", 512, 2), ("-c 100", 100, 2), ("-c 1000 --kv-type f32", 1000, 4)]
    {
        let out = ok(&format!("inspect @ {flags}"), &[&model]);
        assert!(out.contains(&format!("memory at -c {positions}\n")), "{out}");
        let bytes = 2 * 2 * 2 * 16 * (positions + 64) * element;
        let kb = format!("{:.1} kB", bytes as f64 / 1e3);
        assert!(line(&out, "KV").ends_with(&kb), "{kb}: {out}");
    }
    // Packed panels hold what the file holds, 4.5 bits a weight; the embedding, which is only looked up, stays in the file.
    let out = ok("inspect @", &[&model]);
    let weights = line(&out, "weights,").split_whitespace().nth(2).unwrap().parse::<f64>().unwrap();
    let tensors = tiny_llama(5, "Q4_0").tensors;
    let file: usize = tensors.iter().filter(|t| t.name != b"token_embd.weight").map(|t| t.bytes.len()).sum();
    assert!((0.98..1.1).contains(&(weights * 1e3 / file as f64)), "{weights} kB of {file}");
    let out = ok("inspect @ --kv-type q8_0", &[&model]);
    assert!(line(&out, "runs").contains("no: ") && line(&out, "runs").contains("32"), "{out}");
    assert!(!out.contains("memory at"));
}

#[test]
fn inspect_shows_files_that_do_not_run() {
    let dir = scratch("inspect-unsupported");
    let missing = {
        let mut w = tiny_llama(5, "F32");
        w.tensors.retain(|t| t.name != b"blk.1.ffn_up.weight");
        w
    };
    let set = |key: &str, value: &str| tiny_llama(5, "F32").set(key, Value::Str(value.into())).bytes();
    for (what, bytes, parts) in [
        ("architecture", set("general.architecture", "mamba"), &["mamba", "llama", "qwen2"][..]),
        ("none", tiny_llama(5, "F32").without("general.architecture").bytes(), &["general.architecture", "llama"]),
        ("tokenizer", set("tokenizer.ggml.model", "bert"), &["tokenizer.ggml.model", "bert", "gpt2"]),
        ("format", zoo::bytes("llama.TQ1_0"), &["token_embd.weight", "TQ1_0", "Q4_K"]),
        ("tensor", missing.bytes(), &["blk.1.ffn_up.weight", "missing"]),
        (
            "vocabulary",
            vocabulary(Writer::default().key("general.architecture", Value::Str("llama".into()))).bytes(),
            &["vocabulary-only"],
        ),
        ("other vocabulary", vocabulary_only().bytes(), &["unheard-of"]),
        ("nothing", Writer::default().bytes(), &["general.architecture is missing", "tokenizer.ggml.model is missing"]),
    ] {
        let out = ok("inspect @", &[&write(&dir, "model.gguf", &bytes)]);
        let problems: Vec<&str> = out.lines().filter(|l| l.starts_with("runs ")).collect();
        assert!(problems.iter().all(|l| l.contains(" no: ")) && !problems.is_empty(), "{what}: {out}");
        for part in parts {
            assert!(problems.iter().any(|l| l.contains(part)), "{what}: {problems:?} do not say {part:?}");
        }
        assert!(out.contains("\nmetadata\n"), "{what}");
    }
    let out = ok("inspect @", &[&write(&dir, "model.gguf", &zoo::bytes("llama.TQ1_0"))]);
    assert!(line(&out, "blk.0.ffn_up.weight").ends_with("not supported"), "{out}");
    assert!(line(&out, "TQ1_0").ends_with("not supported"), "{out}");
}

#[test]
fn inspect_refuses_corrupt_files() {
    let dir = scratch("inspect-corrupt");
    let whole = tiny_llama(5, "Q8_0");
    let (bytes, _, data) = whole.layout();
    for len in [0, 3, 4, 23, 24, 500, data / 2, data - 40, data, bytes.len() / 2, bytes.len() - 1] {
        let path = write(&dir, "cut.gguf", &bytes[..len]);
        fails("inspect @", &[&path], 1, &["cut.gguf"]);
    }
    let path = write(&dir, "cut.gguf", &bytes[..bytes.len() - 1]);
    fails("inspect @", &[&path], 1, &["truncated", &bytes.len().to_string(), &(bytes.len() - 1).to_string()]);
    let mut huge = whole.clone();
    huge.tensor_mut("output.weight").offset = Some(u64::MAX - 31);
    fails("inspect @", &[&write(&dir, "huge.gguf", &huge.bytes())], 1, &["output.weight", "overflow"]);
    fails("inspect @", &[&write(&dir, "text.gguf", b"<html>")], 1, &["text.gguf", "HTML"]);
    fails("inspect @", &[&dir], 1, &["directory"]);
}

#[test]
fn inspect_finds_all_shards() {
    let dir = scratch("inspect-shards");
    let whole = tiny_llama(5, "F16");
    let paths: Vec<PathBuf> = split(&whole, 3)
        .iter()
        .enumerate()
        .map(|(i, shard)| write(&dir, &format!("m-{:05}-of-00003.gguf", i + 1), &shard.bytes()))
        .collect();
    for path in &paths {
        let out = ok("inspect @", &[path]);
        let names = "m-00001-of-00003.gguf m-00002-of-00003.gguf m-00003-of-00003.gguf";
        assert!(line(&out, "shards").ends_with(&format!("3: {names}")), "{out}");
        assert!(line(&out, "runs").ends_with(" yes"), "{out}");
        assert!(line(&out, "gguf").contains(&format!("{} tensors", whole.tensors.len())), "{out}");
        for tensor in &whole.tensors {
            let name = std::str::from_utf8(&tensor.name).unwrap();
            assert!(line(&out, name).contains(&tensor.bytes.len().to_string()), "{out}");
        }
    }
    std::fs::remove_file(&paths[1]).unwrap();
    fails("inspect @", &[&paths[2]], 1, &["m-00002-of-00003.gguf", "missing"]);
}

#[test]
fn inspect_shortens_unless_asked_and_never_prints_control_characters() {
    let dir = scratch("inspect-values");
    let long = "word ".repeat(50);
    let model = tiny_llama(5, "F32")
        .key("general.description", Value::Str(format!("\x1b[31m\n{long}")))
        .key("general.\x1b[7m\nkey", Value::I32s((0..50).collect()))
        .tensor("\x1b[7m\nname", &[4], 0, vec![0; 16]);
    let model = write(&dir, "tiny\x1b\n.gguf", &model.bytes());
    let (short, full) = (ok("inspect @", &[&model]), ok("inspect @ -v", &[&model]));
    for out in [&short, &full] {
        assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
        assert_eq!(out.lines().filter(|l| l.contains("name") && l.ends_with("not used")).count(), 1, "{out}");
        assert!(line(out, "warning").contains("is not used"), "{out}");
    }
    assert_eq!(short.lines().count(), full.lines().count());
    assert!(!short.contains(&long) && full.contains(&long));
    assert!(!short.contains(", 48, 49]") && full.contains(", 48, 49]"));
    assert!(!short.contains("<|unused300|>") && full.contains("<|unused300|>"));
}
