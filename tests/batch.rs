//! `batch` from outside: every line gets its answer, whatever the others are.

mod common;

use common::cli::{LONG_TOKEN, Running, chatty, long_winded, run, run_with, save, stats, stderr, tiny};
#[path = "batch/parts.rs"]
mod parts;

use common::{gguf_writer::Value as Gguf, models, zoo};
use foretoken::sample::derive_seed;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

fn args(model: &Path, more: &str) -> Vec<OsString> {
    let start = ["batch".into(), "-m".into(), model.into(), "-t".into(), "1".into()];
    start.into_iter().chain(more.split_whitespace().map(OsString::from)).collect()
}

/// All answers to `lines`.
fn answers(model: &Path, more: &str, lines: &[u8]) -> Vec<Value> {
    let output = run_with(&args(model, more), lines);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stdout.is_empty() || output.stdout.ends_with(b"\n"));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn lines(requests: &[Value]) -> Vec<u8> {
    requests.iter().flat_map(|request| format!("{request}\n").into_bytes()).collect()
}

/// The answer to one request.
fn one(model: &Path, more: &str, request: Value) -> Value {
    let mut all = answers(model, more, &lines(&[request]));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// What does not depend on time.
fn timeless(mut answer: Value) -> Value {
    answer.as_object_mut().unwrap().remove("timings");
    answer
}

#[test]
fn an_answer_has_all_its_parts() {
    let model = save("parts", &tiny());
    let ask =
        json!({"id": "a", "prompt": "qqq", "raw": true, "max_tokens": 5, "temperature": 0, "logit_bias": {"72": 1000}});
    let got = one(&model, "-q", ask);
    let want = json!({"id": "a", "text": "HHHHH", "tokens": [72, 72, 72, 72, 72], "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 5}});
    assert_eq!(timeless(got.clone()), want);
    let timings = got["timings"].as_object().unwrap();
    assert_eq!(timings.keys().collect::<Vec<_>>(), ["prefill_s", "decode_s", "rounds", "reused"]);
    assert!(timings["rounds"] == 5 && timings["decode_s"].as_f64().unwrap() > 0.0);
    // The end token is none of the tokens; the tokens of a stop string are, but not of the text.
    let ask = json!({"prompt": "q", "raw": true, "logit_bias": [[318, 1000]]});
    let got = timeless(one(&model, "-q", ask));
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 0});
    assert_eq!(got, json!({"id": 1, "text": "", "tokens": [], "finish_reason": "stop", "usage": usage}));
    let ask = json!({"prompt": "q", "raw": true, "stop": "HHH", "logit_bias": [[72, 1000]]});
    let got = one(&model, "-q", ask);
    assert_eq!(
        (&got["text"], &got["tokens"], &got["finish_reason"]),
        (&json!(""), &json!([72, 72, 72]), &json!("stop"))
    );
}

#[test]
fn bad_lines_are_errors_and_the_rest_goes_on() {
    let model = save("bad", &tiny());
    let good = r#"{"id": "good", "prompt": "q", "raw": true, "max_tokens": 2, "logit_bias": {"72": 1000}}"#;
    let deep = "[".repeat(100_000);
    let long = json!({"id": 1, "prompt": "q".repeat(512), "raw": true}).to_string();
    let table: Vec<(&[u8], Value, &str)> = vec![
        (b"nonsense", json!(null), "not JSON: "),
        (b"{\"prompt\": \"a\"", json!(null), "not JSON: "),
        (b"[1]", json!(null), "found an array, supported an object"),
        (b"7", json!(null), "found 7, supported an object"),
        (b"\xFF\xFE", json!(null), "the line: byte 0 (0xFF) is not UTF-8"),
        (b"{\"prompt\": \"a\xC3\"}", json!(null), "the line: byte 13 (0xC3) is not UTF-8"),
        (br#"{"prompt": "\ud800"}"#, json!(null), "not JSON: "),
        (deep.as_bytes(), json!(null), "not JSON: "),
        (br#"{"id": "x"}"#, json!("x"), "found neither prompt nor messages"),
        (br#"{"id": 2.5, "prompt": 1}"#, json!(2.5), "prompt: found 1, supported a string"),
        (br#"{"id": "u", "prompt": "a", "max_token": 1}"#, json!("u"), "max_token: not known; supported: id"),
        (br#"{"id": 0, "prompt": "a", "temperature": -1}"#, json!(0), "temperature: found -1"),
        (br#"{"id": 0, "prompt": "a", "temperature": 1e300}"#, json!(0), "temperature: found inf"),
        (br#"{"id": 0, "prompt": "a", "top_k": -5}"#, json!(0), "top_k: found -5"),
        (br#"{"id": 0, "prompt": "a", "logit_bias": {"320": 1}}"#, json!(0), "logit_bias: found token id 320"),
        (
            br#"{"id": 0, "messages": [{"role": "user", "content": "a"}]}"#,
            json!(0),
            "messages: the model has no chat template",
        ),
        (long.as_bytes(), json!(1), "the prompt has 512 tokens, which leaves no room in the context of 512"),
    ];
    let mut input = vec![];
    for (line, ..) in &table {
        input.extend([line, b"\n".as_slice(), good.as_bytes(), b"\n"].concat());
    }
    let got = answers(&model, "-q", &input);
    assert_eq!(got.len(), 2 * table.len());
    for (i, ((_, id, error), pair)) in table.iter().zip(got.chunks(2)).enumerate() {
        let id = if id.is_null() { json!(2 * i + 1) } else { id.clone() };
        let said = pair[0]["error"].as_str().unwrap_or_else(|| panic!("{error}: {}", pair[0]));
        assert!(said.starts_with(error), "{said}");
        assert_eq!((&pair[0]["id"], &pair[0]["finish_reason"]), (&id, &json!("error")), "{error}");
        assert!(pair[0].get("text").is_none() && pair[1].get("error").is_none());
        assert_eq!((&pair[1]["id"], &pair[1]["text"]), (&json!("good"), &json!("HH")), "after {error}");
    }
}

#[test]
fn blank_lines_are_skipped_and_counted() {
    let model = save("blank", &tiny());
    let ask = |line: &str| format!("{line}{{\"prompt\": \"q\", \"raw\": true, \"max_tokens\": 1}}");
    let input = format!("{}\n\n \t\r\n{}\r\n{}", ask("\u{FEFF}"), ask(""), ask("  "));
    let ids: Vec<_> = answers(&model, "-q", input.as_bytes()).into_iter().map(|a| a["id"].clone()).collect();
    assert_eq!(ids, [1, 4, 5]);
    assert!(answers(&model, "-q", b"").is_empty());
    assert!(answers(&model, "-q", b"\n\n").is_empty());
}

#[test]
fn requests_do_not_depend_on_each_other() {
    let model = save("alone", &tiny());
    let ask =
        |id: u32| json!({"id": id, "prompt": format!("the {id}"), "raw": true, "max_tokens": 30, "temperature": 1.5});
    let all = lines(&(0..6).map(ask).collect::<Vec<_>>());
    let base: Vec<_> = answers(&model, "-s 5", &all).into_iter().map(timeless).collect();
    let again: Vec<_> = answers(&model, "-s 5", &all).into_iter().map(timeless).collect();
    assert_eq!(base, again);
    for threads in ["2", "3"] {
        let mut line = args(&model, "-s 5");
        line[4] = threads.into();
        let output = String::from_utf8(run_with(&line, &all).stdout).unwrap();
        let got: Vec<_> = output.lines().map(|l| timeless(serde_json::from_str(l).unwrap())).collect();
        assert_eq!(got, base, "{threads} threads");
    }
    // The default seed is made of the run's and the line's number, so a line alone can be repeated.
    for (i, want) in base.iter().enumerate() {
        let mut request = ask(i as u32);
        request["seed"] = derive_seed(5, i as u64 + 1).into();
        assert_eq!(&timeless(one(&model, "-s 99", request)), want);
    }
    // The same request on two lines is sampled twice; with a seed of its own it is the same on each.
    let twice = answers(&model, "-s 5", &lines(&[ask(0), ask(0)]));
    assert_ne!(twice[0]["tokens"], twice[1]["tokens"]);
    let mut seeded = ask(0);
    seeded["seed"] = 3.into();
    let twice = answers(&model, "-s 5", &lines(&[seeded.clone(), ask(1), seeded]));
    assert_eq!(twice[0]["tokens"], twice[2]["tokens"]);
}

/// Whatever a prompt has in common with what is there already, and however that came to be there.
#[test]
fn a_common_beginning_is_evaluated_once() {
    let seeded =
        |text: &str, n: usize| json!({"prompt": text, "raw": true, "max_tokens": n, "seed": n, "temperature": 1.2});
    let long = "once upon a time there was a ".repeat(9);
    let asks: Vec<Value> = [
        (format!("{long}hare"), 12), // nothing known
        (format!("{long}hat and"), 9),
        (format!("{long}hat and"), 10), // the same prompt, all of it
        (format!("{long}ha"), 30),      // a beginning of it
        ("q".into(), 5),                // something else
        (long.clone(), 7),
        (format!("{long}{long}"), 3), // more of it
    ]
    .map(|(text, n)| seeded(&text, n))
    .to_vec();
    for name in ["llama", "qwen3", "gemma2", "gemma3", "phi3"] {
        let model = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("batch-common-{name}.gguf"));
        std::fs::write(&model, zoo::bytes(name)).unwrap();
        // Between other requests nothing is known.
        let apart: Vec<Value> = asks.iter().flat_map(|ask| [ask.clone(), seeded("\u{1}", 0)]).collect();
        let fresh = answers(&model, "-q -c 2048", &lines(&apart));
        let fresh: Vec<&Value> = fresh.iter().step_by(2).collect();
        assert!(fresh.iter().all(|answer| answer["timings"]["reused"].as_u64().unwrap() <= 1), "{name}");
        for flags in ["", "--draft lookup,min=1"] {
            let got = answers(&model, &format!("-q -c 2048 {flags}"), &lines(&asks));
            let reused: Vec<u64> = got.iter().map(|answer| answer["timings"]["reused"].as_u64().unwrap()).collect();
            let known = |i: usize, least: u64| assert!(reused[i] >= least, "{name}, {flags}: {reused:?}");
            [(1, 50), (2, 50), (3, 50), (6, 50)].into_iter().for_each(|(i, least)| known(i, least));
            assert!(reused[0] == 0 && reused[5] <= 1, "{name}: {reused:?}");
            for (i, (got, want)) in got.into_iter().zip(&fresh).enumerate() {
                let (mut got, mut want) = (timeless(got), timeless((*want).clone()));
                (got["id"], want["id"]) = (json!(i), json!(i));
                assert_eq!(got, want, "{name}, {flags}");
            }
        }
    }
}

#[test]
fn a_request_may_name_its_drafter() {
    let model = save("draft", &tiny());
    let ask = |draft: Value| json!({"prompt": "la la la la", "raw": true, "max_tokens": 40, "temperature": 0, "draft": draft});
    let drafts =
        [json!(null), json!("lookup,min=1"), json!("none"), json!(["lookup", "lookup,max=2"]), json!("lookup,min=1")];
    let all = answers(&model, "-q --draft-max 8", &lines(&drafts.clone().map(ask)));
    let rounds: Vec<u64> = all.iter().map(|answer| answer["timings"]["rounds"].as_u64().unwrap()).collect();
    assert!(all.iter().all(|answer| answer["tokens"] == all[0]["tokens"]), "the text is the same");
    assert!(rounds[0] == rounds[2] && rounds[1] < rounds[0] && rounds[4] == rounds[1], "{rounds:?}");
    // The flag is what a request without one gets.
    let flagged = answers(&model, "-q --draft-max 8 --draft lookup,min=1", &lines(&drafts.map(ask)));
    assert_eq!(flagged[0]["timings"]["rounds"], rounds[1]);
    assert_eq!(flagged[2]["timings"]["rounds"], rounds[2]);
    let output =
        run_with(&args(&model, "--stats json -s 1"), &lines(&[ask(json!("lookup,min=1")), ask(json!("none"))]));
    assert_eq!(stats(&output)["draft"]["drafters"][0].as_str().unwrap().split(',').next(), Some("lookup"));
    assert!(one(&model, "-q", ask(json!("x")))["error"].as_str().unwrap().starts_with("draft: found kind 'x'"));
}

#[test]
fn every_field_has_an_effect() {
    let model = save("fields", &tiny());
    let open = json!({"prompt": "the", "raw": true, "max_tokens": 30, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1});
    let base = one(&model, "-q -l 318-inf", open.clone());
    for (name, value) in [
        ("prompt", json!("an")),
        ("max_tokens", json!(29)),
        ("temperature", json!(3)),
        ("top_k", json!(1)),
        ("top_p", json!(0.1)),
        ("min_p", json!(0.9)),
        ("seed", json!(2)),
        ("logit_bias", json!({"80": 30})),
        ("stop", json!([base["text"].as_str().unwrap().chars().nth(3).unwrap().to_string()])),
    ] {
        let mut changed = open.clone();
        changed[name] = value;
        assert_ne!(one(&model, "-q -l 318-inf", changed)["tokens"], base["tokens"], "{name}");
    }
    // Flags stand in for fields that are not there, and `null` is as good as not there.
    let bare = json!({"prompt": "the", "raw": true, "seed": 1, "top_p": null, "max_tokens": null});
    let flags = "-q -l 318-inf -n 30 --temp 1 --top-k 0 --top-p 1 --min-p 0";
    assert_eq!(one(&model, flags, bare)["tokens"], base["tokens"]);
    let zero = json!({"prompt": "the", "raw": true, "max_tokens": 0});
    assert_eq!(one(&model, "-q", zero)["tokens"], json!([]));
}

#[test]
fn prompts_messages_and_raw_text() {
    let model = save("chat", &chatty().set("tokenizer.ggml.add_bos_token", Gguf::Bool(true)));
    let count = |mut request: Value| {
        request["max_tokens"] = 0.into();
        one(&model, "-q", request)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    // <|start|> "user hi" <|end|> <|start|> "a "
    assert_eq!(count(json!({"prompt": "hi"})), 1 + 6 + 1 + 1 + 2);
    assert_eq!(count(json!({"prompt": "hi"})), count(json!({"messages": [user("hi")]})));
    assert!(count(json!({"messages": [user("hi"), {"role": "system", "content": "x"}]})) > 11);
    assert_eq!(count(json!({"prompt": "hi", "raw": true})), 3, "with BOS");
    assert_eq!(count(json!({"prompt": "<|start|>hi<|end|>", "raw": true})), 4, "special text is parsed, BOS is there");
    assert!(count(json!({"prompt": "<|end|>"})) > 11, "what a user says is not");
    // What a template may look for beside role and content, and what it is told beside messages.
    let looks = "{% for m in messages %}{{ m.name }}{% for c in m.tool_calls %}{{ c.id }}{% endfor %}{% endfor %}\
        {{ tools | length }}{{ word }}";
    let model = save("chat-more", &tiny().key("tokenizer.chat_template", Gguf::Str(looks.into())));
    let told = |more: Value, flags: &str| {
        let mut request = json!({"messages": [{"role": "user", "content": "", "name": "Ann"}], "max_tokens": 0});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = one(&model, &format!("-q {flags}"), request);
        answer["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    let base = told(json!({"tools": []}), "");
    assert_eq!(told(json!({"tools": [], "template_args": {"word": "xyz"}}), ""), base + 3);
    assert_eq!(told(json!({"tools": []}), "--template-arg word=wxyz"), base + 4);
    assert_eq!(told(json!({"tools": [], "template_args": {"word": "x"}}), "--template-arg word=wxyz"), base + 1);
    let called = json!([{"role": "assistant", "content": null, "tool_calls": [{"id": "abc"}]}]);
    assert_eq!(told(json!({"tools": [], "messages": called}), ""), base);
    let error = |request: Value| one(&save("chat-none", &tiny()), "-q", request)["error"].as_str().unwrap().to_owned();
    assert!(error(json!({"prompt": "a", "tools": []})).starts_with("tools, template_args: the model has no chat"));
    assert_eq!(count(json!({"prompt": "", "raw": true})), 1);
    assert_eq!(count(json!({"prompt": "h\u{0}i\n", "raw": true})), 5);
}

#[test]
fn answers_come_as_requests_do() {
    let model = save("stream", &tiny());
    let mut child = Running::start(&args(&model, "-q"));
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    for id in 0..5 {
        child.send(&format!("{{\"id\": {id}, \"prompt\": \"q\", \"raw\": true, \"max_tokens\": 1}}\n"));
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], id);
    }
    drop(child.0.stdin.take());
    assert_eq!(child.end(), (Some(0), String::new(), String::new()));
}

#[test]
fn statistics_sum_up() {
    let model = save("sums", &tiny());
    let ask = json!({"prompt": "qq", "raw": true, "max_tokens": 3, "logit_bias": {"318": false}});
    let input = [lines(&[ask.clone(), ask]), b"bad\n".to_vec()].concat();
    let output = run_with(&args(&model, "--stats json -s 1"), &input);
    let got = stats(&output);
    for (key, want) in [("requests", 3), ("errors", 1), ("prompt_tokens", 4), ("generated_tokens", 6), ("rounds", 6)] {
        assert_eq!(got[key], want, "{key}");
    }
    assert!(stderr(&output).contains("3 requests, 1 errors"));
    let quiet = run_with(&args(&model, "-q"), &input);
    assert!(quiet.stderr.is_empty() && quiet.status.success());
    assert_eq!(run(&args(&model, "-l 320+1")).status.code(), Some(2));
    assert_eq!(run(&args(Path::new("missing.gguf"), "")).status.code(), Some(1));
}

#[test]
fn a_closed_stdout_ends_it_quietly() {
    let model = save("pipe", &tiny());
    let mut child = Running::start(&args(&model, "-q"));
    drop(child.0.stdout.take());
    child.send("{\"prompt\": \"q\", \"raw\": true, \"max_tokens\": 1}\n");
    assert_eq!(child.end(), (Some(0), String::new(), String::new()));
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_leaves_whole_lines() {
    let model = save("interrupt", &long_winded());
    let start = || Running::start(&args(&model, &format!("-c 0 -l {LONG_TOKEN}-inf -l 318-inf -s 1")));
    // While generating: the line is not answered.
    let mut child = start();
    child.send("{\"prompt\": \"q\", \"raw\": true, \"max_tokens\": 1}\n{\"prompt\": \"q\", \"raw\": true}\n");
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    child.interrupt();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((child.end().0, rest.as_str()), (Some(130), ""));
    // While waiting for a request.
    let mut child = start();
    child.wait_for_handler();
    child.interrupt();
    assert_eq!(child.end().0, Some(130));
}

/// Memory does not grow with the number of requests.
#[test]
fn a_thousand_requests_take_the_memory_of_ten() {
    let model = save("thousand", &tiny());
    let peak = |n: usize| {
        let ask = json!({"prompt": "q".repeat(400), "raw": true, "max_tokens": 2});
        let output = run_with(&args(&model, "-q --stats json"), &lines(&vec![ask; n]));
        assert_eq!(stats(&output)["errors"], 0);
        stats(&output)["peak_rss_bytes"].as_u64().unwrap()
    };
    let (few, many) = (peak(10), peak(1000));
    assert!(many < few + 4_000_000, "{few} bytes for 10, {many} for 1000");
}

#[test]
fn a_real_model_answers_as_run_does() {
    let Some(model) = models::find("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let ask = json!({"prompt": "Why is the sky blue?", "max_tokens": 16, "temperature": 0});
    let got = one(&model, "-q", ask);
    let single = [
        "run",
        "-m",
        model.to_str().unwrap(),
        "-t",
        "1",
        "-q",
        "-p",
        "Why is the sky blue?",
        "-n",
        "16",
        "--temp",
        "0",
    ];
    assert_eq!(format!("{}\n", got["text"].as_str().unwrap()), common::cli::answer(&single));
}
