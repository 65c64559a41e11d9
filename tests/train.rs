//! Training of heads, all of it: a random target's own text, its features, the three kinds of heads learnt from them, and
//! the engine drafting with what came out.

mod common;

use common::cli::{self, NO_END};
use common::gguf_writer::VOCAB;
use common::scratch;
use foretoken::gguf::Gguf;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python with what training imports: the one `FORETOKEN_PYTHON` names, or else python3. Says so if there is none.
fn python() -> Option<String> {
    let python = std::env::var("FORETOKEN_PYTHON").unwrap_or_else(|_| "python3".into());
    let check = "import gguf, numpy, jax, optax";
    let found = Command::new(&python).args(["-c", check]).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {python} is no python3 with scripts/requirements-train.txt, which training of heads needs");
    }
    found.then_some(python)
}

/// A random target that thinks little: what comes next depends mostly on the last token, so that heads can learn it from
/// the text of a second. Its distributions are sharp.
fn target(name: &str) -> PathBuf {
    let mut target = cli::tiny();
    for tensor in &mut target.tensors {
        let factor = match std::str::from_utf8(&tensor.name).unwrap() {
            "output.weight" => 4.0,
            name if name.contains("attn_output") || name.contains("ffn_down") => 0.2,
            _ => continue,
        };
        let values = tensor.bytes.as_chunks().0.iter().map(|x| factor * f32::from_le_bytes(*x));
        tensor.bytes = values.flat_map(f32::to_le_bytes).collect();
    }
    cli::save(name, &target)
}

/// Features of what the target writes.
fn features(target: &Path, folder: &Path) -> PathBuf {
    let word = |i: usize| (0..5).map(|j| (b'a' + (i * (7 + j) + j * j) as u8 % 26) as char).collect::<String>();
    let ask = |i| serde_json::json!({"prompt": word(i), "raw": true, "max_tokens": 60, "temperature": 1.0, "seed": i});
    let asks: String = (0..160).map(|i| ask(i).to_string() + "\n").collect();
    let target = target.to_str().unwrap();
    let batch = cli::run_with(&[&["batch", "-m", target, "-q"][..], &NO_END].concat(), asks.as_bytes());
    assert!(batch.status.success(), "{}", cli::stderr(&batch));
    let (input, output) = (folder.join("texts.jsonl"), folder.join("features"));
    let answers = String::from_utf8(batch.stdout).unwrap();
    let tokens = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["tokens"].clone();
    let texts: String =
        answers.lines().map(|line| serde_json::json!({"tokens": tokens(line)}).to_string() + "\n").collect();
    fs::write(&input, texts).unwrap();
    let [input, to] = [&input, &output].map(|path| path.to_str().unwrap());
    // Three layers, though there are only two and the last row's own.
    cli::answer(&[
        "features",
        "-q",
        "-m",
        target,
        "--input",
        input,
        "-o",
        to,
        "--taps",
        "0,1,2",
        "--shard-tokens",
        "4000",
    ]);
    output
}

/// What is always said to the trainer.
struct Training {
    python: String,
    target: PathBuf,
    features: PathBuf,
}

impl Training {
    /// What is said of a target of its own, in a folder of its own; nothing without a Python that can train.
    fn new(name: &str) -> Option<(Self, PathBuf)> {
        let python = python()?;
        let (folder, target) = (scratch(name), target(name));
        let features = features(&target, &folder);
        Some((Self { python, target, features }, folder))
    }

    /// Trains and returns the held-out losses before and after.
    fn run(&self, kind: &str, file: &Path, more: &[&str]) -> (f64, f64) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/train_heads.py");
        let mut command = Command::new(&self.python);
        command.arg(script).arg(kind).arg(&self.features).arg("--target").arg(&self.target).arg("-o").arg(file);
        command.args(["--window", "64", "--batch", "4", "--rate", "0.003", "--type", "q8_0", "--measured", "3"]);
        let output = command.args(more).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{kind} {more:?}: {said}");
        let loss = |text: &str| text.split([',', ' ']).next().unwrap().parse().unwrap();
        let losses: Vec<f64> = said.split("held-out loss ").skip(1).map(loss).collect();
        (losses[0], *losses.last().unwrap())
    }
}

