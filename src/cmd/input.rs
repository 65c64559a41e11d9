//! Where texts come from: an argument, a file, stdin. Bytes are taken as they are, final newline included; text that is
//! not UTF-8 is an error that says where, because half a prompt silently lost would be an answer to another question.

use super::Usage;
use super::unescape::unescape;
use crate::cli::{ShapeArgs, TextArgs};
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{IsTerminal, Read, stdin};
use std::path::Path;

/// Most bytes a text may have: no context holds more, and an endless source must end somewhere.
const MOST: u64 = 1 << 28;

/// The text that `args` name: what `-p` says, the file of `-f`, or stdin to its end, which `-` asks for and which is also
/// read when nothing is named and it is not a terminal. With `-p` and `-` that of stdin follows on a new line.
/// Byte-order mark and NUL stay.
pub fn read(args: &TextArgs) -> Result<String> {
    Ok(join(sources(args, false)?))
}

/// [`read`] without byte-order marks, escapes resolved and in its shape.
pub fn shaped(args: &TextArgs, shape: &ShapeArgs) -> Result<String> {
    let sources = sources(args, shape.escape)?;
    let text = join(sources.iter().map(|text| without_mark(text)));
    let around = |flag: &str, text: &Option<String>| argument(flag, text.as_deref().unwrap_or_default(), shape.escape);
    Ok(around("--prefix", &shape.prefix)? + &text + &around("--suffix", &shape.suffix)?)
}

/// The text of an argument, with its escapes resolved if they are to be.
pub fn argument(flag: &str, text: &str, escape: bool) -> Result<String> {
    if escape { utf8(flag, unescape(text.as_bytes())) } else { Ok(text.to_owned()) }
}

fn sources(args: &TextArgs, escape: bool) -> Result<Vec<String>> {
    let mut texts = vec![];
    if let Some(prompt) = &args.prompt {
        let bytes = prompt.as_encoded_bytes();
        texts.push(utf8("--prompt", if escape { unescape(bytes) } else { bytes.to_vec() })?);
    }
    if let Some(path) = &args.file {
        texts.push(file(path)?);
    }
    if args.stdin.is_some() || texts.is_empty() {
        if args.stdin.is_none() && stdin().is_terminal() {
            bail!(Usage("no text: give one with -p TEXT or -f FILE, or type it after \"-\"".into()));
        }
        texts.push(utf8("stdin", all(stdin().lock()).context("stdin")?)?);
    }
    Ok(texts)
}

/// One after the other, each on a new line.
fn join(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut whole = String::new();
    for text in texts {
        if !whole.is_empty() && !whole.ends_with('\n') {
            whole.push('\n');
        }
        whole += text.as_ref();
    }
    whole
}

/// The text of a file.
pub fn file(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| name.clone())?;
    utf8(&name, all(file).with_context(|| name.clone())?)
}

/// A text without the byte-order mark that some editors put in front: it is no part of what was written.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{FEFF}').unwrap_or(text)
}

/// All bytes, unless there are too many.
pub fn all(from: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MOST + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= MOST, "more than {MOST} bytes of text are not supported");
    Ok(bytes)
}

/// `bytes` as text, or an error that names `source` and the offset of the first byte that is none.
pub fn utf8(source: &str, bytes: Vec<u8>) -> Result<String> {
    let error = match String::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    let (at, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
    let hint = match bytes {
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => ": it looks like UTF-16, only UTF-8 is supported",
        _ if error.utf8_error().error_len().is_none() => ": the text ends within a character",
        _ => ": only UTF-8 is supported",
    };
    bail!("{source}: byte {at} (0x{:02X}) is not UTF-8{hint}", bytes[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_utf8_is_named() {
        for (bytes, want) in [
            (&b"\xFF\xFEa\0"[..], "x: byte 0 (0xFF) is not UTF-8: it looks like UTF-16, only UTF-8 is supported"),
            (b"ab\xC3", "x: byte 2 (0xC3) is not UTF-8: the text ends within a character"),
            (b"ab\xC3(", "x: byte 2 (0xC3) is not UTF-8: only UTF-8 is supported"),
        ] {
            assert_eq!(utf8("x", bytes.to_vec()).unwrap_err().to_string(), want);
        }
        assert_eq!(utf8("x", b"\xEF\xBB\xBFa\0\n".to_vec()).unwrap(), "\u{FEFF}a\0\n");
    }

    #[test]
    fn one_mark_at_the_front_goes() {
        assert_eq!(without_mark("\u{FEFF}\u{FEFF}a\u{FEFF}"), "\u{FEFF}a\u{FEFF}");
        assert_eq!(without_mark("a"), "a");
    }

    #[test]
    fn texts_are_joined_on_new_lines() {
        for (texts, want) in [
            (&["a"][..], "a"),
            (&["a", "b\n"], "a\nb\n"),
            (&["a\n", "b"], "a\nb"),
            (&["", "b"], "b"),
            (&["a", ""], "a\n"),
            (&[], ""),
        ] {
            assert_eq!(join(texts), want);
        }
    }

    #[test]
    fn an_endless_source_ends() {
        assert!(all(std::io::repeat(b'a')).unwrap_err().to_string().starts_with("more than"));
    }
}
