//! A job in parts: sharded, ended early, taken up again.

use super::*;
use common::scratch;
use std::fs::{File, OpenOptions};
use std::process::{Command, Stdio};

/// A thousand requests over a few prompts, fifty of them bad, with ids of many kinds.
fn job() -> Vec<u8> {
    let request = |i: usize| match i {
        _ if i % 20 == 7 && i % 40 == 7 => "nonsense".to_owned(),
        _ if i % 20 == 7 => json!({"id": i, "prompt": 7}).to_string(),
        _ => {
            let prompt = format!("the {} of {}", ["cat", "car", "hat"][i % 3], i % 10);
            let mut ask = json!({"prompt": prompt, "raw": true, "max_tokens": i % 4, "temperature": 1.2});
            match i % 5 {
                0 => {}
                1 => ask["id"] = json!(i),
                2 => ask["id"] = json!(format!("id \u{e9} {i}")),
                3 => ask["id"] = json!(["a", i]),
                _ => ask["id"] = json!("not the only one"),
            }
            ask.to_string()
        }
    };
    (1..=1000).flat_map(|i| format!("{}\n", request(i)).into_bytes()).collect()
}

fn timeless_lines(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| timeless_or_error(serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))))
        .collect()
}

fn timeless_or_error(answer: Value) -> Value {
    if answer.get("error").is_some() { answer } else { timeless(answer) }
}

/// Runs with `job` as stdin and stdout appended to `out`; what was said.
fn append(model: &Path, more: &str, job: &Path, out: &Path) -> String {
    let to = OpenOptions::new().create(true).append(true).open(out).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(args(model, more)).stdin(File::open(job).unwrap()).stdout(to).stderr(Stdio::piped());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn a_job_whose_pipe_closes_is_resumed_without_loss() {
    let model = save("resumed", &tiny());
    let dir = scratch("batch-resumed");
    let file = dir.join("job.jsonl");
    std::fs::write(&file, job()).unwrap();
    let whole = timeless_lines(&run_with(&args(&model, "-q -s 7"), &job()).stdout);
    assert_eq!((whole.len(), whole.iter().filter(|answer| answer.get("error").is_some()).count()), (1000, 50));

    for cut in [0, 1, 5_000, 40_000, 90_001] {
        // A reader that goes away in the middle of a line, and perhaps of a character.
        let mut child = Command::new(env!("CARGO_BIN_EXE_foretoken"));
        child.args(args(&model, "-q -s 7")).stdin(File::open(&file).unwrap()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut got = vec![0; cut];
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut got).unwrap();
        drop(pipe);
        assert_eq!(child.wait().unwrap().code(), Some(0), "a closed pipe is no failure");

        let out = dir.join(format!("out-{cut}.jsonl"));
        std::fs::write(&out, &got).unwrap();
        let complete = got.iter().filter(|&&byte| byte == b'\n').count();
        let resume = format!("--resume {}", out.display());
        let said = append(&model, &format!("-s 7 {resume}"), &file, &out);
        let torn = got.last().is_some_and(|&byte| byte != b'\n');
        assert!(said.contains(&format!("has {complete} answers")), "{said}");
        assert_eq!(said.contains("and a torn line, which is done again"), torn, "{said}");
        assert!(said.contains(&format!("{} requests", 1000 - complete)), "{said}");
        let bytes = std::fs::read(&out).unwrap();
        assert_eq!(timeless_lines(&bytes), whole, "cut after {cut} bytes: something is lost, twice, or another");
        // Once more there is nothing to do.
        let said = append(&model, &format!("-s 7 {resume}"), &file, &out);
        assert!(said.contains("has 1000 answers") && said.contains(" 0 requests"), "{said}");
        assert_eq!(std::fs::read(&out).unwrap(), bytes);
    }
}

#[test]
fn shards_are_the_whole() {
    let model = save("shards", &tiny());
    let dir = scratch("batch-shards");
    let job = [b"\n".as_slice(), &job()].concat(); // blank lines are counted
    let whole = timeless_lines(&run_with(&args(&model, "-q -s 7"), &job).stdout);
    let file = dir.join("job.jsonl");
    std::fs::write(&file, &job).unwrap();
    let mut parts: Vec<_> = vec![];
    for i in 1..=3 {
        let out = dir.join(format!("out-{i}.jsonl"));
        let _ = std::fs::remove_file(&out);
        let flags = format!("-s 7 --shard {i}/3 --resume {}", out.display());
        assert!(append(&model, &flags, &file, &out).contains("has 0 answers"), "the shell has made it");
        parts.push(timeless_lines(&std::fs::read(&out).unwrap()).into_iter());
    }
    // Line 2 is the first that is not blank, so shard 2 starts.
    let together: Vec<Value> = (0..1000).map(|n| parts[(n + 1) % 3].next().unwrap()).collect();
    assert_eq!(together, whole);
    assert!(parts.iter_mut().all(|part| part.next().is_none()));
    for shard in ["0/3", "4/3", "3", "a/b"] {
        assert_eq!(run(&args(&model, &format!("--shard {shard}"))).status.code(), Some(2), "{shard}");
    }
}

#[test]
fn what_cannot_be_resumed_is_said() {
    let model = save("unresumed", &tiny());
    let dir = scratch("batch-unresumed");
    let (job, missing) = (dir.join("job.jsonl"), dir.join("missing.jsonl"));
    let ask = json!({"id": "a", "prompt": "q", "raw": true, "max_tokens": 1});
    std::fs::write(&job, lines(std::slice::from_ref(&ask))).unwrap();
    let resume = |path: &Path| format!("--resume {}", path.display());
    // Requests are no answers.
    let output = run(&args(&model, &resume(&job)));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("line 1: found something else than an answer of batch"), "{}", stderr(&output));
    assert_eq!(run(&args(&model, &resume(&dir))).status.code(), Some(1), "a folder");
    // A file that is not there yet is none.
    let output = run_with(&args(&model, &resume(&missing)), &lines(std::slice::from_ref(&ask)));
    assert!(output.status.success() && stderr(&output).contains("is not there: nothing is answered yet"));
    // Answers to other requests; a torn line in a file that is not stdout stays as it is.
    let answers = [&output.stdout[..], b"{\"id\":"].concat();
    std::fs::write(&missing, &answers).unwrap();
    let mut other = ask;
    other["id"] = json!("b");
    let output = run_with(&args(&model, &resume(&missing)), &lines(&[other]));
    assert_eq!(timeless_lines(&output.stdout).len(), 1);
    assert!(stderr(&output).contains("1 of the answers have ids that no request has"), "{}", stderr(&output));
    assert_eq!(std::fs::read(&missing).unwrap(), answers);
}
