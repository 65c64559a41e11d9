//! A small team of threads that wakes fast.
//!
//! A matrix product here takes tens of microseconds, so threads that wait for the next one spin for a moment before they
//! park. Work is cut into units that do not depend on one another. Each member begins at the front of a share of its own, so
//! that what it reads lies in one piece and can be asked for ahead; who is done takes from the back of what others have
//! left, so a straggler costs little. No result depends on who did what.
//!
//! Nobody waits for a member that has not begun: on a busy machine a worker may get its core only when the others have
//! done everything, and then it finds the gate closed.
//!
//! What one core wrote takes others as long to read as memory, so a worker that came upon such lines one after the other would
//! begin late: it finds on one line, the door, where all of them are, and asks for them at once.

use super::ahead::Soon;
use crate::isa;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::thread::{JoinHandle, Thread};

/// Rounds of spinning before a worker parks, some tens of microseconds: longer than what one thread does alone between
/// the products of a step.
const SPINS: u32 = 4_000;
/// Rounds of spinning before the leader lets others run while it waits: a worker may be waiting for its core.
const LEADER_SPINS: u32 = 1_000;

/// Cache lines that a worker asks for at most of what a job reads.
const NEAR: usize = 128;

/// What is to be done, and what each member will read after it, who brings it near while it waits; of nobody to leave that
/// as it is.
#[derive(Clone, Copy)]
struct Job<'a> {
    run: &'a (dyn Fn(usize) + Sync),
    soon: &'a [Soon],
}

/// Bits of [`Door::gate`]: workers within, whether it is closed, and the number of the job.
const INSIDE: u64 = (1 << 31) - 1;
const CLOSED: u64 = 1 << 31;
const JOB: u64 = 1 << 32;

/// What workers look at while they wait, on one cache line.
#[repr(align(64))]
struct Door {
    /// Who may work on what: see [`INSIDE`], [`CLOSED`], [`JOB`].
    gate: AtomicU64,
    /// The current job; written by the leader while the gate is closed and no one is inside.
    job: UnsafeCell<Option<Job<'static>>>,
    /// Where cache lines begin that every member reads in the current job, only to be asked for.
    near: [AtomicUsize; 2],
    /// How many they are.
    lines: [AtomicU32; 2],
}

impl Door {
    /// Says where the job's lines are: `[address, bytes]`.
    fn tell(&self, near: [[usize; 2]; 2]) {
        for ((at, lines), [start, bytes]) in self.near.iter().zip(&self.lines).zip(near) {
            let count = (start % 64 + bytes).div_ceil(64).min(NEAR);
            at.store(start - start % 64, Relaxed);
            lines.store(count as u32, Relaxed);
        }
    }

    /// Asks for the lines of the job. They may be those of the next already, or of none: nothing is read.
    fn ask(&self) {
        for (at, lines) in self.near.iter().zip(&self.lines) {
            let at = at.load(Relaxed);
            (0..lines.load(Relaxed) as usize).for_each(|line| isa::prefetch_near((at + 64 * line) as *const u8));
        }
    }
}

struct Shared {
    door: Door,
    /// Units of the current job, by member.
    shares: Vec<Share>,
    /// Per worker: about to park, or parked.
    parked: Vec<AtomicBool>,
    panicked: AtomicBool,
    quit: AtomicBool,
}

// SAFETY: `job` is written only by the leader while the gate is closed and nobody is inside, and read only by workers
// inside, who came through the gate that was opened (released) after the write.
unsafe impl Sync for Shared {}
// SAFETY: the job is a reference to something `Sync`.
unsafe impl Send for Shared {}

/// Units that one member begins with: the first that is left in the upper half, the end in the lower. On cache lines of its
/// own (two, for they are fetched in pairs): members take from their shares all the time.
#[repr(align(128))]
struct Share(AtomicU64);

impl Share {
    fn set(&self, units: Range<usize>) {
        assert!(units.end <= u32::MAX as usize);
        self.0.store((units.start as u64) << 32 | units.end as u64, Relaxed);
    }

    /// Some units from the front: a third of what is left, so that ever less is left in one hand.
    fn take(&self, grain: usize) -> Option<Range<usize>> {
        self.part(|start, end| start..end.min(start + grain.max((end - start) / 3)))
    }

    /// Some units from the back, for who has none.
    fn steal(&self, grain: usize) -> Option<Range<usize>> {
        self.part(|start, end| start.max(end.saturating_sub(grain.max((end - start) / 2)))..end)
    }

