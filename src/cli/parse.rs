//! From arguments to [`Cli`]: the command that is left out, and help with examples first.

use super::{Cli, Command};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use std::ffi::{OsStr, OsString};

/// What it is, how it is used, then everything else.
const HELP: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// The command line's own description.
pub fn command() -> clap::Command {
    Cli::command().help_template(HELP).mut_subcommands(|command| command.help_template(HELP))
}

/// Parses what was typed, the program's name first. `terminal` says whether stdin is one, on which it depends what
/// options without a command mean.
pub fn parse(args: &[OsString], terminal: bool) -> Result<Cli, clap::Error> {
    let whole = |args: &[OsString]| {
        let mut command = command();
        let matches = command.try_get_matches_from_mut(args)?;
        Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
    };
    let [name, first, ..] = args else { return whole(args) };
    let own = ["-h", "--help", "-V", "--version"].map(OsStr::new);
    if !first.as_encoded_bytes().starts_with(b"-") || own.contains(&first.as_os_str()) {
        return whole(args);
    }
    let with = |command: &str| {
        let start = [name.clone(), command.into()];
        whole(&[&start, &args[1..]].concat())
    };
    let run = with("run");
    match &run {
        Ok(Cli { command: Command::Run(run) }) if terminal && !run.text.is_given() => with("chat"),
        // It may be an option that only `chat` has.
        Err(error) if terminal && error.kind() == ErrorKind::UnknownArgument => with("chat").or(run),
        _ => run,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str, terminal: bool) -> Result<&'static str, ErrorKind> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&args, terminal) {
            Ok(cli) => Ok(match cli.command {
                Command::Chat(_) => "chat",
                Command::Run(_) => "run",
                _ => "other",
            }),
            Err(error) => Err(error.kind()),
        }
    }

    #[test]
    fn a_command_left_out_is_found() {
        for (line, on_terminal, in_pipe) in [
            ("f -m M", Ok("chat"), Ok("run")),
            ("f -m M -c 9 --temp 0", Ok("chat"), Ok("run")),
            ("f -m M -p x", Ok("run"), Ok("run")),
            ("f -mM -px", Ok("run"), Ok("run")),
            ("f --prompt=x -m M", Ok("run"), Ok("run")),
            ("f -m M -p x -", Ok("run"), Ok("run")),
            ("f -m M -", Ok("run"), Ok("run")),
            ("f -m M -f x", Ok("run"), Ok("run")),
            ("f -m M --history none", Ok("chat"), Err(ErrorKind::UnknownArgument)),
            ("f -m M --help", Err(ErrorKind::DisplayHelp), Err(ErrorKind::DisplayHelp)),
            ("f --version", Err(ErrorKind::DisplayVersion), Err(ErrorKind::DisplayVersion)),
            ("f -m M --foo", Err(ErrorKind::UnknownArgument), Err(ErrorKind::UnknownArgument)),
            ("f chat -m M", Ok("chat"), Ok("chat")),
            ("f run -m M", Ok("run"), Ok("run")),
            ("f inspect M", Ok("other"), Ok("other")),
            ("f M", Err(ErrorKind::InvalidSubcommand), Err(ErrorKind::InvalidSubcommand)),
        ] {
            assert_eq!(parsed(line, true), on_terminal, "{line} on a terminal");
            assert_eq!(parsed(line, false), in_pipe, "{line} in a pipe");
        }
    }

    #[test]
    fn the_description_is_sound() {
        command().debug_assert();
    }
}
