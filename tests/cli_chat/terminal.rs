//! Someone types.

use super::*;
use common::pty::Terminal;
use std::process::Command;

const UP: &str = "\x1b[A";
const LEFT: &str = "\x1b[D";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// Two letters an answer.
const TWO: [&str; 4] = ["-n", "2", "-l", "72+1000"];

/// The command with a terminal's usual environment and a home of its own.
pub fn command<S: AsRef<OsStr>>(program: &str, args: &[S], home: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("TERM", "xterm").env("HOME", home).env_remove("NO_COLOR").env_remove("XDG_STATE_HOME");
    command
}

/// `chat` at its first prompt, and its home.
fn start(name: &str, model: &Writer, more: &[&str]) -> (Terminal, PathBuf) {
    let home = scratch(&format!("chat-{name}"));
    let line = args(&save(name, model), more);
    let mut terminal = Terminal::start(command(env!("CARGO_BIN_EXE_foretoken"), &line, &home));
    terminal.expect("> ");
    (terminal, home)
}

/// Ends the chat after it has saved what was said; the turns.
fn finish(mut terminal: Terminal, home: &Path) -> Vec<(String, String)> {
    let file = home.join("saved.json");
    terminal.send(&format!("/save {}\r", file.display()));
    terminal.expect("turns saved");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0, 0);
    turns(&file)
}

fn messages(turns: &[(String, String)]) -> Vec<&str> {
    turns.iter().map(|(message, _)| message.as_str()).collect()
}

