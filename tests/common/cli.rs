//! The real binary on a tiny model.

use super::gguf_writer::{Value, Writer, tiny_llama};
use assert_cmd::Command;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes this long, however busy the machine is.
const LONG: Duration = Duration::from_secs(300);

/// Where the binary keeps what it keeps.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/cache");

/// The end token of the tiny model; banned where a test counts tokens.
pub const NO_END: [&str; 2] = ["--logit-bias", "318-inf"];

/// A token of the model [`long_winded`] whose text is 4096 letters.
pub const LONG_TOKEN: usize = 300;

/// Turns `<|start|>role content<|end|>`, and the start of an answer.
pub const TEMPLATE: &str = "{% for m in messages %}<|start|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|start|>a {% endif %}";

/// Writes a model file named after `name`, which no other test of the binary uses.
pub fn save(name: &str, model: &Writer) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}.gguf", env!("CARGO_CRATE_NAME")));
    std::fs::write(&path, model.bytes()).unwrap();
    path
}

/// A base model of 512 positions.
pub fn tiny() -> Writer {
    tiny_llama(7, "F32")
}

/// The same with a chat template.
pub fn chatty() -> Writer {
    tiny().key("tokenizer.chat_template", Value::Str(TEMPLATE.into()))
}

/// A model of 131072 positions, one of whose tokens is as long as a page.
pub fn long_winded() -> Writer {
    let mut w = tiny().set("llama.context_length", Value::U32(131_072));
    for (key, value) in &mut w.keys {
        match value {
            Value::Strs(tokens) if key == b"tokenizer.ggml.tokens" => tokens[LONG_TOKEN] = "x".repeat(4096),
            Value::I32s(types) if key == b"tokenizer.ggml.token_type" => types[LONG_TOKEN] = 1,
            _ => {}
        }
    }
    w
}

/// Runs the binary to its end with `stdin` as its input.
pub fn run_with<S: AsRef<std::ffi::OsStr>>(args: &[S], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(args).env("XDG_CACHE_HOME", CACHE).write_stdin(stdin).timeout(LONG);
    command.output().unwrap()
}

/// Runs the binary without input.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    run_with(args, b"")
}

/// stdout of a run that went well.
pub fn answer<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(args: &[S]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What was said on stderr.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Asserts the status and that stderr is one line that starts with `error:` and holds `needles`.
pub fn refused(output: &Output, status: i32, needles: &[&str], what: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{what}: {text}");
    assert!(text.starts_with("error: ") && text.lines().count() == 1, "{what}: {text}");
    needles.iter().for_each(|needle| assert!(text.contains(needle), "{what}: no {needle:?} in {text}"));
    assert_eq!(output.stdout, b"", "{what}");
}

/// The JSON object that `--stats json` writes as the last line of stderr.
pub fn stats(output: &Output) -> serde_json::Value {
    let text = stderr(output);
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A process under way, all its streams piped.
pub struct Running(pub Child);

impl Running {
    pub fn start<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Self {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_foretoken"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Waits until the process handles SIGINT itself.
    #[cfg(target_os = "linux")]
    pub fn wait_for_handler(&mut self) {
        let file = format!("/proc/{}/status", self.0.id());
        self.wait_until("a handler of SIGINT", || {
            let status = std::fs::read_to_string(&file).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
        });
    }

    pub fn wait_until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let started = Instant::now();
        while !done() {
            assert!(started.elapsed() < LONG, "waited too long for {what}");
            assert!(self.0.try_wait().unwrap().is_none(), "ended while waiting for {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Reads stderr until `needle` has come.
    pub fn read_stderr_until(&mut self, needle: &str) {
        let (mut seen, mut byte) = (vec![], [0]);
        let stderr = self.0.stderr.as_mut().unwrap();
        while !seen.ends_with(needle.as_bytes()) {
            stderr.read_exact(&mut byte).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&seen)));
            seen.push(byte[0]);
        }
    }

    pub fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    pub fn send(&mut self, text: &str) {
        self.0.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// The status once it has ended, and the rest of stdout and stderr. Stdin stays open.
    pub fn end(mut self) -> (Option<i32>, String, String) {
        let _stdin = self.0.stdin.take();
        let (mut out, mut err) = (vec![], vec![]);
        let stderr = self.0.stderr.take();
        let reader = std::thread::spawn(move || {
            stderr.map(|mut stderr| stderr.read_to_end(&mut err).unwrap());
            err
        });
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_end(&mut out).unwrap();
        }
        let status = self.wait();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status, text(out), text(reader.join().unwrap()))
    }

    /// Reads a byte of stdout and closes it: a process that writes for long must end at once, with success and no word.
    pub fn ends_when_nobody_listens(mut self) {
        let mut stdout = self.0.stdout.take().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        drop(stdout);
        let started = Instant::now();
        assert_eq!(self.end(), (Some(0), String::new(), String::new()));
        assert!(started.elapsed() < Duration::from_secs(30), "131072 tokens take longer");
    }

    /// The status once it has ended.
    pub fn wait(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < LONG, "does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
