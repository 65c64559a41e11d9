//! Where texts come from.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where a text comes from.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Text")]
pub struct TextArgs {
    /// The text
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<OsString>,
    /// File that holds the text
    #[arg(short, long, value_name = "FILE", conflicts_with = "stdin")]
    pub file: Option<PathBuf>,
    /// "-" reads the text from stdin to its end, and puts it after that of -p, on a new line
    #[arg(value_name = "-", value_parser = ["-"], hide_possible_values = true)]
    pub stdin: Option<String>,
}

impl TextArgs {
    /// Whether they say where the text is.
    pub fn is_given(&self) -> bool {
        self.prompt.is_some() || self.file.is_some() || self.stdin.is_some()
    }
}

/// What is done to a text before the model sees it.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Text")]
pub struct ShapeArgs {
    /// Take \n \r \t \\ \' \" and \xHH in -p, --prefix, --suffix, --system and --stop for what they stand for in C
    #[arg(short, long)]
    pub escape: bool,
    /// Put this before the text
    #[arg(long, alias = "in-prefix", value_name = "TEXT", allow_hyphen_values = true)]
    pub prefix: Option<String>,
    /// Put this after the text
    #[arg(long, alias = "in-suffix", value_name = "TEXT", allow_hyphen_values = true)]
    pub suffix: Option<String>,
    /// Print the text before the answer; with a chat template, the answer starts on a new line
    #[arg(long)]
    pub echo: bool,
}