#[test]
fn a_message_is_answered_and_ctrl_d_ends() {
    let (mut terminal, _) = start("answer", &strict(), &TWO);
    terminal.send("hi\r");
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    // After text, Ctrl-D is not Enter and ends nothing.
    terminal.send(&format!("abc{CTRL_D}"));
    terminal.send("d\r");
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    let (status, _) = terminal.end();
    assert_eq!(status, 0);
    assert_eq!(terminal.shown().matches("HH").count(), 2);
    assert!(!terminal.shown().contains("\x1b[2m"), "nothing is dim without thoughts");
    let (mut terminal, _) = start("quit", &strict(), &TWO);
    terminal.send("/quit\r");
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn pasted_and_continued_lines_are_one_message() {
    let (mut terminal, home) = start("paste", &strict(), &TWO);
    let mut say = |keys: &str| {
        terminal.send(keys);
        terminal.expect("HH\r\n");
        terminal.expect("> ");
    };
    say("\x1b[200~one\r\ntwo\n\ttab \\\nend\x1b[201~\r");
    say("\x1b[200~/read me\nnot\x1b[201~\r");
    say("a \\\rb\\\rc\r");
    say("\"\"\"\r one\r\r/two \\\r\"\"\"\r");
    say("\"\"\"x\ry\"\"\"\r");
    say("//slash\r");
    say("ünï 🦙 日本\r");
    let said = finish(terminal, &home);
    let want =
        ["one\ntwo\n\ttab \\\nend", "/read me\nnot", "a \nb\nc", " one\n\n/two \\", "x\ny", "/slash", "ünï 🦙 日本"];
    assert_eq!(messages(&said), want);
}

#[test]
fn a_message_may_be_of_any_length() {
    let model = with_template(cli::long_winded(), STRICT);
    let (mut terminal, home) = start("length", &model, &[&TWO[..], &["-c", "0"]].concat());
    let (typed, pasted) = ("ab".repeat(3_000), "xyz ".repeat(3_000));
    terminal.send(&format!("{typed}\r"));
    terminal.expect("HH\r\n");
    terminal.expect("> "); // until then the terminal itself keeps what is typed, 4096 bytes of it
    terminal.send(&format!("\x1b[200~{pasted}\x1b[201~\r"));
    terminal.expect("HH\r\n");
    assert!(messages(&finish(terminal, &home)) == [typed, pasted]);
}

#[test]
fn what_is_typed_ahead_waits() {
    let (mut terminal, home) = start("ahead", &strict(), &TWO);
    terminal.send("one\rtwo\rthree\r");
    (0..3).for_each(|_| drop(terminal.expect("HH\r\n")));
    assert_eq!(messages(&finish(terminal, &home)), ["one", "two", "three"]);
}

#[test]
fn lines_can_be_edited_and_are_remembered() {
    let model = strict();
    let (mut terminal, home) = start("edit", &model, &TWO);
    terminal.send(&format!("ac{LEFT}b\r"));
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    terminal.send(&format!("second{UP}{UP}\x1b[Bx\r"));
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    terminal.send("\x1b[200~two\nlines\x1b[201~\r");
    terminal.expect("HH\r\n");
    assert_eq!(messages(&finish(terminal, &home)), ["abc", "secondx", "two\nlines"]);
    // The next chat of the same home knows them, also those of several lines.
    let line = args(&save("edit", &model), &TWO);
    let again = |line: &[OsString], keys: &str| {
        let mut terminal = Terminal::start(command(env!("CARGO_BIN_EXE_foretoken"), line, &home));
        terminal.expect("> ");
        terminal.send(keys);
        terminal.expect("HH\r\n");
        finish(terminal, &home)
    };
    assert_eq!(messages(&again(&line, &format!("{UP}{UP}\r"))), ["two\nlines"], "above it is /save");
    assert!(home.join(".local/state/foretoken/history").exists());
    // A file of one's own, and none.
    let own = home.join("lines");
    let more = |value: &OsStr| [&line[..], &["--history".into(), value.to_owned()]].concat();
    again(&more(own.as_os_str()), "mine\r");
    assert!(std::fs::read_to_string(&own).unwrap().contains("mine"));
    let before = std::fs::read(home.join(".local/state/foretoken/history")).unwrap();
    again(&more("none".as_ref()), "nobody's\r");
    assert_eq!(before, std::fs::read(home.join(".local/state/foretoken/history")).unwrap());
    // One that cannot be kept is said and forgotten.
    let mut terminal = Terminal::start(command(env!("CARGO_BIN_EXE_foretoken"), &more(home.as_os_str()), &home));
    terminal.expect("warning: history");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn commands_do_what_they_say() {
    let (mut terminal, home) = start("commands", &strict(), &[&TWO[..], &["-v"]].concat());
    std::fs::write(home.join("notes"), "of note").unwrap();
    let home_name = home.to_str().unwrap().to_owned();
    let mut say = |keys: &str, wants: &[&str]| {
        terminal.send(&format!("{keys}\r").replace('@', &home_name));
        let shown = wants.iter().map(|want| terminal.expect(want)).collect::<Vec<_>>();
        terminal.expect("> ");
        shown
    };
    say("/help", &["/system [TEXT]", "/quit"]);
    say("/he\t", &["/system [TEXT]"]);
    say("/regen", &["error: /regen: nothing has been said yet"]);
    say("/undo", &["error: /undo: nothing has been said yet"]);
    say("/foo", &["error: found command '/foo', /help lists them"]);
    say("/load @/none", &["error: /load: ", "No such file"]);
    say("a", &["0 of ", "HH\r\n"]);
    say("b", &["HH\r\n"]);
    say("/regen", &["HH\r\n"]);
    say("/undo", &[]);
    say("/system be", &[]);
    say("/read ~/notes", &["8 bytes go with the next message"]);
    say("c", &[" tokens evaluated before", "HH\r\n"]);
    say("/draft lookup,min=2", &["drafting: lookup,min=2,"]);
    say("d", &["HH\r\n"]);
    say("/stats", &["prompt  ", "of them known", "draft   ", "whole   "]);
    say("/draft", &["drafting: lookup"]);
    say("/draft none", &["drafting: none"]);
    say("/draft lookop", &["error: /draft: found kind 'lookop'"]);
    say("/save @/saved", &["3 turns saved"]);
    say("/clear", &[]);
    say("/save @/cleared", &["0 turns saved"]);
    say("/load @/saved", &["3 turns loaded"]);
    say("e", &["HH\r\n"]);
    let said = finish(terminal, &home);
    assert_eq!(messages(&said), ["a", "of note\nc", "d", "e"]);
    assert!(said.iter().all(|(_, answer)| answer == "HH"));
    assert_eq!(turns(&home.join("cleared")), []);
}

#[test]
fn a_message_too_long_costs_a_turn() {
    let (mut terminal, home) = start("too-long", &strict(), &TWO);
    terminal.send(&format!("{}\r", "q".repeat(600)));
    terminal.expect("error: the message takes 6");
    terminal.expect("> ");
    terminal.send("short\r");
    terminal.expect("HH\r\n");
    assert_eq!(messages(&finish(terminal, &home)), ["short"]);
}

#[test]
fn thoughts_are_dim_only_where_colours_are_wanted() {
    let thinks = with_template(cli::tiny(), "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n");
    let home = scratch("chat-think");
    let line = args(&save("think", &thinks), &TWO);
    for (name, value, dim) in
        [("X", "", true), ("NO_COLOR", "1", false), ("NO_COLOR", "", true), ("TERM", "dumb", false)]
    {
        let mut command = command(env!("CARGO_BIN_EXE_foretoken"), &line, &home);
        command.env(name, value);
        let mut terminal = Terminal::start(command);
        terminal.expect("> ");
        terminal.send("a\r");
        terminal.expect(if dim { "\x1b[2mHH\x1b[0m" } else { "HH" });
        terminal.expect("> ");
        terminal.send(CTRL_D);
        assert_eq!(terminal.end().0, 0);
        assert_eq!(terminal.shown().contains("\x1b[2m"), dim, "{name}={value}");
    }
    // So with `run`; in a pipe never.
    let run: Vec<OsString> = [&["run".into()], &line[1..], &["-p".into(), "a".into()]].concat();
    let mut terminal = Terminal::start(command(env!("CARGO_BIN_EXE_foretoken"), &run, &home));
    terminal.expect("\x1b[2mHH\x1b[0m\r\n");
    assert_eq!(terminal.end().0, 0);
    assert_eq!(cli::run(&run).stdout, b"HH\n");
}

#[test]
fn answers_can_go_to_a_file_while_prompts_stay() {
    let home = scratch("chat-redirected");
    let mut line: Vec<OsString> = vec!["-c".into(), "exec \"$0\" \"$@\" > answers 2> notes".into()];
    line.push(env!("CARGO_BIN_EXE_foretoken").into());
    line.extend(args(&save("redirected", &strict()), &TWO));
    let mut shell = command("sh", &line, &home);
    shell.current_dir(&home);
    let mut terminal = Terminal::start(shell);
    for _ in 0..2 {
        terminal.expect("> ");
        terminal.send("a\r");
    }
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0, 0);
    assert_eq!(std::fs::read_to_string(home.join("answers")).unwrap(), "HH\nHH\n");
    assert!(std::fs::read_to_string(home.join("notes")).unwrap().contains("/help lists commands"));
    assert!(!terminal.shown().contains("HH"));
}

#[test]
fn without_a_command_it_is_chat_or_run() {
    let home = scratch("chat-bare");
    let line = args(&save("bare", &strict()), &TWO);
    let foretoken = env!("CARGO_BIN_EXE_foretoken");
    let mut terminal = Terminal::start(command(foretoken, &line[1..], &home));
    terminal.expect("> ");
    terminal.send("a\r");
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0, 0);
    let mut terminal = Terminal::start(command(foretoken, &[&line[1..], &["-p".into(), "a".into()]].concat(), &home));
    let (status, shown) = terminal.end();
    assert_eq!(status, 0);
    assert!(shown.contains("HH\r\n") && !shown.contains("> "), "{shown}");
    let piped = cli::run_with(&line[1..], b"a\nb\n");
    assert_eq!((piped.status.code(), piped.stdout), (Some(0), b"HH\n".to_vec()), "a pipe is one prompt");
}

