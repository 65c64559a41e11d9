//! What is said on stderr. A closed stderr never stops the work, so nothing here fails.

use crate::cli::ReportArgs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

/// The voice on stderr.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    quiet: bool,
    verbose: u8,
}

impl Report {
    /// As loud as the flags say.
    pub fn new(args: &ReportArgs) -> Self {
        Self { quiet: args.quiet, verbose: args.verbose }
    }

    /// Something is odd.
    pub fn warn(&self, what: impl Display) {
        self.say(0, format_args!("warning: {}", one_line(&what.to_string())));
    }

    /// One line for everyone.
    pub fn note(&self, what: impl Display) {
        self.say(0, what);
    }

    /// For those who gave `-v` that many times.
    pub fn detail(&self, level: u8, what: impl Display) {
        self.say(level, what);
    }

    fn say(&self, level: u8, what: impl Display) {
        if !self.quiet && self.verbose >= level {
            let _ = writeln!(stderr(), "{what}");
        }
    }

    /// A progress bar over `len` of something, drawn only where someone looks at it.
    pub fn bar(&self, what: &'static str, len: u64, unit: Unit) -> ProgressBar {
        let seen = !self.quiet && stderr().is_terminal();
        let target = if seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let counts = match unit {
            Unit::Bytes => "{bytes}/{total_bytes}",
            Unit::Runs => "{pos}/{len} runs",
            Unit::Tokens => "{pos}/{len} tokens",
            Unit::Work => "{pos}/{len} tokens, {per_sec}, {eta} left",
            Unit::Prompts => "{pos}/{len} prompts, {eta} left",
        };
        let style = ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {counts}"));
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::with_draw_target(Some(len), target).with_style(style).with_message(what)
    }
}

/// What a progress bar counts.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Bytes, in KiB and more.
    Bytes,
    /// Tokens.
    Tokens,
    /// Tokens, and how fast they come.
    Work,
    /// Runs of a command.
    Runs,
    /// Prompts, which take long.
    Prompts,
}

/// A text without line ends and other control characters: names in files may hold any.
pub fn one_line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}
