//! What a machine can do at most, whoever measures it.

/// A rate of one thread and one of all, each a second; of a device as a whole both are the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// By one thread.
    pub one: f64,
    /// By the team.
    pub all: f64,
}

/// How fast a buffer is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read {
    /// Its size.
    pub bytes: u64,
    /// Bytes a second.
    pub rate: Rate,
}

/// What the machine can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Reading, smallest buffer first; there is at least one.
    pub reads: Vec<Read>,
    /// Operations of int8 dot products; a multiplication and an addition are two.
    pub int8: Rate,
    /// Operations of f32 multiply-adds.
    pub f32: Rate,
}

impl Rates {
    /// How fast `bytes` are read that are read over and over: as the buffer is whose size is the nearest.
    pub fn read(&self, bytes: u64) -> Rate {
        let times = |read: &Read| (read.bytes.max(1) as f64 / bytes.max(1) as f64).ln().abs();
        let nearest = self.reads.iter().min_by(|a, b| times(a).total_cmp(&times(b)));
        nearest.expect("a buffer was read").rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_buffer_tells_how_fast_bytes_are_read() {
        let sizes: [usize; 6] = [1 << 20, 8 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20];
        let rate = Rate { one: 1.0, all: 1.0 };
        let read = |(i, &bytes): (usize, &usize)| Read { bytes: bytes as u64, rate: Rate { all: i as f64, ..rate } };
        let rates = Rates { reads: sizes.iter().enumerate().map(read).collect(), int8: rate, f32: rate };
        for (bytes, nearest) in [
            (0, 0.0),
            (1 << 20, 0.0),
            (2 << 20, 0.0),
            (3 << 20, 1.0),
            (20 << 20, 2.0),
            (40 << 20, 2.0),
            (97_000_000, 4.0),
            (180 << 20, 4.0),
            (182 << 20, 5.0),
            (u64::MAX, 5.0),
        ] {
            assert_eq!(rates.read(bytes).all, nearest, "{bytes}");
        }
    }
}
