//! What this machine can do at most: bytes read and operations done in a second, by one thread and by the whole team.
//!
//! Measured with what the kernels are made of, so that a bound made of these rates is one the kernels could reach: memory
//! on huge pages as weights have it, read line by line with the kernels' own prefetch and split over the team as panels
//! are; [`Simd::dot`] ([`Simd::pairs`], where these are added first) and [`Simd::fma`] on operands that are at hand. Each
//! rate is the best of several runs, for a run can only be disturbed, never helped.

use super::Cpu;
use super::team::Team;
use super::weight::Arena;
use crate::backend::rates::{Rate, Rates, Read};
use crate::isa::{Isa, Kernel, Simd};
use crate::quant::panel::AHEAD;
use anyhow::Result;
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes of the buffers that are read: in the caches of cores, in one that they share, partly in that, and in none.
const SIZES: [usize; 6] = [1 << 20, 8 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20];
/// Bytes that a run reads at least, over and over: a run must be long beside the clock's and the team's own time.
const READ: usize = 64 << 20;
/// Lines that are read together.
const TOGETHER: usize = 4;
/// How long a run of multiplications should take.
const RUN: Duration = Duration::from_millis(1);
/// Operands of one unit of multiplications: they stay in the first cache.
const OPERANDS: usize = 1536;
/// Times that a unit goes over them.
const TIMES: usize = 16;
/// Lanes, and products of one lane in a dot.
const LANES: usize = 16;
const DOT: usize = 4;

impl Cpu {
    /// Measures, `each` long for every rate, with buffers of at most `room` bytes (but one of a MiB in any case).
    pub(super) fn measure(&self, room: u64, each: Duration) -> Result<Rates> {
        let sizes = SIZES.iter().enumerate().filter(|&(i, &bytes)| i == 0 || bytes as u64 <= room);
        let sizes: Vec<usize> = sizes.map(|(_, &bytes)| bytes).collect();
        let mut buffer = Arena::default().take(sizes[sizes.len() - 1])?;
        // Pages that were never written are all the same page of zeros.
        buffer.bytes_mut().fill(1);
        let lines = buffer.bytes().as_chunks().0;
        let (isa, team) = (self.isa, &mut self.work().team);
        let reads = sizes.iter().map(|&bytes| {
            let lines = &lines[..bytes / 64];
            let rate = rate(team, |crew| best(each, || read(isa, crew, lines)));
            Read { bytes: bytes as u64, rate }
        });
        let reads = reads.collect();

        // Products that add up to nothing, so that no sum overflows.
        let (w, x) = (&[37; 64], &[0xfd03_fd03_u32 as i32; OPERANDS]);
        let few = || isa.dispatch(Dots::<4> { w: black_box(w), x: black_box(x) });
        let many = || isa.dispatch(Dots::<12> { w: black_box(w), x: black_box(x) });
        let int8 = rate(team, |crew| multiply(crew, each, [&few, &many], 2 * DOT * LANES));
        let (w, x) = (&[0.5; LANES], &[0.25; OPERANDS]);
        let few = || isa.dispatch(Fmas::<4> { w: black_box(w), x: black_box(x) });
        let many = || isa.dispatch(Fmas::<12> { w: black_box(w), x: black_box(x) });
        let f32 = rate(team, |crew| multiply(crew, each, [&few, &many], 2 * LANES));
        Ok(Rates { reads, int8, f32 })
    }
}

/// Who does the work: the caller alone, or the team.
struct Crew<'a>(Option<&'a mut Team>);

impl Crew<'_> {
    fn threads(&self) -> usize {
        self.0.as_ref().map_or(1, |team| team.threads())
    }

    fn spread(&mut self, units: usize, f: impl Fn(Range<usize>) + Sync) {
        match &mut self.0 {
            None => f(0..units),
            Some(team) => team.spread(units, 1, |_, range| f(range)),
        }
    }
}

