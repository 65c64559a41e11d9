//! The tokenizer: special texts, then BPE or SentencePiece between them.

use super::{
    bpe::Bpe,
    pre::{ROWS, Row},
    special::{HTML_TAG, Part, Special, TURN_MARKERS},
    spm::Spm,
    stream::TextStream,
    vocab::{Kind, Spelling, Vocab},
};
use crate::{gguf::Metadata, tree::Token};
use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Text to token ids and back, rebuilt from a model file's metadata.
///
/// Ids equal those of the model's own tokenizer: a text is cut at special tokens, then at words
/// (`tokenizer.ggml.pre`), then merged. Nothing is trimmed, no line end changed.
pub struct Tokenizer {
    vocab: Vocab,
    special: Special,
    merger: Merger,
    bos: Option<Token>,
    eos: Option<Token>,
    add_bos: bool,
    ends: Vec<Token>,
    warnings: Vec<String>,
}

enum Merger {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
}

impl Tokenizer {
    /// Builds the tokenizer a file describes. An error names the key and what is supported.
    pub fn from_gguf(meta: &Metadata) -> Result<Self> {
        let key = "tokenizer.ggml.model";
        let model = meta.str(key)?.with_context(|| format!("{key} is missing"))?;
        let spelling = match model {
            "gpt2" => Spelling::ByteLevel,
            "llama" => Spelling::Sentence,
            _ => bail!("{key} {model:?} is not supported (supported: gpt2, llama)"),
        };
        let mut vocab = Vocab::from_gguf(meta, spelling)?;
        for text in TURN_MARKERS.iter().filter(|&&text| text != HTML_TAG) {
            vocab.promote(text);
        }
        let special = Special::new(&vocab, meta.str("general.name")?.unwrap_or_default())?;

        let mut warnings = Vec::new();
        let mut id = |name: &str, default| {
            vocab.special_id(meta, &format!("tokenizer.ggml.{name}_token_id"), default, &mut warnings)
        };
        let sentence = |token| (spelling == Spelling::Sentence).then_some(token);
        let (bos, eos) = (id("bos", sentence(1))?, id("eos", sentence(2))?);
        let (eot, eom, unknown) = (id("eot", None)?, id("eom", None)?, id("unknown", sentence(0))?);
        let (merger, adds_bos) = match spelling {
            Spelling::ByteLevel => {
                let row = pre_tokenizer(meta, &mut warnings)?;
                (Merger::Bpe(Box::new(Bpe::from_gguf(meta, &vocab, row)?)), row.add_bos)
            }
            Spelling::Sentence => (Merger::Spm(Box::new(Spm::from_gguf(meta, &vocab, unknown)?)), true),
        };
        let add_bos = meta.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos) && bos.is_some();
        let ends = ends(&vocab, [eos, eot, eom]);
        Ok(Self { vocab, special, merger, bos, eos, add_bos, ends, warnings })
    }

    /// The ids of `text`, without BOS. With `special`, texts of control tokens become those tokens; without, they are
    /// plain text like any other. Empty text gives no ids.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<Token>> {
        let everything = 0..text.len();
        self.encode_marked(text, if special { &[] } else { std::slice::from_ref(&everything) })
    }

    /// As [`Tokenizer::encode`] with special texts parsed, except that no control token starts, ends or lies within
    /// the ranges `plain` (ascending byte ranges; an empty one is a border that none crosses). Such text gets the ids
    /// that plain text gets.
    pub fn encode_marked(&self, text: &str, plain: &[Range<usize>]) -> Result<Vec<Token>> {
        let mut at = 0;
        for range in plain {
            let ascends = at <= range.start && range.start <= range.end;
            ensure!(ascends && text.get(range.clone()).is_some(), "plain range {range:?} does not fit the text");
            at = range.end;
        }
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut after_special = true;
        for part in self.special.parts(text, plain) {
            let is_special = matches!(part, Part::Special(_));
            match (part, &self.merger) {
                (Part::Special(token), _) => ids.push(token),
                (Part::Text(text), Merger::Bpe(bpe)) => bpe.encode(text, &mut ids)?,
                (Part::Text(text), Merger::Spm(spm)) => spm.encode(&self.vocab, text, after_special, &mut ids),
            }
            after_special = is_special;
        }
        Ok(ids)
    }

    /// `tokens` with one BOS at the front, where the model wants one and there is none.
    pub fn with_bos(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        tokens
    }

    /// The bytes a token stands for: part of a character perhaps, its text for a control token, none for an unused
    /// token or an id outside the vocabulary.
    pub fn piece(&self, token: Token) -> &[u8] {
        self.vocab.piece(token)
    }

    /// What `tokens` say, control tokens left out; bytes that are not UTF-8 become U+FFFD. The space that a
    /// SentencePiece model puts before the first word is part of it.
    pub fn decode(&self, tokens: &[Token]) -> String {
        let mut stream = TextStream::new(self, &[], false);
        let mut text: String = tokens.iter().map(|&t| stream.push(t)).collect();
        text += &stream.finish();
        text
    }

    /// Whether a token is not for the reader: control, unknown or unused.
    pub fn is_control(&self, token: Token) -> bool {
        matches!(self.vocab.kind(token), Some(Kind::Control | Kind::Unknown | Kind::Unused))
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token whose text in the file is `text`, e.g. `<|im_start|>`.
    pub fn find(&self, text: &str) -> Option<Token> {
        self.vocab.find(text)
    }

    /// The token that starts a text.
    pub fn bos(&self) -> Option<Token> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<Token> {
        self.eos
    }

    /// Whether the model wants its prompts to start with [`Tokenizer::bos`]: what the file says, else what its kind
    /// of tokenizer does.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Tokens that end an answer, ascending: eos, eot, eom and turn markers that are control tokens (or user-defined
    /// ones, as some converters write them).
    pub fn end_tokens(&self) -> &[Token] {
        &self.ends
    }

    /// What `tokenizer.ggml.model` calls its kind.
    pub fn model(&self) -> &'static str {
        match self.merger {
            Merger::Bpe(_) => "gpt2",
            Merger::Spm(_) => "llama",
        }
    }

    /// SHA-256 in lower-case hexadecimals over the texts of all tokens, each after its length in bytes as a `u32` (LE).
    pub fn vocab_hash(&self) -> String {
        let mut hash = Sha256::new();
        for token in 0..self.vocab_size() as Token {
            let text = self.text(token);
            hash.update((text.len() as u32).to_le_bytes());
            hash.update(text);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What was wrong with the metadata but could be worked around, one line each; for stderr.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The text of a token in the file.
    pub(super) fn text(&self, token: Token) -> &str {
        self.vocab.text(token)
    }

    /// Where texts that would become control tokens lie in `text`.
    pub(super) fn find_control_texts(&self, text: &str) -> Vec<Range<usize>> {
        self.special.find_guarded(text)
    }

    /// All texts that become control tokens.
    pub(super) fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.special.guarded(&self.vocab)
    }
}

