//! `scripts/self_data`: a model's questions to itself and its answers, resumed, and what is forbidden left out.

mod common;

use common::cli;
use common::scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether there is a Python for the script; says so if not.
fn python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new("python3").args(["-c", check]).status().is_ok_and(|s| s.success());
    if !found {
        println!("skipped: there is no python3 of 3.9 or newer, which scripts/self_data needs");
    }
    found
}

fn run(model: &Path, output: &Path, more: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/self_data"));
    command.arg("-m").arg(model).arg("-o").arg(output).args(["--binary", env!("CARGO_BIN_EXE_foretoken")]);
    command.args(["--max-tokens", "12", "-c", "256", "-t", "1", "--round", "4"]).args(more).output().unwrap()
}

/// Questions and answers of a file.
fn conversations(path: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).unwrap();
    let said = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let part = |i: usize, role| {
            assert_eq!(line["messages"][i]["role"], role);
            line["messages"][i]["content"].as_str().unwrap().to_string()
        };
        (part(0, "user"), part(1, "assistant"))
    };
    text.lines().map(said).collect()
}

fn model(name: &str) -> PathBuf {
    cli::save(name, &cli::chatty())
}

fn ends_well(output: &Output) {
    assert!(output.status.success(), "{}", cli::stderr(output));
}

#[test]
fn a_model_asks_itself_and_goes_on_where_it_was_stopped() {
    if !python() {
        return;
    }
    let (folder, model) = (scratch("asked"), model("asked"));
    let [whole, parts] = ["whole.jsonl", "parts.jsonl"].map(|name| folder.join(name));
    // Random models seldom end what they say, so rounds are large.
    let sizes = ["--round", "24"];
    ends_well(&run(&model, &whole, &[&sizes[..], &["--count", "9"]].concat()));
    ends_well(&run(&model, &parts, &[&sizes[..], &["--count", "1"]].concat()));
    // What an interrupted round left is cut off.
    let begun = fs::read_to_string(&parts).unwrap();
    fs::write(&parts, format!("{begun}{{\"messages\": [")).unwrap();
    ends_well(&run(&model, &parts, &[&sizes[..], &["--count", "9"]].concat()));
    assert_eq!(fs::read(&whole).unwrap(), fs::read(&parts).unwrap());
    let made = conversations(&whole);
    assert!(made.len() >= 9 && made.iter().all(|(question, answer)| !question.is_empty() && !answer.is_empty()));
    let other = run(&model, &parts, &["--seed", "5", "--count", "99"]);
    assert!(cli::stderr(&other).contains("was begun with other arguments"), "{}", cli::stderr(&other));
    assert_eq!(other.status.code(), Some(1));
}

#[test]
fn prompts_of_a_file_are_answered_but_for_what_is_forbidden() {
    if !python() {
        return;
    }
    let (folder, model) = (scratch("forbidden"), model("forbidden"));
    let prompts = folder.join("prompts.txt");
    let asks = [
        "why is the sky blue today",
        "name three rivers, and then name three more",
        "short",
        "say what water is made of",
    ];
    fs::write(&prompts, asks.join("\n")).unwrap();
    // The second within another text, in the strings of a JSON line; the last but for one word in the middle.
    let unseen = folder.join("unseen.jsonl");
    let lines = [format!("{{\"turns\": [\"please {}\"]}}", asks[1]), "{\"a\": \"say what WATER is made of\"}".into()];
    fs::write(&unseen, lines.join("\n")).unwrap();
    let output = folder.join("made.jsonl");
    let [prompts, unseen] = [&prompts, &unseen].map(|path| path.to_str().unwrap());
    ends_well(&run(&model, &output, &["--prompts", prompts, "--forbid", unseen]));
    let asked: Vec<_> = conversations(&output).into_iter().map(|(question, _)| question).collect();
    assert_eq!(asked, [asks[0], asks[2], asks[3]]);
}
