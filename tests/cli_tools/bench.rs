//! What `bench` prints, and what it refuses.

use crate::common::{gguf_writer::tiny_llama, scratch};
use crate::{fails, json, ok, run, words, write};

#[test]
fn bench_gives_what_it_was_asked_for() {
    let dir = scratch("bench");
    let model = write(&dir, "tiny.gguf", &tiny_llama(5, "Q8_0").bytes());
    let flags = "--prefill 1,300 --decode 3 --depth 0,8,509 --widths 64,1,3 -r 2 -t 2 --isa scalar";
    let got = json(&format!("bench -m @ {flags} --json"), &[&model]);
    assert_eq!((&got["isa"], &got["threads"]), (&"scalar".into(), &2.into()));
    assert!(got["model"].as_str().unwrap().ends_with("tiny.gguf"));
    for (list, key, inputs, values) in [
        ("prefill", "tokens", &[1, 300][..], &["tok_s"][..]),
        ("decode", "depth", &[0, 8, 509], &["tok_s", "gb_s"]),
        ("widths", "rows", &[64, 1, 3], &["ms"]),
    ] {
        let rows = got[list].as_array().unwrap();
        assert_eq!(rows.len(), inputs.len(), "{list}");
        for (row, input) in rows.iter().zip(inputs) {
            assert_eq!(row[key], *input, "{list}");
            let measured = values.iter().map(|&v| row[v].as_f64().unwrap());
            assert!(measured.into_iter().all(|v| v > 0.0 && v.is_finite()), "{list}: {row}");
        }
    }
    for row in got["decode"].as_array().unwrap() {
        let (tok_s, gb_s) = (row["tok_s"].as_f64().unwrap(), row["gb_s"].as_f64().unwrap());
        let per_token = gb_s / tok_s * 1e9;
        assert!((per_token / got["weight_bytes"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    }

    let out = ok(&format!("bench -m @ {flags}"), &[&model]);
    for head in ["prefill tokens tok/s", "decode depth tok/s GB/s", "batch rows ms x 1 row"] {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(out.lines().any(|line| words(line) == head), "{head}: {out}");
    }
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
    ] {
        fails(&format!("bench -m @ {flags}"), &[&model], code, parts);
    }
    for flags in ["--repetitions 0", "--prefill x", "--decode -1"] {
        assert_eq!(run(&words(&format!("bench -m @ {flags}"), &[&model]), b"").code, Some(2), "{flags}");
    }
}
