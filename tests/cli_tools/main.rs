//! `tokenize`, `perplexity`, `bench`, `features` and `inspect`, run as people run them.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod features;
mod inspect;
mod perplexity;
mod tokenize;
mod trial;

use assert_cmd::Command;
use common::gguf_writer::{Value, Writer, tiny_llama, vocabulary};
use common::scratch;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// What a run of the binary left behind.
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn command(args: &[OsString]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(args).timeout(Duration::from_secs(600));
    command
}

fn run(args: &[OsString], stdin: &[u8]) -> Ran {
    let output = command(args).write_stdin(stdin).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The words of a command line, then the values that its `@` stand for.
fn words(line: &str, values: &[&Path]) -> Vec<OsString> {
    let mut values = values.iter();
    let args = line.split_whitespace().map(|word| match word {
        "@" => values.next().expect("a value for every @").into(),
        word => word.into(),
    });
    args.collect()
}

/// Runs a command that must do well and say nothing on stderr.
fn ok(line: &str, values: &[&Path]) -> String {
    let ran = run(&words(line, values), b"");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{line}");
    ran.out
}

fn json(line: &str, values: &[&Path]) -> serde_json::Value {
    let out = ok(line, values);
    assert_eq!(out.matches('\n').count(), 1, "one line: {out}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}"))
}

/// Checks that a run failed with this status, saying these parts on one line of stderr and nothing on stdout.
fn failed(ran: &Ran, code: i32, parts: &[&str], what: &str) {
    assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{what}: {}", ran.err);
    assert!(ran.err.starts_with("error: ") && ran.err.matches('\n').count() == 1, "{what}: {:?}", ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "{what}: {:?} does not say {part:?}", ran.err);
    }
}

fn fails(line: &str, values: &[&Path], code: i32, parts: &[&str]) {
    failed(&run(&words(line, values), b""), code, parts, line);
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A vocabulary and nothing else, of an architecture that nobody knows.
fn vocabulary_only() -> Writer {
    vocabulary(Writer::default().key("general.architecture", Value::Str("unheard-of".into())))
}

#[test]
fn nobody_listening_is_no_failure() {
    let dir = scratch("closed");
    let model = write(&dir, "tiny.gguf", &tiny_llama(1, "F32").bytes());
    let text = write(&dir, "text", &b"many words ".repeat(30_000));
    for line in ["tokenize -m @ -f @", "inspect @ --verbose"] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_foretoken"))
            .args(words(line, &[&model, &text]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{line}");
    }
}
