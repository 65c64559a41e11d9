//! One pass over all logits: refuse what is no number, and remember the largest of each block. Everything after it
//! (arg-max, the k largest) looks into the few blocks that can matter.

use super::cut::{Candidate, by_logit};
use crate::tree::Token;
use anyhow::{Result, bail};

const BLOCK: usize = 128;
/// Logits of a block where few are surveyed.
const FINE: usize = 16;
const LANES: usize = 8;

#[derive(Default)]
pub(super) struct Survey {
    maxima: Vec<f32>,
    sorted: Vec<f32>,
}

impl Survey {
    /// Fails on NaN and +inf, naming the first.
    pub(super) fn take(&mut self, logits: &[f32]) -> Result<()> {
        self.maxima.clear();
        let mut sane = true;
        for block in logits.chunks(BLOCK) {
            let (max, block_sane) = block_max(block);
            self.maxima.push(max);
            sane &= block_sane;
        }
        if !sane && let Some(token) = logits.iter().position(|x| !is_sane(*x)) {
            bail!("logits: found {} for token {token}, supported finite numbers and -inf", logits[token]);
        }
        Ok(())
    }

    /// The largest logit, -inf when everything is masked.
    pub(super) fn max(&self) -> f32 {
        self.maxima.iter().copied().fold(f32::NEG_INFINITY, larger)
    }

    /// The lowest id with the largest logit.
    pub(super) fn arg_max(&self, logits: &[f32]) -> Option<Candidate> {
        let max = self.max();
        let block = self.maxima.iter().position(|&m| m == max)?;
        let token = logits[block * BLOCK..].iter().position(|&x| x == max)? + block * BLOCK;
        Some(Candidate { token: token as Token, logit: logits[token] })
    }

    /// The `k` largest of all unmasked logits that are at least `floor`: largest first, or by id if that is all of them.
    pub(super) fn top_k(&mut self, logits: &[f32], floor: f32, k: usize, kept: &mut Vec<Candidate>) {
        // The k largest maxima are k logits, so the k-th largest logit is not below the k-th largest maximum. Where blocks
        // are too few for that, smaller ones are made.
        let cut = if k < logits.len() / FINE {
            self.sorted.clear();
            if k < self.maxima.len() {
                self.sorted.extend_from_slice(&self.maxima);
            } else {
                let (blocks, _) = logits.as_chunks::<FINE>();
                self.sorted.extend(blocks.iter().map(|block| block.iter().copied().fold(f32::NEG_INFINITY, larger)));
            }
            floor.max(*self.sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1)
        } else {
            floor
        };
        kept.clear();
        for (i, (block, &max)) in logits.chunks(BLOCK).zip(&self.maxima).enumerate() {
            if max >= cut {
                let some = (i * BLOCK..).zip(block).filter(|&(_, &x)| x >= cut && x > f32::NEG_INFINITY);
                kept.extend(some.map(|(token, &logit)| Candidate { token: token as Token, logit }));
            }
        }
        if k < logits.len() {
            if kept.len() > k {
                kept.select_nth_unstable_by(k - 1, by_logit);
                kept.truncate(k);
            }
            kept.sort_unstable_by(by_logit);
        }
    }
}

/// The lowest id with the largest logit, and that; nothing where one is NaN or +inf, or all are -inf.
pub fn largest(logits: &[f32]) -> Option<(Token, f32)> {
    let mut survey = Survey::default();
    survey.take(logits).ok()?;
    survey.arg_max(logits).map(|top| (top.token, top.logit)).filter(|&(_, logit)| logit > f32::NEG_INFINITY)
}

fn is_sane(x: f32) -> bool {
    x < f32::INFINITY // NaN is not
}

/// One instruction, unlike `f32::max` with its rules for NaN.
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Largest number, and whether all are sane; lane by lane, so that it becomes vector code.
fn block_max(block: &[f32]) -> (f32, bool) {
    let (mut max, mut unfit) = ([f32::NEG_INFINITY; LANES], [0; LANES]);
    let (chunks, tail) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            max[lane] = larger(chunk[lane], max[lane]);
            unfit[lane] |= u32::from(!is_sane(chunk[lane])); // as wide as a lane
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            max[lane] = larger(max[lane], max[lane + half]);
            unfit[lane] |= unfit[lane + half];
        }
        half /= 2;
    }
    let max = tail.iter().fold(max[0], |max, &x| larger(x, max));
    (max, unfit[0] == 0 && tail.iter().all(|&x| is_sane(x)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Noise, noise::Purpose};

    fn logits(seed: u64, n: usize, levels: u64) -> Vec<f32> {
        let noise = Noise::new(seed);
        let draw = |i| noise.bits(0, i as Token, Purpose::Draw) % levels;
        (0..n).map(|i| if draw(i) == 0 { f32::NEG_INFINITY } else { draw(i) as f32 - levels as f32 / 2.0 }).collect()
    }

    #[test]
    fn agrees_with_a_full_sort() {
        let (mut survey, mut kept) = (Survey::default(), Vec::new());
        for n in [1, 2, 7, 127, 128, 129, 260, 1000, 9000] {
            for levels in [1, 2, 5, 1000, 1 << 24] {
                let logits = logits(n as u64 ^ levels, n, levels);
                survey.take(&logits).unwrap();
                let mut want: Vec<Candidate> =
                    (0..).zip(&logits).map(|(token, &logit)| Candidate { token, logit }).collect();
                want.retain(|c| c.logit > f32::NEG_INFINITY);
                want.sort_by(by_logit);
                assert_eq!(survey.max(), want.first().map_or(f32::NEG_INFINITY, |c| c.logit));
                if let Some(first) = want.first() {
                    assert_eq!(survey.arg_max(&logits), Some(*first), "{n} of {levels} levels");
                }
                for k in [1, 2, 3, 40, 64, 100, 561, 562, 999] {
                    for floor in [f32::NEG_INFINITY, 0.0] {
                        survey.take(&logits).unwrap();
                        survey.top_k(&logits, floor, k, &mut kept);
                        kept.sort_by(by_logit); // by id when k reaches all
                        let want: Vec<_> = want.iter().copied().filter(|c| c.logit >= floor).take(k).collect();
                        assert_eq!(kept, want, "{k} of {n}, {levels} levels, floor {floor}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_first_number_that_is_none_is_named() {
        for n in [1, 8, 128, 129, 200, 1000] {
            for at in [0, n / 2, n - 1] {
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    let mut logits = logits(3, n, 9);
                    logits[at..].fill(bad);
                    let error = Survey::default().take(&logits).unwrap_err().to_string();
                    assert!(error.starts_with(&format!("logits: found {bad} for token {at},")), "{error}");
                }
            }
        }
    }

    #[test]
    fn the_largest_is_the_first_of_its_value_and_odd_rows_have_none() {
        for len in [1, 5, 63, 64, 65, 127, 200, 1000] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 + 11) % 23) as f32 - 40.0).collect();
            let first = (0..len).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            assert_eq!(largest(&row), Some((first as Token, row[first])), "{len}");
            assert_eq!(largest(&vec![f32::NEG_INFINITY; len]), None);
            for at in [0, len / 2, len - 1] {
                let with = |x: f32| {
                    let mut row = row.clone();
                    row[at] = x;
                    row
                };
                assert_eq!(largest(&with(7.5)), Some((at as Token, 7.5)));
                assert_eq!((largest(&with(f32::NAN)), largest(&with(f32::INFINITY))), (None, None));
                if len > 1 {
                    assert!(largest(&with(f32::NEG_INFINITY)).is_some());
                }
            }
        }
    }
}
