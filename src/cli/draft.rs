//! What says how to draft.

use crate::spec::{Accept, Choice, Nodes, choice};
use crate::tree::DraftTree;
use anyhow::{Context, Result};
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args};
use std::ffi::OsStr;

/// What guesses tokens ahead.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Drafting")]
pub struct DraftArgs {
    /// Guess tokens ahead and check them in one pass: the text stays the same. "help" lists the kinds of drafters and
    /// their options (repeatable) [default: none]
    #[arg(long, value_name = "KIND[:FILE][,KEY=X...]", value_parser = DraftParser)]
    pub draft: Vec<Draft>,
    /// Tokens to guess a pass: N (1 to 63) every time, or "auto" ("auto:N"): as many (at most N)
    /// as pay, by what passes and guesses have cost and brought so far
    #[arg(long, value_name = "N|auto[:N]", default_value = "auto", value_parser = DraftMaxParser)]
    pub draft_max: Nodes,
    /// Rule by which guesses are accepted. exact: the text is that of no drafter; rejection: another text from the same
    /// distribution, accepts more at temperature > 0; typical: LOSSY, accepts what is likely enough
    #[arg(long, value_name = "RULE", default_value = "exact")]
    pub accept: Accept,
}

/// A drafter, or `none`.
#[derive(Clone, Debug)]
pub struct Draft(pub Option<Choice>);

#[derive(Clone)]
struct DraftParser;

impl TypedValueParser for DraftParser {
    type Value = Draft;

    fn parse_ref(&self, _: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<Draft, clap::Error> {
        match value.to_string_lossy().as_ref() {
            "none" => Ok(Draft(None)),
            "help" => {
                let mut help = clap::Error::new(ErrorKind::DisplayHelp);
                help.insert(ContextKind::Custom, ContextValue::String(choice::help()));
                Err(help)
            }
            text => Choice::parse(text).map(|choice| Draft(Some(choice))).map_err(|e| one_line("--draft", &e)),
        }
    }
}

#[derive(Clone)]
struct DraftMaxParser;

impl TypedValueParser for DraftMaxParser {
    type Value = Nodes;

    fn parse_ref(&self, _: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<Nodes, clap::Error> {
        draft_max(&value.to_string_lossy()).map_err(|e| one_line("--draft-max", &e))
    }
}

/// Guesses a round, from text.
pub(super) fn draft_max(text: &str) -> anyhow::Result<Nodes> {
    let most = DraftTree::MAX - 1;
    let count = |text: &str| text.parse().ok().filter(|n| (1..=most).contains(n));
    let nodes = match text.strip_prefix("auto") {
        Some("") => Some(Nodes::Auto(most)),
        Some(rest) => rest.strip_prefix(':').and_then(count).map(Nodes::Auto),
        None => count(text).map(Nodes::Fixed),
    };
    nodes.with_context(|| format!("found '{text}', supported 1 to {most}, auto, auto:1 to auto:{most}"))
}

/// A usage error without clap's further lines.
pub(super) fn one_line(flag: &str, error: &anyhow::Error) -> clap::Error {
    clap::Error::raw(ErrorKind::InvalidValue, format!("{flag}: {error:#}\n"))
}
