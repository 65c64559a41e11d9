//! What `bench` prints, and what it refuses.

use crate::common::{gguf_writer::tiny_llama, scratch};
use crate::{fails, json, ok, run, words, write};
use serde_json::Value;
use std::path::Path;

/// Of a row with bytes, operations and a bound: that they fit together, and give so many rows a second.
fn is_sane(row: &Value, rows_per_s: f64, rows: f64) {
    let get = |key: &str| {
        let value = row[key].as_f64().unwrap_or_else(|| panic!("no {key}: {row}"));
        assert!(value > 0.0 && value.is_finite(), "{key}: {row}");
        value
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} is not {b}: {row}");
    close(get("gb_s"), get("bytes") / get("ms") / 1e6);
    close(get("gop_s"), get("operations") / get("ms") / 1e6);
    close(get("percent"), 100.0 * get("bound_ms") / get("ms"));
    close(rows_per_s, 1e3 * rows / get("ms"));
    assert!(["bytes", "operations"].contains(&row["bound"].as_str().unwrap()), "{row}");
}

#[test]
fn bench_gives_what_it_was_asked_for() {
    let dir = scratch("bench");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "Q8_0").bytes());
    let flags = "--prefill 1,300 --decode 3 --depth 0,8,509 --widths 64,1,3 -r 2 -t 2 --isa scalar --rate-time 1";
    let got = json(&format!("bench -m @ {flags} --json"), &[&model]);
    assert_eq!((&got["isa"], &got["threads"]), (&"scalar".into(), &2.into()));
    assert!(got["model"].as_str().unwrap().ends_with("tiny.gguf"));
    for (list, key, inputs) in
        [("prefill", "tokens", [1, 300].as_slice()), ("decode", "depth", &[0, 8, 509]), ("widths", "rows", &[64, 1, 3])]
    {
        let rows = got[list].as_array().unwrap();
        assert_eq!(rows.len(), inputs.len(), "{list}");
        for (row, input) in rows.iter().zip(inputs) {
            assert_eq!(row[key], *input, "{list}");
            let count = if list == "decode" { 1 } else { *input };
            is_sane(row, row["tok_s"].as_f64().unwrap(), count.into());
        }
    }
    let weights = got["weight_bytes"].as_f64().unwrap();
    let bytes = |list: &str, i: usize| got[list][i]["bytes"].as_f64().unwrap();
    // A token reads the weights and what it sees of the cache; a prompt of two chunks reads them twice, the head once.
    assert!(bytes("decode", 0) > weights && bytes("decode", 1) > bytes("decode", 0));
    assert!(bytes("widths", 0) > bytes("widths", 1) && bytes("widths", 1) > bytes("decode", 0));
    assert!(bytes("prefill", 0) < bytes("decode", 0) && bytes("prefill", 1) > 1.5 * weights);
    let operations = |i: usize| got["widths"][i]["operations"].as_f64().unwrap();
    assert!((60.0..70.0).contains(&(operations(0) / operations(1))), "{got}");

    let machine = &got["machine"];
    let reads = machine["read"].as_array().unwrap();
    assert!(!reads.is_empty() && reads[0]["bytes"] == 1 << 20, "{machine}");
    for rate in reads.iter().map(|read| &read["gb_s"]).chain([&machine["int8_gop_s"], &machine["f32_gop_s"]]) {
        assert!(["one", "all"].iter().all(|who| rate[who].as_f64().unwrap() > 0.0), "{machine}");
    }

    let out = ok(&format!("bench -m @ {flags}"), &[&model]);
    for head in [
        "machine 1 thread 2 threads",
        "prefill tokens tok/s GB/s GOP/s % of bound bound by",
        "decode depth tok/s GB/s GOP/s % of bound bound by",
        "batch rows ms x 1 row GB/s GOP/s % of bound bound by",
    ] {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(out.lines().any(|line| words(line) == head), "{head}: {out}");
    }
}

