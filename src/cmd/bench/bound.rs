//! How fast a pass can be at most: the longer of reading its bytes and doing its operations, at the rates of the machine.
//!
//! *Bytes* are the weights as the file encodes them, each read once a pass (the head only by passes that give logits), and
//! the keys and values of every position that a row of the pass sees, each read once. *Operations* are two for every element
//! of a matrix and row, and two each for every product of a query with a key and of a score with a value. Products of
//! weights run at the rate of int8 or, where they are floats, of f32; attention at that of f32. Not counted are norms, activations, rotations,
//! exponentials, embeddings and what a pass writes: they are why nothing reaches 100 %. How fast bytes are read is taken from the buffer
//! whose size is nearest to those of the pass, so that weights that fit a cache are held against that cache.

use crate::backend::rates::Rates;
use crate::backend::{Backend, KvType};
use crate::model::{Matrices, Model};
use serde::Serialize;

/// What one pass has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Bytes to read.
    pub bytes: u64,
    /// Operations on int8.
    pub int8: u64,
    /// Operations on f32.
    pub float: u64,
}

/// What passes of a model are made of.
#[derive(Clone, Debug)]
pub struct Cost {
    layers: Matrices,
    head: Matrices,
    /// Bytes of weights that are no matrices.
    vectors: u64,
    /// Bytes of keys and values of a position in one layer.
    kv: u64,
    /// Elements of a query, all heads.
    query: u64,
    /// The window of every layer.
    windows: Vec<Option<usize>>,
}

/// What holds a pass up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Reading.
    Bytes,
    /// Multiplying.
    Operations,
}

impl Limit {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Bytes => "bytes",
            Limit::Operations => "operations",
        }
    }
}

/// A time beside the least it could be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Milliseconds.
    pub ms: f64,
    /// Bytes to read.
    pub bytes: f64,
    /// Operations to do.
    pub operations: f64,
    /// 10^9 bytes a second.
    pub gb_s: f64,
    /// 10^9 operations a second.
    pub gop_s: f64,
    /// Milliseconds at least.
    pub bound_ms: f64,
    /// Why not less.
    pub bound: Limit,
    /// The bound's share of the time, in percent.
    pub percent: f64,
}

impl Cost {
    /// Of a model with a cache of type `kv`; `widened` when its int8 weights were made f32.
    pub fn of<B: Backend>(model: &Model<B>, kv: KvType, widened: bool) -> Self {
        let (layers, head, config) = (model.layer_matrices(), model.head_matrices(), model.config());
        let widen = |m: Matrices| match widened {
            true => {
                Matrices { int8: 0, int8_bytes: 0, float: m.float + m.int8, float_bytes: m.float_bytes + 4 * m.int8 }
            }
            false => m,
        };
        Self {
            vectors: model.weight_bytes().saturating_sub(bytes(&layers) + bytes(&head)),
            layers: widen(layers),
            head: widen(head),
            kv: 2 * kv.bytes(config.kv_heads * config.head_width) as u64,
            query: (config.heads * config.head_width) as u64,
            windows: (0..config.layers).map(|layer| config.attention(layer).window).collect(),
        }
    }

    /// A pass of `rows` rows that follow one another, on top of `base` positions, with logits of `head_rows` of them.
    pub fn pass(&self, base: usize, rows: usize, head_rows: usize) -> Pass {
        let of = |m: &Matrices, rows: usize| [2 * m.int8 * rows as u64, 2 * m.float * rows as u64];
        let ([int8, float], [head_int8, head_float]) = (of(&self.layers, rows), of(&self.head, head_rows));
        let head_bytes = if head_rows > 0 { bytes(&self.head) } else { 0 };
        let mut pass = Pass {
            bytes: self.vectors + bytes(&self.layers) + head_bytes,
            int8: int8 + head_int8,
            float: float + head_float,
        };
        for window in &self.windows {
            let window = window.unwrap_or(usize::MAX);
            let first = (base + 1).saturating_sub(window);
            pass.bytes += (base + rows - first) as u64 * self.kv;
            let seen: u64 = (base + 1..=base + rows).map(|seen| seen.min(window) as u64).sum();
            pass.float += 4 * seen * self.query;
        }
        pass
    }
}

fn bytes(m: &Matrices) -> u64 {
    m.int8_bytes + m.float_bytes
}

