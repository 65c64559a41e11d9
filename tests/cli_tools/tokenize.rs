//! Ids of texts, to the byte.

use crate::common::{gguf_writer::Value, scratch};
use crate::{failed, fails, run, vocabulary_only, words, write};
use std::ffi::OsString;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn tokenize_takes_bytes_as_they_are() {
    let dir = scratch("tokenize");
    let model = write(&dir, "vocab.gguf", &vocabulary_only().bytes());
    let plain = "97 60 124 101 110 100 124 62";
    for (text, flags, want) in [
        (&b"the"[..], "", "257"),
        (b"a\n", "", "97 10"),
        (b"\r\na\r\n", "", "13 10 97 13 10"),
        (b"a\n\n", "", "97 10 10"),
        (b" a", "", "264"),
        (b"\xEF\xBB\xBFa", "", "239 187 191 97"),
        (b"a\0b", "", "97 0 98"),
        (b"", "", ""),
        (b"", "--json", "[]"),
        (b"", "--bos", "319"),
        (b"", "--bos --json", "[319]"),
        (b"a<|end|>", "", "97 318"),
        (b"a<|end|>", "--plain", plain),
        (b"a<|end|>the", "--bos --json", "[319,97,318,257]"),
        (b"<|start|>", "--bos", "319 319"),
    ] {
        let file = write(&dir, "text", text);
        let file_args = words(&format!("tokenize -m @ -f @ {flags}"), &[&model, &file]);
        let mut ways = vec![
            (file_args, &b"not read"[..]),
            (words(&format!("tokenize -m @ {flags} -"), &[&model]), text),
            (words(&format!("tokenize -m @ {flags}"), &[&model]), text),
        ];
        if !text.contains(&0) {
            let mut args = words(&format!("tokenize -m @ {flags} -p"), &[&model]);
            args.push(std::str::from_utf8(text).unwrap().into());
            ways.push((args, b"not read"));
        }
        for (args, stdin) in ways {
            let ran = run(&args, stdin);
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{args:?}");
            assert_eq!(ran.out, format!("{want}\n"), "{args:?}");
        }
    }
}

#[test]
fn tokenize_says_what_is_wrong() {
    let dir = scratch("tokenize-wrong");
    let model = write(&dir, "vocab.gguf", &vocabulary_only().bytes());
    let without = vocabulary_only().without("tokenizer.ggml.bos_token_id");
    let no_bos = write(&dir, "no-bos.gguf", &without.bytes());
    let strange = vocabulary_only().set("tokenizer.ggml.model", Value::Str("bert".into()));
    let strange = write(&dir, "strange.gguf", &strange.bytes());
    let text = write(&dir, "text", b"text");
    let missing = dir.join("missing");
    fails("tokenize -m @ -p a --bos", &[&no_bos], 1, &["no-bos.gguf", "no BOS"]);
    fails("tokenize -m @ -p a", &[&strange], 1, &["strange.gguf", "tokenizer.ggml.model", "bert", "gpt2"]);
    fails("tokenize -m @ -p a", &[&missing], 1, &["missing"]);
    fails("tokenize -m @ -p a", &[&dir], 1, &["directory"]);
    fails("tokenize -m @ -f @", &[&model, &missing], 1, &["missing"]);
    assert_eq!(run(&words("tokenize -m @ -p a -f @", &[&model, &text]), b"").code, Some(2));

    for (bytes, parts) in [
        (&b"\xFF\xFEa\0"[..], ["byte 0", "UTF-16"]),
        (b"ab\xC3", ["byte 2", "within a character"]),
        (b"the\xC3(", ["byte 3", "UTF-8"]),
    ] {
        let file = write(&dir, "bad", bytes);
        let what = format!("{bytes:?}");
        failed(&run(&words("tokenize -m @ -f @", &[&model, &file]), b""), 1, &parts, &what);
        failed(&run(&words("tokenize -m @ -", &[&model]), bytes), 1, &parts, &what);
        #[cfg(unix)]
        if !bytes.contains(&0) {
            use std::os::unix::ffi::OsStringExt;
            let mut args = words("tokenize -m @ -p", &[&model]);
            args.push(OsString::from_vec(bytes.to_vec()));
            failed(&run(&args, b""), 1, &parts, &what);
        }
    }
}

#[test]
fn tokenize_waits_for_all_of_a_pipe() {
    let dir = scratch("tokenize-pipe");
    let model = write(&dir, "vocab.gguf", &vocabulary_only().bytes());
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(words("tokenize -m @", &[&model]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    for piece in [&b"t"[..], b"h", b"e"] {
        pipe.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"257\n"[..]));
}
