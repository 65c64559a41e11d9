//! The stages that take tokens away. Each works on unordered candidates and compares logits, then ids, so that ties
//! have one outcome; each normalises over what the stages before it left. At least one token always stays.

use crate::tree::Token;
use std::cmp::Ordering;

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: Token,
    pub(super) logit: f32,
}

/// Largest logit first, lowest id first among equals. Logits are no NaN here.
pub(super) fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// The first of [`by_logit`].
pub(super) fn best(kept: &[Candidate]) -> Candidate {
    *kept.iter().min_by(|a, b| by_logit(a, b)).expect("a stage leaves at least one token")
}

/// Probability of a logit over that of the largest.
fn weight(c: Candidate, max: f32) -> f64 {
    (f64::from(c.logit) - f64::from(max)).exp()
}

fn total(kept: &[Candidate], max: f32) -> f64 {
    kept.iter().map(|&c| weight(c, max)).sum()
}

/// Top-n-sigma (Tang et al., arXiv 2411.07641): the lowest logit within `n` standard deviations of the largest.
pub(super) fn top_n_sigma(logits: &[f32], max: f32, n: f32) -> f32 {
    if n <= 0.0 {
        return f32::NEG_INFINITY;
    }
    let unmasked = || logits.iter().filter(|&&x| x > f32::NEG_INFINITY).map(|&x| f64::from(x));
    let count = unmasked().count() as f64;
    let mean = unmasked().sum::<f64>() / count;
    let variance = unmasked().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    // Rounding to f32 is monotonic: never above the largest logit.
    (f64::from(max) - f64::from(n) * variance.sqrt()) as f32
}

/// Locally typical sampling (Meister et al., arXiv 2202.00666): the tokens whose surprise is nearest to the expected
/// surprise, until they hold the mass `p`.
pub(super) fn typical(kept: &mut Vec<Candidate>, p: f32, keyed: &mut Vec<(f64, Candidate)>) {
    if p >= 1.0 || kept.len() < 2 {
        return;
    }
    let max = best(kept).logit;
    let total = total(kept, max);
    let surprise = |c: Candidate| total.ln() + f64::from(max) - f64::from(c.logit);
    let entropy: f64 = kept
        .iter()
        .map(|&c| (weight(c, max) / total, surprise(c)))
        .filter(|&(share, _)| share > 0.0)
        .map(|(share, surprise)| share * surprise)
        .sum();
    keyed.clear();
    keyed.extend(kept.iter().map(|&c| ((surprise(c) - entropy).abs(), c)));
    keyed.sort_unstable_by(|(a, c), (b, d)| a.total_cmp(b).then(c.token.cmp(&d.token)));
    kept.clear();
    let mut mass = 0.0;
    for &(_, c) in keyed.iter() {
        kept.push(c);
        mass += weight(c, max) / total;
        if mass > f64::from(p) {
            break;
        }
    }
}

/// Nucleus sampling (Holtzman et al., arXiv 1904.09751): the likeliest tokens, until they hold the mass `p`.
pub(super) fn top_p(kept: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || kept.len() < 2 {
        return;
    }
    let max = best(kept).logit;
    let goal = f64::from(p) * total(kept, max);
    let (mut mass, mut done, mut step) = (0.0, 0, 128);
    // The nucleus is mostly small: order only as much as it takes, twice as much each time.
    while done < kept.len() {
        let rest = &mut kept[done..];
        if step < rest.len() {
            rest.select_nth_unstable_by(step - 1, by_logit);
        }
        let end = step.min(rest.len());
        rest[..end].sort_unstable_by(by_logit);
        for &c in &rest[..end] {
            mass += weight(c, max);
            done += 1;
            if mass >= goal {
                return kept.truncate(done);
            }
        }
        step *= 2;
    }
}

/// Min-p (Nguyen et al., arXiv 2407.01082): tokens at least `p` times as likely as the likeliest.
pub(super) fn min_p(kept: &mut Vec<Candidate>, p: f32) {
    if p > 0.0 {
        let floor = f64::from(best(kept).logit) + f64::from(p).ln();
        kept.retain(|c| f64::from(c.logit) >= floor);
    }
}

/// XTC ("exclude top choices", by p-e-w): of the tokens at least as likely as `threshold` all but the least likely go,
/// when the coin falls so.
pub(super) fn xtc(kept: &mut Vec<Candidate>, probability: f32, threshold: f32, coin: impl FnOnce() -> f64) {
    if probability <= 0.0 || threshold > 0.5 || kept.len() < 2 || coin() >= f64::from(probability) {
        return;
    }
    let max = best(kept).logit;
    let floor = f64::from(threshold) * total(kept, max);
    let choices = kept.iter().copied().filter(|&c| weight(c, max) >= floor);
    if let Some(last) = choices.max_by(by_logit) {
        kept.retain(|&c| c == last || weight(c, max) < floor);
    }
}
