//! Ctrl-C, and the signals that ask a process to end.
//!
//! While nobody watches (loading, waiting for input) there is nothing to finish and the process ends at once with status
//! 130. While someone watches, the first signal is a request that the watcher sees; the second ends the process. A signal
//! that is not Ctrl-C is also remembered as a wish that the process end: chat goes on after Ctrl-C, but not after that.

use super::Interrupted;
use super::terminal::Modes;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

const UNWATCHED: u8 = 0;
const WATCHED: u8 = 1;
const ASKED: u8 = 2;

/// The process's signals.
pub struct Interrupt(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stage: AtomicU8,
    ending: AtomicBool,
    modes: Modes,
}

impl Shared {
    fn signalled(&self, ending: bool) {
        self.ending.fetch_or(ending, SeqCst);
        // Who reads a line sees Ctrl-C as a key and no other signal.
        let is_reading = ending && self.modes.are_changed();
        if is_reading || self.stage.compare_exchange(WATCHED, ASKED, SeqCst, SeqCst).is_err() {
            self.modes.restore();
            if stderr().is_terminal() {
                let _ = writeln!(stderr()); // past a progress bar
            }
            std::process::exit(130);
        }
    }
}

impl Interrupt {
    /// Takes the signals over, unwatched.
    pub fn install() -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (on_ctrl_c, on_signal) = (shared.clone(), shared.clone());
        let mut signals = Signals::new([SIGTERM, SIGHUP]).context("installing the signal handler")?;
        let wait = move || signals.forever().for_each(|_| on_signal.signalled(true));
        std::thread::Builder::new().name("signals".into()).spawn(wait).context("starting a thread")?;
        ctrlc::set_handler(move || on_ctrl_c.signalled(false)).context("installing the signal handler")?;
        Ok(Self(shared))
    }

    /// From now on someone looks at [`Interrupt::asked`]; what came before is forgotten.
    pub fn watch(&self) {
        self.0.stage.store(WATCHED, SeqCst);
    }

    /// Whether a signal came.
    pub fn asked(&self) -> bool {
        self.0.stage.load(SeqCst) == ASKED
    }

    /// Whether a signal came after which the process is to end.
    pub fn ends(&self) -> bool {
        self.0.ending.load(SeqCst)
    }

    /// Nobody looks any more; an error if a signal has come.
    pub fn unwatch(&self) -> Result<()> {
        if self.0.stage.swap(UNWATCHED, SeqCst) == ASKED { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// The terminal's modes, restored if a signal ends the process.
    pub fn modes(&self) -> &Modes {
        &self.0.modes
    }
}
