//! Ctrl-C, and the signals that ask a process to end.
//!
//! While nobody watches (loading, waiting for input) there is nothing to finish and the process ends at once with status
//! 130. While someone watches, the first signal is a request that the watcher sees; the second ends the process.

use super::Interrupted;
use anyhow::{Context, Result};
use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

const UNWATCHED: u8 = 0;
const WATCHED: u8 = 1;
const ASKED: u8 = 2;

/// The process's signals.
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Takes the signals over, unwatched.
    pub fn install() -> Result<Self> {
        let state = Arc::new(AtomicU8::new(UNWATCHED));
        let seen = state.clone();
        let handler = move || {
            if seen.compare_exchange(WATCHED, ASKED, SeqCst, SeqCst).is_err() {
                if stderr().is_terminal() {
                    let _ = writeln!(stderr()); // past a progress bar
                }
                std::process::exit(130);
            }
        };
        ctrlc::set_handler(handler).context("installing the signal handler")?;
        Ok(Self(state))
    }

    /// From now on someone looks at [`Interrupt::asked`].
    pub fn watch(&self) {
        self.0.store(WATCHED, SeqCst);
    }

    /// Whether a signal came.
    pub fn asked(&self) -> bool {
        self.0.load(SeqCst) == ASKED
    }

    /// Nobody looks any more; an error if a signal has come.
    pub fn unwatch(&self) -> Result<()> {
        if self.0.swap(UNWATCHED, SeqCst) == ASKED { Err(Interrupted.into()) } else { Ok(()) }
    }
}