#[test]
fn a_profile_adds_up_to_the_step() {
    let dir = scratch("bench-profile");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "Q8_0").bytes());
    let flags = "--prefill 1 --decode 1 --depth 0 -r 1 -t 2 --rate-time 1";
    let got = json(&format!("bench -m @ {flags} --widths 8,1 --profile --json"), &[&model]);
    let profiles = got["profile"].as_array().unwrap();
    assert_eq!(profiles.iter().map(|p| p["rows"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 8]);
    for (profile, width) in profiles.iter().zip([1, 0]) {
        let (ops, whole) = (profile["ops"].as_array().unwrap(), profile["ms"].as_f64().unwrap());
        let get = |op: &Value, key: &str| op[key].as_f64().unwrap_or_else(|| panic!("no {key}: {op}"));
        let sum = |key: &str| ops.iter().map(|op| get(op, key)).sum::<f64>();
        let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-6 * b, "{a} is not {b}: {profile}");
        let between = get(profile, "between_ms");
        assert!(whole > 0.0 && between > 0.0 && between < whole, "{profile}");
        close(sum("ms") + between, whole);
        let products = |op: &&Value| op["op"] == "attend" || op["op"].as_str().unwrap().starts_with("linear ");
        close(get(profile, "rest_ms"), whole - ops.iter().filter(products).map(|op| get(op, "ms")).sum::<f64>());
        close(sum("share") + 100.0 * between / whole, 100.0);
        close(sum("bound_ms"), get(profile, "bound_ms"));
        close(get(profile, "percent"), 100.0 * sum("bound_ms") / whole);
        // What the ops of a step do is what the pass does.
        for key in ["bytes", "operations"] {
            close(sum(key), get(&got["widths"][width], key));
        }
        for op in ops {
            let name = op["op"].as_str().unwrap();
            let works = ["bytes", "activations", "operations"].iter().any(|key| get(op, key) > 0.0);
            assert_eq!(works && get(op, "bound_ms") > 0.0, name != "move_kv", "{op}");
            assert!(get(op, "calls") >= 1.0, "{op}");
        }
        let names: Vec<_> = ops.iter().map(|op| op["op"].as_str().unwrap()).collect();
        assert!(names.starts_with(&["embed", "rms_norm attn_norm", "linear attn_q attn_k attn_v"]), "{names:?}");
        assert!(names.ends_with(&["read", "move_kv", "pick"]), "{names:?}");
        assert_eq!((&ops[ops.len() - 1]["calls"], &profile["depth"]), (&profile["rows"], &256.into()));
        assert!(get(profile, "greedy_ms") > 0.0);
    }
    assert_eq!(json(&format!("bench -m @ {flags} --widths 1 --json"), &[&model])["profile"], Value::Array(vec![]));

    let out = ok(&format!("bench -m @ {flags} --widths 1 --profile 3,1"), &[&model]);
    let lines: Vec<String> = out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for head in ["3 rows", "1 row"] {
        let head = format!("profile {head} at depth 256 calls ms % of step bound ms % of bound");
        let at = lines.iter().position(|line| *line == head).unwrap_or_else(|| panic!("{head}: {out}"));
        let table: Vec<&str> = lines[at + 1..].iter().map(String::as_str).take_while(|line| !line.is_empty()).collect();
        for row in [
            "linear ffn_gate ffn_up ",
            "attend ",
            "pick ",
            "between ops ",
            "(all but linear, attend) ",
            "(pick at --temp 0) ",
            "step ",
        ] {
            assert!(table.iter().any(|line| line.starts_with(row)), "{row}: {out}");
        }
    }
}

#[test]
fn default_depths_are_those_that_fit() {
    let dir = scratch("bench-depths");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "F32").bytes());
    let rest = "--prefill 1 --widths 1 -r 1 --rate-time 1 --json";
    for (flags, depths, out) in [
        ("--decode 1", &[0][..], &["512", "4096"][..]),
        ("--decode 1 -c 600", &[0, 512], &["4096"]),
        ("--decode 1 -c 4097", &[0, 512, 4096], &[]),
    ] {
        let ran = run(&words(&format!("bench -m @ {flags} {rest}"), &[&model]), b"");
        assert_eq!(ran.code, Some(0), "{flags}: {}", ran.err);
        let got: Value = serde_json::from_str(&ran.out).unwrap();
        let found: Vec<_> =
            got["decode"].as_array().unwrap().iter().map(|row| row["depth"].as_u64().unwrap()).collect();
        assert_eq!(found, depths, "{flags}");
        let said: Vec<_> = ran.err.lines().filter(|line| line.starts_with("no decoding at depth")).collect();
        assert!(said.len() == out.len() && said.iter().zip(out).all(|(line, n)| line.contains(n)), "{flags}: {said:?}");
    }
}

