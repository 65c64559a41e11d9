//! The vocabulary as grammars see it: the bytes of every token, in one trie.
//!
//! Built once a tokenizer and shared by all grammars. Only tokens that are text are in the trie: control tokens spell
//! nothing, and neither do those that end a text, whatever their bytes.

use crate::text::Tokenizer;
use crate::tree::Token;
use std::sync::{Arc, OnceLock};

/// No token ends at this node.
pub(super) const NONE: u32 = u32::MAX;

/// The longest token that counts as text. Longer ones only a broken file has.
const LONGEST: usize = 4096;

/// A node of the trie; its subtree follows it, children ascending by byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Behind the subtree.
    pub(super) end: u32,
    /// The token that is spelled here, the first of equal ones.
    pub(super) token: u32,
    /// Bytes from the root on, this one included.
    pub(super) depth: u16,
    pub(super) byte: u8,
}

/// The bytes of all tokens.
pub struct Lexicon {
    pool: Vec<u8>,
    ends_in_pool: Vec<u32>,
    is_text: Vec<bool>,
    end_tokens: Vec<Token>,
    trie: Vec<Node>,
    depth: usize,
    /// Per token the next one with the same bytes, where there are any.
    same: Vec<u32>,
    guides: OnceLock<anyhow::Result<Arc<llguidance::ParserFactory>>>,
}

impl Lexicon {
    /// The vocabulary of a tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let n = tokenizer.vocab_size();
        let end_tokens = tokenizer.end_tokens().to_vec();
        let (mut pool, mut ends_in_pool, mut is_text) = (vec![], vec![], vec![]);
        for token in 0..n as Token {
            let piece = tokenizer.piece(token);
            pool.extend_from_slice(piece);
            ends_in_pool.push(pool.len() as u32);
            let spells = !piece.is_empty() && piece.len() <= LONGEST;
            is_text.push(spells && !tokenizer.is_control(token) && !end_tokens.contains(&token));
        }
        let (trie, depth, same) = (vec![], 0, vec![]);
        let mut lexicon = Self { pool, ends_in_pool, is_text, end_tokens, trie, depth, same, guides: OnceLock::new() };
        lexicon.build();
        lexicon
    }

    fn build(&mut self) {
        let mut sorted: Vec<Token> = (0..self.len() as Token).filter(|&token| self.is_text(token)).collect();
        sorted.sort_unstable_by(|&a, &b| self.piece(a).cmp(self.piece(b)).then(a.cmp(&b)));
        let mut trie: Vec<Node> = vec![];
        let mut same = vec![NONE; self.len()];
        // Nodes of the latest token's path, whose subtrees may still grow.
        let mut path: Vec<usize> = vec![];
        let mut last: Option<Token> = None;
        for token in sorted {
            let piece = self.piece(token);
            let before = last.map_or(&[][..], |last| self.piece(last));
            if before == piece {
                same[last.expect("a piece is not empty") as usize] = token;
                last = Some(token);
                continue;
            }
            let common = before.iter().zip(piece).take_while(|(a, b)| a == b).count();
            let end = trie.len() as u32;
            path.drain(common..).for_each(|node| trie[node].end = end);
            for (depth, &byte) in piece.iter().enumerate().skip(common) {
                path.push(trie.len());
                trie.push(Node { end: 0, token: NONE, depth: depth as u16 + 1, byte });
            }
            trie.last_mut().expect("a piece is not empty").token = token;
            last = Some(token);
        }
        let end = trie.len() as u32;
        path.into_iter().for_each(|node| trie[node].end = end);
        self.depth = trie.iter().map(|node| usize::from(node.depth)).max().unwrap_or(0);
        (self.trie, self.same) = (trie, same);
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.is_text.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.is_text.is_empty()
    }

    /// The bytes of a token, for a control token its name; none for an id outside the vocabulary.
    pub(super) fn piece(&self, token: Token) -> &[u8] {
        let i = token as usize;
        let Some(&end) = self.ends_in_pool.get(i) else { return &[] };
        let start = if i == 0 { 0 } else { self.ends_in_pool[i - 1] };
        &self.pool[start as usize..end as usize]
    }

    /// Whether a token is text and nothing else.
    pub(super) fn is_text(&self, token: Token) -> bool {
        self.is_text.get(token as usize).is_some_and(|&is| is)
    }

    pub(super) fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }

    pub(super) fn is_end(&self, token: Token) -> bool {
        self.end_tokens.contains(&token)
    }

    pub(super) fn trie(&self) -> &[Node] {
        &self.trie
    }

    /// Bytes of the longest token in the trie.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// `token` and all with the same bytes.
    pub(super) fn equals(&self, token: Token) -> impl Iterator<Item = Token> {
        std::iter::successors(Some(token), |&token| Some(self.same[token as usize]).filter(|&next| next != NONE))
    }

    /// What llguidance needs to know about the vocabulary, made on first use.
    pub(super) fn guides(&self) -> &OnceLock<anyhow::Result<Arc<llguidance::ParserFactory>>> {
        &self.guides
    }

    /// The text of tokens, for people.
    pub(super) fn shown<'a>(&self, tokens: impl Iterator<Item = &'a Token>) -> String {
        let bytes: Vec<u8> = tokens.flat_map(|&token| self.piece(token)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
