//! Features against one plain pass, read back by a library that is not ours; and what may go wrong on the way.

use crate::common::cli::Running;
use crate::common::gguf_writer::{Rng, Value, Writer, tiny_llama};
use crate::common::{scratch, zoo};
use crate::{Ran, failed, ok, run, words, write};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::text::Tokenizer;
use foretoken::tree::Token;
use half::f16;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A shard, read back.
struct Read {
    facts: HashMap<String, String>,
    tokens: Vec<Token>,
    starts: Vec<i64>,
    weights: Vec<u8>,
    /// `[T][D]`, bits of f16.
    hidden: Vec<Vec<u16>>,
    /// `[T][K * D]`.
    taps: Option<Vec<Vec<u16>>>,
}

fn read(path: &Path) -> Read {
    let bytes = fs::read(path).unwrap();
    let facts = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: &str, dtype: Dtype| {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype, "{name}");
        (tensor.shape().to_vec(), tensor.data().to_vec())
    };
    let rows = |(shape, data): (Vec<usize>, Vec<u8>)| -> Vec<Vec<u16>> {
        let row: usize = shape[1..].iter().product();
        let values: Vec<u16> = data.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect();
        assert_eq!(values.len(), shape[0] * row);
        values.chunks(row).map(<[u16]>::to_vec).collect()
    };
    let layers = facts["taps"].split(',').filter(|layer| !layer.is_empty()).count();
    let width: usize = facts["hidden_size"].parse().unwrap();
    let taps = (layers > 0).then(|| {
        let found = tensor("taps", Dtype::F16);
        assert_eq!(found.0[1..], [layers, width]);
        rows(found)
    });
    assert_eq!(file.len(), 4 + usize::from(taps.is_some()));
    let hidden = tensor("hidden", Dtype::F16);
    assert_eq!(hidden.0[1..], [width]);
    let i32s = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b) as Token).collect();
    let i64s = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect();
    Read {
        tokens: i32s(tensor("tokens", Dtype::I32).1),
        starts: i64s(tensor("starts", Dtype::I64).1),
        weights: tensor("weights", Dtype::U8).1,
        hidden: rows(hidden),
        taps,
        facts,
    }
}

