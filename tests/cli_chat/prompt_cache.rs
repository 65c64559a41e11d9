//! `--prompt-cache`: what is known is not evaluated again, and the answer is the same.

use super::*;
use common::cli::{answer, refused, run, run_with, stats};

/// A prompt of some length, and `run` over it.
fn line(model: &Path, prompt: &str, more: &[&str]) -> Vec<OsString> {
    let mut line =
        args(model, &["-p", prompt, "-n", "12", "-s", "4", "--temp", "1", "-l", "318-inf", "--stats", "json"]);
    line[0] = "run".into();
    line.extend(more.iter().map(OsString::from));
    line
}

fn numbers(output: &std::process::Output) -> (u64, u64) {
    let got = stats(output);
    (got["prompt_tokens"].as_u64().unwrap(), got["reused_tokens"].as_u64().unwrap())
}

fn warned(output: &std::process::Output) -> bool {
    stderr(output).contains("warning: --prompt-cache")
}

#[test]
fn the_longest_common_prefix_is_reused_and_changes_nothing() {
    let long = "the same beginning ".repeat(15);
    for (name, model) in [("cache", cli::tiny()), ("cache-q8", common::gguf_writer::tiny_llama(3, "Q4_K"))] {
        let model = save(name, &with_template(model, STRICT));
        for kv in ["f16", "f32", "q8_0"] {
            let file = scratch(&format!("chat-{name}-{kv}")).join("ünnamed cache");
            if kv == "q8_0" && name == "cache" {
                continue; // its heads are too narrow
            }
            let cached = ["--kv-type", kv, "--prompt-cache", file.to_str().unwrap()];
            let mut known = 0;
            for (prompt, least) in [("", 0), ("one", 200), ("one two", 200), ("", 200), ("other", 200), ("one", 200)] {
                let prompt = format!("{long}{prompt}");
                let plain = run(&line(&model, &prompt, &["--kv-type", kv]));
                let output = run(&line(&model, &prompt, &cached));
                assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
                assert_eq!(output.stdout, plain.stdout, "{name} {kv} {prompt}");
                assert!(!warned(&output), "{}", stderr(&output));
                let (tokens, reused) = numbers(&output);
                assert!(tokens > 200 && reused >= least && (reused > 0) == (known > 0), "{reused} of {tokens}");
                known = tokens;
            }
            // All of it is known.
            let again = run(&line(&model, &format!("{long}one"), &cached));
            let (tokens, reused) = numbers(&again);
            assert_eq!(tokens, reused);
            // With drafters the same, and with more threads.
            for more in [&["--draft", "lookup,min=1"][..], &["--draft", "none"]] {
                let output = run(&line(&model, &format!("{long}one"), &[&cached[..], more].concat()));
                assert_eq!(output.stdout, again.stdout);
            }
        }
    }
}

#[test]
fn a_file_that_does_not_fit_is_said_and_written_anew() {
    let model = save("cache-fit", &strict());
    let dir = scratch("chat-cache-fit");
    let file = dir.join("cache");
    let cached = ["--prompt-cache", file.to_str().unwrap()];
    let prompt = "some words to read ".repeat(10);
    let want = answer(&line(&model, &prompt, &[]));
    let go = |more: &[&str]| run(&line(&model, &prompt, &[&cached[..], more].concat()));
    go(&[]);
    let good = std::fs::read(&file).unwrap();
    for n in [0, 1, 10, 30, 100, 300, good.len() / 2, good.len() - 8, good.len() - 1] {
        std::fs::write(&file, &good[..n]).unwrap();
        let output = go(&[]);
        assert_eq!((output.status.code(), String::from_utf8(output.stdout.clone()).unwrap()), (Some(0), want.clone()));
        assert!(warned(&output) && numbers(&output).1 == 0, "cut at {n}: {}", stderr(&output));
        assert!(std::fs::read(&file).unwrap() == good, "written anew");
    }
    for n in (0..good.len()).step_by(good.len() / 23) {
        let mut bad = good.clone();
        bad[n] ^= 1;
        std::fs::write(&file, bad).unwrap();
        let output = go(&[]);
        assert!(warned(&output) && output.stdout == want.as_bytes(), "damaged at {n}");
    }
    std::fs::write(&file, [&good[..], b"more"].concat()).unwrap();
    assert!(warned(&go(&[])));
    std::fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    assert!(warned(&go(&[])), "larger than any cache");
    // Made under other conditions.
    for (more, why) in [
        (&["--kv-type", "f32"][..], "made with --kv-type: f32, not f16"),
        (&["-c", "400"], "made with -c: 400, not 512"),
        (&["--isa", "scalar"], "made with --isa: scalar, not"),
        (&["--activations", "f32"], "made with --activations: f32, not int8"),
    ] {
        std::fs::remove_file(&file).unwrap();
        assert!(!warned(&go(more)), "{more:?}");
        let output = go(&[]);
        assert!(stderr(&output).contains(why) && output.stdout == want.as_bytes(), "{more:?}: {}", stderr(&output));
    }
    // Another model: as large, with the same header, but other weights.
    let mut twin = strict();
    let tensor = twin.tensors.iter_mut().find(|t| t.name == b"blk.1.attn_k.weight").unwrap();
    tensor.bytes[2] ^= 0x40;
    let twin = save("cache-twin", &twin);
    let output = run(&line(&twin, &prompt, &cached));
    assert!(stderr(&output).contains("made with model file of fingerprint"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside it");
    // A place where nothing can be written is told before the work.
    let nowhere = dir.join("none/cache");
    refused(
        &run(&line(&model, "a", &["--prompt-cache", nowhere.to_str().unwrap()])),
        1,
        &["--prompt-cache", "not a folder"],
        "no folder",
    );
    refused(
        &run(&line(&model, "a", &["--prompt-cache", dir.to_str().unwrap()])),
        1,
        &["--prompt-cache", "is a folder"],
        "a folder",
    );
}

#[test]
fn a_conversation_goes_on_where_it_was() {
    let model = save("cache-chat", &strict());
    let dir = scratch("chat-cache");
    let (file, talk) = (dir.join("cache"), dir.join("talk"));
    let chat = |script: String, cached: bool| {
        let flags = ["-n", "9", "-s", "2", "--temp", "1", "-v", "-l", "318-inf"];
        let cache = ["--prompt-cache", file.to_str().unwrap()];
        let line = args(&model, &[&flags[..], if cached { &cache } else { &[] }].concat());
        let output = run_with(&line, script.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        output
    };
    let talk = talk.display();
    chat(format!("{}\nsecond\n/save {talk}\n", "a long first message ".repeat(8)), true);
    let script = || format!("/load {talk}\nthird\n");
    let (with, without) = (chat(script(), true), chat(script(), false));
    assert_eq!(with.stdout, without.stdout);
    let reused = |output| {
        let said = stderr(output);
        let line = said.lines().find_map(|line| line.strip_suffix(" tokens evaluated before")).unwrap().to_owned();
        line.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    assert!(reused(&with) > 150 && reused(&without) == 0, "{}", stderr(&with));
}
