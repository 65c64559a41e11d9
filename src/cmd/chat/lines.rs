//! Where messages come from: a terminal with a line editor, or a pipe.
//!
//! Either way a message is made of lines by the same rules: `"""` begins and ends one of several lines, and a line that
//! ends with a backslash goes on in the next. What is pasted into the editor is one line to these rules, whatever it holds.

use super::command::COMMANDS;
use crate::cli::History;
use crate::cmd::input;
use crate::cmd::report::Report;
use crate::cmd::terminal::{self, Modes};
use anyhow::{Context as _, Result, ensure};
use rustyline::completion::Completer;
use rustyline::config::{Behavior, Configurer};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{ColorMode, CompletionType, Config, Context, Editor, ExternalPrinter, Helper};
use std::cell::Cell;
use std::io::{self, BufRead, IsTerminal, Read, Write, stderr, stdin, stdout};
use std::path::{Path, PathBuf};

/// Most bytes of a line from a pipe: no context holds more, and an endless source must end somewhere.
const LONGEST: u64 = 1 << 28;
/// Lines that the history keeps.
const REMEMBERED: usize = 10_000;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// A message or a command, not blank.
    Text(String),
    /// Ctrl-C; whether nothing had been typed.
    Interrupt { empty: bool },
    /// There will be no more.
    End,
}

/// The source of lines.
pub struct Lines {
    source: Source,
    ended: bool,
}

enum Source {
    Editor { editor: Box<Editor<Watcher, FileHistory>>, history: Option<PathBuf>, _wakes: Wakes },
    Stream { number: u64 },
}

/// While there is one, the editor waits for keys and signals together. Without one it waits for keys alone, and a signal
/// that comes between the prompt and the wait is not seen before the next key.
type Wakes = Option<Box<dyn ExternalPrinter>>;

/// One line, or why there is none.
enum Typed {
    Line(String),
    Interrupt { empty: bool },
    End,
}

impl Lines {
    /// Reads from stdin: with an editor where that is a terminal that can have one.
    pub fn open(history: Option<&History>, report: &Report) -> Result<Self> {
        let source = match stdin().is_terminal() && !terminal::is_dumb() {
            false => Source::Stream { number: 0 },
            true => Source::editor(history, report).context("the terminal")?,
        };
        Ok(Self { source, ended: false })
    }

    /// The next message or command; blank ones are skipped.
    pub fn next(&mut self, modes: &Modes, report: &Report) -> Result<Said> {
        while !self.ended {
            let mut message = Message::default();
            loop {
                match self.source.line(message.prompt(), modes)? {
                    Typed::Interrupt { empty } => return Ok(Said::Interrupt { empty: empty && !message.begun }),
                    Typed::End => {
                        self.ended = true;
                        break;
                    }
                    Typed::Line(line) if message.push(&line) => break,
                    Typed::Line(_) => {}
                }
            }
            let text = message.finish();
            if !text.trim().is_empty() {
                self.source.remember(&text, report);
                return Ok(Said::Text(text));
            }
        }
        Ok(Said::End)
    }
}

impl Source {
    fn editor(history: Option<&History>, report: &Report) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(REMEMBERED)?
            .completion_type(CompletionType::List)
            .color_mode(if terminal::has_colours() { ColorMode::Enabled } else { ColorMode::Disabled })
            // Prompts are not for a file that answers go to.
            .behavior(if stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm })
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Watcher { empty: Cell::new(true) }));
        editor.set_max_history_size(REMEMBERED)?;
        let file = match history {
            Some(History::None) => None,
            Some(History::File(path)) => Some(path.clone()),
            None => state_folder().map(|folder| folder.join("foretoken/history")),
        };
        let file = file.filter(|path| match load_history(&mut editor, path) {
            Ok(()) => true,
            Err(error) => {
                report.warn(format_args!("history: {}: {error:#}: not kept", path.display()));
                false
            }
        });
        let wakes = editor.create_external_printer().ok().map(|printer| Box::new(printer) as Box<dyn ExternalPrinter>);
        Ok(Source::Editor { editor: Box::new(editor), history: file, _wakes: wakes })
    }

    fn line(&mut self, prompt: &str, modes: &Modes) -> Result<Typed> {
        match self {
            Source::Stream { number } => {
                if stdin().is_terminal() {
                    let _ = write!(stderr(), "{prompt}");
                }
                *number += 1;
                read_line(&mut stdin().lock(), *number)
            }
            Source::Editor { editor, .. } => {
                let _remembered = modes.remember();
                editor.helper().inspect(|watcher| watcher.empty.set(true));
                match editor.readline(prompt) {
                    Ok(line) => Ok(Typed::Line(line)),
                    Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => {
                        Ok(Typed::Interrupt { empty: editor.helper().is_none_or(|watcher| watcher.empty.get()) })
                    }
                    // A terminal that is gone says no more.
                    Err(_) => Ok(Typed::End),
                }
            }
        }
    }

    fn remember(&mut self, text: &str, report: &Report) {
        let Source::Editor { editor, history: file, .. } = self else { return };
        let added = editor.add_history_entry(text);
        if let (Ok(true), Some(path)) = (added, &file)
            && let Err(error) = editor.append_history(path)
        {
            report.warn(format_args!("history: {}: {error}: kept no longer", path.display()));
            *file = None;
        }
    }
}

