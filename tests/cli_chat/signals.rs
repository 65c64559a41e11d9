//! The terminal is left as it was found, whatever ends the chat.

use super::terminal::command;
use super::*;
use common::pty::{Terminal, signal};
use rustix::process::Signal;

/// A chat run by a shell that says its status and the terminal's modes after it.
fn start(name: &str, template: &str, more: &[&str]) -> (Terminal, PathBuf) {
    let model = save(name, &with_template(cli::long_winded(), template));
    let script = "trap : INT; stty -a; \"$0\" \"$@\"; echo \" status $?\"; stty -a";
    let mut line: Vec<OsString> = vec!["-c".into(), script.into()];
    line.push(env!("CARGO_BIN_EXE_foretoken").into());
    line.extend(args(&model, &[&["-c", "0"], more].concat()));
    let mut terminal = Terminal::start(command("sh", &line, &scratch(&format!("chat-{name}"))));
    terminal.expect("icanon");
    terminal.expect("> ");
    (terminal, model)
}

/// Checks the status and that the modes are back.
fn ended(mut terminal: Terminal, status: &str, what: &str) {
    terminal.expect(&format!(" status {status}\r\n"));
    let (_, modes) = terminal.end();
    for mode in ["icanon", "isig", "icrnl", "opost", "iexten"] {
        assert!(modes.split_whitespace().any(|word| word == mode), "{what}: {modes}");
    }
    let shown = terminal.shown();
    assert_eq!(shown.matches("\x1b[?2004h").count(), shown.matches("\x1b[?2004l").count(), "{what}: pasting");
    let (dim, plain) = (shown.rfind("\x1b[2m"), shown.rfind("\x1b[0m"));
    assert!(dim <= plain, "{what}: dim is left on");
}

#[test]
fn at_the_prompt() {
    for (name, keys, status) in [("eof", "\x04", "0"), ("twice", "\x03\x03", "130"), ("quit", "/quit\r", "0")] {
        let (mut terminal, _) = start(&format!("modes-{name}"), cli::TEMPLATE, &[]);
        for key in keys.split_inclusive('\x03') {
            terminal.send(key);
            if name == "twice" && terminal.shown().matches("Ctrl-C again").count() == 0 {
                terminal.expect("Ctrl-C again ends");
                terminal.expect("> ");
            }
        }
        ended(terminal, status, name);
    }
    for (name, by) in [("term", Signal::TERM), ("hup", Signal::HUP)] {
        let (mut terminal, model) = start(&format!("modes-{name}"), cli::TEMPLATE, &[]);
        terminal.send("half a line");
        terminal.expect("half a line");
        signal(&model, by);
        ended(terminal, "130", name);
    }
    // Ctrl-C that comes as a signal is as good as the key.
    let (mut terminal, model) = start("modes-int", cli::TEMPLATE, &[]);
    signal(&model, Signal::INT);
    terminal.expect("Ctrl-C again ends");
    terminal.expect("> ");
    signal(&model, Signal::INT);
    ended(terminal, "130", "int");
}

#[test]
fn in_the_midst_of_an_answer() {
    let thinks = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n";
    for (name, by) in [("term", Signal::TERM), ("hup", Signal::HUP)] {
        let (mut terminal, model) = start(&format!("modes-answer-{name}"), thinks, &FOR_EVER);
        terminal.send("a\r");
        terminal.expect("\x1b[2mHH");
        signal(&model, by);
        ended(terminal, "130", name);
    }
    let (mut terminal, _) = start("modes-answer-int", thinks, &FOR_EVER);
    terminal.send("a\r");
    terminal.expect("\x1b[2mHH");
    terminal.send("\x03");
    terminal.expect("interrupted");
    terminal.expect("> ");
    terminal.send("\x04");
    ended(terminal, "0", "interrupted");
}

#[test]
fn when_the_model_says_nothing() {
    let (mut terminal, _) = start("modes-silent", cli::TEMPLATE, &SILENT);
    terminal.send("a\r");
    terminal.expect("> ");
    terminal.send("\x04");
    ended(terminal, "0", "silent");
}
