//! What `chat` takes.

use super::{DraftArgs, GrammarArgs, ModelArgs, ReportArgs, SamplingArgs, TemplateArgs, at_least_minus_one};
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParserFactory};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Whether a model that can is to think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Think {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// Where the lines typed are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum History {
    /// Nowhere.
    None,
    /// A file.
    File(PathBuf),
}

impl ValueParserFactory for History {
    type Parser = clap::builder::MapValueParser<OsStringValueParser, fn(OsString) -> History>;

    fn value_parser() -> Self::Parser {
        OsStringValueParser::new().map(|value| match value.as_encoded_bytes() {
            b"none" => History::None,
            _ => History::File(value.into()),
        })
    }
}

/// `chat`.
#[derive(Args, Debug, Clone)]
pub struct ChatArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// System message; an empty one takes the place of that which some templates put in themselves
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Conversation")]
    pub system: Option<String>,
    /// Tokens of an answer at most; -1 until the model ends
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = at_least_minus_one(), help_heading = "Conversation")]
    pub n_predict: i64,
    /// End an answer before this text (repeatable)
    #[arg(
        long,
        alias = "reverse-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        help_heading = "Conversation"
    )]
    pub stop: Vec<String>,
    /// Tell the template whether to think first (its `enable_thinking`); not all know it [default: as the template has it]
    #[arg(long, value_name = "on|off", hide_possible_values = true, help_heading = "Conversation")]
    pub think: Option<Think>,
    /// File of the lines typed, or none [default: foretoken/history in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FILE", help_heading = "Conversation")]
    pub history: Option<History>,
    /// Keep evaluated tokens in this file: what the next conversation starts with is not evaluated again
    #[arg(long, value_name = "FILE", help_heading = "Conversation")]
    pub prompt_cache: Option<PathBuf>,
    /// Colour what was guessed, a colour for each drafter; only on a terminal, and not with NO_COLOR
    #[arg(long, help_heading = "Drafting")]
    pub show_draft: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub template: TemplateArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub grammar: GrammarArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub draft: DraftArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub report: ReportArgs,
}
