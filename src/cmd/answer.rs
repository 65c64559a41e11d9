//! An answer on stdout, as it comes. On a terminal what the model thinks before it is dim.

use super::terminal;
use std::io::{self, StdoutLock, Write};

/// The text on stdout, piece by piece.
pub struct Answer<W: Write = StdoutLock<'static>> {
    out: W,
    last: Option<u8>,
    thoughts: Option<Thoughts>,
}

impl Answer {
    /// Nothing written yet. `thinking` says that the prompt ends within a block of thoughts.
    pub fn new(thinking: bool) -> Self {
        let thoughts = terminal::has_colours().then(|| Thoughts::new(thinking));
        Self { out: io::stdout().lock(), last: None, thoughts }
    }
}

impl<W: Write> Answer<W> {
    /// Writes at once.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        let Some(&last) = text.as_bytes().last() else { return Ok(()) };
        self.last = Some(last);
        match &mut self.thoughts {
            None => self.out.write_all(text.as_bytes())?,
            Some(thoughts) => self.out.write_all(thoughts.push(text).as_bytes())?,
        }
        self.out.flush()
    }

    /// Writes `painted`, which shows as `text` in colours; these take the place of the dimness of thoughts.
    pub fn write_painted(&mut self, text: &str, painted: &str) -> io::Result<()> {
        let Some(&last) = text.as_bytes().last() else { return Ok(()) };
        self.write_rest()?;
        self.last = Some(last);
        self.out.write_all(painted.as_bytes())?;
        self.out.flush()
    }

    /// Writes the text that is answered; the answer follows at once, or on a new line.
    pub fn echo(&mut self, text: &str, new_line: bool) -> io::Result<()> {
        let Some(&last) = text.as_bytes().last() else { return Ok(()) };
        self.out.write_all(text.as_bytes())?;
        self.last = Some(last);
        if new_line && last != b'\n' {
            self.out.write_all(b"\n")?;
            self.last = Some(b'\n');
        }
        self.out.flush()
    }

    /// Ends the last line, if there is one.
    pub fn end(&mut self) -> io::Result<()> {
        self.write_rest()?;
        if self.last.is_some_and(|last| last != b'\n') {
            self.out.write_all(b"\n")?;
            self.out.flush()?;
        }
        Ok(())
    }

    fn write_rest(&mut self) -> io::Result<()> {
        match self.thoughts.take() {
            None => Ok(()),
            Some(thoughts) => self.out.write_all(thoughts.finish().as_bytes()).and_then(|()| self.out.flush()),
        }
    }
}

impl<W: Write> Drop for Answer<W> {
    /// Leaves no colour behind, whatever happened.
    fn drop(&mut self) {
        let _ = self.write_rest();
    }
}

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Dims the block of thoughts that an answer may start with.
struct Thoughts {
    place: Place,
    /// Text that may be the beginning of a tag.
    held: String,
}

/// Where in an answer.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Nothing but white space so far.
    Start,
    /// In the block, its opening not written yet or never to be.
    Opened,
    /// In the block.
    Within,
    /// Behind it.
    After,
}

impl Thoughts {
    fn new(thinking: bool) -> Self {
        Self { place: if thinking { Place::Opened } else { Place::Start }, held: String::new() }
    }

    fn push(&mut self, text: &str) -> String {
        self.held += text;
        let mut out = String::new();
        if self.place == Place::Start {
            let word = self.held.trim_start();
            if word.starts_with(OPEN) {
                self.place = Place::Opened;
            } else if OPEN.starts_with(word) {
                return out;
            } else {
                self.place = Place::After;
            }
        }
        if self.place == Place::Opened {
            out += DIM;
            self.place = Place::Within;
        }
        if self.place == Place::Within {
            if let Some(at) = self.held.find(CLOSE) {
                out.extend(self.held.drain(..at + CLOSE.len()));
                out += PLAIN;
                self.place = Place::After;
            } else {
                let tail = (1..CLOSE.len()).rev().find(|&n| self.held.ends_with(&CLOSE[..n])).unwrap_or(0);
                out.extend(self.held.drain(..self.held.len() - tail));
                return out;
            }
        }
        out + &std::mem::take(&mut self.held)
    }

    fn finish(self) -> String {
        self.held + if self.place == Place::Within { PLAIN } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_panic_leaves_the_terminal_dim() {
        let mut out = vec![];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut answer = Answer { out: &mut out, last: None, thoughts: Some(Thoughts::new(true)) };
            answer.write("hm").unwrap();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err() && out == b"\x1b[2mhm\x1b[0m");
    }

    #[test]
    fn thoughts_are_dim_in_any_portions() {
        for (thinking, text, want) in [
            (false, "<think>hm</think>yes", "\x1b[2m<think>hm</think>\x1b[0myes"),
            (false, "\n <think>a</thin </think>", "\x1b[2m\n <think>a</thin </think>\x1b[0m"),
            (true, "hm</think>yes", "\x1b[2mhm</think>\x1b[0myes"),
            (true, "cut off </thi", "\x1b[2mcut off </thi\x1b[0m"),
            (false, "about <think> and </think>", "about <think> and </think>"),
            (false, "<think>a</think>b<think>c</think>", "\x1b[2m<think>a</think>\x1b[0mb<think>c</think>"),
            (false, "<thin", "<thin"),
            (false, "  \n", "  \n"),
            (false, "", ""),
            (true, "", ""),
        ] {
            for size in 1..=text.len().max(1) {
                let mut thoughts = Thoughts::new(thinking);
                let portions = text.as_bytes().chunks(size).map(|part| std::str::from_utf8(part).unwrap());
                let mut got: String = portions.map(|part| thoughts.push(part)).collect();
                got += &thoughts.finish();
                assert_eq!(got, want, "in portions of {size}");
            }
        }
    }
}
