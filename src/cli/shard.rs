//! Which part of a job this process does.

use std::str::FromStr;

/// Part `index` (from 1) of `of` parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    of: u64,
}

impl Shard {
    /// Whether it does line `number` (from 1): every `of`-th from its own index on.
    pub fn has(self, number: u64) -> bool {
        number % self.of == self.index % self.of
    }
}

impl FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, of)) if (1..=of).contains(&index) => Ok(Self { index, of }),
            _ => Err("supported: I/N with I from 1 to N"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_in_one_shard() {
        for of in 1..=7u64 {
            let shards: Vec<Shard> = (1..=of).map(|i| format!("{i}/{of}").parse().unwrap()).collect();
            for number in 1..=50 {
                let owners = shards.iter().filter(|shard| shard.has(number)).count();
                assert_eq!(owners, 1, "line {number} of {of} shards");
            }
            assert!(shards[0].has(1) && shards[of as usize - 1].has(of));
        }
        for text in ["", "1", "0/3", "4/3", "1/0", "-1/3", "1/3/3", "a/b", "1/ 3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
