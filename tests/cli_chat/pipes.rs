//! Lines in, answers out.

use super::*;
use common::cli::{Running, refused, run_with};
use std::io::Read;

/// Two letters an answer.
const TWO: [&str; 4] = ["-n", "2", "-l", "72+1000"];

#[test]
fn every_line_is_answered_and_the_end_is_the_end() {
    let model = save("pipe", &strict());
    let line = args(&model, &[&TWO[..], &["-q"]].concat());
    for (stdin, answers) in [
        (&b""[..], 0),
        (b"hi\n", 1),
        (b"hi", 1),
        (b"a\nb\nc", 3),
        (b"a\r\nb\r\n", 2),
        (b"\n \n\t\na\n\n", 1),
        (b"\xEF\xBB\xBFa\n", 1),
        (b"a\\\nb\n", 1),
        (b"\"\"\"\na\n\nb\n\"\"\"\nc\n", 2),
        (b"\"\"\"\na\n", 1),
        (b"a\0b\n", 1),
        (b"/help\n", 0),
        (b"//help\n", 1),
        (b"a\n/quit\nb\n", 1),
    ] {
        let output = run_with(&line, stdin);
        let what = String::from_utf8_lossy(stdin);
        assert_eq!(output.status.code(), Some(0), "{what:?}: {}", stderr(&output));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "HH\n".repeat(answers), "{what:?}");
    }
    let silent = run_with(&args(&model, &["-q", "-l", "318+1000"]), b"a\nb\n");
    assert_eq!((silent.status.code(), silent.stdout), (Some(0), vec![]), "empty answers print nothing");
}

#[test]
fn nothing_but_answers_is_on_stdout() {
    let model = save("streams", &strict());
    let script = b"a\n/help\n/stats\n/draft\n/draft help\n/draft lookup,min=2\n/system be\nb\n/undo\n/regen\n/clear\n";
    for more in [&[][..], &["-v"], &["-vv"], &["--stats", "json"]] {
        let output = run_with(&args(&model, &[&TWO[..], more].concat()), script);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(output.stdout, b"HH\nHH\nHH\n", "{more:?}");
        assert!(!stderr(&output).contains("> ") && !stderr(&output).contains('\x1b'), "{}", stderr(&output));
    }
}

#[test]
fn the_first_error_ends_it() {
    let model = save("errors", &strict());
    let base = save("errors-base", &cli::tiny());
    let broken = save("errors-broken", &with_template(cli::tiny(), "{% for"));
    let missing = scratch("chat-errors").join("none");
    let long = "q".repeat(600);
    for (stdin, needle) in [
        (b"ok\xFFx\nb\n".to_vec(), "stdin: line 1: byte 2 (0xFF) is not UTF-8"),
        (b"\n\xC3".to_vec(), "stdin: line 2: byte 0 (0xC3) is not UTF-8: the text ends within a character"),
        (b"\xFF\xFEh\0i\0".to_vec(), "UTF-16"),
        (b"/foo\nb\n".to_vec(), "found command '/foo'"),
        (b"/undo\nb\n".to_vec(), "nothing has been said yet"),
        (b"/regen\n".to_vec(), "nothing has been said yet"),
        (b"/draft lookop\n".to_vec(), "/draft: found kind 'lookop'"),
        (format!("/load {}\n", missing.display()).into_bytes(), "No such file"),
        (format!("/read {}\n", missing.display()).into_bytes(), "No such file"),
        (format!("/save {}/x\n", missing.display()).into_bytes(), "/save: "),
        (long.clone().into_bytes(), "the message takes 6"),
    ] {
        let what = String::from_utf8_lossy(&stdin).into_owned();
        refused(&run_with(&args(&model, &[&TWO[..], &["-q"]].concat()), &stdin), 1, &[needle], &what);
    }
    // What was answered before stays.
    let output = run_with(&args(&model, &[&TWO[..], &["-q"]].concat()), b"a\n/foo\nb\n");
    assert_eq!((output.status.code(), output.stdout), (Some(1), b"HH\n".to_vec()));
    refused(&run_with(&args(&base, &["-q"]), b"a\n"), 1, &["no chat template", "run"], "no template");
    refused(&run_with(&args(&broken, &["-q"]), b"a\n"), 1, &["chat_template", "needs the template"], "broken");
    let refuses = save("errors-system", &with_template(cli::tiny(), "{{ raise_exception('no system') }}"));
    refused(&run_with(&args(&refuses, &["-q"]), b"a\n"), 1, &["the chat template refuses", "no system"], "refusal");
    for flags in [&["--stop="][..], &["--temp", "-1"], &["--draft", "lookop"]] {
        refused(&run_with(&args(&model, flags), b"a\n"), 2, &[], &format!("{flags:?}"));
    }
}

#[test]
fn ctrl_c_ends_a_pipe() {
    let model = save("pipe-int", &strict());
    let mut child = Running::start(&args(&model, &[&FOR_EVER[..], &["-q"]].concat()));
    child.send("a\nb\n");
    child.0.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    child.interrupt();
    let (status, rest, _) = child.end();
    assert_eq!((status, rest.trim_start_matches('H')), (Some(130), "\n"), "the partial answer is flushed");
    let mut waiting = Running::start(&args(&model, &["-q"]));
    waiting.wait_for_handler();
    waiting.interrupt();
    assert_eq!(waiting.end().0, Some(130));
}