fn shards(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

fn lines(lines: &[serde_json::Value]) -> Vec<u8> {
    lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

/// Tokens, their weights, hidden rows and tapped rows of all texts, one after the other.
fn whole(dir: &Path) -> (Vec<Vec<Token>>, Vec<Read>) {
    let all: Vec<Read> = shards(dir).iter().map(|path| read(path)).collect();
    let mut texts = vec![];
    for shard in &all {
        let n = shard.tokens.len();
        assert_eq!((shard.weights.len(), shard.hidden.len()), (n, n));
        assert!(shard.taps.as_ref().is_none_or(|taps| taps.len() == n));
        assert_eq!((shard.starts[0], *shard.starts.last().unwrap()), (0, n as i64));
        texts.extend(shard.starts.windows(2).map(|w| shard.tokens[w[0] as usize..w[1] as usize].to_vec()));
    }
    (texts, all)
}

fn bits(rows: &[f32]) -> Vec<u16> {
    rows.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
}

#[test]
fn rows_are_those_of_one_pass() {
    let dir = scratch("features-rows");
    for name in zoo::ARCHITECTURES {
        let file = write(&dir, &format!("{name}.gguf"), &zoo::bytes(name));
        let gguf = Gguf::open(&file).unwrap();
        let model = Model::load(Arc::new(Cpu::new(Isa::best(), 1).unwrap()), &gguf, &mut |_, _| ()).unwrap();
        let (layers, vocab) = (model.config().layers, model.config().vocab);
        let mut rng = Rng(layers as u64);
        let lengths = [2, 3, 90, 256, 257, 300, 31];
        let texts = lengths.map(|n| (0..n).map(|_| rng.below(vocab) as Token).collect::<Vec<_>>());
        let input = texts.iter().map(|tokens| json!({"tokens": tokens, "id": "x"})).collect::<Vec<_>>();
        let input = write(&dir, "input", &lines(&input));
        let some = format!("{},0", layers);
        let auto = [2, layers / 2, layers.saturating_sub(3)];
        let mut cases = vec![("none", vec![], 1), (some.as_str(), vec![layers, 0], 2)];
        if layers >= 7 {
            cases.push(("auto", auto.to_vec(), 2));
        }
        for (flag, taps, threads) in cases {
            let out = dir.join(format!("{name}-{flag}"));
            let line = format!("features -q -m @ --input @ -o @ -c 300 -t {threads} --taps {flag} --shard-tokens 260");
            assert_eq!(ok(&line, &[&file, &input, &out]), "");
            let (found, all) = whole(&out);
            assert_eq!(found, texts, "{name}");
            let sizes: Vec<usize> = all.iter().map(|shard| shard.tokens.len()).collect();
            assert_eq!(sizes, [95, 256, 257, 300, 31], "{name}");
            let mut rows = all.iter().flat_map(|shard| {
                let taps = (0..shard.hidden.len()).map(|i| shard.taps.as_ref().map(|taps| &taps[i]));
                shard.hidden.iter().zip(taps)
            });
            for text in &texts {
                let mut state = model.state(text.len(), text.len(), KvType::F16).unwrap();
                state.tap(&model, taps.iter().copied()).unwrap();
                model.forward(&mut state, Input::Chain(text), Rows::None).unwrap();
                for i in 0..text.len() {
                    let (hidden, tapped) = rows.next().unwrap();
                    assert_eq!(*hidden, bits(state.hidden().row(i)), "{name}: row {i}");
                    let want: Vec<u16> = taps.iter().flat_map(|&t| bits(state.tapped(t).unwrap().row(i))).collect();
                    assert_eq!(tapped.map_or(&vec![], |row| row), &want, "{name} {flag}: taps of row {i}");
                }
            }
            assert!(rows.next().is_none());
            let tokenizer = Tokenizer::from_gguf(gguf.meta()).unwrap();
            for (number, shard) in all.iter().enumerate() {
                let lines = [["1", "3"], ["4", "4"], ["5", "5"], ["6", "6"], ["7", "7"]][number];
                let taps = taps.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                for (key, want) in [
                    ("format", "foretoken-features-1"),
                    ("taps", &taps),
                    ("model", &format!("{name}.gguf")),
                    ("architecture", model.config().arch.name),
                    ("hidden_size", &model.config().width.to_string()),
                    ("vocab_size", &vocab.to_string()),
                    ("vocab_hash", &tokenizer.vocab_hash()),
                    ("tokenizer", tokenizer.model()),
                    ("first", lines[0]),
                    ("last", lines[1]),
                ] {
                    assert_eq!(shard.facts[key], want, "{name}: {key}");
                }
                assert_eq!(shard.facts["input"].len(), 64);
                assert!(!shard.facts.contains_key("chat_template_hash"));
            }
        }
    }
}

const TEMPLATE: &str = "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant:{% endif %}";

fn chatty() -> Writer {
    tiny_llama(7, "F32").key("tokenizer.chat_template", Value::Str(TEMPLATE.into()))
}

#[test]
fn weights_mark_what_the_model_wrote() {
    let dir = scratch("features-weights");
    let model = write(&dir, "chatty.gguf", &chatty().bytes());
    let tokenizer = Tokenizer::from_gguf(Gguf::open(&model).unwrap().meta()).unwrap();
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let turns = [message("user", "Hi"), message("assistant", "Hello <|end|> you"), message("user", "Bye")];
    let more = [&turns[..], &[message("assistant", "")]].concat();
    let tools = [message("system", "S"), turns[0].clone(), turns[1].clone()];
    // What each line comes to, and what of it counts.
    let cases = [
        (json!({"text": "the <|end|>\n"}), "the <|end|>\n", "the <|end|>\n"),
        (json!({"tokens": [5, 318, 6], "weights": null}), "\u{0}", "\u{0}"),
        (
            json!({"messages": turns, "text": null}),
            "<|start|>user:Hi<|end|>\n<|start|>assistant:Hello <|end|> you<|end|>\n<|start|>user:Bye<|end|>\n",
            "Hello <|end|> you<|end|>",
        ),
        (
            json!({"messages": more}),
            "<|start|>user:Hi<|end|>\n<|start|>assistant:Hello <|end|> you<|end|>\n<|start|>user:Bye<|end|>\n<|start|>assistant:<|end|>\n",
            "Hello <|end|> you<|end|><|end|>",
        ),
        (
            json!({"messages": tools, "tools": [{"type": "function"}]}),
            "<|start|>system:S<|end|>\n<|start|>user:Hi<|end|>\n<|start|>assistant:Hello <|end|> you<|end|>\n",
            "Hello <|end|> you<|end|>",
        ),
        (
            json!({"prompt": "P<|start|>", "response": " R\n", "source": {"any": 1}}),
            "<|start|>user:P<|start|><|end|>\n<|start|>assistant: R\n<|end|>\n",
            " R\n<|end|>",
        ),
        (json!({"messages": [message("user", "Q")]}), "<|start|>user:Q<|end|>\n", ""),
    ];
    let input = lines(&cases.iter().map(|case| case.0.clone()).collect::<Vec<_>>());
    let input = [b"\xEF\xBB\xBF\n  \n", &input[..]].concat();
    let file = write(&dir, "input", &input);
    let out = dir.join("out");
    ok("features -q -m @ --input @ --taps none -o @", &[&model, &file, &out]);
    let (texts, all) = whole(&out);
    assert_eq!((texts.len(), all.len()), (cases.len(), 1));
    assert_eq!((&*all[0].facts["first"], &*all[0].facts["last"]), ("3", "9"));
    assert_eq!(all[0].facts["chat_template_hash"].len(), 64);
    for (i, (line, want, counts)) in cases.iter().enumerate() {
        let range = all[0].starts[i] as usize..all[0].starts[i + 1] as usize;
        let (tokens, weights) = (&all[0].tokens[range.clone()], &all[0].weights[range]);
        if line["tokens"].is_array() {
            assert_eq!((tokens, weights), (&[5, 318, 6][..], &[1, 1, 1][..]));
            continue;
        }
        let text = |keep: &dyn Fn(u8) -> bool| {
            let kept = tokens.iter().zip(weights).filter(|&(_, &weight)| keep(weight));
            let bytes: Vec<u8> = kept.flat_map(|(&token, _)| tokenizer.piece(token)).copied().collect();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!((text(&|_| true).as_str(), text(&|weight| weight == 1).as_str()), (*want, *counts), "{line}");
    }
    // From a pipe it is the same.
    let piped = dir.join("piped");
    let ran = run(&words("features -q -m @ --input - --taps none -o @", &[&model, &piped]), &input);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "", ""));
    assert_eq!(fs::read(&shards(&piped)[0]).unwrap(), fs::read(&shards(&out)[0]).unwrap());
}

/// Many short texts.
fn corpus(texts: usize) -> Vec<u8> {
    let mut rng = Rng(5);
    let text = |rng: &mut Rng| (0..20 + rng.below(150)).map(|_| rng.below(300)).collect::<Vec<_>>();
    lines(&(0..texts).map(|_| json!({"tokens": text(&mut rng)})).collect::<Vec<_>>())
}

#[test]
fn a_run_that_was_stopped_goes_on_to_the_same_bytes() {
    let dir = scratch("features-resume");
    let model = write(&dir, "tiny.gguf", &tiny_llama(7, "F32").bytes());
    let input = write(&dir, "input", &corpus(800));
    let line = "features -q -m @ --input @ --taps 1,0 --shard-tokens 1000 -o @";
    let contents = |dir: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        let name = |path: &PathBuf| PathBuf::from(path.file_name().unwrap());
        shards(dir).iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
    };
    let want_in = dir.join("whole");
    ok(line, &[&model, &input, &want_in]);
    let want = contents(&want_in);
    assert!(want.len() > 50 && want[0].0 == Path::new("features-00000.safetensors"), "{}", want.len());

    for (how, parts) in [("kill", 1), ("interrupt", 0)] {
        let out = dir.join(how);
        for stop in [1, 7, 20] {
            let mut running = Running::start(&words(line, &[&model, &input, &out]));
            let shard = out.join(format!("features-{stop:05}.safetensors"));
            running.wait_until("a shard", || shard.exists());
            match how {
                "kill" => running.0.kill().unwrap(),
                _ => running.interrupt(),
            }
            let (code, stdout, stderr) = running.end();
            let want_code = if how == "kill" { None } else { Some(130) };
            assert_eq!((code, stdout.as_str(), stderr.as_str()), (want_code, "", ""), "{how}");
            let found = contents(&out);
            let whole = found.iter().filter(|(name, _)| !name.to_str().unwrap().starts_with('.'));
            assert!(whole.clone().eq(&want[..whole.clone().count()]), "{how}: whole shards");
            assert!(
                whole.count() < want.len()
                    && found.iter().filter(|f| f.0.to_str().unwrap().starts_with('.')).count() <= parts
            );
        }
        ok(line, &[&model, &input, &out]);
        assert!(contents(&out) == want, "{how}: not the same bytes");
    }

    // Nothing is left to do.
    let again =
        run(&words("features -m @ --input @ --taps 1,0 --shard-tokens 1000 -o @", &[&model, &input, &want_in]), b"");
    assert!(again.code == Some(0) && again.err.contains("all is there"), "{}", again.err);
    // A limit is that of all; what comes after it goes on.
    let out = dir.join("limit");
    for (limit, tokens) in [(1500, 1500..1670), (1500, 1500..1670), (4000, 4000..4170)] {
        ok(&format!("{line} --limit-tokens {limit}"), &[&model, &input, &out]);
        let count: usize = whole(&out).0.iter().map(Vec::len).sum();
        assert!(tokens.contains(&count), "{limit}: {count}");
    }
    let all = whole(&want_in).0;
    assert!(all.starts_with(&whole(&out).0));
}

