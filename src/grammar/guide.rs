//! Constraints that llguidance enforces: JSON schemas, regular expressions, Lark grammars.
//!
//! Its matcher is one state that goes forward and back; here it follows the path asked about, so answers depend on the
//! path alone.

use super::lexicon::Lexicon;
use super::mask::Mask;
use crate::tree::Token;
use anyhow::{Result, anyhow, ensure};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::sync::Arc;

/// What a JSON schema says nothing about: the white space between values. Bounded, so that no model goes on with it
/// for ever, and as wide as a pretty-printer's.
const WHITE_SPACE: &str = r"( |\n[ \t]{0,20})?";

/// Characters of each end of a long message.
const SHOWN: usize = 150;

pub(super) struct Guide {
    lexicon: Arc<Lexicon>,
    matcher: Matcher,
    /// Tokens that the matcher has seen.
    tokens: Vec<Token>,
    /// The mask after `tokens`, once asked for.
    mask: Option<Arc<Mask>>,
}

impl Guide {
    pub(super) fn new(grammar: TopLevelGrammar, lexicon: Arc<Lexicon>) -> Result<Self> {
        let factory = lexicon.guides().get_or_init(|| factory(&lexicon)).as_ref().map_err(|e| anyhow!("{e:#}"))?;
        let matcher = start(factory, grammar)?;
        Ok(Self { lexicon, matcher, tokens: vec![], mask: None })
    }

    /// The tokens that may follow; perhaps none.
    pub(super) fn mask(&mut self, generated: &[Token], path: &[Token]) -> Result<Arc<Mask>> {
        self.follow(generated, path)?;
        if let Some(mask) = &self.mask {
            return Ok(mask.clone());
        }
        let is_complete = self.matcher.is_accepting().map_err(brief)?;
        let mut mask = Mask::none(self.lexicon.len());
        if !self.matcher.is_stopped() {
            let allowed = self.matcher.compute_mask_or_eos().map_err(brief)?;
            let size = self.lexicon.len();
            allowed.iter_set_entries(|token| {
                if token < size {
                    mask.insert(token as Token);
                }
            });
        }
        for &token in self.lexicon.end_tokens() {
            if is_complete { mask.insert(token) } else { mask.remove(token) }
        }
        let mask = Arc::new(mask);
        self.mask = Some(mask.clone());
        Ok(mask)
    }

    /// Takes the matcher back to where `generated` and `path` part from what it has seen, then along them.
    fn follow(&mut self, generated: &[Token], path: &[Token]) -> Result<()> {
        let all = || generated.iter().chain(path);
        let shared = self.tokens.iter().zip(all()).take_while(|(a, b)| a == b).count();
        let back = self.tokens.len() - shared;
        if back > 0 {
            self.mask = None;
            self.matcher.rollback(back).map_err(brief)?;
            self.tokens.truncate(shared);
        }
        for &token in all().skip(shared) {
            self.mask = None;
            let is_legal = self.matcher.try_consume_tokens(&[token]).map_err(brief)? == 1;
            ensure!(
                is_legal,
                "grammar: token {token} ({:?}) is not legal after {:?}",
                self.lexicon.shown([token].iter()),
                self.lexicon.shown(self.tokens.iter())
            );
            self.tokens.push(token);
        }
        Ok(())
    }
}

/// A grammar for a JSON schema.
pub(super) fn json_schema(mut schema: serde_json::Value) -> TopLevelGrammar {
    if schema == serde_json::Value::Bool(true) {
        schema = serde_json::json!({});
    }
    if let Some(fields) = schema.as_object_mut() {
        let options = serde_json::json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE});
        fields.entry("x-guidance").or_insert(options);
    }
    TopLevelGrammar::from_json_schema(schema)
}

/// Whether a grammar makes sense at all, before there is a vocabulary.
pub(super) fn check(grammar: TopLevelGrammar) -> Result<()> {
    let bytes = ApproximateTokEnv::single_byte_env();
    let mut factory = ParserFactory::new(&bytes, InferenceCapabilities::default(), &[])?;
    start(factory.quiet(), grammar).map(|_| ())
}

fn start(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher> {
    // A panic in there would not be about our input's rights and wrongs, but must not be the end either.
    let parser = llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| factory.create_parser(grammar)));
    let mut matcher = Matcher::new(parser);
    match matcher.get_error() {
        Some(error) => Err(brief(anyhow!(error))),
        None => matcher.is_accepting().map(|_| matcher).map_err(brief),
    }
}

/// The message on one line of bearable length, without the dump of the state that may follow it. What was wrong is at
/// its end, behind a quotation of the input that may be long.
fn brief(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let end = text.find("\n<state>").or(text.find("\n<backtrace>")).unwrap_or(text.len());
    let words: Vec<&str> = text[..end].split_whitespace().collect();
    let chars: Vec<char> = words.join(" ").chars().collect();
    if chars.len() <= 2 * SHOWN {
        return anyhow!(chars.into_iter().collect::<String>());
    }
    let ends = [&chars[..SHOWN], &chars[chars.len() - SHOWN..]];
    anyhow!(ends.map(|part| part.iter().collect::<String>()).join(" ... "))
}

fn factory(lexicon: &Lexicon) -> Result<Arc<ParserFactory>> {
    let word = |token: Token| match lexicon.is_text(token) {
        true => lexicon.piece(token).to_vec(),
        // The mark keeps it apart from text.
        false if !lexicon.piece(token).is_empty() => [&[TokTrie::SPECIAL_TOKEN_MARKER], lexicon.piece(token)].concat(),
        false => vec![],
    };
    let words: Vec<Vec<u8>> = (0..lexicon.len() as Token).map(word).collect();
    let ends = lexicon.end_tokens();
    let info = TokRxInfo::new(words.len() as u32, ends.first().copied().unwrap_or(0));
    let mut trie = TokTrie::from(&info, &words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(ends);
    }
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&env)?;
    factory.quiet();
    Ok(Arc::new(factory))
}
