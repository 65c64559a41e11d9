//! The vocabulary: what each id is called in the file, what kind it is, and the bytes it stands for.
//!
//! A token's *text* is what the file says (`Ġhello`, `▁hello`, `<0x0A>`); its *piece* is the bytes it stands for
//! (` hello`, a newline byte). Both live in one pool each: a vocabulary has up to 262,144 entries and is built on
//! every start, so nothing here allocates per token.

use super::bpe::{byte_of_char, is_byte_name};
use crate::{gguf::Metadata, tree::Token};
use anyhow::{Context, Result, bail, ensure};
use hashbrown::HashTable;

/// How a text is cut into tokens, and so how token texts spell their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Every byte is one printable character (GPT-2's alphabet).
    ByteLevel,
    /// UTF-8 with `▁` for a space and `<0xXX>` for single bytes.
    Sentence,
}

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

pub(super) struct Vocab {
    texts: Pool,
    pieces: Pool,
    kinds: Vec<Kind>,
    ids: HashTable<Token>,
    hasher: ahash::RandomState,
    /// Bytes of the longest text.
    pub longest: usize,
}

/// Byte strings laid end to end.
#[derive(Default)]
struct Pool {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Pool {
    fn push(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.bytes.extend(bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, i: Token) -> &[u8] {
        let i = i as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start as usize..self.ends[i] as usize]
    }
}

impl Vocab {
    pub(super) fn from_gguf(meta: &Metadata, spelling: Spelling) -> Result<Self> {
        let key = "tokenizer.ggml.tokens";
        let tokens = meta.strings(key)?.with_context(|| format!("{key} is missing"))?;
        let n = tokens.len();
        ensure!(n > 0, "{key} is empty");
        ensure!(tokens.clone().map(str::len).sum::<usize>() < u32::MAX as usize, "{key} holds more than 4 GiB");
        let kinds = kinds(meta, n)?;
        let mut vocab = Self {
            texts: Pool::default(),
            pieces: Pool::default(),
            kinds,
            ids: HashTable::with_capacity(n),
            hasher: ahash::RandomState::with_seeds(1, 2, 3, 4),
            longest: 0,
        };
        for (id, text) in tokens.enumerate() {
            vocab.texts.push(text.bytes());
            vocab.push_piece(text, vocab.kinds[id], spelling);
            vocab.longest = vocab.longest.max(text.len());
            if !text.is_empty() {
                vocab.name(text, id as Token);
            }
        }
        Ok(vocab)
    }

    /// Makes `text` find `id`; of duplicates the last wins, as in llama.cpp.
    fn name(&mut self, text: &str, id: Token) {
        let Self { texts, ids, hasher, .. } = self;
        let hash = hasher.hash_one(text.as_bytes());
        match ids.find_mut(hash, |&other| texts.get(other) == text.as_bytes()) {
            Some(other) => *other = id,
            None => {
                ids.insert_unique(hash, id, |&other| hasher.hash_one(texts.get(other)));
            }
        }
    }

    fn push_piece(&mut self, text: &str, kind: Kind, spelling: Spelling) {
        let pool = &mut self.pieces;
        match (kind, spelling) {
            (Kind::Unused, _) => pool.push([]),
            (Kind::Control | Kind::Unknown | Kind::UserDefined, _) => pool.push(text.bytes()),
            (Kind::Byte, _) if is_byte_name(text).is_some() => pool.push(is_byte_name(text)),
            (_, Spelling::ByteLevel) => {
                for c in text.chars() {
                    match byte_of_char(c) {
                        Some(byte) => pool.bytes.push(byte),
                        None => pool.bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                    }
                }
                pool.push([]);
            }
            (_, Spelling::Sentence) => {
                let mut parts = text.split('▁');
                pool.bytes.extend(parts.next().unwrap_or_default().bytes());
                for part in parts {
                    pool.bytes.push(b' ');
                    pool.bytes.extend(part.bytes());
                }
                pool.push([]);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn kind(&self, token: Token) -> Option<Kind> {
        self.kinds.get(token as usize).copied()
    }

    /// Text of a token of the vocabulary.
    pub(super) fn text(&self, token: Token) -> &str {
        std::str::from_utf8(self.texts.get(token)).expect("pushed from a &str")
    }

    /// The bytes a token stands for; none for an id outside the vocabulary.
    pub(super) fn piece(&self, token: Token) -> &[u8] {
        if (token as usize) < self.len() { self.pieces.get(token) } else { &[] }
    }

    /// Makes a user-defined token a control token.
    pub(super) fn promote(&mut self, text: &str) {
        if let Some(token) = self.find(text)
            && self.kinds[token as usize] == Kind::UserDefined
        {
            self.kinds[token as usize] = Kind::Control;
        }
    }

    pub(super) fn find(&self, text: &str) -> Option<Token> {
        let hash = self.hasher.hash_one(text.as_bytes());
        self.ids.find(hash, |&id| self.texts.get(id) == text.as_bytes()).copied()
    }

    /// A special id of the metadata. One outside the vocabulary is reported and ignored, as files in the wild have them.
    pub(super) fn special_id(
        &self,
        meta: &Metadata,
        key: &str,
        default: Option<Token>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Token>> {
        let default = default.filter(|&t| (t as usize) < self.len());
        let Some(id) = meta.uint(key)? else { return Ok(default) };
        if id < self.len() as u64 {
            return Ok(Some(id as Token));
        }
        warnings.push(format!("{key} is {id}, outside the vocabulary of {} tokens: ignored", self.len()));
        Ok(default)
    }
}

fn kinds(meta: &Metadata, n: usize) -> Result<Vec<Kind>> {
    let key = "tokenizer.ggml.token_type";
    let Some(types) = meta.ints(key)? else { return Ok(vec![Kind::Normal; n]) };
    if types.len() != n {
        bail!("{key} has {} entries for {n} tokens", types.len());
    }
    types
        .into_iter()
        .enumerate()
        .map(|(i, t)| {
            Ok(match t {
                0 | 1 => Kind::Normal,
                2 => Kind::Unknown,
                3 => Kind::Control,
                4 => Kind::UserDefined,
                5 => Kind::Unused,
                6 => Kind::Byte,
                _ => bail!("{key}[{i}] is {t}, known are 0 to 6"),
            })
        })
        .collect()
}