#[test]
fn a_folder_of_another_run_is_refused() {
    let dir = scratch("features-other");
    let model = write(&dir, "tiny.gguf", &chatty().bytes());
    let other = write(&dir, "other.gguf", &chatty().bytes());
    let template = write(&dir, "template", b"{{ messages }}");
    let (input, more) = (write(&dir, "input", &corpus(3)), write(&dir, "more", &corpus(4)));
    let out = dir.join("out");
    let line = |rest: &str| format!("features -q -m @ --input @ -o @ --taps 0 --shard-tokens 100 {rest}");
    ok(&line(""), &[&model, &input, &out]);
    let first = out.join("features-00000.safetensors");
    let whole = fs::read(&first).unwrap();
    let refused = |line: &str, values: &[&Path], parts: &[&str]| {
        failed(&run(&words(line, values), b""), 1, parts, line);
    };
    refused(
        &line(""),
        &[&other, &input, &out],
        &["features-00000", "model is \"tiny.gguf\", here it is \"other.gguf\""],
    );
    refused(&line(""), &[&model, &more, &out], &["features-00000", "input is"]);
    refused(&line("-c 99"), &[&model, &input, &out], &["context is \"512\", here it is \"99\""]);
    refused(&line("--chat-template @"), &[&model, &input, &out, &template], &["chat_template_hash is"]);
    refused(&line("--template-arg a=1"), &[&model, &input, &out], &["template_args is missing, here it is"]);
    let taps = line("").replace("--taps 0", "--taps none");
    refused(&taps, &[&model, &input, &out], &["taps is \"0\", here it is \"\"", "(-o)"]);
    // Another model of the same name.
    write(&dir, "tiny.gguf", &tiny_llama(8, "F32").key("tokenizer.chat_template", Value::Str(TEMPLATE.into())).bytes());
    refused(&line(""), &[&model, &input, &out], &["model_fingerprint is"]);
    write(&dir, "tiny.gguf", &chatty().bytes());

    for (bytes, part) in [
        (&whole[..whole.len() - 1], "is cut short or damaged"),
        (&whole[..40], "is cut short"),
        (&whole[..3], "is cut short"),
        (&[0xff; 64], "is no shard of features: its header has"),
        (b"\x02\0\0\0\0\0\0\0{}", "is no shard of features"),
        (b"\x02\0\0\0\0\0\0\0xx", "is no shard of features"),
    ] {
        fs::write(&first, bytes).unwrap();
        refused(&line(""), &[&model, &input, &out], &["features-00000.safetensors", part]);
    }
    fs::write(&first, &whole).unwrap();
    fs::rename(out.join("features-00001.safetensors"), out.join("features-00009.safetensors")).unwrap();
    refused(&line(""), &[&model, &input, &out], &["features-00001.safetensors", "No such file"]);
    fs::write(out.join("features-00001.safetensors"), &whole).unwrap();
    refused(&line(""), &[&model, &input, &out], &["features-00001", "its lines do not follow"]);
}