    /// Takes the part that `choose` makes of what is left: its front or its back.
    fn part(&self, choose: impl Fn(usize, usize) -> Range<usize>) -> Option<Range<usize>> {
        let mut left = self.0.load(Relaxed);
        loop {
            let (start, end) = ((left >> 32) as usize, (left & u64::from(u32::MAX)) as usize);
            if start >= end {
                return None;
            }
            let part = choose(start, end);
            let rest = if part.start == start { part.end..end } else { start..part.start };
            let new = (rest.start as u64) << 32 | rest.end as u64;
            match self.0.compare_exchange_weak(left, new, Relaxed, Relaxed) {
                Ok(_) => return Some(part),
                Err(now) => left = now,
            }
        }
    }
}

/// The calling thread and `threads - 1` workers.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    /// What the caller will read.
    soon: Soon,
}

impl Team {
    /// A team of `threads` members, the caller included.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            door: Door {
                gate: AtomicU64::new(CLOSED),
                job: UnsafeCell::new(None),
                near: Default::default(),
                lines: Default::default(),
            },
            shares: (0..=workers).map(|_| Share(AtomicU64::new(0))).collect(),
            parked: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
        });
        let mut team = Self { shared, workers: Vec::new(), handles: Vec::new(), soon: Soon::default() };
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

    /// Runs `f` over `0..units` in runs of at least `grain`, as far as there are so many, spread over the members. `f` also
    /// gets the member's number, the caller's being 0. `&mut` because there is one job at a time.
    pub fn spread(&mut self, units: usize, grain: usize, f: impl Fn(usize, Range<usize>) + Sync) {
        self.spread_near::<u8>(units, grain, &[], &[], f);
    }

    /// As [`Team::spread`], also telling the members what all of them will read in `f`, beyond what it captures, and each what it
    /// will read `soon`; of nobody to leave that as it is.
    pub fn spread_near<T: Sync>(
        &mut self,
        units: usize,
        grain: usize,
        input: &[T],
        soon: &[Soon],
        f: impl Fn(usize, Range<usize>) + Sync,
    ) {
        if units <= grain || self.workers.is_empty() {
            return f(0, 0..units);
        }
        let (members, shares) = (self.threads(), &self.shared.shares[..]);
        for (member, share) in shares.iter().enumerate() {
            share.set(units * member / members..units * (member + 1) / members);
        }
        // All that `f` captures is within, not elsewhere.
        let run = move |member: usize| {
            while let Some(range) = shares[member].take(grain) {
                f(member, range);
            }
            for other in (1..members).map(|i| (member + i) % members) {
                while let Some(range) = shares[other].steal(grain) {
                    f(member, range);
                }
            }
        };
        let captured = [(&raw const run) as usize, size_of_val(&run)];
        self.shared.door.tell([captured, [input.as_ptr() as usize, size_of_val(input)]]);
        self.soon = self.run(Job { run: &run, soon }, self.soon);
    }

    /// Runs `job` on the caller and on every worker that comes before the caller is done with its own run. `soon` is what the caller
    /// was to read after the job before, which is given back where this one has nothing to say of that.
    fn run(&self, job: Job<'_>, soon: Soon) -> Soon {
        let (shared, door) = (&*self.shared, &self.shared.door);
        // SAFETY: the gate is closed and nobody is inside, so no one reads the cell; and this function neither returns nor
        // unwinds before it is so again, so extending the reference's life is never observed.
        unsafe { *door.job.get() = Some(std::mem::transmute::<Job<'_>, Job<'static>>(job)) };
        // Open, empty, the next number (which may wrap: no worker sleeps through 2^32 jobs and meets the same one).
        let open = (door.gate.load(Relaxed) & !(INSIDE | CLOSED)).wrapping_add(JOB);
        door.gate.store(open, SeqCst);
        for (parked, thread) in shared.parked.iter().zip(&self.handles) {
            if parked.load(SeqCst) {
                thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| (job.run)(0)));
        door.gate.fetch_or(CLOSED, AcqRel);
        let mut soon = job.soon.first().copied().unwrap_or(soon);
        let mut spins = 0u32;
        while door.gate.load(Acquire) & INSIDE != 0 {
            if soon.ask() {
                continue;
            }
            spins += 1;
            if spins > LEADER_SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        // Most often it is not, and then nothing is written to what the workers look at.
        let panicked = shared.panicked.load(Relaxed) && shared.panicked.swap(false, Relaxed);
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!panicked, "a worker thread panicked");
        soon
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        self.shared.door.gate.fetch_add(JOB, SeqCst);
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
    let number = |gate: u64| gate / JOB;
    let door = &shared.door;
    let mut seen = 0;
    // What this member will read, and what the leader will, who is busy between jobs.
    let mut soon = [Soon::default(); 2];
    loop {
        let mut spins = 0;
        while number(door.gate.load(Acquire)) == seen {
            if soon.iter_mut().any(Soon::ask) {
                continue;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            // The end may have come while a job's number was being read, and been taken for that job.
            if shared.quit.load(SeqCst) {
                return;
            }
            // Say so, look again, then sleep: the leader opens the gate first and looks at `parked` second.
            shared.parked[worker].store(true, SeqCst);
            if number(door.gate.load(SeqCst)) == seen {
                std::thread::park();
            }
            shared.parked[worker].store(false, SeqCst);
        }
        if shared.quit.load(SeqCst) {
            return;
        }
        door.ask();
        isa::prefetch_near((&raw const shared.shares[worker + 1]).cast());
        // Through the gate, if it is still open: for the newest job, whatever was slept through.
        let mut gate = door.gate.load(Acquire);
        loop {
            seen = number(gate);
            if gate & CLOSED != 0 {
                break;
            }
            match door.gate.compare_exchange_weak(gate, gate + 1, AcqRel, Acquire) {
                Ok(_) => {
                    // SAFETY: inside: the leader has written the job before it opened the gate and waits for this one.
                    let job = unsafe { *door.job.get() }.expect("a job comes with its number");
                    let mine = job.soon.get(worker + 1);
                    mine.iter().for_each(|&soon| isa::prefetch_near((&raw const *soon).cast()));
                    if catch_unwind(AssertUnwindSafe(|| (job.run)(worker + 1))).is_err() {
                        shared.panicked.store(true, Relaxed);
                    }
                    if let Some(&mine) = mine {
                        soon = [mine, if worker == 0 { job.soon[0] } else { Soon::default() }];
                    }
                    door.gate.fetch_sub(1, Release);
                    break;
                }
                Err(now) => gate = now,
            }
        }
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
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_team_may_end_right_after_a_job() {
        for i in 0..2000 {
            let mut team = Team::new(2).unwrap();
            (0..i % 4).for_each(|_| team.spread(2, 1, |_, _| ()));
        }
    }

    #[test]
    fn every_unit_once_whatever_the_team() {
        for threads in [1, 2, 3, 7] {
            let mut team = Team::new(threads).unwrap();
            for units in [0, 1, 2, 16, 1000] {
                for grain in [1, 3, 64] {
                    let hits: Vec<AtomicUsize> = (0..units).map(|_| AtomicUsize::new(0)).collect();
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
    fn workers_that_parked_take_part_again() {
        let mut team = Team::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            // The first unit waits for the second to be taken, so both members must be there.
            let both = std::sync::Barrier::new(2);
            team.spread(2, 1, |_, _| {
                both.wait();
            });
        }
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_not_begun() {
        let mut team = Team::new(2).unwrap();
        for _ in 0..2000 {
            // Jobs much shorter than a wake-up: some end before the worker comes, none is run for another.
            let sum = AtomicUsize::new(0);
            team.spread(4, 1, |_, range| {
                sum.fetch_add(range.start + 1, Relaxed);
            });
            assert_eq!(sum.into_inner(), 10);
        }
    }

    #[test]
    fn a_panic_of_any_member_reaches_the_caller_and_the_team_goes_on() {
        let mut team = Team::new(2).unwrap();
        for member in [0, 1] {
            let both = std::sync::Barrier::new(2);
            let run = catch_unwind(AssertUnwindSafe(|| {
                team.spread(2, 1, |m, _| {
                    both.wait();
                    assert_ne!(m, member, "on purpose");
                })
            }));
            assert!(run.is_err());
            team.spread(8, 1, |_, _| {});
        }
    }

    #[test]
    fn the_door_is_one_line_and_tells_of_whole_lines() {
        assert_eq!((size_of::<Door>(), align_of::<Door>()), (64, 64));
        let team = Team::new(2).unwrap();
        let door = &team.shared.door;
        let told = |near: [[usize; 2]; 2]| {
            door.tell(near);
            door.ask(); // of addresses that need not be there
            [0, 1].map(|i| (door.near[i].load(Relaxed), door.lines[i].load(Relaxed)))
        };
        assert_eq!(told([[64, 64], [130, 1]]), [(64, 1), (128, 1)]);
        assert_eq!(told([[100, 92], [127, 2]]), [(64, 2), (64, 2)]);
        assert_eq!(told([[640, 0], [0, 1 << 30]]), [(640, 0), (0, NEAR as u32)]);
    }

    #[test]
    fn a_default_is_sane() {
        assert!((1..=4096).contains(&default_threads()));
    }
}
