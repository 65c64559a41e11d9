//! Byte-level BPE. Merging is the `tokenizers` crate's; the words it merges are cut by [`super::pre`] and special
//! texts by [`super::special`], because the crate's own splitting backtracks (with a step limit, at 1 MB/s) and keeps
//! "parse special texts or not" as mutable state.

use super::{
    pre::{Row, Scheme},
    vocab::{Kind, Vocab},
};
use crate::{gguf::Metadata, tree::Token};
use ahash::AHashMap;
use anyhow::{Context, Result, anyhow, bail};
use rayon::prelude::*;
use std::borrow::Cow;
use tokenizers::{Model, NormalizedString, models::bpe::BPE};

pub(super) struct Bpe {
    model: BPE,
    scheme: Scheme,
    nfc: bool,
    alphabet: [char; 256],
}

impl Bpe {
    pub(super) fn from_gguf(meta: &Metadata, vocab: &Vocab, row: &Row) -> Result<Self> {
        let key = "tokenizer.ggml.merges";
        let lines = meta.strings(key)?.with_context(|| format!("{key} is missing"))?;
        // Control tokens stay out: no text may merge into one. A merge that names a token not there, or makes one,
        // is ignored as llama.cpp does; the crate would fail or panic.
        let usable = |text: &str| vocab.find(text).is_some_and(|t| is_plain(vocab, t));
        let merge = |line: &&str| {
            let (left, right) = halves(line)?;
            let good = usable(left) && usable(right) && usable(&[left, right].concat());
            good.then(|| (left.to_owned(), right.to_owned()))
        };
        let lines: Vec<&str> = lines.collect();
        let (merges, ids) = rayon::join(
            || lines.par_iter().filter_map(merge).collect::<Vec<_>>(),
            || {
                (0..vocab.len() as Token)
                    .filter(|&t| is_plain(vocab, t) && vocab.find(vocab.text(t)) == Some(t))
                    .map(|t| (vocab.text(t).to_owned(), t))
                    .collect::<AHashMap<_, _>>()
            },
        );
        if ids.is_empty() {
            bail!("tokenizer.ggml.tokens has no token for plain text");
        }
        let model = BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(row.ignore_merges)
            .build()
            .map_err(|e| anyhow!("{key}: {e}"))?;
        Ok(Self {
            model,
            scheme: Scheme::new(row),
            nfc: row.nfc,
            alphabet: std::array::from_fn(|b| char_of_byte(b as u8)),
        })
    }

    /// Appends the ids of a text without special tokens. Bytes the vocabulary lacks are dropped, as everywhere.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<Token>) -> Result<()> {
        let text = match self.nfc && !text.is_ascii() {
            true => Cow::Owned(NormalizedString::from(text).nfc().get().to_owned()),
            false => Cow::Borrowed(text),
        };
        let mut word = String::new();
        for piece in self.scheme.split(&text) {
            word.clear();
            word.extend(text[piece].bytes().map(|b| self.alphabet[b as usize]));
            let tokens = self.model.tokenize(&word).map_err(|e| anyhow!("byte-level BPE: {e}"))?;
            out.extend(tokens.iter().map(|t| t.id));
        }
        Ok(())
    }
}

fn is_plain(vocab: &Vocab, token: Token) -> bool {
    !matches!(vocab.kind(token), Some(Kind::Control | Kind::Unknown))
}

/// The two sides of a merge: split at the first space after the first character, which may be a space itself.
fn halves(line: &str) -> Option<(&str, &str)> {
    let at = line.char_indices().skip(1).find(|&(_, c)| c == ' ')?.0;
    Some((&line[..at], &line[at + 1..]))
}

/// GPT-2's alphabet: printable Latin-1 bytes are themselves, the other 68 follow from U+0100 in order.
fn char_of_byte(byte: u8) -> char {
    let shifted = match byte {
        0..=32 => 256 + u32::from(byte),
        127..=160 => 256 + u32::from(byte) - 127 + 33,
        173 => 256 + 67,
        _ => u32::from(byte),
    };
    char::from_u32(shifted).expect("below U+0144")
}

/// The inverse of [`char_of_byte`].
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        c @ (33..=126 | 161..=172 | 174..=255) => Some(c as u8),
        c @ 256..=288 => Some((c - 256) as u8),
        c @ 289..=322 => Some((c - 289 + 127) as u8),
        323 => Some(173),
        _ => None,
    }
}

/// The byte that `<0xXX>` names.
pub(super) fn is_byte_name(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection() {
        for b in 0..=255 {
            assert_eq!(byte_of_char(char_of_byte(b)), Some(b));
        }
        assert_eq!((char_of_byte(b' '), char_of_byte(b'\n'), char_of_byte(0xAD)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!((0..0x400).filter_map(char::from_u32).filter_map(byte_of_char).count(), 256);
    }

    #[test]
    fn merges_split_after_the_first_character() {
        let cases =
            [("a b", Some(("a", "b"))), ("  x", Some((" ", "x"))), ("é é", Some(("é", "é"))), ("", None), ("ab", None)];
        for (line, want) in cases {
            assert_eq!(halves(line), want, "{line:?}");
        }
    }
}
