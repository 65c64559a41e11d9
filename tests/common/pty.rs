//! The real binary on a terminal: a pseudo-terminal with someone typing and reading.

use rexpect::process::{PtyProcess, Signal, WaitStatus};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Nothing here takes this long, however busy the machine is.
const LONG: Duration = Duration::from_secs(120);

/// A process on a terminal of its own, all its streams being that.
pub struct Terminal {
    process: PtyProcess,
    keys: File,
    screen: Arc<(Mutex<Screen>, Condvar)>,
}

#[derive(Default)]
struct Screen {
    text: String,
    /// How much of it has been read.
    at: usize,
    closed: bool,
}

impl Terminal {
    /// Starts `command`.
    pub fn start(command: Command) -> Self {
        let mut process = PtyProcess::new(command).unwrap();
        process.set_kill_timeout(Some(1000));
        let (keys, mut from) = (process.get_file_handle().unwrap(), process.get_file_handle().unwrap());
        let screen = Arc::<(Mutex<Screen>, Condvar)>::default();
        let shared = screen.clone();
        std::thread::spawn(move || {
            let (mut bytes, mut rest) = ([0; 65536], vec![]);
            loop {
                let n = from.read(&mut bytes).unwrap_or(0); // an error is a terminal nobody has open
                rest.extend_from_slice(&bytes[..n]);
                let whole = match std::str::from_utf8(&rest) {
                    Ok(text) => text.len(),
                    Err(error) => error.valid_up_to(),
                };
                let mut screen = shared.0.lock().unwrap();
                screen.text += std::str::from_utf8(&rest[..whole]).unwrap();
                rest.drain(..whole);
                screen.closed = n == 0;
                shared.1.notify_all();
                if screen.closed {
                    return;
                }
            }
        });
        Self { process, keys, screen }
    }

    /// Types.
    pub fn send(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads up to `needle`; what came before it.
    pub fn expect(&mut self, needle: &str) -> String {
        let (lock, news) = &*self.screen;
        let (started, mut screen) = (Instant::now(), lock.lock().unwrap());
        loop {
            if let Some(at) = screen.text[screen.at..].find(needle) {
                let before = screen.text[screen.at..][..at].to_owned();
                screen.at += at + needle.len();
                return before;
            }
            let seen = || screen.text[screen.at..].chars().take(3000).collect::<String>();
            assert!(!screen.closed, "ended without {needle:?}: {:?}", seen());
            assert!(started.elapsed() < LONG, "no {needle:?} in {:?}", seen());
            screen = news.wait_timeout(screen, Duration::from_millis(50)).unwrap().0;
        }
    }

    /// All that was ever shown.
    pub fn shown(&self) -> String {
        self.screen.0.lock().unwrap().text.clone()
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// The status once it has ended, and all that was shown after what has been read.
    pub fn end(&mut self) -> (i32, String) {
        let started = Instant::now();
        let status = loop {
            match self.process.status() {
                Some(WaitStatus::Exited(_, status)) => break status,
                Some(WaitStatus::StillAlive) => {}
                other => panic!("{other:?}: {}", self.shown()),
            }
            assert!(started.elapsed() < LONG, "does not end: {}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        };
        let (lock, news) = &*self.screen;
        let mut screen = lock.lock().unwrap();
        while !screen.closed {
            screen = news.wait(screen).unwrap();
        }
        let rest = screen.text[screen.at..].to_owned();
        screen.at = screen.text.len();
        (status, rest)
    }
}

/// Sends a signal to the process of this binary that has `argument` among its arguments.
pub fn signal(argument: &Path, signal: rustix::process::Signal) {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let line = std::fs::read(path.join("cmdline")).ok()?;
        let mut words = line.split(|&byte| byte == 0);
        let is_it =
            words.next()?.ends_with(b"/foretoken") && words.any(|word| word == argument.as_os_str().as_encoded_bytes());
        is_it.then(|| path.file_name()?.to_str()?.parse().ok())?
    });
    let pids: Vec<i32> = pids.collect();
    let [pid] = pids[..] else { panic!("{} processes with {}", pids.len(), argument.display()) };
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}