#[test]
fn ctrl_c_at_a_prompt() {
    let (mut terminal, _) = start("idle", &strict(), &TWO);
    terminal.send(&format!("half a line{CTRL_C}"));
    terminal.expect("> ");
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C again ends");
    terminal.expect("> ");
    terminal.send("a\r");
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C again ends");
    terminal.expect("> ");
    terminal.send(&format!("\"\"\"\rhalf a block{CTRL_C}"));
    terminal.expect("> ");
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C again ends");
    terminal.expect("> ");
    terminal.send(CTRL_C);
    assert_eq!(terminal.end().0, 130);
}

#[test]
fn ctrl_c_stops_an_answer_and_roles_still_alternate() {
    let (mut terminal, home) =
        start("stop", &with_template(cli::long_winded(), STRICT), &[&FOR_EVER[..], &["-c", "0"]].concat());
    for _ in 0..2 {
        terminal.send("go on\r");
        terminal.expect("HHHH");
        terminal.send(CTRL_C);
        terminal.expect("interrupted: the answer stays");
        terminal.expect("> ");
    }
    let said = finish(terminal, &home);
    assert_eq!(messages(&said), ["go on", "go on"]);
    assert!(said.iter().all(|(_, answer)| answer.len() > 3 && answer.trim_start_matches('H').is_empty()));
}

