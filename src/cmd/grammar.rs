//! From flags to what the answer must match. All that can be told without the model is told before it is loaded.

use super::{Usage, input};
use crate::cli::GrammarArgs;
use crate::grammar::{Constraint, Lexicon, Spec};
use crate::text::Tokenizer;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was asked for, and the flag or field that asks, for messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Flag and file, or field.
    pub name: String,
    /// What the text must match.
    pub spec: Spec,
}

impl Asked {
    /// Something that makes sense, or an error that begins with `name`.
    pub fn new(name: impl Into<String>, spec: Spec) -> Result<Self> {
        let name = name.into();
        spec.check().with_context(|| name.clone())?;
        Ok(Self { name, spec })
    }
}

/// A flag, the text it gives or the file that holds it, and what that is.
type Flag = (&'static str, Option<Result<String, PathBuf>>, fn(String) -> Spec);

/// What the flags ask for: nothing or one thing.
pub fn asked(args: &GrammarArgs) -> Result<Option<Asked>> {
    let text = |text: &Option<String>| text.clone().map(Ok);
    let file = |path: &Option<PathBuf>| path.clone().map(Err);
    let given: [Flag; 6] = [
        ("--grammar", text(&args.grammar), Spec::Gbnf),
        ("--grammar-file", file(&args.grammar_file), Spec::Gbnf),
        ("--json-schema", text(&args.json_schema), Spec::JsonSchema),
        ("--json-schema-file", file(&args.json_schema_file), Spec::JsonSchema),
        ("--regex", text(&args.regex), Spec::Regex),
        ("--lark-file", file(&args.lark_file), Spec::Lark),
    ];
    let mut given = given.into_iter().filter_map(|(flag, from, spec)| Some((flag, from?, spec)));
    let Some((flag, from, spec)) = given.next() else { return Ok(None) };
    if let Some((other, ..)) = given.next() {
        return Err(Usage(format!("found both {flag} and {other}, supported one of them")).into());
    }
    let asked = match from {
        Ok(text) => Asked::new(flag, spec(text)),
        Err(path) => read(&path).with_context(|| flag).and_then(|text| {
            Asked::new(format!("{flag}: {}", path.display()), spec(input::without_mark(&text).into()))
        }),
    };
    asked.map(Some).map_err(usage)
}

fn read(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let bytes = File::open(path).map_err(Into::into).and_then(input::all).with_context(|| name.clone())?;
    input::utf8(&name, bytes)
}

/// The constraint that was asked for, over the vocabulary of `tokenizer`.
pub fn constraint(asked: Option<&Asked>, tokenizer: &Tokenizer) -> Result<Option<Constraint>> {
    let mut lexicon = None;
    asked.map(|asked| constraint_with(asked, tokenizer, &mut lexicon)).transpose().map_err(usage)
}

/// As [`constraint`], for many: `lexicon` is made at the first and kept.
pub fn constraint_with(asked: &Asked, tokenizer: &Tokenizer, lexicon: &mut Option<Arc<Lexicon>>) -> Result<Constraint> {
    let lexicon = lexicon.get_or_insert_with(|| Arc::new(Lexicon::new(tokenizer)));
    Constraint::new(&asked.spec, tokenizer, lexicon).with_context(|| asked.name.clone())
}

fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(format!("{error:#}")).into()
}
