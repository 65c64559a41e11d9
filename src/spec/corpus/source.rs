//! What a corpus is made of: text files, and files of token ids.

use super::index::BORDER;
use super::{Making, index::Key, index::VERSION};
use crate::gguf::FileBytes;
use crate::spec::Tell;
use crate::text::Tokenizer;
use crate::tree::Token;
use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Texts are cut after a line end into pieces of about this many bytes, each made into tokens by itself. So memory is
/// bounded and all cores have work; the few tokens at the cuts may differ from those of the whole.
const PIECE: usize = 1 << 18;

/// Pieces made into tokens at a time.
const PIECES: usize = 64;

/// Says of a tokenizer what the list of its tokens does not: how words, digits, spaces and marks are cut and merged.
const PROBE: &str = "I'll say: we've 1234567 \u{e9} e\u{301}\u{4f60}\u{597d}  \n\n\tfn main() { x+=0.5; } // \u{1f600}\r\n don't STOP!!!";

/// A file of a corpus.
pub struct Source {
    path: PathBuf,
    bytes: FileBytes,
    /// Whether it holds ids, not text.
    ids: bool,
}

impl Source {
    /// Opens a file, one of ids if its name ends in `.tokens`.
    pub fn open(path: &Path) -> Result<Self> {
        let open = || {
            let bytes = FileBytes::map(path)?;
            ensure!(!bytes.is_empty(), "is empty");
            Ok(bytes)
        };
        let bytes = open().with_context(|| path.display().to_string())?;
        let ids = path.extension().is_some_and(|extension| extension == "tokens");
        Ok(Self { path: path.to_owned(), bytes, ids })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Appends its tokens and a border to `text`; `done` of `total` bytes of all files came before.
    pub fn read(&self, making: &Making<'_>, done: u64, total: u64, text: &mut Vec<Token>) -> Result<()> {
        let read = if self.ids { self.read_ids(making, text) } else { self.read_text(making, done, total, text) };
        read.with_context(|| self.path.display().to_string())?;
        if text.last() != Some(&BORDER) {
            text.push(BORDER);
        }
        Ok(())
    }

    fn read_text(&self, making: &Making<'_>, done: u64, total: u64, text: &mut Vec<Token>) -> Result<()> {
        for group in pieces(&self.bytes).chunks(PIECES) {
            let tokens = |piece: &Range<usize>| {
                // A copy, for what was checked in a map may change.
                let words = String::from_utf8(self.bytes[piece.clone()].to_vec()).map_err(|error| {
                    let at = piece.start + error.utf8_error().valid_up_to();
                    anyhow::anyhow!("is not UTF-8 at byte {at}, supported UTF-8 text, or ids in a file named *.tokens")
                });
                making.tokenizer.encode(&words?, false)
            };
            let tokens: Vec<Result<Vec<Token>>> = group.par_iter().map(tokens).collect();
            tokens.into_iter().try_for_each(|tokens| tokens.map(|tokens| text.extend(tokens)))?;
            let read = group.last().map_or(0, |piece| piece.end as u64);
            (making.tell)(Tell::Progress("reading the corpus", done + read, total));
        }
        Ok(())
    }

    fn read_ids(&self, making: &Making<'_>, text: &mut Vec<Token>) -> Result<()> {
        let (ids, rest) = self.bytes.as_chunks();
        ensure!(rest.is_empty(), "has {} bytes, supported ids of 4 bytes each", self.bytes.len());
        let vocab = making.tokenizer.vocab_size();
        for (i, id) in ids.iter().map(|&id| u32::from_le_bytes(id)).enumerate() {
            ensure!((id as usize) < vocab || id == BORDER, "has id {id} at byte {}, supported below {vocab}", 4 * i);
            text.push(id);
        }
        Ok(())
    }
}

/// A hash of all that the index of `sources` follows from.
pub fn key(sources: &[Source], tokenizer: &Tokenizer) -> Result<Key> {
    let mut hash = Sha256::new();
    hash.update(VERSION.to_le_bytes());
    for token in 0..tokenizer.vocab_size() {
        let piece = tokenizer.piece(token as Token);
        hash.update((piece.len() as u64).to_le_bytes());
        hash.update(piece);
    }
    let probe = tokenizer.encode(PROBE, false)?;
    probe.into_iter().for_each(|token| hash.update(token.to_le_bytes()));
    for source in sources {
        hash.update([u8::from(source.ids)]);
        hash.update(Sha256::digest(&*source.bytes));
    }
    Ok(hash.finalize().into())
}

/// Cuts a text, after a line end where there is one and never within a character.
fn pieces(bytes: &[u8]) -> Vec<Range<usize>> {
    let (mut pieces, mut start) = (vec![], 0);
    while start < bytes.len() {
        let most = start.saturating_add(PIECE);
        let cut = bytes.get(start..most).and_then(|piece| {
            let line = piece.iter().rposition(|&byte| byte == b'\n').map(|at| at + 1);
            // A character has up to three bytes after its first. Other bytes are no text and will be found out.
            line.or_else(|| (piece.len() - 3..piece.len()).rev().find(|&at| piece[at] & 0xc0 != 0x80))
        });
        let end = cut.map_or(most.min(bytes.len()), |cut| start + cut);
        pieces.push(start..end);
        start = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_of_the_text_and_texts_themselves() {
        let lines = "a line\n".repeat(PIECE / 3);
        let euros = "€".repeat(PIECE);
        let (one, short) = ("x".repeat(PIECE), "short");
        for text in [&lines, &euros, &format!("x{euros}"), &format!("xx{euros}"), &one, short, ""] {
            let pieces = pieces(text.as_bytes());
            let ends: Vec<usize> = pieces.iter().map(|piece| piece.end).collect();
            let starts: Vec<usize> = pieces.iter().map(|piece| piece.start).collect();
            assert_eq!([&starts[..], &[text.len()]].concat(), [&[0], &ends[..]].concat());
            assert!(pieces.iter().all(|p| !p.is_empty() && p.len() <= PIECE && text.get(p.clone()).is_some()));
            let cuts = &ends[..ends.len().saturating_sub(1)];
            assert!(*text != *lines || cuts.len() == 2 && cuts.iter().all(|&cut| text[..cut].ends_with('\n')));
        }
        assert_eq!(pieces(&vec![0x80; 3 * PIECE]).len(), 3);
    }
}
