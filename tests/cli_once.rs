//! One-shot manners: where a prompt comes from and what is done to it, the command left out, help, completions, manual.

mod common;

use common::cli::{Running, TEMPLATE, answer, chatty, refused, run, run_with, save, stderr, tiny};
use common::gguf_writer::Value;
use common::scratch;
use std::path::Path;
use std::process::Output;

/// `run` with two letters as its answer.
fn line<'a>(model: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let start = ["run", "-m", model.to_str().unwrap(), "-t", "1", "-n", "2", "-l", "72+1000", "-vv"];
    [&start[..], more].concat()
}

/// What the model saw.
fn seen(output: &Output) -> String {
    let said = stderr(output);
    let line = said.lines().find_map(|line| line.strip_prefix("prompt: ")).unwrap_or_else(|| panic!("{said}"));
    line.to_owned()
}

#[test]
fn a_prompt_and_a_pipe_are_one_text() {
    let model = save("joined", &tiny());
    for (more, stdin, want) in [
        (&["-p", "Sum:", "-"][..], &b"notes\n"[..], "Sum:\nnotes\n"),
        (&["-p", "Sum:\n", "-"], b"notes", "Sum:\nnotes"),
        (&["-p", "Sum:", "-"], b"", "Sum:\n"),
        (&["-p", "", "-"], b"notes", "notes"),
        (&["-", "-p", "Sum:"], b"\xEF\xBB\xBFnotes", "Sum:\nnotes"),
        (&["-p", "\u{FEFF}Sum:", "-"], b"a\0b", "Sum:\na\0b"),
        (&["-p", "Sum:"], b"notes", "Sum:"),
        (&["-"], b"notes\n", "notes\n"),
        (&[], b"notes\r\n", "notes\r\n"),
        (&["-p", "x", "--prefix", "<", "--suffix", ">"], b"", "<x>"),
        (&["--prefix", "<", "--suffix", "\n>"], b"x\n", "<x\n\n>"),
        (&["-p", "S", "-", "--in-prefix", "<", "--in-suffix", ">"], b"n", "<S\nn>"),
        (&["-p", r"a\nb"], b"", r"a\nb"),
        (&["-e", "-p", r"a\nb\t\x41\\", "--prefix", r"\n", "--suffix", r"\x00"], b"", "\na\nb\tA\\\0"),
        (
            &["-e", "-p", r"a\n", "-"],
            br"b\n",
            r"a
b\n",
        ),
    ] {
        let output = run_with(&line(&model, &[&["--raw"], more].concat()), stdin);
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        assert_eq!(seen(&output), format!("{want:?}"), "{more:?}");
    }
    let bad = |more: &[&str], stdin: &[u8], needle: &str| {
        refused(
            &run_with(
                &[&line(&model, more)[..], &["-q"]]
                    .concat()
                    .into_iter()
                    .filter(|&flag| flag != "-vv")
                    .collect::<Vec<_>>(),
                stdin,
            ),
            1,
            &[needle],
            needle,
        );
    };
    bad(&["-p", "good", "-"], b"ok\xFF", "stdin: byte 2 (0xFF) is not UTF-8");
    bad(&["-e", "-p", r"ok\xFF"], b"", "--prompt: byte 2 (0xFF) is not UTF-8");
    bad(&["-e", "-p", "x", "--prefix", r"\xC3"], b"", "--prefix: byte 0 (0xC3) is not UTF-8");
    for more in [&["-p", "a", "-f", "b"][..], &["-f", "b", "-"]] {
        assert_eq!(run(&line(&model, more)).status.code(), Some(2), "{more:?}");
    }
    // With - it waits for the end of stdin, without it does not.
    let mut waits = Running::start(&line(&model, &["--raw", "-p", "a", "-"]));
    waits.send("b");
    waits.wait_for_handler();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(waits.0.try_wait().unwrap().is_none());
    drop(waits.0.stdin.take());
    assert_eq!(waits.end().0, Some(0));
}

