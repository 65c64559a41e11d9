//! `bench --prompts`: the table, the JSON, the page, and what is refused.

use crate::common::gguf_writer::{Value, tiny_llama};
use crate::common::{cli::TEMPLATE, scratch};
use crate::{fails, json, ok, words, write};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

const PROMPTS: &str = r#"{"question_id": 81, "category": "writing", "turns": ["one two one two one two", "again </script>"], "reference": [1]}
{"question_id": 101, "category": "reasoning", "turns": ["a b c a b c a b"]}

{"question_id": 401, "category": "rag", "turns": ["what is <b>?"]}
{"prompt": "d e f d e f", "category": "copy"}
{"prompt": "d e f d e f g", "category": "copy"}
"#;

fn files(name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let dir = scratch(name);
    let model = tiny_llama(7, "F32").key("tokenizer.chat_template", Value::Str(TEMPLATE.into()));
    let model = write(&dir, "tiny.gguf", &model.bytes());
    let prompts = write(&dir, "prompts.jsonl", PROMPTS.as_bytes());
    (dir, model, prompts)
}

fn uint(value: &Json) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

fn sum(list: &Json, of: impl Fn(usize, &Json) -> u64) -> u64 {
    list.as_array().unwrap().iter().enumerate().map(|(i, value)| of(i, value)).sum()
}

/// What must be true of any summary.
fn check(got: &Json, rows: &[(&str, u64)], sets: &[&str]) {
    let names: Vec<_> = got["sets"].as_array().unwrap().iter().map(|set| set["name"].as_str().unwrap()).collect();
    assert_eq!(names, sets);
    for set in got["sets"].as_array().unwrap() {
        assert_eq!((&set["same_text"], &set["differing"], &set["accept"]), (&true.into(), &0.into(), &"exact".into()));
    }
    let found = got["rows"].as_array().unwrap().iter();
    let found: Vec<_> = found.map(|row| (row["category"].as_str().unwrap(), uint(&row["prompts"]))).collect();
    assert_eq!(found, rows);
    let overall = &got["overall"];
    assert_eq!(uint(&overall["prompts"]), rows.iter().map(|row| row.1).sum::<u64>());
    for i in 0..sets.len() {
        let all = &overall["sets"][i];
        assert_eq!(all["tokens"], overall["sets"][0]["tokens"], "equal texts");
        for key in ["tokens", "rounds", "drafted", "accepted", "rejected", "discarded", "emitted", "prefill_tokens"] {
            assert_eq!(uint(&all[key]), sum(&got["rows"], |_, row| uint(&row["sets"][i][key])), "{} {key}", sets[i]);
        }
        assert_eq!(
            uint(&all["drafted"]),
            ["accepted", "rejected", "discarded"].map(|k| uint(&all[k])).iter().sum::<u64>()
        );
        assert_eq!(uint(&all["rounds"]), sum(&all["tokens_per_round"], |_, n| uint(n)));
        assert_eq!(uint(&all["emitted"]), sum(&all["tokens_per_round"], |n, rounds| n as u64 * uint(rounds)));
        let parts: f64 = ["draft_s", "verify_s", "sample_s", "other_s"].map(|k| all[k].as_f64().unwrap()).iter().sum();
        assert!((parts / all["decode_s"].as_f64().unwrap() - 1.0).abs() < 1e-6, "the times are all of the time: {all}");
        for key in ["tok_s", "ratio_total", "ratio_median"] {
            assert!(all[key].as_f64().unwrap() > 0.0, "{key}: {all}");
        }
        let drafts = uint(&all["drafted"]) > 0;
        assert_eq!(drafts, sets[i].contains("lookup"), "{}", sets[i]);
        assert_eq!(all["acceptance"].is_null(), !drafts);
    }
    let passes = sum(&got["widths"], |_, width| uint(&width["count"]));
    assert_eq!(passes, sum(&overall["sets"], |_, set| uint(&set["rounds"])));
}