#[test]
fn ctrl_c_stops_a_long_prompt_and_takes_the_message_back() {
    let model = with_template(cli::long_winded(), STRICT);
    let (mut terminal, home) = start("prefill", &model, &[&TWO[..], &["-c", "0"]].concat());
    terminal.send("first\r");
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    terminal.send(&format!("\x1b[200~{}\x1b[201~\r", "q".repeat(16_000)));
    terminal.expect("reading the prompt");
    terminal.send(CTRL_C);
    terminal.expect("the message is taken back");
    terminal.expect("> ");
    terminal.send("second\r");
    terminal.expect("HH\r\n");
    assert_eq!(messages(&finish(terminal, &home)), ["first", "second"]);
    // An answer that has no text yet is no answer; /regen has its old one back.
    let (mut terminal, home) = start("regen", &model, &[&TWO[..], &["-c", "0"]].concat());
    std::fs::write(home.join("long"), "q".repeat(16_000)).unwrap();
    terminal.send("/read ~/long\rwhat?\r");
    terminal.expect("HH\r\n");
    terminal.expect("> ");
    terminal.send("/system other\r/regen\r");
    terminal.expect("reading the prompt");
    terminal.send(CTRL_C);
    terminal.expect("the message is taken back");
    let said = finish(terminal, &home);
    assert_eq!((said.len(), said[0].1.as_str()), (1, "HH"));
}

/// How soon an answer of a real model stops, and a prompt of one.
#[test]
fn ctrl_c_is_seen_between_layers() {
    let Some(model) = common::models::find("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let home = scratch("chat-latency");
    let line = args(&model, &["-s", "1", "-l", "2-inf"]);
    let mut terminal = Terminal::start(command(env!("CARGO_BIN_EXE_foretoken"), &line, &home));
    terminal.expect("> ");
    let mut worst = std::time::Duration::ZERO;
    let mut stop = |terminal: &mut Terminal, said: &str| {
        let pressed = std::time::Instant::now();
        terminal.send(CTRL_C);
        terminal.expect(said);
        worst = worst.max(pressed.elapsed());
        terminal.expect("> ");
    };
    terminal.send("Write a long story.\r");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    stop(&mut terminal, "interrupted: ");
    terminal.send(&format!("\x1b[200~{}\x1b[201~\r", "Once upon a time there was a cat. ".repeat(350)));
    terminal.expect("reading the prompt");
    std::thread::sleep(std::time::Duration::from_millis(300));
    stop(&mut terminal, "interrupted: ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0, 0);
    println!("seen after {worst:?} at most");
    assert!(worst < std::time::Duration::from_secs(2), "{worst:?}; under 0.2 s where no one else is at work");
}