#[test]
fn the_text_is_echoed_on_request() {
    let (base, chat) = (save("echo", &tiny()), save("echo-chat", &chatty()));
    for (model, more, want) in [
        (&base, &["--raw", "-p", "one"][..], "HH\n"),
        (&base, &["--raw", "-p", "one", "--echo"], "oneHH\n"),
        (&base, &["-p", "one\n", "--echo", "--prefix", "<"], "<one\nHH\n"),
        (&chat, &["--raw", "-p", "one", "--echo"], "oneHH\n"),
        (&chat, &["-p", "one", "--echo"], "one\nHH\n"),
        (&chat, &["-p", "one\n", "--echo", "--system", "be"], "one\nHH\n"),
        (&chat, &["-p", "", "--echo"], "HH\n"),
        (&chat, &["-p", "one", "--echo", "-n", "0"], "one\n"),
        (&base, &["--raw", "-p", "one", "--echo", "-n", "0"], "one\n"),
    ] {
        let repeated: Vec<_> = line(model, more);
        // The last -n counts: give it once.
        let line: Vec<_> =
            if more.contains(&"-n") { repeated[..5].iter().chain(&repeated[7..]).copied().collect() } else { repeated };
        assert_eq!(answer(&line), want, "{more:?}");
    }
}

#[test]
fn escapes_reach_every_text() {
    let model = save("escapes", &chatty());
    let output = run(&line(&model, &["-e", "-p", "x", "--system", r"a\tb"]));
    assert!(seen(&output).contains(r"system a\tb<|end|>"), "{}", seen(&output));
    let stops = |more: &[&str]| answer(&line(&model, &[&["-p", "x", "--stop", r"\x48H"], more].concat()));
    assert_eq!((stops(&[]).as_str(), stops(&["-e"]).as_str()), ("HH\n", ""));
    refused(
        &run(&["run", "-m", model.to_str().unwrap(), "-p", "x", "-e", "--stop", r"\xFF"]),
        1,
        &["--stop: byte 0"],
        "stop",
    );
}

#[test]
fn the_template_is_told_whether_to_think() {
    let tells = format!("{TEMPLATE}{{% if enable_thinking is defined %}}[{{{{ enable_thinking }}}}]{{% endif %}}");
    let model = save("think", &tiny().key("tokenizer.chat_template", Value::Str(tells)));
    for (more, want) in [(&[][..], "a \""), (&["--think", "on"], "[true]\""), (&["--think", "off"], "[false]\"")] {
        let output = run(&line(&model, &[&["-p", "x"], more].concat()));
        let shown = seen(&output).to_lowercase();
        assert!(shown.ends_with(want), "{more:?}: {shown}");
    }
    // A template that does not know it does not mind.
    let plain = save("think-not", &chatty());
    assert_eq!(seen(&run(&line(&plain, &["-p", "x", "--think", "off"]))), seen(&run(&line(&plain, &["-p", "x"]))));
    assert_eq!(run(&line(&plain, &["-p", "x", "--think", "perhaps"])).status.code(), Some(2));
}

#[test]
fn without_a_command_a_prompt_or_a_pipe_is_answered_once() {
    let model = save("bare", &chatty());
    let bare = |more: &[&str], stdin: &[u8]| run_with(&line(&model, more)[1..], stdin);
    for (more, stdin, want) in [
        (&["-p", "one"][..], &b"unread"[..], "user one<|end|>"),
        (&[], b"two\nlines\n", "user two\\nlines\\n<|end|>"),
        (&["-"], b"three", "user three<|end|>"),
        (&["-p", "four", "-"], b"five", "user four\\nfive<|end|>"),
    ] {
        let output = bare(more, stdin);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"HH\n"[..]), "{}", stderr(&output));
        assert!(seen(&output).contains(want), "{}", seen(&output));
    }
    let wrong = bare(&["--history", "none"], b"x");
    assert!(wrong.status.code() == Some(2) && stderr(&wrong).contains("--history"), "{}", stderr(&wrong));
    refused(&run(&["-m", "missing.gguf", "-p", "x"]), 1, &["missing.gguf"], "missing");
    assert_eq!(run(&["-m"]).status.code(), Some(2));
    assert_eq!(run::<&str>(&[]).status.code(), Some(2));
}