fn pre_tokenizer(meta: &Metadata, warnings: &mut Vec<String>) -> Result<&'static Row> {
    let key = "tokenizer.ggml.pre";
    let name = meta.str(key)?;
    let found = name.and_then(|name| ROWS.iter().find(|row| row.names.contains(&name)));
    let what = match (found, name) {
        (Some(row), _) => return Ok(row),
        (None, None) => format!("{key} is missing"),
        (None, Some(name)) => format!("{key} {name:?} is not known"),
    };
    warnings.push(format!(
        "{what}: words are cut as \"default\" does, so ids may differ from the model's and answers suffer"
    ));
    Ok(&ROWS[0])
}

fn ends(vocab: &Vocab, named: [Option<Token>; 3]) -> Vec<Token> {
    let control = |text: &&str| vocab.find(text).filter(|&t| vocab.kind(t) == Some(Kind::Control));
    let mut ends: Vec<Token> = TURN_MARKERS.iter().filter_map(control).collect();
    // Where these exist, <|end|> ends a message within an answer, not the answer.
    let has = |text| control(&text).is_some();
    if has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>") {
        ends.retain(|&t| vocab.text(t) != "<|end|>");
    }
    ends.extend(named.into_iter().flatten());
    ends.sort_unstable();
    ends.dedup();
    ends
}
