//! The terminal: whether it shows colours, and how it is left.

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::OpenOptions;
use std::io::{IsTerminal, Write, stdin, stdout};
use std::sync::{Mutex, MutexGuard};

/// Whether stdout is a terminal that shows colours and nobody forbids them (`NO_COLOR`).
pub fn has_colours() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stdout().is_terminal() && !forbidden && !is_dumb()
}

/// Whether the terminal understands no escapes.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// The terminal's modes as they were before a line editor changed them. Who reads a line restores them when it is done;
/// this is for a process that ends in the midst of that.
#[derive(Default)]
pub struct Modes(Mutex<Option<Termios>>);

impl Modes {
    /// Remembers them until the guard is dropped.
    pub fn remember(&self) -> Remembered<'_> {
        *self.saved() = tcgetattr(stdin()).ok();
        Remembered(self)
    }

    /// Whether a line is being read.
    pub fn are_changed(&self) -> bool {
        self.saved().is_some()
    }

    /// Puts back modes and colours, for the process ends now.
    pub fn restore(&self) {
        let saved = self.saved().take();
        let colours = has_colours();
        if saved.is_none() && !colours {
            return;
        }
        let Ok(mut terminal) = OpenOptions::new().read(true).write(true).open("/dev/tty") else { return };
        if let Some(modes) = saved {
            let _ = tcsetattr(&terminal, OptionalActions::Now, &modes);
            let _ = terminal.write_all(b"\x1b[?2004l"); // no bracketed paste
        }
        if colours {
            let _ = terminal.write_all(b"\x1b[0m");
        }
    }

    fn saved(&self) -> MutexGuard<'_, Option<Termios>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Forgets the modes when dropped.
pub struct Remembered<'a>(&'a Modes);

impl Drop for Remembered<'_> {
    fn drop(&mut self) {
        *self.0.saved() = None;
    }
}
