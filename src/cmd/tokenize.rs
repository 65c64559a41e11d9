//! `tokenize`: the ids of a text, whose bytes are taken as they are. Only a model's metadata is read.

use super::input;
use super::report::Report;
use crate::cli::TokenizeArgs;
use crate::gguf::Gguf;
use crate::text::Tokenizer;
use anyhow::{Context, Result};
use std::io::{self, Write};

/// Runs the command.
pub fn run(args: &TokenizeArgs) -> Result<()> {
    let gguf = Gguf::open(&args.model)?;
    let tokenizer = Tokenizer::from_gguf(gguf.meta()).with_context(|| args.model.display().to_string())?;
    tokenizer.warnings().iter().for_each(|warning| Report::default().warn(warning));
    let bos = match args.bos {
        true => Some(tokenizer.bos().with_context(|| format!("{}: the model has no BOS token", args.model.display()))?),
        false => None,
    };
    let text = input::read(&args.text)?;
    let ids = bos.into_iter().chain(tokenizer.encode(&text, !args.plain)?).map(|id| id.to_string());
    let ids: Vec<String> = ids.collect();
    let line = if args.json { format!("[{}]", ids.join(",")) } else { ids.join(" ") };
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}
