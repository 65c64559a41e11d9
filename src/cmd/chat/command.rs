//! What a line means: a message, or a command for the program.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// A line understood.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// For the model.
    Message(String),
    /// Lists the commands.
    Help,
    /// Sets the system message, or removes it.
    System(Option<String>),
    /// Forgets the conversation.
    Clear,
    /// Draws the last answer anew.
    Regen,
    /// Takes back the last message and its answer.
    Undo,
    /// Writes the conversation.
    Save(PathBuf),
    /// Reads a conversation.
    Load(PathBuf),
    /// Puts a file's text in front of the next message.
    Read(PathBuf),
    /// Tells what it cost so far.
    Stats,
    /// Changes drafters, or tells what they are.
    Draft(Option<String>),
    /// Ends.
    Quit,
}

/// Names, what they take, what they do.
pub const COMMANDS: &[(&str, &str, &str)] = &[
    ("/help", "", "this list"),
    ("/system", "[TEXT]", "set the system message; without TEXT, go without one"),
    ("/clear", "", "forget the conversation, not the system message"),
    ("/regen", "", "answer the last message anew"),
    ("/undo", "", "take back the last message and its answer"),
    ("/read", "FILE", "put the text of a file in front of the next message"),
    ("/save", "FILE", "write the conversation as JSON"),
    ("/load", "FILE", "go on with a conversation that was saved"),
    ("/stats", "", "what it cost so far"),
    (
        "/draft",
        "[KIND...]",
        "change drafters as --draft does, e.g. lookup,min=2, none or help; without KIND, tell them",
    ),
    ("/quit", "", "end, as Ctrl-D does"),
];

/// The list of commands for people.
pub fn help() -> String {
    let row = |&(name, takes, does): &(&str, &str, &str)| format!("{:<18} {does}\n", format!("{name} {takes}"));
    let mut text: String = COMMANDS.iter().map(row).collect();
    text += "\"\"\" begins and ends a message of several lines; a line that ends with \\ goes on; //TEXT is the message /TEXT";
    text
}

/// Understands a line.
pub fn parse(text: &str) -> Result<Line> {
    if let Some(rest) = text.strip_prefix("//") {
        return Ok(Line::Message(format!("/{rest}")));
    }
    if !text.starts_with('/') || text.contains('\n') {
        return Ok(Line::Message(text.to_owned()));
    }
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let given = (!rest.is_empty()).then(|| rest.to_owned());
    let file = || given.clone().map(path).with_context(|| format!("{name}: the name of a file is missing"));
    let line = match name {
        "/help" => Line::Help,
        // Two quotes are an empty text.
        "/system" => return Ok(Line::System(given.map(|text| if text == "\"\"" { String::new() } else { text }))),
        "/clear" => Line::Clear,
        "/regen" => Line::Regen,
        "/undo" => Line::Undo,
        "/save" => return file().map(Line::Save),
        "/load" => return file().map(Line::Load),
        "/read" => return file().map(Line::Read),
        "/stats" => Line::Stats,
        "/draft" => return Ok(Line::Draft(given)),
        "/quit" => Line::Quit,
        _ => bail!("found command '{name}', /help lists them (//TEXT is a message that starts with /)"),
    };
    match given {
        None => Ok(line),
        Some(given) => bail!("{name}: found '{given}', supported alone"),
    }
}

/// A path, `~` being the home folder as in a shell.
fn path(text: String) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let message = |text: &str| Line::Message(text.into());
        for (text, want) in [
            ("hi", message("hi")),
            (" /help", message(" /help")),
            ("//help", message("/help")),
            ("/read x\nmore", message("/read x\nmore")),
            ("/help", Line::Help),
            ("/help ", Line::Help),
            ("/system be brief ", Line::System(Some("be brief".into()))),
            ("/system", Line::System(None)),
            ("/system \"\"", Line::System(Some(String::new()))),
            ("/clear", Line::Clear),
            ("/regen", Line::Regen),
            ("/undo", Line::Undo),
            ("/save a b.json", Line::Save("a b.json".into())),
            ("/load\tx", Line::Load("x".into())),
            ("/read x", Line::Read("x".into())),
            ("/stats", Line::Stats),
            ("/draft", Line::Draft(None)),
            ("/draft lookup,min=2", Line::Draft(Some("lookup,min=2".into()))),
            ("/quit", Line::Quit),
        ] {
            assert_eq!(parse(text).unwrap(), want, "{text:?}");
        }
        for (text, needle) in [
            ("/", "found command '/'"),
            ("/foo bar", "found command '/foo'"),
            ("/save", "/save: the name of a file is missing"),
            ("/quit now", "/quit: found 'now'"),
        ] {
            assert!(parse(text).unwrap_err().to_string().contains(needle), "{text:?}");
        }
    }

    #[test]
    fn every_command_is_listed_and_understood() {
        for (name, takes, _) in COMMANDS {
            assert!(help().contains(name));
            let line = if takes.starts_with('F') { format!("{name} x") } else { (*name).to_owned() };
            assert!(!matches!(parse(&line).unwrap(), Line::Message(_)), "{line}");
        }
    }
}