#[test]
fn nobody_listening_ends_it_quietly() {
    let model = save("pipe-closed", &with_template(cli::long_winded(), cli::TEMPLATE));
    let mut child = Running::start(&args(&model, &[&FOR_EVER[..], &["-q", "-c", "0"]].concat()));
    child.send("a\nb\n");
    child.ends_when_nobody_listens();
}

#[test]
fn conversations_are_saved_loaded_and_gone_back_in() {
    let model = save("pipe-save", &strict());
    let dir = scratch("chat-save");
    let file = dir.join("a b.json");
    std::fs::write(dir.join("notes.txt"), "\u{FEFF}one\ntwo").unwrap();
    let go = |script: &str, more: &[&str]| {
        let script = script.replace('@', dir.to_str().unwrap());
        let output = run_with(&args(&model, &[&TWO[..], more].concat()), script.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        output
    };
    let hh = |messages: &[&str]| messages.iter().map(|m| ((*m).to_owned(), "HH".to_owned())).collect::<Vec<_>>();
    go("a\nb\n/undo\nc\n/regen\n/save @/a b.json\n", &[]);
    assert_eq!(turns(&file), hh(&["a", "c"]));
    go("/load @/a b.json\nd\n/save @/a b.json\n/clear\n", &[]);
    assert_eq!(turns(&file), hh(&["a", "c", "d"]));
    go("/read @/notes.txt\n/read @/notes.txt\nwhat?\nmore\n/save @/a b.json\n", &[]);
    assert_eq!(turns(&file), hh(&["one\ntwo\none\ntwo\nwhat?", "more"]));
    go("/system be\na\n/save @/a b.json\n", &["--system", "x"]);
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(json["system"], "be");
    for (script, want) in [
        ("a\n", "<|start|>system x<|end|><|start|>user a<|end|><|start|>a "),
        ("/system\na\n", "<|start|>user a<|end|><|start|>a "),
        ("/system \"\"\na\n", "<|start|>system <|end|><|start|>user a<|end|><|start|>a "),
        ("/clear\n/system y\na\n", "<|start|>system y<|end|><|start|>user a<|end|><|start|>a "),
        (
            "/load @/a b.json\nb\n",
            "<|start|>system be<|end|><|start|>user a<|end|><|start|>assistant HH<|end|><|start|>user b<|end|><|start|>a ",
        ),
    ] {
        let said = stderr(&go(script, &["-vv", "--system", "x"]));
        assert!(said.contains(&format!("prompt: {want:?}")), "{script}: {said}");
    }
    let think = stderr(&go("a\n", &["-vv", "--think", "off"]));
    assert!(think.contains("<|start|>a False "), "{think}");
    // What a template says itself is shown, and an empty system message takes its place.
    let own = "{% if messages[0].role != 'system' %}<|start|>own{% endif %}".to_owned() + cli::TEMPLATE;
    let own = save("pipe-own", &with_template(cli::tiny(), &own));
    for (more, want) in
        [(&[][..], "prompt: \"<|start|>own<|start|>user a"), (&["--system", ""], "prompt: \"<|start|>system <|end|>")]
    {
        let output = run_with(&args(&own, &[&["-vv", "-n", "0"], more].concat()), b"a\n");
        assert!(stderr(&output).contains(want), "{more:?}: {}", stderr(&output));
    }
    let output = run_with(&args(&own, &["--system", "be"]), b"");
    assert_eq!((output.status.code(), output.stdout), (Some(0), vec![]), "nothing said, nothing rendered");
    // A file that is no conversation changes nothing.
    std::fs::write(&file, r#"{"messages": [{"role": "user", "content": "x"}]}"#).unwrap();
    let script = format!("/load {}\n", file.display());
    refused(&run_with(&args(&model, &["-q"]), script.as_bytes()), 1, &["/load: ", "message 0 has no answer"], "half");
}

#[test]
fn flags_reach_the_answers() {
    let model = save("pipe-flags", &strict());
    let say = |more: &[&str], stdin: &str| {
        let open = ["-q", "-s", "1", "--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-l", "318-inf"];
        let kept = open[1..].chunks(2).filter(|pair| !more.contains(&pair[0]));
        let line: Vec<&str> = open[..1].iter().chain(kept.flatten()).copied().collect();
        let output = run_with(&args(&model, &[&line, more].concat()), stdin.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let base = say(&["-n", "30"], "a\n");
    assert_eq!(base, say(&["-n", "30"], "a\n"), "the same seed");
    for more in
        [&["-n", "20"][..], &["-n", "30", "--system", "x"], &["-n", "30", "--think", "on"], &["-n", "30", "-s", "2"]]
    {
        assert_ne!(base, say(more, "a\n"), "{more:?}");
    }
    // Drafters change nothing, whenever they come.
    let three = say(&["-n", "30"], "aaaa\naaaa\naaaa\n");
    for (more, stdin) in [
        (&["-n", "30", "--draft", "lookup,min=1"][..], "aaaa\naaaa\naaaa\n"),
        (&["-n", "30"], "aaaa\n/draft lookup,min=1\naaaa\n/draft none\naaaa\n"),
        (&["-n", "30"], "/draft lookup,min=2 lookup,min=1\naaaa\naaaa\n/draft lookup\naaaa\n"),
    ] {
        assert_eq!(three, say(more, stdin), "{more:?} {stdin:?}");
    }
    // Drawn again, an answer is another.
    let again = say(&["-n", "30"], "a\n/regen\n");
    assert!(again.starts_with(&base) && again != base.repeat(2), "{again:?}");
    let stop: String = base.chars().skip(3).take(2).collect();
    assert!(say(&["-n", "30", "--stop", &stop], "a\n").len() < base.len());
}
