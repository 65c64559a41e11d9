//! What `bench` has measured, as one JSON object and as tables.

use super::bound::Speed;
use super::profile::Profile;
use crate::backend::rates::{Rate, Rates};
use serde::Serialize;
use std::io::{self, Write};

/// All of it.
#[derive(Serialize)]
pub struct Figures {
    /// The file.
    pub model: String,
    /// What it runs on: `cpu`, or the kind and number of a device.
    pub device: String,
    /// The instruction set.
    pub isa: String,
    /// Threads of the team.
    pub threads: usize,
    /// All of that for people.
    #[serde(skip)]
    pub place: String,
    /// Bytes of weights that one token's pass reads.
    pub weight_bytes: u64,
    /// What the machine can do.
    pub machine: Machine,
    /// Prompts.
    pub prefill: Vec<Prefill>,
    /// Tokens one by one.
    pub decode: Vec<Decode>,
    /// Passes over so many rows.
    pub widths: Vec<Width>,
    /// Steps, op by op.
    pub profile: Vec<Profile>,
}

/// Rates of the machine, in 10^9 a second.
#[derive(Serialize)]
pub struct Machine {
    read: Vec<Buffer>,
    int8_gop_s: Giga,
    f32_gop_s: Giga,
}

#[derive(Serialize)]
struct Buffer {
    bytes: u64,
    gb_s: Giga,
}

#[derive(Serialize)]
struct Giga {
    one: f64,
    all: f64,
}

impl Giga {
    fn of(rate: Rate) -> Self {
        Self { one: rate.one / 1e9, all: rate.all / 1e9 }
    }
}

impl Machine {
    /// Rates for people.
    pub fn of(rates: &Rates) -> Self {
        let read = rates.reads.iter().map(|read| Buffer { bytes: read.bytes, gb_s: Giga::of(read.rate) }).collect();
        Self { read, int8_gop_s: Giga::of(rates.int8), f32_gop_s: Giga::of(rates.f32) }
    }
}

/// A prompt; times are those of all of it.
#[derive(Serialize)]
pub struct Prefill {
    /// Its length.
    pub tokens: usize,
    /// Tokens a second.
    pub tok_s: f64,
    /// Beside the bound.
    #[serde(flatten)]
    pub speed: Speed,
}

/// Decoding; times are those of a token.
#[derive(Serialize)]
pub struct Decode {
    /// Context before the first token.
    pub depth: usize,
    /// Tokens decoded.
    pub tokens: usize,
    /// Tokens a second.
    pub tok_s: f64,
    /// Beside the bound.
    #[serde(flatten)]
    pub speed: Speed,
}

/// A pass; times are those of it.
#[derive(Serialize)]
pub struct Width {
    /// Its rows.
    pub rows: usize,
    /// Rows a second.
    pub tok_s: f64,
    /// Beside the bound.
    #[serde(flatten)]
    pub speed: Speed,
}

/// The heads of [`cells`].
const HEADS: &str = "      GB/s      GOP/s  % of bound    bound by";

fn cells(speed: &Speed) -> String {
    let Speed { gb_s, gop_s, percent, bound, .. } = speed;
    format!("{gb_s:>10.2} {gop_s:>10.1} {percent:>11.1} {:>11}", bound.name())
}

impl Figures {
    /// The tables people read.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let megabytes = self.weight_bytes as f64 / 1e6;
        writeln!(out, "{}: {megabytes:.1} MB of weights a token, {}", self.model, self.place)?;
        self.machine.print(self.threads, out)?;
        if !self.prefill.is_empty() {
            writeln!(out, "\n{:>8} {:>10} {:>10} {:>10} {HEADS}", "prefill", "tokens", "tok/s", "")?;
            for p in &self.prefill {
                writeln!(out, "{:>8} {:>10} {:>10.1} {:>10} {}", "", p.tokens, p.tok_s, "", cells(&p.speed))?;
            }
        }
        if !self.decode.is_empty() {
            writeln!(out, "\n{:>8} {:>10} {:>10} {:>10} {HEADS}", "decode", "depth", "tok/s", "")?;
            for d in &self.decode {
                writeln!(out, "{:>8} {:>10} {:>10.1} {:>10} {}", "", d.depth, d.tok_s, "", cells(&d.speed))?;
            }
        }
        if let Some(one) = self.widths.iter().min_by_key(|w| w.rows) {
            let over = format!("x {} row{}", one.rows, if one.rows == 1 { "" } else { "s" });
            writeln!(out, "\n{:>8} {:>10} {:>10} {over:>10} {HEADS}", "batch", "rows", "ms")?;
            for w in &self.widths {
                let (ms, times) = (w.speed.ms, w.speed.ms / one.speed.ms);
                writeln!(out, "{:>8} {:>10} {ms:>10.2} {times:>10.2} {}", "", w.rows, cells(&w.speed))?;
            }
        }
        self.profile.iter().try_for_each(|profile| profile.print(out))
    }
}

impl Machine {
    fn print(&self, threads: usize, out: &mut impl Write) -> io::Result<()> {
        let team = if threads > 1 { format!("{threads} threads") } else { String::new() };
        writeln!(out, "\n{:>8} {:>10} {:>10} {team:>10}", "machine", "", "1 thread")?;
        let mut line = |what: &str, rate: &Giga, unit: &str| {
            let all = if threads > 1 { format!("{:.1}", rate.all) } else { String::new() };
            writeln!(out, "{:>8} {what:>10} {:>10.1} {all:>10} {unit:>10}", "", rate.one)
        };
        for buffer in &self.read {
            line(&format!("{} MiB", buffer.bytes >> 20), &buffer.gb_s, "GB/s")?;
        }
        line("int8", &self.int8_gop_s, "GOP/s")?;
        line("f32", &self.f32_gop_s, "GOP/s")
    }
}
