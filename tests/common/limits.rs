//! Time and memory limits around what is tried on a broken file. The binary that uses them declares [`Counting`] as its
//! allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// What is done with a file; an error is fine, a panic is not.
pub type Step = fn(&Path) -> anyhow::Result<()>;

const SECONDS: u64 = 2;
pub const MEGABYTE: usize = 1 << 20;

/// The system allocator, counting.
pub struct Counting;
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged; the counters touch no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from `alloc` with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Takes turns, for the counters are the process's.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all steps on `path` until one fails; the limits and the form of an error are checked here.
pub fn attempt(
    steps: &[(&str, Step)],
    path: &Path,
    most_bytes: usize,
    what: &dyn Fn() -> String,
) -> Result<(), String> {
    for &(name, step) in steps {
        let before = NOW.load(Relaxed);
        PEAK.store(before, Relaxed);
        let (done, wait) = mpsc::channel();
        let owned = path.to_path_buf();
        let start = Instant::now();
        let worker = thread::spawn(move || {
            let result = step(&owned).map_err(|e| format!("{e:#}"));
            let _ = done.send(());
            result
        });
        let in_time = wait.recv_timeout(Duration::from_secs(SECONDS));
        assert_ne!(in_time, Err(mpsc::RecvTimeoutError::Timeout), "{name} hangs on {}", what());
        let result = worker.join().unwrap_or_else(|_| panic!("{name} panics on {}", what()));
        assert!(start.elapsed() < Duration::from_secs(SECONDS), "{name} is slow on {}", what());
        let used = PEAK.load(Relaxed).saturating_sub(before);
        assert!(used < most_bytes, "{name} takes {used} bytes on {}", what());
        if let Err(e) = &result {
            let file = path.file_name().unwrap().to_str().unwrap();
            assert!(!e.contains('\n') && e.contains(file) && e.len() < 2000, "{}: {e}", what());
        }
        result?;
    }
    Ok(())
}