const COMMANDS: [&str; 10] =
    ["chat", "run", "batch", "tokenize", "perplexity", "bench", "features", "inspect", "completions", "man"];

#[test]
fn help_starts_with_examples_and_is_grouped() {
    let help = answer(&["--help"]);
    COMMANDS.iter().for_each(|command| assert!(help.contains(&format!("\n  {command} ")), "{command}"));
    for command in [&[][..], &["chat"], &["run"], &["batch"], &["tokenize"], &["bench"], &["inspect"], &["man"]] {
        for flag in ["-h", "--help"] {
            let help = answer(&[command, &[flag]].concat());
            let place = |needle| help.find(needle).unwrap_or_else(|| panic!("{command:?} {flag}: no {needle}: {help}"));
            assert!(place("Examples:\n") < place("Usage: ") && place("Usage: ") < place("  -h, --help"), "{help}");
            assert!(help.lines().all(|line| line.chars().count() <= 120) && !help.contains('\x1b'));
        }
    }
    for command in ["run", "chat"] {
        let help = answer(&[command, "--help"]);
        for heading in ["Model:", "Sampling:", "Drafting:", "Messages and statistics:"] {
            assert!(help.contains(&format!("\n{heading}\n")), "{command}: {heading}");
        }
        for flag in ["--prompt-cache", "--think", "--draft", "--seed", "--ctx-size"] {
            assert!(help.contains(flag), "{command}: {flag}");
        }
    }
    assert_eq!(answer(&["-m", "x", "--help"]), answer(&["run", "--help"]));
}

#[test]
fn completions_and_manual_pages_name_everything() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = answer(&["completions", shell]);
        COMMANDS.iter().for_each(|command| assert!(text.contains(command), "{shell}: {command}"));
        assert!(text.contains("prompt-cache") && text.contains("logit-bias"), "{shell}");
    }
    let whole = answer(&["man"]);
    assert!(whole.contains(".TH foretoken 1") && whole.contains(".SH EXAMPLES"));
    COMMANDS.iter().for_each(|command| assert!(whole.contains(&format!("foretoken\\-{command}(1)")), "{command}"));
    for command in COMMANDS {
        let page = answer(&["man", command]);
        assert!(page.contains(&format!(".TH foretoken-{command} 1")) && page.contains(".SH EXAMPLES"), "{page}");
    }
    assert!(answer(&["man", "run"]).contains("\\-\\-prompt\\-cache"));
    refused(&run(&["man", "fly"]), 2, &["man: found 'fly', supported: chat run"], "unknown command");
    assert_eq!(run(&["completions", "csh"]).status.code(), Some(2));
    // A shell that can tries it.
    let dir = scratch("once-completions");
    std::fs::write(dir.join("f.bash"), answer(&["completions", "bash"])).unwrap();
    let script = "source ./f.bash && COMP_WORDS=(foretoken cha) COMP_CWORD=1 && _foretoken foretoken cha foretoken && echo ${COMPREPLY[0]}";
    if let Ok(output) = std::process::Command::new("bash").args(["-c", script]).current_dir(dir).output() {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "chat\n", "{}", String::from_utf8_lossy(&output.stderr));
    }
    // Nobody reads it.
    for command in [["completions", "bash"], ["man", "run"]] {
        let mut child = Running::start(&command);
        drop(child.0.stdout.take());
        assert_eq!(child.end(), (Some(0), String::new(), String::new()), "{command:?}");
    }
}