#[test]
fn what_is_wrong_is_said_before_anything_is_written() {
    let dir = scratch("features-wrong");
    let model = write(&dir, "chatty.gguf", &chatty().bytes());
    let bare = write(&dir, "bare.gguf", &tiny_llama(7, "F32").bytes());
    let fine = r#"{"text": "fine text"}"#;
    for (line, parts) in [
        ("{", &["not JSON"][..]),
        ("[1]", &["found an array, supported an object"]),
        ("\u{1}", &["not JSON"]),
        ("{}", &["found none of the supported fields: text, messages, prompt with response, tokens"]),
        (r#"{"text": "a", "tokens": [1]}"#, &["found text and tokens"]),
        (r#"{"text": 7}"#, &["text: found 7, supported a string"]),
        (r#"{"prompt": "a"}"#, &["response is missing"]),
        (r#"{"response": "a"}"#, &["prompt is missing"]),
        (r#"{"messages": []}"#, &["messages: found none"]),
        (r#"{"messages": [{"role": "user"}]}"#, &["messages: message 0: content"]),
        (r#"{"messages": [{"role": "assistant", "content": "a"}]}"#, &["message 0 is an answer"]),
        (r#"{"messages": [{"role": "user", "content": "a"}], "tools": 1}"#, &["tools: found 1"]),
        (r#"{"tokens": "a"}"#, &["tokens: found a string, supported an array"]),
        (r#"{"tokens": [1, 320]}"#, &["tokens: found 320, supported ids from 0 to 319"]),
        (r#"{"tokens": [-1]}"#, &["tokens: found -1, supported ids"]),
        (r#"{"tokens": [1.5]}"#, &["tokens: found 1.5, supported ids"]),
        (r#"{"tokens": [18446744073709551616]}"#, &["supported ids"]),
    ] {
        let input = write(&dir, "input", format!("{fine}\n\n{line}\n{fine}").as_bytes());
        let out = dir.join("out");
        let ran = run(&words("features -m @ --input @ --taps none -o @", &[&model, &input, &out]), b"");
        failed(&ran, 1, &[&["input: line 3: "], parts].concat(), line);
        assert_eq!(shards(&out).len(), 0, "{line}");
    }
    let latin = write(&dir, "latin", b"{\"text\": \"\xE9\"}");
    let input = write(&dir, "input", format!("{fine}\n").as_bytes());
    let short = write(&dir, "short", b"{\"text\": \"\"}\n{\"tokens\": [1]}\n{\"tokens\": []}");
    let chat = write(&dir, "chat", b"{\"prompt\": \"a\", \"response\": \"b\"}");
    let (out, none, empty) = (dir.join("out"), dir.join("none"), write(&dir, "empty", b""));
    let inside = input.join("x");
    for (line, values, code, parts) in [
        ("--taps none", [&model, &latin, &out], 1, &["latin: line 1: the line: byte 10 (0xE9) is not UTF-8"][..]),
        ("--taps none", [&model, &none, &out], 1, &["none: No such file"]),
        ("--taps none", [&model, &empty, &out], 1, &["empty: found no text of at least 2 tokens"]),
        ("--taps none -q", [&model, &short, &out], 1, &["short: found no text of at least 2 tokens"]),
        ("--taps none", [&bare, &chat, &out], 1, &["line 1: prompt: the model has no chat template"]),
        ("--taps none", [&none, &input, &out], 1, &["none"]),
        ("--taps none", [&model, &input, &inside], 1, &["input/x: Not a directory"]),
        ("--taps none", [&model, &input, &input], 1, &["input: File exists"]),
        ("--taps 3", [&model, &input, &out], 1, &["--taps: found layer 3, the model has 2"]),
        ("--taps auto", [&model, &input, &out], 1, &["--taps auto", "2 layers"]),
        ("--taps none -c 1", [&model, &input, &out], 2, &["-c 1"]),
    ] {
        let line = format!("features -m @ --input @ -o @ {line}");
        let values: Vec<&Path> = values.iter().map(|path| path.as_path()).collect();
        failed(&run(&words(&line, &values), b""), code, parts, &line);
    }
    for flag in ["--taps 2,2", "--taps x", "--shard-tokens 0", "--limit-tokens 0"] {
        let line = format!("features -m @ --input @ -o @ {flag}");
        let ran = run(&words(&line, &[&model, &input, &out]), b"");
        assert!(ran.code == Some(2) && ran.err.contains(&flag[..6]), "{}", ran.err);
    }
    assert_eq!(shards(&out).len(), 0);
}

#[test]
fn texts_cut_or_left_out_and_values_that_do_not_fit_are_said() {
    let dir = scratch("features-said");
    let text = |n: usize| json!({"tokens": vec![7; n]});
    let input = write(&dir, "input", &lines(&[text(1), text(41), text(40), text(0), text(90), text(2)]));
    let scaled = |name: &str, tensor: &str, scale: f32| {
        let mut model = tiny_llama(7, "F32");
        for value in model.tensor_mut(tensor).bytes.as_chunks_mut::<4>().0 {
            *value = (f32::from_le_bytes(*value) * scale).to_le_bytes();
        }
        write(&dir, name, &model.bytes())
    };
    let features = |model: &Path, out: &Path| -> Ran {
        run(&words("features -m @ --input @ -o @ -c 40 --taps 0,2", &[model, &input, out]), b"")
    };
    let out = dir.join("huge");
    let ran = features(&scaled("huge.gguf", "output_norm.weight", 1e6), &out);
    let said: Vec<&str> = ran.err.lines().collect();
    assert_eq!((ran.code, said.len()), (Some(0), 4), "{}", ran.err);
    assert!(said[0].ends_with("input: line 2 and 1 more: texts of more than 40 tokens, cut there (-c)"), "{}", said[0]);
    assert!(said[1].ends_with("input: line 1 and 1 more: texts of less than 2 tokens, left out"), "{}", said[1]);
    let (texts, all) = whole(&out);
    assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), [40, 40, 40, 2]);
    let most = [f16::MAX.to_bits(), f16::MIN.to_bits()];
    let clamped = all[0].hidden.iter().flatten().filter(|bits| most.contains(bits)).count();
    assert!(clamped > 1000, "{clamped}");
    let want = format!("{clamped} values beyond f16 were written as 65504 or -65504, first in line 2");
    assert!(said[2].ends_with(&want), "{} but {want}", said[2]);
    assert!(said[3].contains("122 tokens in 1 shards"), "{}", said[3]);

    for (tensor, what) in [("output_norm.weight", "the hidden row"), ("token_embd.weight", "what enters layer 0")] {
        let out = dir.join(tensor);
        let ran = features(&scaled("nan.gguf", tensor, f32::NAN), &out);
        let error = ran.err.lines().last().unwrap();
        assert!(ran.code == Some(1) && error.starts_with("error: "), "{}", ran.err);
        // Of rows without numbers the hidden one is told first.
        let what = if tensor == "token_embd.weight" { "the hidden row" } else { what };
        assert!(error.ends_with(&format!("input: line 2: {what} at token 0: NaN or infinite")), "{error}");
        assert_eq!(shards(&out).len(), 0);
    }
}
