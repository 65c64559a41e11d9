//! A small team of threads that wakes fast.
//!
//! A matrix product here takes tens of microseconds, so threads that wait for the next one spin for a moment before they
//! park. Work is cut into units that do not depend on one another; members take the next few units whenever they are free,
//! so a straggler costs little, and no result depends on who did what.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::thread::{JoinHandle, Thread};

/// Rounds of spinning before a worker parks, some tens of microseconds: longer than what one thread does alone between
/// the products of a step.
const SPINS: u32 = 4_000;
/// Rounds of spinning before the leader lets others run while it waits: a worker may be waiting for its core.
const LEADER_SPINS: u32 = 1_000;

type Job<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts jobs; a change tells workers that `job` is new.
    epoch: AtomicU32,
    /// Workers that still have to finish the current job.
    busy: AtomicUsize,
    /// The current job; written by the leader while no worker is busy.
    job: UnsafeCell<Option<Job<'static>>>,
    /// Per worker: about to park, or parked.
    parked: Vec<AtomicBool>,
    panicked: AtomicBool,
    quit: AtomicBool,
}

// SAFETY: `job` is written only by the leader while `busy` is zero, and read by workers only after they have seen the
// epoch that was released after the write and before they count themselves out of `busy`.
unsafe impl Sync for Shared {}
// SAFETY: the job is a reference to something `Sync`.
unsafe impl Send for Shared {}

/// The calling thread and `threads - 1` workers.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
}

impl Team {
    /// A team of `threads` members, the caller included.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            busy: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            parked: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
        });
        let mut team = Self { shared, workers: Vec::new(), handles: Vec::new() };
        for worker in 0..workers {
            let shared = team.shared.clone();
            let name = format!("foretoken-{}", worker + 1);
            let handle = std::thread::Builder::new().name(name).spawn(move || work(&shared, worker))?;
            team.handles.push(handle.thread().clone());
            team.workers.push(handle);
        }
        Ok(team)
    }

    /// Members, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job` once on every member, with its number; the caller is number 0. `&mut` because there is one job at a time.
    pub fn run(&mut self, job: Job<'_>) {
        if self.workers.is_empty() {
            return job(0);
        }
        let shared = &*self.shared;
        // SAFETY: no worker is busy, so none reads the cell; and this function does not return, nor unwind, before every
        // worker is done with the reference, so extending its life is never observed.
        unsafe { *shared.job.get() = Some(std::mem::transmute::<Job<'_>, Job<'static>>(job)) };
        shared.busy.store(self.workers.len(), Relaxed);
        shared.epoch.fetch_add(1, SeqCst);
        for (parked, thread) in shared.parked.iter().zip(&self.handles) {
            if parked.load(SeqCst) {
                thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut spins = 0u32;
        while shared.busy.load(Acquire) != 0 {
            spins += 1;
            if spins > LEADER_SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.panicked.swap(false, Relaxed), "a worker thread panicked");
    }

    /// Runs `f` over `0..units` in runs of at most `grain`, spread over the members. `f` also gets the member's number.
    pub fn spread(&mut self, units: usize, grain: usize, f: impl Fn(usize, Range<usize>) + Sync) {
        if units <= grain || self.workers.is_empty() {
            return f(0, 0..units);
        }
        let next = AtomicUsize::new(0);
        self.run(&|member| {
            loop {
                let start = next.fetch_add(grain, Relaxed);
                if start >= units {
                    break;
                }
                f(member, start..(start + grain).min(units));
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        self.shared.epoch.fetch_add(1, SeqCst);
        for thread in &self.handles {
            thread.unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its job's panics, so there is nothing left to report here.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Acquire) == seen {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            // Say so, look again, then sleep: the leader changes the epoch first and looks at `parked` second.
            shared.parked[worker].store(true, SeqCst);
            if shared.epoch.load(SeqCst) == seen {
                std::thread::park();
            }
            shared.parked[worker].store(false, SeqCst);
        }
        seen = seen.wrapping_add(1);
        if shared.quit.load(SeqCst) {
            return;
        }
        // SAFETY: the epoch has changed since this worker last finished, so the leader has written the job and waits.
        let job = unsafe { *shared.job.get() }.expect("a job comes with its epoch");
        if catch_unwind(AssertUnwindSafe(|| job(worker + 1))).is_err() {
            shared.panicked.store(true, Relaxed);
        }
        shared.busy.fetch_sub(1, Release);
    }
}

/// How many threads suit this process: physical cores within its affinity mask, and no more than its CPU quota.
pub fn default_threads() -> usize {
    // Knows the affinity mask and cgroup quotas.
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    allowed.min(physical_cores().unwrap_or(allowed)).max(1)
}

/// Distinct cores among the CPUs this process may run on.
#[cfg(target_os = "linux")]
fn physical_cores() -> Option<usize> {
    let mask = rustix::thread::sched_getaffinity(None).ok()?;
    let mut cores = std::collections::BTreeSet::new();
    for cpu in (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu)) {
        let siblings = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        cores.insert(std::fs::read_to_string(siblings).ok()?);
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(not(target_os = "linux"))]
fn physical_cores() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_once_whatever_the_team() {
        for threads in [1, 2, 3, 7] {
            let mut team = Team::new(threads).unwrap();
            for units in [0, 1, 2, 16, 1000] {
                for grain in [1, 3, 64] {
                    let hits: Vec<AtomicU32> = (0..units).map(|_| AtomicU32::new(0)).collect();
                    team.spread(units, grain, |member, range| {
                        assert!(member < threads && range.len() <= units.max(1));
                        for i in range {
                            hits[i].fetch_add(1, Relaxed);
                        }
                    });
                    assert!(hits.iter().all(|h| h.load(Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn parked_workers_wake() {
        let mut team = Team::new(3).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let sum = AtomicUsize::new(0);
            team.run(&|member| {
                sum.fetch_add(member + 1, Relaxed);
            });
            assert_eq!(sum.into_inner(), 6);
        }
    }

    #[test]
    fn a_panic_of_any_member_reaches_the_caller_and_the_team_goes_on() {
        let mut team = Team::new(2).unwrap();
        for member in [0, 1] {
            let run = catch_unwind(AssertUnwindSafe(|| team.run(&|m| assert_ne!(m, member, "on purpose"))));
            assert!(run.is_err());
            team.run(&|_| {});
        }
    }

    #[test]
    fn a_default_is_sane() {
        assert!((1..=4096).contains(&default_threads()));
    }
}
