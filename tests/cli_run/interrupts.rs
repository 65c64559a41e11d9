//! Ctrl-C in every phase of `run`.

use super::*;

fn start(name: &str, more: &[&str]) -> Running {
    let model: PathBuf = save(name, &long_winded());
    Running::start(&args(&model, &[&["--raw", "-c", "0", "-l", "318-inf"], more].concat()))
}

#[test]
fn while_generating_the_text_so_far_is_kept() {
    let mut child = start("int-decode", &["-p", "a", "-l", "72+1000"]);
    let mut first = [0; 8];
    child.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    child.interrupt();
    let (status, rest, said) = child.end();
    assert_eq!(status, Some(130), "{said}");
    assert_eq!(rest.trim_start_matches('H'), "\n");
    assert!(said.contains(", interrupted") && said.lines().count() == 4, "{said}");
}

#[test]
fn while_reading_the_prompt() {
    let prompt = "q".repeat(100_000);
    let mut child = start("int-prefill", &["-vv", "-p", &prompt]);
    child.read_stderr_until("prompt ids: ");
    child.interrupt();
    let started = Instant::now();
    let (status, out, _) = child.end();
    assert_eq!((status, out.as_str()), (Some(130), ""));
    assert!(started.elapsed() < Duration::from_secs(20), "within about a chunk of {}", foretoken::engine::CHUNK);
}

#[test]
fn while_loading() {
    let mut child = start("int-load", &["-v", "-p", "a"]);
    child.read_stderr_until("weights");
    child.interrupt();
    assert_eq!(child.end().0, Some(130));
}

#[test]
fn while_waiting_for_a_prompt() {
    let mut child = start("int-wait", &[]);
    child.wait_for_handler();
    child.interrupt();
    assert_eq!(child.end(), (Some(130), String::new(), String::new()));
}

/// The first is seen only between tokens; with nobody reading stdout that never comes.
#[test]
fn the_second_ends_it_at_once() {
    let bias = format!("{LONG_TOKEN}+1000");
    let mut child = start("int-twice", &["-p", "a", "-l", &bias]);
    child.read_stderr_until("seed: ");
    let pid = child.0.id();
    child.wait_until("a full pipe", || {
        let wait = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        let stack = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        wait.contains("pipe") || stack.starts_with("1 0x1 ")
    });
    child.interrupt();
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.0.try_wait().unwrap().is_none(), "the first one waits");
    child.interrupt();
    assert_eq!(child.wait(), Some(130));
}
