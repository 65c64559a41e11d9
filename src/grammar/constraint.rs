//! What a text must match, as it is asked for and as it is enforced.

use super::gbnf;
use super::guide::{self, Guide};
use super::lexicon::Lexicon;
use super::machine::Machine;
use super::mask::Mask;
use super::path::Path;
use super::recogniser::Recogniser;
use super::rules::Rules;
use crate::text::Tokenizer;
use crate::tree::Token;
use anyhow::{Result, anyhow, ensure};
use llguidance::api::TopLevelGrammar;
use std::sync::Arc;

/// What a text must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// A grammar in GBNF.
    Gbnf(String),
    /// A JSON schema.
    JsonSchema(String),
    /// A regular expression, of the whole text.
    Regex(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
}

impl Spec {
    /// Whether it makes sense, as far as that can be told without a vocabulary.
    pub fn check(&self) -> Result<()> {
        match self.form()? {
            Form::Own(rules) => rules.components(&rules.nullable()).map(|_| ()),
            Form::Guided(grammar) => guide::check(grammar),
        }
    }

    /// What reading it gives.
    fn form(&self) -> Result<Form> {
        Ok(Form::Guided(match self {
            Self::Gbnf(text) => return gbnf::parse(text).map(Form::Own),
            Self::JsonSchema(text) => {
                guide::json_schema(serde_json::from_str(text).map_err(|e| anyhow!("not JSON: {e}"))?)
            }
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        }))
    }
}

/// Rules for our engine or a grammar for the other.
enum Form {
    Own(Rules),
    Guided(TopLevelGrammar),
}

/// What a text must match, over the tokens of a vocabulary.
///
/// It remembers where it was asked about last, only to be quick: answers are those of a new one.
pub struct Constraint {
    lexicon: Arc<Lexicon>,
    engine: Engine,
}

enum Engine {
    Path(Box<Path>),
    Guide(Box<Guide>),
}

impl Constraint {
    /// A constraint of the texts of `tokenizer`, whose vocabulary is `lexicon`.
    pub fn new(spec: &Spec, tokenizer: &Tokenizer, lexicon: &Arc<Lexicon>) -> Result<Self> {
        let engine = match spec.form()? {
            Form::Own(rules) => {
                let machine = Machine::new(&rules, tokenizer, lexicon)?;
                Engine::Path(Box::new(Path::new(Recogniser::new(machine), lexicon.clone())))
            }
            Form::Guided(grammar) => Engine::Guide(Box::new(Guide::new(grammar, lexicon.clone())?)),
        };
        Ok(Self { lexicon: lexicon.clone(), engine })
    }

    /// The tokens that may follow `generated` and then `path`: at least one, else it is an error, as it is if these
    /// are not legal themselves.
    pub fn mask(&mut self, generated: &[Token], path: &[Token]) -> Result<Arc<Mask>> {
        let mask = match &mut self.engine {
            Engine::Path(engine) => engine.mask(generated, path)?,
            Engine::Guide(engine) => engine.mask(generated, path)?,
        };
        ensure!(
            !mask.is_empty(),
            "grammar: no token of the vocabulary is legal after {:?}",
            self.lexicon.shown(generated.iter().chain(path))
        );
        Ok(mask)
    }

    /// Whether anything may follow `generated` and `path`: not if these are not legal, nor after an end token.
    pub fn goes_on(&mut self, generated: &[Token], path: &[Token]) -> bool {
        self.mask(generated, path).is_ok()
    }

    /// Whether `token` may follow `generated` and `path`. Costs less than a mask.
    pub fn allows(&mut self, generated: &[Token], path: &[Token], token: Token) -> Result<bool> {
        match &mut self.engine {
            Engine::Path(engine) => engine.allows(generated, path, token),
            Engine::Guide(engine) => Ok(engine.mask(generated, path)?.contains(token)),
        }
    }
}