fn rate(team: &mut Team, mut measure: impl FnMut(&mut Crew<'_>) -> f64) -> Rate {
    let one = measure(&mut Crew(None));
    Rate { one, all: if team.threads() > 1 { measure(&mut Crew(Some(team))) } else { one } }
}

/// The best rate of runs that tell how much they did, two at least.
fn best(each: Duration, mut run: impl FnMut() -> f64) -> f64 {
    let begun = Instant::now();
    let (mut best, mut runs) = (0.0, 0);
    while runs < 2 || begun.elapsed() < each {
        let started = Instant::now();
        let done = run();
        best = f64::max(best, done / started.elapsed().max(Duration::from_nanos(1)).as_secs_f64());
        runs += 1;
    }
    best
}

/// Reads `lines`, often enough to take a while; gives the bytes.
fn read(isa: Isa, crew: &mut Crew<'_>, lines: &[[u8; 64]]) -> f64 {
    let unit = (lines.len() / (8 * crew.threads())).next_multiple_of(TOGETHER);
    let times = (READ / 64 / lines.len()).max(1);
    for _ in 0..times {
        crew.spread(lines.len().div_ceil(unit), |units| {
            let lines = &lines[units.start * unit..lines.len().min(units.end * unit)];
            black_box(isa.dispatch(Lines(lines)));
        });
    }
    (times * lines.len() * 64) as f64
}

/// Operations a second of the better of two kernels, of which one suits instruction sets with few registers.
fn multiply(crew: &mut Crew<'_>, each: Duration, kernels: [&(dyn Fn() -> f32 + Sync); 2], operations: usize) -> f64 {
    let started = Instant::now();
    black_box(kernels[0]());
    let fit = RUN.as_nanos() / started.elapsed().as_nanos().max(1);
    let units = fit.clamp(1, 256) as usize * crew.threads();
    let mut runs = 0;
    best(each, || {
        let kernel = kernels[runs % 2];
        runs += 1;
        crew.spread(units, |units| {
            for _ in units {
                black_box(kernel());
            }
        });
        (units * TIMES * OPERANDS * operations) as f64
    })
}

/// Reads whole lines.
struct Lines<'a>(&'a [[u8; 64]]);

impl Kernel for Lines<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let mut seen = [S::bytes(&[0; 64]); TOGETHER];
        for lines in self.0.as_chunks::<TOGETHER>().0 {
            for (line, seen) in lines.iter().zip(&mut seen) {
                S::prefetch(line.as_ptr().wrapping_add(AHEAD));
                *seen = S::or(*seen, S::bytes(line));
            }
        }
        let seen = S::or(S::or(seen[0], seen[1]), S::or(seen[2], seen[3]));
        S::sum(S::to_f32(S::dot(S::isplat(0), S::and(seen, 1), 1)))
    }
}

/// Dots into `N` sums by turns, as a product with `N` rows of a batch has them. What they come to does not matter.
struct Dots<'a, const N: usize> {
    w: &'a [u8; 64],
    x: &'a [i32; OPERANDS],
}

impl<const N: usize> Kernel for Dots<'_, N> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let w = S::bytes(self.w);
        let mut sums = [S::isplat(0); N];
        for _ in 0..TIMES {
            for x in self.x.as_chunks::<N>().0 {
                for (sum, &x) in sums.iter_mut().zip(x) {
                    *sum = if S::PAIRS { S::pairs(*sum, w, x) } else { S::dot(*sum, w, x) };
                }
            }
        }
        let mut all = S::isplat(0);
        for sum in sums {
            all = S::iadd(all, sum);
        }
        S::sum(S::to_f32(all))
    }
}

/// Multiply-adds into `N` sums by turns.
struct Fmas<'a, const N: usize> {
    w: &'a [f32; LANES],
    x: &'a [f32; OPERANDS],
}

impl<const N: usize> Kernel for Fmas<'_, N> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let w = S::load(self.w);
        let mut sums = [S::splat(0.0); N];
        for _ in 0..TIMES {
            for x in self.x.as_chunks::<N>().0 {
                for (sum, &x) in sums.iter_mut().zip(x) {
                    *sum = S::fma(w, S::splat(x), *sum);
                }
            }
        }
        let mut all = S::splat(0.0);
        for sum in sums {
            all = S::add(all, sum);
        }
        S::sum(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_is_measured_within_the_room() {
        for isa in Isa::available() {
            for threads in [1, 2] {
                let cpu = Cpu::new(isa, threads).unwrap();
                for (room, sizes) in [(0, 1), (8 << 20, 2), ((64 << 20) - 1, 3)] {
                    let rates = cpu.measure(room, Duration::ZERO).unwrap();
                    assert_eq!(rates.reads.len(), sizes, "{room}");
                    let all = rates.reads.iter().map(|read| read.rate).chain([rates.int8, rates.f32]);
                    for Rate { one, all } in all {
                        assert!(one.is_finite() && one > 1e6 && all.is_finite() && all > 1e6, "{rates:?}");
                        assert!(threads > 1 || one == all, "{rates:?}");
                    }
                }
            }
        }
    }
}
