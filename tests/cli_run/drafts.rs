//! What `run` tells of drafts: in the statistics, and in colours.

use super::common::cli::{NO_END, answer, run, save, stats, stderr, tiny};
use super::{args, words};
use serde_json::Value;
use std::ffi::OsString;

fn sum(list: &Value, of: impl Fn(usize, u64) -> u64) -> u64 {
    list.as_array().unwrap().iter().enumerate().map(|(i, n)| of(i, n.as_u64().unwrap())).sum()
}

#[test]
fn statistics_of_drafts_add_up() {
    let model = save("draft-stats", &tiny());
    let drafters = format!("--draft model:{} --draft lookup,min=1 --draft-max 6", model.display());
    let line = format!("-p the --raw --stats json -s 1 -n 60 --temp 0 {drafters} {} {}", NO_END[0], NO_END[1]);
    let got = stats(&run(&args(&model, &words(&line))));
    let draft = &got["draft"];
    let count = |key: &str| draft[key].as_u64().unwrap();
    assert_eq!(count("drafted"), count("accepted") + count("rejected") + count("discarded"));
    assert_eq!((count("emitted"), got["generated_tokens"].as_u64()), (60, Some(60)), "no end token");
    assert_eq!(count("rounds"), sum(&draft["tokens_per_round"], |_, n| n));
    assert_eq!(count("emitted"), sum(&draft["tokens_per_round"], |i, n| i as u64 * n));
    let number = |key: &str| draft[key].as_f64().unwrap();
    assert!((number("tokens_per_round_mean") - 60.0 / count("rounds") as f64).abs() < 1e-12);
    assert!(number("expected_tokens_per_round") > 1.0, "a model is right about itself");
    let (p50, p95) = (draft["round_ms"]["p50"].as_f64().unwrap(), draft["round_ms"]["p95"].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p95, "{draft}");
    let parts = ["draft_s", "verify_s", "sample_s", "other_s"].map(number).iter().sum::<f64>();
    assert!((parts / got["decode_s"].as_f64().unwrap() - 1.0).abs() < 1e-6, "the times are all of the time");
    let by = draft["by_drafter"].as_array().unwrap();
    let names = draft["drafters"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let kinds: Vec<&str> = names.map(|name| name.split([',', ':']).next().unwrap()).collect();
    assert_eq!(kinds, ["lookup", "model"], "those that look up first");
    let of = |key: &str| by.iter().map(|drafter| drafter[key].as_u64().unwrap()).collect::<Vec<_>>();
    for key in ["drafted", "accepted"] {
        assert_eq!(of(key).iter().sum::<u64>(), count(key), "{key}");
    }
    assert!(of("accepted")[1] > 0 && of("memory_bytes")[1] > got["kv_bytes"].as_u64().unwrap(), "{draft}");
    assert!(draft.get("fault").is_none());
}

#[test]
fn colours_are_for_terminals_that_show_them() {
    let model = save("show-draft", &tiny());
    let line =
        format!("-p the --raw -s 1 -n 60 --temp 0 --draft lookup,min=1 --draft-max 6 {} {}", NO_END[0], NO_END[1]);
    let base = args(&model, &words(&line));
    let shown = [base.clone(), vec!["--show-draft".into()]].concat();
    let plain = answer(&base);
    let piped = run(&shown);
    assert_eq!(String::from_utf8(piped.stdout.clone()).unwrap(), plain, "a pipe gets no colours");
    assert!(stderr(&piped).contains("--show-draft: stdout is no terminal"), "{}", stderr(&piped));
    if std::process::Command::new("script").arg("--version").output().is_err() {
        println!("skipped: there is no script(1) to play a terminal");
        return;
    }
    for (term, no_color, coloured) in [("xterm", "", true), ("dumb", "", false), ("xterm", "1", false)] {
        let quoted = |arg: &OsString| format!("'{}'", arg.to_str().unwrap());
        let line = shown.iter().map(quoted).collect::<Vec<_>>().join(" ");
        let line = format!("'{}' {line} 2>/dev/null", env!("CARGO_BIN_EXE_foretoken"));
        let mut terminal = std::process::Command::new("script");
        terminal.args(["-qec", &line, "/dev/null"]).env("TERM", term).env("NO_COLOR", no_color);
        let output = terminal.stdin(std::process::Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
        assert_eq!(text.contains("\x1b[32m") && text.contains("\x1b[39m"), coloured, "{term} {no_color}: {text:?}");
        assert_eq!(text.replace("\x1b[32m", "").replace("\x1b[39m", ""), plain, "{term} {no_color}");
    }
}