/// The text after some prompts, and how many guesses were made and right.
fn drafted(target: &Path, draft: &str) -> (Vec<String>, u64, u64) {
    let (mut texts, mut guessed, mut right) = (vec![], 0, 0);
    for prompt in ["green", "the other", "zebra"] {
        let target = target.to_str().unwrap();
        let args = ["run", "--raw", "-m", target, "-p", prompt, "-n", "80", "--temp", "0", "--draft", draft];
        let output = cli::run(&[&args[..], &NO_END, &["--draft-max", "3", "--stats", "json"]].concat());
        let stats = cli::stats(&output);
        guessed += stats["draft"]["drafted"].as_u64().unwrap_or(0);
        right += stats["draft"]["accepted"].as_u64().unwrap_or(0);
        texts.push(String::from_utf8(output.stdout).unwrap());
    }
    (texts, guessed, right)
}

#[test]
fn trained_heads_guess_what_untrained_ones_do_not() {
    let Some((training, folder)) = Training::new("trained") else { return };
    let (plain, ..) = drafted(&training.target, "none");
    for (kind, drafter, more) in [
        ("medusa", "medusa", &["--vocab", "256", "--heads", "3"][..]),
        ("medusa", "medusa", &["--vocab", "256", "--heads", "2", "--blocks", "2", "--own-outputs", "--soft", "0.5"]),
        ("eagle", "eagle", &["--vocab", "0", "--unroll", "2"]),
        ("eagle3", "eagle", &["--vocab", "256", "--output-type", "q4_0"]),
    ] {
        let share = |steps: &str| {
            let file = folder.join(format!("{kind}.gguf"));
            let losses = training.run(kind, &file, &[more, &["--steps", steps]].concat());
            let gguf = Gguf::open(&file).unwrap();
            assert_eq!(gguf.meta().str("general.architecture").unwrap(), Some(kind));
            let depths = gguf.meta().floats("spec.training.accuracy").unwrap().unwrap().len();
            assert!((2..=3).contains(&depths), "{kind}: {depths}");
            let option = if kind == "medusa" { ",tree=chain" } else { ",branch=1" };
            let (texts, guessed, right) = drafted(&training.target, &format!("{drafter}:{}{option}", file.display()));
            assert_eq!(texts, plain, "{kind} after {steps} steps");
            assert!(guessed > 50, "{kind}: {guessed} guesses");
            (losses, right as f64 / guessed as f64)
        };
        let (_, untrained) = share("0");
        let ((before, after), trained) = share("150");
        println!("{kind} {more:?}: loss {before:.3} to {after:.3}, {untrained:.3} then {trained:.3} of guesses right");
        assert!(after < 0.9 * before, "{kind}: held-out loss {before} to {after}");
        let chance = 1.0 / VOCAB as f64;
        assert!(trained > untrained.max(chance) + 0.1, "{kind}: {untrained} then {trained} of guesses right");
    }
}

#[test]
fn the_trainer_passes_its_own_tests() {
    let Some(python) = python() else { return };
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "discover"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/train"));
    let output = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("\nOK") && !said.contains("Ran 0 tests"), "{said}");
}

#[test]
fn training_goes_on_where_it_was_stopped() {
    let Some((training, folder)) = Training::new("resumed") else { return };
    let checkpoint = folder.join("checkpoint");
    let checkpoint = checkpoint.to_str().unwrap();
    let files = ["whole.gguf", "parts.gguf"].map(|name| folder.join(name));
    training.run("medusa", &files[0], &["--steps", "12"]);
    // No time is left after the first step.
    training.run("medusa", &files[1], &["--steps", "12", "--checkpoint", checkpoint, "--minutes", "0.00001"]);
    assert_ne!(fs::read(&files[0]).unwrap(), fs::read(&files[1]).unwrap());
    training.run("medusa", &files[1], &["--steps", "12", "--checkpoint", checkpoint]);
    assert_eq!(fs::read(&files[0]).unwrap(), fs::read(&files[1]).unwrap());
}

#[test]
fn training_starts_where_another_head_ended() {
    let Some((training, folder)) = Training::new("started") else { return };
    let files = ["first.gguf", "same.gguf", "fewer.gguf"].map(|name| folder.join(name));
    let (fresh, trained) = training.run("eagle3", &files[0], &["--vocab", "256", "--steps", "60"]);
    let start = files[0].to_str().unwrap();
    // Weights are written as they are measured: nothing is lost.
    let (same, _) = training.run("eagle3", &files[1], &["--vocab", "256", "--steps", "0", "--start", start]);
    assert!((same - trained).abs() < 1e-3 * trained, "{trained}, then {same}");
    // Rows go by the tokens that they stand for.
    let (fewer, _) = training.run("eagle3", &files[2], &["--vocab", "200", "--steps", "0", "--start", start]);
    assert!(fewer < (fresh + trained) / 2.0, "{fresh} to {trained}, then {fewer}");
}
