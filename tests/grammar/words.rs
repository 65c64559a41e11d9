//! Vocabularies to constrain.

use crate::common::gguf_writer::{Value, Writer};
use flate2::read::GzDecoder;
use foretoken::gguf::Gguf;
use foretoken::grammar::{Constraint, Lexicon, Spec};
use foretoken::text::Tokenizer;
use foretoken::tree::Token;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// A tokenizer, its lexicon, and the token of each byte.
pub struct Words {
    pub tokenizer: Tokenizer,
    pub lexicon: Arc<Lexicon>,
    pub bytes: Vec<Option<Token>>,
}

impl Words {
    pub fn new(tokenizer: Tokenizer) -> Self {
        let lexicon = Arc::new(Lexicon::new(&tokenizer));
        let mut bytes = vec![None; 256];
        for token in (0..tokenizer.vocab_size() as Token).filter(|&t| !tokenizer.is_control(t)) {
            if let &[byte] = tokenizer.piece(token) {
                bytes[usize::from(byte)] = Some(token);
            }
        }
        Self { tokenizer, lexicon, bytes }
    }

    /// A real vocabulary of `fixtures/vocab`.
    pub fn real(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/vocab/{name}.gguf.gz"));
        let mut file = vec![];
        GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut file).unwrap();
        Self::new(Tokenizer::from_gguf(Gguf::from_bytes(file).unwrap().meta()).unwrap())
    }

    /// A vocabulary of `<unk> <s> </s>` and these texts, without bytes.
    pub fn of(texts: &[&str]) -> Self {
        let all: Vec<String> = ["<unk>", "<s>", "</s>"].iter().chain(texts).map(|&t| t.into()).collect();
        let kinds = [2, 3, 3].into_iter().chain(texts.iter().map(|_| 1)).collect();
        let writer = Writer::default()
            .key("general.architecture", Value::Str("llama".into()))
            .key("tokenizer.ggml.model", Value::Str("llama".into()))
            .key("tokenizer.ggml.scores", Value::F32s(all.iter().map(|_| 0.0).collect()))
            .key("tokenizer.ggml.tokens", Value::Strs(all))
            .key("tokenizer.ggml.token_type", Value::I32s(kinds));
        Self::new(Tokenizer::from_gguf(Gguf::from_bytes(writer.bytes()).unwrap().meta()).unwrap())
    }

    pub fn constraint(&self, spec: &Spec) -> anyhow::Result<Constraint> {
        Constraint::new(spec, &self.tokenizer, &self.lexicon)
    }

    pub fn gbnf(&self, text: &str) -> Constraint {
        self.constraint(&Spec::Gbnf(text.into())).unwrap_or_else(|e| panic!("{text}: {e:#}"))
    }

    /// The error that a grammar is.
    pub fn error(&self, spec: &Spec) -> String {
        self.constraint(spec).err().map_or("none".into(), |e| format!("{e:#}"))
    }

    pub fn end(&self) -> Token {
        self.tokenizer.end_tokens()[0]
    }

    /// `text`, byte by byte.
    pub fn spell(&self, text: &[u8]) -> Vec<Token> {
        text.iter().map(|&b| self.bytes[usize::from(b)].expect("a token of every byte")).collect()
    }

    /// The bytes of tokens.
    pub fn text(&self, tokens: &[Token]) -> Vec<u8> {
        tokens.iter().flat_map(|&t| self.tokenizer.piece(t)).copied().collect()
    }
}

/// The sample grammars: names and texts.
pub fn samples() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("grammars");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let gbnf = files.filter(|path| path.extension().is_some_and(|end| end == "gbnf"));
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut all: Vec<_> = gbnf.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect();
    all.sort();
    all
}
