//! `completions` and `man`: the command line describes itself.

use super::Usage;
use crate::cli;
use anyhow::Result;
use clap_complete::Shell;
use std::io::{self, Write};

/// Prints what a shell completes command lines with.
pub fn completions(shell: Shell) -> Result<()> {
    let mut text = vec![];
    clap_complete::generate(shell, &mut cli::command(), "foretoken", &mut text);
    print(&text)
}

/// Prints the manual page, of a command when one is named.
pub fn page(name: Option<&str>) -> Result<()> {
    let mut all = cli::command();
    all.build();
    let command = match name {
        None => all,
        Some(name) => {
            let found = all.get_subcommands().find(|command| command.get_name() == name).cloned();
            let names: Vec<_> = all.get_subcommands().map(|command| command.get_name().to_owned()).collect();
            found.ok_or_else(|| Usage(format!("man: found '{name}', supported: {}", names.join(" "))))?
        }
    };
    let examples = command.get_before_help().map(|text| text.to_string()).unwrap_or_default();
    let mut text = vec![];
    let source = concat!("foretoken ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).source(source).render(&mut text)?;
    if let Some(lines) = examples.strip_prefix("Examples:\n") {
        let lines = lines.replace('\\', "\\e").replace('-', "\\-");
        write!(text, ".SH EXAMPLES\n.nf\n{lines}\n.fi\n")?;
    }
    print(&text)
}

fn print(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(())
}
