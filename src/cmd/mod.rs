//! The commands, one file each, and what they share: opening a model, reading a text, talking on stderr.
//!
//! Exit status: 0 when all went well or the reader of stdout has gone, 1 for a failure, 2 for a command line that means
//! nothing, 130 when interrupted. A failure is one line on stderr. stdout belongs to the result alone.

#![forbid(unsafe_code)]

pub mod answer;
pub mod answered;
pub mod batch;
pub mod bench;
pub mod cache;
pub mod chat;
pub mod draft;
pub mod features;
pub mod grammar;
pub mod input;
pub mod inspect;
pub mod interrupt;
pub mod lines;
pub mod load;
pub mod manual;
pub mod memory;
pub mod paint;
pub mod perplexity;
pub mod place;
pub mod prompt;
pub mod report;
pub mod request;
pub mod run;
pub mod sampling;
pub mod stats;
pub mod template;
pub mod terminal;
pub mod tokenize;
pub mod trial;
pub mod unescape;

use crate::cli::{self, Command};
use anyhow::Result;
use clap::error::{ContextKind, ContextValue};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::process::ExitCode;

/// A command line that parses but means nothing: exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

/// The user interrupted: exit status 130, and no message, they know.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Usage {}
impl std::error::Error for Interrupted {}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let cli = match cli::parse(&args, io::stdin().is_terminal()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help asked for is no error; whoever does not read it is none either. That of an option's values is ours.
            let _ = match error.get(ContextKind::Custom) {
                Some(ContextValue::String(help)) => io::stdout().write_all(help.as_bytes()),
                _ => error.print(),
            };
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match dispatch(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => status(&error),
    }
}

fn dispatch(command: &Command) -> Result<()> {
    match command {
        Command::Chat(args) => chat::run(args),
        Command::Run(args) => run::run(args),
        Command::Batch(args) => batch::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Bench(args) => bench::run(args),
        #[cfg(feature = "cuda")]
        Command::DeviceCheck(args) => bench::check::run(args),
        Command::Features(args) => features::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { command } => manual::page(command.as_deref()),
    }
}

/// Writes to stdout what was measured: as one JSON object, or as `table` says it to people.
fn print(
    figures: &impl Serialize,
    json: bool,
    table: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match json {
        true => writeln!(out, "{}", serde_json::to_string(figures)?)?,
        false => table(&mut out)?,
    }
    Ok(out.flush()?)
}

/// Whether nobody reads stdout any more.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(gone))
}

/// The exit status of an error, after saying what there is to say.
fn status(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if error.is::<Interrupted>() {
        return ExitCode::from(130);
    }
    let _ = writeln!(io::stderr(), "error: {}", report::one_line(&format!("{error:#}")));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}
