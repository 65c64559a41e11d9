//! The converters of draft heads: their own tests, in Python, and whether our reader opens what they write.

mod common;

use common::{cli, scratch, zoo};
use foretoken::gguf::Gguf;
use foretoken::quant;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A Python with what converters import: the one `FORETOKEN_PYTHON` names, or else python3. Says so if there is none.
fn python() -> Option<String> {
    let python = std::env::var("FORETOKEN_PYTHON").unwrap_or_else(|_| "python3".into());
    let check = "import sys, gguf, numpy; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new(&python).args(["-c", check]).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {python} is no python3 of 3.9 or newer with gguf and numpy, which converters of heads need");
    }
    found.then_some(python)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> Output {
    let output = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn converters_pass_their_own_tests() {
    let Some(python) = python() else { return };
    let output = run(Command::new(python).args(["-m", "unittest", "discover"]).arg(root().join("tests/convert")));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("\nOK") && !said.contains("Ran 0 tests"), "{said}");
}

/// A sidecar of every published spelling for this model, converted: its kind, and the file.
fn sidecars(python: &str, model: &Path, folder: &Path, format: &str) -> Vec<(String, PathBuf)> {
    let make = run(Command::new(python).arg(root().join("tests/convert/checkpoints.py")).args([model, folder]));
    let lines = String::from_utf8(make.stdout).unwrap();
    let convert = |line: &str| {
        let words: Vec<_> = line.split('\t').collect();
        let file = folder.join(format!("{}.gguf", words[0]));
        let mut command = Command::new(python);
        command.arg(root().join("scripts").join(words[1])).arg(folder.join(words[0])).args(&words[2..]);
        run(command.args(["--type", format, "--target"]).arg(model).arg("-o").arg(&file));
        (words[0].to_string(), file)
    };
    lines.lines().map(convert).collect()
}

#[test]
fn what_converters_write_is_what_our_reader_reads() {
    let Some(python) = python() else { return };
    let folder = scratch("converted");
    let model = folder.join("qwen2.gguf");
    fs::write(&model, zoo::bytes("qwen2")).unwrap();
    let target = Gguf::open(&model).unwrap();
    let sidecars = sidecars(&python, &model, &folder, "q4_0");
    assert!(sidecars.len() > 20);
    for (kind, file) in sidecars {
        let gguf = Gguf::open(&file).unwrap();
        let (meta, architecture) = (gguf.meta(), gguf.meta().str("general.architecture").unwrap().unwrap());
        assert!(kind.starts_with(architecture), "{kind}: {architecture}");
        let tokens = target.meta().strings("tokenizer.ggml.tokens").unwrap().unwrap().len() as u64;
        assert_eq!(meta.uint("spec.target.vocab_size").unwrap(), Some(tokens), "{kind}");
        assert_eq!(meta.str("spec.target.architecture").unwrap(), Some("qwen2"), "{kind}");
        let width = target.meta().uint("qwen2.embedding_length").unwrap();
        assert_eq!(meta.uint("spec.target.hidden_size").unwrap(), width, "{kind}");
        for tensor in gguf.tensors().filter(|tensor| tensor.name != "d2t") {
            let format = quant::format(tensor.ggml_type).unwrap();
            let mut values = vec![f32::NAN; tensor.rows() * tensor.cols()];
            (format.dequant)(tensor.bytes, &mut values);
            assert!(values.iter().all(|value| value.is_finite()), "{kind}: {}", tensor.name);
            let expected = if tensor.dims.len() == 2 { "Q4_0" } else { "F32" };
            assert_eq!(tensor.type_name(), expected, "{kind}: {}", tensor.name);
        }
        drafts(&model, &kind, &file);
    }
}

/// Checks that the engine drafts with it, as many guesses a round as it is asked for, and writes what it would without.
fn drafts(model: &Path, kind: &str, file: &Path) {
    let say = |draft: &str| {
        let line = format!("run -m {} --raw -p aaa -n 12 -s 2 -t 1 -c 128 --stats json {draft}", model.display());
        let output = cli::run(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{kind}: {}", cli::stderr(&output));
        (output.stdout.clone(), cli::stats(&output)["draft"]["drafted"].as_u64())
    };
    let name = if kind.starts_with("medusa") { "medusa" } else { "eagle" };
    let (text, drafted) = say(&format!("--draft {name}:{} --draft-max 3", file.display()));
    assert_eq!(text, say("").0, "{kind}");
    assert!(drafted >= Some(6), "{kind}: {drafted:?} guesses");
}