#[test]
fn against_another_binary_every_figure_is_compared() {
    let dir = scratch("bench-against");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "Q8_0").bytes());
    let flags = "--prefill 5 --decode 2 --depth 0,9 --widths 1,3 -t 1 --rate-time 1";
    let own = Path::new(env!("CARGO_BIN_EXE_foretoken"));
    let shell = format!("{} bench -m {} {flags} -r 1 --json", own.display(), model.display());
    let llama = r#"echo '[{"n_prompt": 5, "n_gen": 0, "avg_ts": 0.5}, {"n_prompt": 0, "n_gen": 4, "n_depth": 9, "avg_ts": 0.25}]'"#;
    let all = ["prefill 5", "decode at 0", "decode at 9", "1 row", "3 rows"];
    for (command, figures, said) in
        [(own.to_str().unwrap(), &all[..], 0), (&shell, &all, 0), (llama, &["prefill 5", "decode at 9"], 1)]
    {
        let line = format!("bench -m @ {flags} -r 2 --json --against @");
        let ran = run(&words(&line, &[&model, Path::new(command)]), b"");
        assert_eq!((ran.code, ran.err.lines().count()), (Some(0), said), "{command}: {}", ran.err);
        let got: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!((&got["rounds"], &got["against"]), (&2.into(), &command.into()));
        let rows = got["figures"].as_array().unwrap();
        let names: Vec<_> = rows.iter().map(|row| row["figure"].as_str().unwrap()).collect();
        assert_eq!(names, figures, "{command}");
        for row in rows {
            for key in ["this", "other", "ratio"] {
                let [min, median, max] = ["min", "median", "max"].map(|k| row[key][k].as_f64().unwrap());
                assert!(0.0 < min && min <= median && median <= max, "{command}: {row}");
            }
        }
        if command == llama {
            assert!(
                rows[1]["other"]["median"] == 0.25 && ran.err.contains("does not measure: decode at 0, 1 row, 3 rows")
            );
            let [this, ratio] = ["this", "ratio"].map(|key| rows[1][key]["max"].as_f64().unwrap());
            assert!((ratio / this - 4.0).abs() < 1e-9, "{}", rows[1]);
        }
    }
    let out = ok(&format!("bench -m @ {flags} -r 1 --against @"), &[&model, own]);
    assert!(all.iter().all(|name| out.contains(name)) && out.contains("times as fast"), "{out}");
}

#[test]
fn against_what_does_not_answer_is_one_line() {
    let dir = scratch("bench-broken");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "F32").bytes());
    let flags = "--prefill 2 --decode 1 --depth 0 --widths 1 -r 1 --rate-time 1";
    let lacking = r#"echo '{"prefill": [{"tokens": 2, "tok_s": 9}], "decode": [{"depth": 0, "tok_s": 9}]}'"#;
    for (command, parts) in [
        ("exit 3", &["exit 3", "3)"][..]),
        ("echo first >&2; echo why >&2; exit 1", &["1)", ": why"]),
        ("/nowhere/foretoken bench", &["/nowhere/foretoken", "127)"]),
        ("true", &["--against true", "no JSON", "--json"]),
        ("echo words", &["no JSON"]),
        ("echo {}", &["without figures"]),
        (lacking, &["lacks 1 row"]),
        (r#"echo '[{"n_prompt": 0, "n_gen": 1, "n_depth": 7, "avg_ts": 9}]'"#, &["nothing", "prefill 2, decode at 0"]),
        (model.to_str().unwrap(), &["tiny.gguf", "denied"]),
    ] {
        fails(&format!("bench -m @ {flags} --against @"), &[&model, Path::new(command)], 1, parts);
    }
    // What is wrong with this run is said as it would be without the other.
    let missing = dir.join("missing.gguf");
    fails("bench -m @ --against true", &[&missing], 1, &["error: ", "missing.gguf"]);
    fails("bench -m @ --widths 0 --against true", &[&model], 2, &["--widths", "0", "64"]);
}

#[test]
fn bench_refuses_what_cannot_be_measured() {
    let dir = scratch("bench-wrong");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "F32").bytes());
    for (flags, code, parts) in [
        ("--decode 0", 2, &["--decode", "0"][..]),
        ("--prefill 5,0", 2, &["--prefill", "0"]),
        ("--widths 0", 2, &["--widths", "0", "64"]),
        ("--widths 1,65", 2, &["--widths", "65", "64"]),
        ("--prefill 513", 1, &["--prefill 513", "512"]),
        ("--prefill 1 --depth 512 --decode 1", 1, &["--depth 512", "513", "512"]),
        ("--prefill 1 --depth 18446744073709551615", 1, &["18446744073709551615", "512"]),
        ("--prefill 1 --depth 0 -c 300 --widths 45", 1, &["--widths 45", "301", "300"]),
        ("--profile 0", 2, &["--profile", "0", "64"]),
        ("--profile 1,65", 2, &["--profile", "65", "64"]),
        ("--prefill 1 --depth 0 -c 300 --widths 1 --profile 1,45", 1, &["--profile 45", "301", "300"]),
    ] {
        fails(&format!("bench -m @ {flags}"), &[&model], code, parts);
    }
    for flags in [
        "--repetitions 0",
        "--prefill x",
        "--decode -1",
        "--rate-time 0",
        "--against true --prompts file",
        "--against true --profile",
    ] {
        assert_eq!(run(&words(&format!("bench -m @ {flags}"), &[&model]), b"").code, Some(2), "{flags}");
    }
}
