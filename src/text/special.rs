//! Special tokens by their text: where a text is cut for them, and which of them end an answer.
//!
//! *Guarded* tokens (control, unknown, turn markers) are found only where the caller allows special text. *Open*
//! tokens (user-defined: runs of spaces, HTML tags, ...) are found in any text, since that is how their models were
//! trained. Of the matches that start leftmost the longest wins; text in ranges the caller names as plain is cut out
//! before guarded tokens are looked for, so that none begins, ends or lies there.

use super::vocab::{Kind, Vocab};
use crate::tree::Token;
use aho_corasick::{AhoCorasick, MatchKind};
use anyhow::{Context, Result};
use std::ops::Range;

/// Texts that end a turn or an answer in the models we know.
pub(super) const TURN_MARKERS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|EOT|>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Fill-in-the-middle models go on to another file after these.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// `</s>` is an HTML tag in Gemma's vocabulary: when user-defined it is guarded in prompts, but printed and no end.
pub(super) const HTML_TAG: &str = "</s>";

/// A stretch of a text.
pub(super) enum Part<'a> {
    Special(Token),
    Text(&'a str),
}

pub(super) struct Special {
    guarded: Finder,
    open: Finder,
    /// Tokens that swallow the whitespace after them, ascending.
    swallowing: Vec<Token>,
}

struct Finder {
    search: AhoCorasick,
    tokens: Vec<Token>,
}

type Mark = (Range<usize>, Token);

impl Special {
    /// `model_name` is `general.name`: that Phi-3's markers swallow whitespace is written nowhere else.
    pub(super) fn new(vocab: &Vocab, model_name: &str) -> Result<Self> {
        let (mut guarded, mut open) = (Vec::new(), Vec::new());
        for token in (0..vocab.len() as Token).filter(|&t| vocab.find(vocab.text(t)) == Some(t)) {
            match vocab.kind(token) {
                Some(Kind::Control | Kind::Unknown) => guarded.push(token),
                Some(Kind::UserDefined) if vocab.text(token) == HTML_TAG => guarded.push(token),
                Some(Kind::UserDefined) => open.push(token),
                _ => {}
            }
        }
        let name = model_name.to_lowercase();
        let mut swallowing = Vec::new();
        if name.contains("phi-3") || name.contains("phi3") {
            let keeps = |t: &Token| ["<unk>", "<s>", "<|endoftext|>"].contains(&vocab.text(*t));
            swallowing.extend(guarded.iter().chain(&open).copied().filter(|t| !keeps(t)));
            swallowing.sort_unstable();
        }
        Ok(Self { guarded: Finder::new(vocab, guarded)?, open: Finder::new(vocab, open)?, swallowing })
    }

    /// Texts of guarded tokens.
    pub(super) fn guarded<'a>(&'a self, vocab: &'a Vocab) -> impl Iterator<Item = &'a str> {
        self.guarded.tokens.iter().map(|&t| vocab.text(t))
    }

    /// Where guarded texts lie in `text`.
    pub(super) fn find_guarded(&self, text: &str) -> Vec<Range<usize>> {
        let mut marks = Vec::new();
        self.guarded.find(text, 0, &mut marks);
        marks.into_iter().map(|(range, _)| range).collect()
    }

    /// Cuts `text` at special tokens, guarded ones outside the ascending ranges `plain` only.
    pub(super) fn parts<'a>(&self, text: &'a str, plain: &[Range<usize>]) -> Vec<Part<'a>> {
        let mut marks = Vec::new();
        let mut at = 0;
        for range in plain {
            self.guarded.find(&text[at..range.start], at, &mut marks);
            at = range.end;
        }
        self.guarded.find(&text[at..], at, &mut marks);

        let mut parts = Vec::new();
        self.walk(text, &marks, &mut parts, &mut |fragment, parts| {
            let mut marks = Vec::new();
            self.open.find(fragment, 0, &mut marks);
            self.walk(fragment, &marks, parts, &mut |rest, parts| parts.push(Part::Text(rest)));
        });
        parts
    }

    fn walk<'a>(
        &self,
        text: &'a str,
        marks: &[Mark],
        parts: &mut Vec<Part<'a>>,
        between: &mut dyn FnMut(&'a str, &mut Vec<Part<'a>>),
    ) {
        let mut at = 0;
        for (range, token) in marks {
            if at < range.start {
                between(&text[at..range.start], parts);
            }
            parts.push(Part::Special(*token));
            at = range.end;
            if self.swallowing.binary_search(token).is_ok() {
                let space = |c: char| c.is_ascii_whitespace() || c == '\x0B';
                at = text.len() - text[at..].trim_start_matches(space).len();
            }
        }
        if at < text.len() {
            between(&text[at..], parts);
        }
    }
}

impl Finder {
    fn new(vocab: &Vocab, tokens: Vec<Token>) -> Result<Self> {
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|&t| vocab.text(t)))
            .context("special texts of tokenizer.ggml.tokens")?;
        Ok(Self { search, tokens })
    }

    fn find(&self, text: &str, base: usize, marks: &mut Vec<Mark>) {
        let found = self.search.find_iter(text);
        marks.extend(found.map(|m| (base + m.start()..base + m.end(), self.tokens[m.pattern().as_usize()])));
    }
}
