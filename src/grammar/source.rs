//! A grammar's text being read: where one is, and how to say it.

use anyhow::{Error, anyhow};
use std::fmt::Display;

/// Reads a text from front to end.
pub(super) struct Source<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Bytes read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Reads `text` if it comes next.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let comes = self.rest().starts_with(text);
        if comes {
            self.at += text.len();
        }
        comes
    }

    pub(super) fn take_while(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !is(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Blanks and comments, and line ends too if `lines`.
    pub(super) fn skip(&mut self, lines: bool) {
        let is_line = |c| c == '\r' || c == '\n';
        loop {
            self.take_while(|c| c == ' ' || c == '\t' || lines && is_line(c));
            if !self.take("#") {
                return;
            }
            self.take_while(|c| !is_line(c));
        }
    }

    /// What comes next, for people.
    pub(super) fn found(&self) -> String {
        self.peek().map_or("the end of the text".into(), |c| format!("{c:?}"))
    }

    /// What was read from byte `start` on.
    pub(super) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    /// An error at byte `at`.
    pub(super) fn error(&self, at: usize, what: impl Display) -> Error {
        error(self.text, at, what)
    }
}

/// An error at byte `at` of `text`: its line and its column in characters, both from 1.
pub(super) fn error(text: &str, at: usize, what: impl Display) -> Error {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let line = before.matches('\n').count() + 1;
    anyhow!("{line}:{}: {what}", before[line_start..].chars().count() + 1)
}
