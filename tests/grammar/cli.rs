//! The flags and the fields of a batch, from outside.

use crate::common::gguf_writer::Value as Gguf;
use crate::common::{cli, scratch};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn flags(model: &Path, command: &str, more: &[&str]) -> Vec<String> {
    let start = [command, "-m", &model.display().to_string(), "-t", "1", "-q", "-c", "256", "-s", "5"];
    start.iter().chain(more).map(|&s| s.into()).collect()
}

fn write(dir: &Path, name: &str, text: &[u8]) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn every_flag_constrains_the_answer() {
    let model = cli::save("flags", &cli::chatty());
    let dir = scratch("grammar-flags");
    let gbnf = "\u{FEFF}root ::= \"yes\" | \"no\" # one of two\r\n";
    let files = [
        write(&dir, "a.gbnf", gbnf.as_bytes()),
        write(&dir, "a.json", br#"{"enum": ["yes", "no"]}"#),
        write(&dir, "a.lark", b"start: \"yes\" | \"no\"\n"),
    ];
    for (flag, value) in [
        ("--grammar", &gbnf[3..]),
        ("--grammar-file", &files[0]),
        ("--json-schema", r#"{"enum": ["yes", "no"]}"#),
        ("--json-schema-file", &files[1]),
        ("--regex", "yes|no"),
        ("--lark-file", &files[2]),
    ] {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..8 {
            let seed = seed.to_string();
            let line = flags(&model, "run", &[flag, value, "-p", "Well?", "--temp", "1.5", "-s", &seed]);
            let line: Vec<_> =
                line.into_iter().enumerate().filter(|&(i, _)| i != 8 && i != 9).map(|(_, s)| s).collect();
            seen.insert(cli::answer(&line).trim_end().trim_matches('"').to_owned());
        }
        let want = ["no", "yes"].map(String::from).into();
        assert_eq!(seen, want, "{flag}");
    }
}

#[test]
fn wrong_flags_are_usage_errors_of_one_line_before_the_model_is_opened() {
    let dir = scratch("grammar-wrong");
    let bad = write(&dir, "bad.gbnf", b"root ::= \"a\"\n\nx ::= [b-");
    let latin = write(&dir, "latin.gbnf", b"root ::= \"\xE9\"\n");
    let long = format!("root ::= {}", "(".repeat(100_000));
    let table: Vec<(Vec<&str>, Vec<&str>)> = vec![
        (vec!["--grammar", "root ::= a"], vec!["--grammar: 1:10: rule 'a': it is used here"]),
        (vec!["--grammar", ""], vec!["--grammar: 1:1: rule 'root'"]),
        (vec!["--grammar", "root ::= root \"a\""], vec!["--grammar: 1:1: rule 'root': it can begin with itself"]),
        (vec!["--grammar", &long], vec!["--grammar: 1:100009: rule 'root': '(' is never closed"]),
        (vec!["--grammar-file", &bad], vec!["--grammar-file: ", "bad.gbnf: 3:7: rule 'x': it is never closed"]),
        (vec!["--grammar-file", &latin], vec!["latin.gbnf: byte 10 (0xE9) is not UTF-8"]),
        (vec!["--grammar-file", "no/such/file"], vec!["--grammar-file: no/such/file: No such file"]),
        (vec!["--json-schema", "{"], vec!["--json-schema: not JSON: EOF"]),
        (vec!["--json-schema", r#"{"type": "objekt"}"#], vec!["--json-schema: ", "objekt"]),
        (vec!["--regex", "a(b"], vec!["--regex: "]),
        (vec!["--lark-file", &bad], vec!["--lark-file: ", "bad.gbnf: "]),
        (
            vec!["--grammar", "root ::= \"a\"", "--regex", "a"],
            vec!["found both --grammar and --regex, supported one of them"],
        ),
        (vec!["--json-schema", "{}", "--lark-file", "x"], vec!["found both --json-schema and --lark-file"]),
    ];
    for (line, needles) in &table {
        for command in ["run", "batch"] {
            let output = cli::run(&flags(Path::new("missing.gguf"), command, line));
            cli::refused(&output, 2, needles, &format!("{command} {line:?}"));
        }
    }
    // What only the vocabulary tells.
    let model = cli::save("wrong", &cli::chatty());
    let output = cli::run(&flags(&model, "run", &["--grammar", "root ::= <[9999]>", "-p", "x"]));
    cli::refused(&output, 2, &["--grammar: 1:10: rule 'root': found token 9999, the vocabulary has 320"], "token");
}

#[test]
fn help_has_a_group_of_them() {
    for command in ["run", "batch"] {
        let help = cli::answer(&[command, "--help"]);
        let group = help.split("Constrained output:").nth(1).expect("the group");
        for flag in ["--grammar <", "--grammar-file", "--json-schema <", "--json-schema-file", "--regex", "--lark-file"]
        {
            assert!(group.contains(flag), "{command}: {flag}");
        }
    }
}

/// Where nothing is legal the run fails and says so; what came before is shown (S7).
#[test]
fn nothing_legal_is_a_failure() {
    // Without the token of "z" the grammar cannot be satisfied.
    let mut model = cli::chatty();
    for (key, value) in &mut model.keys {
        if let (b"tokenizer.ggml.token_type", Gguf::I32s(types)) = (&key[..], value) {
            types[usize::from(b'z')] = 5;
        }
    }
    let model: PathBuf = cli::save("unused", &model);
    for draft in ["none", "lookup"] {
        let output =
            cli::run(&flags(&model, "run", &["--grammar", "root ::= \"in\" \"z\"", "-p", "x", "--draft", draft]));
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stdout, b"in\n");
        let text = cli::stderr(&output);
        assert_eq!(text, "error: grammar: no token of the vocabulary is legal after \"in\"\n");
    }
}

#[test]
fn requests_of_a_batch_have_their_own() {
    let model = cli::save("batch", &cli::chatty());
    let requests = [
        (json!({"prompt": "a", "grammar": "root ::= \"x\" [0-9]{3}"}), Ok(r"x\d{3}")),
        (json!({"prompt": "a", "json_schema": {"type": "boolean"}}), Ok("true|false")),
        (json!({"prompt": "a", "json_schema": "{\"const\": 17}"}), Ok("17")),
        (json!({"prompt": "a"}), Ok("(yes|no)")),
        (json!({"prompt": "a", "grammar": "root ::= b"}), Err("grammar: 1:10: rule 'b': it is used here")),
        (json!({"prompt": "a", "grammar": 5}), Err("grammar: found 5, supported a string")),
        (json!({"prompt": "a", "grammar": "root ::= <[999]>"}), Err("grammar: 1:10: rule 'root': found token 999")),
        (json!({"prompt": "a", "json_schema": "{"}), Err("json_schema: not JSON")),
        (json!({"prompt": "a", "json_schema": 5}), Err("json_schema: found 5, supported a schema")),
        (json!({"prompt": "a", "json_schema": {"type": "x"}}), Err("json_schema: ")),
        (
            json!({"prompt": "a", "json_schema": true, "grammar": "root ::= \"a\""}),
            Err("found both grammar and json_schema"),
        ),
        (json!({"prompt": "a", "grammar": null, "max_tokens": 1}), Ok("(yes|no|y|n|ye)")),
    ];
    let lines: String = requests.iter().map(|(request, _)| format!("{request}\n")).collect();
    let output = cli::run_with(&flags(&model, "batch", &["--regex", "yes|no"]), lines.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", cli::stderr(&output));
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().count(), requests.len());
    for (answer, (request, want)) in answers.lines().zip(&requests) {
        let answer: Value = serde_json::from_str(answer).unwrap();
        match want {
            Ok(pattern) => {
                let text = answer["text"].as_str().unwrap_or_else(|| panic!("{request}: {answer}"));
                let matches = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap().is_match(text);
                assert!(matches, "{request}: {text:?}");
            }
            Err(needle) => {
                let error = answer["error"].as_str().unwrap_or_else(|| panic!("{request}: {answer}"));
                assert!(error.contains(needle), "{request}: {error}");
            }
        }
    }
}