/// A line of a stream, its end and a byte-order mark at the front of all taken off.
fn read_line(from: &mut impl BufRead, number: u64) -> Result<Typed> {
    let mut line = vec![];
    let name = || format!("stdin: line {number}");
    from.take(LONGEST + 1).read_until(b'\n', &mut line).with_context(name)?;
    if line.is_empty() {
        return Ok(Typed::End);
    }
    ensure!(line.len() as u64 <= LONGEST, "{}: longer than {LONGEST} bytes, which is not supported", name());
    if line.pop_if(|last| *last == b'\n').is_some() {
        line.pop_if(|last| *last == b'\r');
    }
    let text = input::utf8(&name(), line)?;
    let text = if number == 1 { input::without_mark(&text).to_owned() } else { text };
    Ok(Typed::Line(text))
}

/// `$XDG_STATE_HOME`, or where it is when nobody says.
fn state_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    named("XDG_STATE_HOME").or_else(|| named("HOME").map(|home| home.join(".local/state")))
}

fn load_history(editor: &mut Editor<Watcher, FileHistory>, path: &Path) -> Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    match editor.load_history(path) {
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        loaded => Ok(loaded?),
    }
}

/// A message in the making.
#[derive(Default)]
struct Message {
    text: String,
    begun: bool,
    quoted: bool,
}

impl Message {
    fn prompt(&self) -> &'static str {
        if self.begun { "... " } else { "> " }
    }

    /// Adds a line; whether that was the last.
    fn push(&mut self, line: &str) -> bool {
        let mut rest = line;
        if std::mem::replace(&mut self.begun, true) {
            self.text.push('\n');
        } else if let Some(after) = line.trim_start().strip_prefix("\"\"\"") {
            self.quoted = true;
            rest = after;
        }
        let end = if self.quoted { rest.trim_end().strip_suffix("\"\"\"") } else { rest.strip_suffix('\\') };
        self.text += end.unwrap_or(rest);
        self.quoted == end.is_some()
    }

    /// The text; the line ends next to quotes are none of its own.
    fn finish(mut self) -> String {
        if self.quoted {
            let inner = self.text.strip_prefix('\n').unwrap_or(&self.text);
            self.text = inner.strip_suffix('\n').unwrap_or(inner).to_owned();
        }
        self.text
    }
}

/// Sees what is typed, for the editor does not tell whether a line was empty when Ctrl-C came, and completes commands.
struct Watcher {
    empty: Cell<bool>,
}

impl Hinter for Watcher {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.empty.set(line.is_empty());
        None
    }
}

impl Completer for Watcher {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..pos];
        let fits = |name: &&&str| typed.starts_with('/') && name.starts_with(typed);
        let names = COMMANDS.iter().map(|(name, ..)| name);
        Ok((0, names.filter(fits).map(|name| format!("{name} ")).collect()))
    }
}

impl Highlighter for Watcher {}
impl Validator for Watcher {}
impl Helper for Watcher {}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let mut from = text.as_bytes();
        let (mut all, mut number, mut ended) = (vec![], 0, false);
        while !ended {
            let mut message = Message::default();
            loop {
                number += 1;
                match read_line(&mut from, number).unwrap() {
                    Typed::Line(line) if message.push(&line) => break,
                    Typed::Line(_) => {}
                    _ => {
                        ended = true;
                        break;
                    }
                }
            }
            all.push(message.finish());
        }
        all.pop_if(|last| last.is_empty());
        all
    }

    #[test]
    fn lines_become_messages() {
        for (text, want) in [
            ("hi\nyou", &["hi", "you"][..]),
            ("hi\r\n", &["hi"]),
            ("\u{FEFF}a\n\u{FEFF}b\n", &["a", "\u{FEFF}b"]),
            ("a \\\nb\\\nc\nd\n", &["a \nb\nc", "d"]),
            ("a\\\n", &["a"]),
            ("\"\"\"one\"\"\"\nx\n", &["one", "x"]),
            ("\"\"\"\none\n\n /two\\\n\"\"\"\nx\n", &["one\n\n /two\\", "x"]),
            ("\"\"\"one\ntwo\"\"\" \n", &["one\ntwo"]),
            ("\"\"\"\nnever ended\n", &["never ended"]),
            ("\"\"\"\"\"\"\n", &[""]),
            ("say \"\"\"\n", &["say \"\"\""]),
        ] {
            assert_eq!(messages(text), want, "{text:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_utf8_is_named() {
        let error = read_line(&mut &b"ok\xFF\n"[..], 7).err().unwrap().to_string();
        assert_eq!(error, "stdin: line 7: byte 2 (0xFF) is not UTF-8: only UTF-8 is supported");
    }
}