impl Speed {
    /// Of `passes` that took `seconds` together, one of `parts` equal parts of it. Every pass has to end before the next.
    pub fn of(passes: impl IntoIterator<Item = Pass>, seconds: f64, parts: usize, rates: &Rates) -> Self {
        let (mut bytes, mut operations) = (0.0, 0.0);
        let (mut least, mut reading, mut multiplying) = (0.0, 0.0, 0.0);
        for pass in passes {
            bytes += pass.bytes as f64;
            operations += (pass.int8 + pass.float) as f64;
            let read = pass.bytes as f64 / rates.read(pass.bytes).all;
            let multiply = pass.int8 as f64 / rates.int8.all + pass.float as f64 / rates.f32.all;
            reading += read;
            multiplying += multiply;
            least += f64::max(read, multiply);
        }
        let parts = parts as f64;
        Self {
            ms: seconds * 1e3 / parts,
            bytes: bytes / parts,
            operations: operations / parts,
            gb_s: bytes / seconds / 1e9,
            gop_s: operations / seconds / 1e9,
            bound_ms: least * 1e3 / parts,
            bound: if reading >= multiplying { Limit::Bytes } else { Limit::Operations },
            percent: 100.0 * least / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::rates::{Rate, Read};

    fn cost() -> Cost {
        let layers = Matrices { int8: 1000, int8_bytes: 600, float: 10, float_bytes: 20 };
        let head = Matrices { int8: 500, int8_bytes: 300, ..Matrices::default() };
        Cost { layers, head, vectors: 7, kv: 8, query: 3, windows: vec![None, Some(4)] }
    }

    #[test]
    fn passes_read_weights_once_and_what_their_rows_see() {
        for (base, rows, head_rows, bytes, int8, float) in [
            // One position in either layer.
            (0, 1, 1, 927 + 2 * 8, 3000, 20 + 4 * 3 * 2),
            // No logits: no head.
            (0, 1, 0, 627 + 2 * 8, 2000, 20 + 4 * 3 * 2),
            // All eleven, and four through the window.
            (10, 1, 1, 927 + 15 * 8, 3000, 20 + 4 * 3 * 15),
            // Rows see 11, 12, 13 positions, through the window four each, which are six in all.
            (10, 3, 1, 927 + (13 + 6) * 8, 7000, 60 + 4 * 3 * (36 + 12)),
            // Within the window: 2, 3, 4, then 4.
            (1, 4, 4, 927 + (5 + 5) * 8, 12000, 80 + 4 * 3 * (14 + 13)),
        ] {
            let pass = cost().pass(base, rows, head_rows);
            assert_eq!(pass, Pass { bytes, int8, float }, "{base} {rows} {head_rows}");
        }
    }

    #[test]
    fn the_bound_is_the_longer_of_reading_and_multiplying() {
        let rate = |all| Rate { one: 1.0, all };
        let reads = vec![Read { bytes: 1000, rate: rate(1e9) }, Read { bytes: 1_000_000, rate: rate(1e8) }];
        let rates = Rates { reads, int8: rate(1e10), f32: rate(1e9) };
        let small = Pass { bytes: 2000, int8: 1000, float: 0 }; // 2 us to read, 0.1 us to multiply
        let large = Pass { bytes: 500_000, int8: 10_000, float: 1000 }; // 5 ms to read, 2 us
        let heavy = Pass { bytes: 2000, int8: 20_000, float: 1000 }; // 2 us, 3 us
        for (passes, seconds, parts, bound_us, bound, percent) in [
            (vec![small], 4e-6, 1, 2.0, Limit::Bytes, 50.0),
            (vec![large], 1e-2, 1, 5000.0, Limit::Bytes, 50.0),
            (vec![heavy], 30e-6, 1, 3.0, Limit::Operations, 10.0),
            // Each pass has its own bound: 2 + 3 us, of which 4 reading and 3.1 multiplying.
            (vec![small, heavy], 10e-6, 2, 2.5, Limit::Bytes, 50.0),
        ] {
            let sum = |of: fn(&Pass) -> u64| passes.iter().map(of).sum::<u64>() as f64;
            let (bytes, operations) = (sum(|p| p.bytes), sum(|p| p.int8 + p.float));
            let speed = Speed::of(passes.clone(), seconds, parts, &rates);
            let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{passes:?}: {a}, not {b}");
            close(speed.ms, seconds * 1e3 / parts as f64);
            close(speed.bytes * parts as f64, bytes);
            close(speed.operations * parts as f64, operations);
            close(speed.gb_s, bytes / seconds / 1e9);
            close(speed.gop_s, operations / seconds / 1e9);
            close(speed.bound_ms * 1e3, bound_us);
            close(speed.percent, percent);
            assert_eq!(speed.bound, bound, "{passes:?}");
        }
    }
}