/// The tags of a page are balanced, its data is whole, and nothing is fetched.
fn data_of(html: &str) -> Json {
    let (head, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (data, tail) = rest.split_once("</script>").unwrap();
    assert!(!data.contains('<'), "nothing in the data is markup");
    for foreign in ["src=", "href=", "@import", "url("] {
        assert!(!head.contains(foreign) && !tail.contains(foreign), "{foreign}");
    }
    let mut open: Vec<&str> = vec![];
    let blank = |text: &str, from: &str, to: &str| -> String {
        let mut parts = text.split(from);
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |all, part| all + from + to + part.split_once(to).unwrap().1)
    };
    let markup = blank(&blank(&format!("{head}{tail}"), "<script>", "</script>"), "<style>", "</style>");
    for tag in markup.split('<').skip(1).map(|tag| tag.split_once('>').unwrap().0) {
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if name == "!doctype" || tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    serde_json::from_str(data).unwrap()
}

#[test]
fn sets_take_turns_and_the_figures_agree() {
    let (dir, model, prompts) = files("trial");
    let page = dir.join("page.html");
    let sets = ["plain", "lookup,min=2", "lookup,min=2,width=4+draft-max=3", "none"];
    let flags = "--draft lookup,min=2 --draft-max 8 --draft-set draft-max=3+lookup,min=2,width=4 --draft-set none -n 40 -r 2 -t 2";
    let line = format!("bench -m @ --prompts @ {flags}");
    let rows = [("mt_bench", 2), ("rag", 1), ("copy", 2)];
    let got = json(&format!("{line} --json"), &[&model, &prompts]);
    check(&got, &rows, &sets);
    assert_eq!((uint(&got["repetitions"]), uint(&got["prompts"]), &got["temperature"]), (2, 5, &0.0.into()));
    assert_eq!((uint(&got["sets"][1]["draft_max"]), uint(&got["sets"][2]["draft_max"])), (8, 3));
    assert!(uint(&got["overall"]["sets"][1]["accepted"]) > 0, "a tiny model repeats itself");
    assert!(got["overall"]["sets"][2]["tokens_per_round"].as_array().unwrap().len() <= 1 + 4);

    let table = ok(&format!("{line} --report @"), &[&model, &prompts, &page]);
    let data = data_of(&std::fs::read_to_string(&page).unwrap());
    check(&data["summary"], &rows, &sets);
    // Every row of the table says what the page's figures say.
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let summary = &data["summary"];
    let all_rows = summary["rows"].as_array().unwrap().iter().chain([&summary["overall"]]);
    let mut seen = 0;
    for row in all_rows {
        for (i, set) in sets.iter().enumerate() {
            let f = &row["sets"][i];
            let category = if i == 0 { row["category"].as_str().unwrap() } else { *set };
            let tokens = uint(&f["tokens"]).to_string();
            let mean = format!("{:.2}", f["tokens_per_round_mean"].as_f64().unwrap());
            let rate = format!("{:.1}", f["tok_s"].as_f64().unwrap());
            let says = |line: &&Vec<&str>| {
                line.first() == Some(&category) && [&tokens, &mean, &rate].iter().all(|s| line.contains(&s.as_str()))
            };
            assert!(lines.iter().any(|line| says(&line)), "{category} {set} {tokens} {mean} {rate}: {table}");
            seen += 1;
        }
    }
    assert_eq!(seen, 4 * sets.len());

    // The rounds of the page give the text, and their sums are those of the table.
    let answers = data["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 6 * 3, "six turns, three sets");
    for i in 1..sets.len() {
        let mine = || answers.iter().filter(|answer| answer["set"] == i);
        let used: u64 = mine().map(|a| sum(&a["rounds"], |_, round| uint(&round["used"]))).sum();
        let nodes: u64 =
            mine().map(|a| sum(&a["rounds"], |_, round| round["nodes"].as_array().unwrap().len() as u64 - 1)).sum();
        let all = &summary["overall"]["sets"][i];
        assert_eq!((used, nodes), (uint(&all["emitted"]), uint(&all["drafted"])), "{}", sets[i]);
    }
    let text = |set: u64| {
        let mine = answers.iter().filter(|answer| answer["set"] == set && answer["id"] == "81" && answer["turn"] == 1);
        let rounds = mine.flat_map(|answer| answer["rounds"].as_array().unwrap());
        let tokens = rounds.flat_map(|r| r["tokens"].as_array().unwrap().iter().take(uint(&r["used"]) as usize));
        tokens.map(|token| data["tokens"][token.to_string()].as_str().unwrap()).collect::<String>()
    };
    assert!(!text(1).is_empty());
    assert_eq!((text(1), text(2)), (text(3), text(3)));
}

#[test]
fn sampled_texts_are_equal_too_and_limits_hold() {
    let (_, model, prompts) = files("trial-sampled");
    let line = "bench -m @ --prompts @ --draft-set lookup --draft-max 8 --temp 1.5 -s 3 -n 20 --limit 1 --json -t 1";
    let got = json(line, &[&model, &prompts]);
    check(&got, &[("mt_bench", 1), ("rag", 1), ("copy", 1)], &["plain", "lookup"]);
    assert_eq!((uint(&got["seed"]), uint(&got["n_predict"]), &got["temperature"]), (3, 20, &1.5.into()));
    let plain = json("bench -m @ --prompts @ -n 3 --json -t 1", &[&model, &prompts]);
    assert_eq!(plain["sets"].as_array().unwrap().len(), 1, "nothing to compare with");
}

#[test]
fn prompts_that_do_not_fit_are_left_out_and_said() {
    let (dir, model, _) = files("trial-long");
    let long = format!("{{\"prompt\": \"{}\", \"id\": \"far\"}}\n{{\"prompt\": \"short\"}}\n", "word ".repeat(600));
    let mixed = write(&dir, "mixed.jsonl", long.as_bytes());
    let ran = crate::run(&words("bench -m @ --prompts @ --json -n 4 -t 1", &[&model, &mixed]), b"");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.starts_with("warning: prompt far (line 1) is left out") && ran.err.contains("512"), "{}", ran.err);
    let got: Json = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((uint(&got["prompts"]), uint(&got["left_out"])), (1, 1));
    // A conversation ends where its next turn does not fit.
    let turns = format!("{{\"turns\": [\"short\", \"{}\", \"more\"]}}", "word ".repeat(600));
    let turns = write(&dir, "turns.jsonl", turns.as_bytes());
    let got = json("bench -m @ --prompts @ --draft lookup --json -n 4 -t 1", &[&model, &turns]);
    assert!(uint(&got["overall"]["sets"][0]["tokens"]) <= 4);
}

#[test]
fn what_means_nothing_is_refused() {
    let (dir, model, prompts) = files("trial-wrong");
    for (flags, parts) in [
        ("--draft-set nonsense", &["--draft-set", "'nonsense'", "lookup"][..]),
        ("--draft-set lookup+none", &["--draft-set", "none beside"]),
        ("--draft-set lookup,min=0", &["--draft-set", "lookup: min", "'0'"]),
        ("--draft-set lookup+draft-max=64", &["--draft-set", "draft-max", "'64'"]),
        ("--draft-set draft-max=4", &["--draft-set", "no drafter"]),
        ("--draft none --draft lookup", &["--draft", "none beside"]),
        ("--temp -1", &["--temp"]),
    ] {
        fails(&format!("bench -m @ --prompts @ {flags}"), &[&model, &prompts], 2, parts);
    }
    let page = dir.join("page.html");
    for (flags, values) in [
        ("--draft lookup", &[][..]),
        ("--draft-set lookup", &[]),
        ("--limit 1", &[]),
        ("-n 4", &[]),
        ("--temp 1", &[]),
        ("--report @", &[page.as_path()]),
        ("--prompts @ --limit 0", &[&prompts]),
        ("--prompts @ --decode 4", &[&prompts]),
        ("--prompts @ -n -2", &[&prompts]),
    ] {
        let values: Vec<&Path> = [model.as_path()].into_iter().chain(values.iter().copied()).collect();
        let ran = crate::run(&words(&format!("bench -m @ {flags}"), &values), b"");
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{flags}: {}", ran.err);
    }
    assert!(!page.exists());
}

#[test]
fn bad_files_of_prompts_are_named_with_the_line() {
    let (dir, model, _) = files("trial-files");
    for (i, (text, parts)) in [
        (&b""[..], &["no prompts"][..]),
        (b"{\"prompt\": \"a\"}\n{\"prompt\": 3}\n", &["line 2", "prompt: found 3"]),
        (b"{\"turns\": []}", &["line 1", "turns: found none"]),
        (b"\n{\"turns\": [\"a\", 1]}", &["line 2", "turn 2"]),
        (b"nonsense", &["line 1", "not JSON"]),
        (b"{\"prompt\": \"\xFF\"}", &["byte 12", "not UTF-8"]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("bad{i}.jsonl");
        let file = write(&dir, &name, text);
        let parts: Vec<&str> = parts.iter().copied().chain([name.as_str()]).collect();
        fails("bench -m @ --prompts @", &[&model, &file], 1, &parts);
    }
    fails("bench -m @ --prompts @", &[&model, &dir.join("missing.jsonl")], 1, &["missing.jsonl"]);
    let good = write(&dir, "good.jsonl", PROMPTS.as_bytes());
    let nowhere = dir.join("no/page.html");
    fails("bench -m @ --prompts @ --report @", &[&model, &good, &nowhere], 1, &["--report", "no/page.html"]);
    let long = write(&dir, "long.jsonl", format!("{{\"prompt\": \"{}\"}}", "word ".repeat(600)).as_bytes());
    let ran = crate::run(&words("bench -m @ --prompts @", &[&model, &long]), b"");
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.contains("error: no prompt fits the context of 512"), "{}", ran.err);
}
