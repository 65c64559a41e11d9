//! From a row of logits to a token.
//!
//! The stages, in this order, each a function and a field of [`SampleParams`]:
//!
//! ```text
//! grammar                                                           bans tokens
//!   -> logit bias -> repeat, frequency, presence penalty -> DRY      change single logits
//!   -> top-n-sigma -> top-k -> typical -> top-p -> min-p -> XTC     take tokens away
//!   -> temperature -> keyed draw                                    choose
//! ```
//!
//! Temperature comes last, so it does not change what top-p keeps. At temperature 0 the answer is the arg-max of the
//! edited logits, lowest id first; typical and XTC, which could take the arg-max away, are not asked.
//!
//! The draw is Gumbel-max: of all tokens kept the one with the largest `logit / temperature + noise`. The noise of a
//! token is a pure function of (seed, ordinal, token), so a pick depends on its arguments and never on the picks
//! before it. That is what makes speculation lossless here: whoever asks for the token at a place gets the same one.
//! So it is with a grammar: what it bans follows from the history alone ([`crate::grammar`]).
//!
//! -inf is a mask; NaN and +inf are errors, and so is a row where everything is masked.

#![forbid(unsafe_code)]

mod cut;
mod dry;
mod noise;
mod params;
mod penalty;
mod survey;

pub(crate) use survey::largest;

pub use noise::{Noise, Purpose, derive_seed, gumbel, random_seed};
pub use params::{LogitBias, SampleParams, parse_bias};

use crate::grammar::Constraint;
use crate::tree::Token;
use anyhow::{Result, ensure};
use cut::Candidate;

/// The tokens before the one to pick.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// The context, prompt and anchor included.
    pub committed: &'a [Token],
    /// What the token tree adds to it, down to the node whose logits these are.
    pub path: &'a [Token],
    /// Where in `committed` the generated part begins, which a grammar is about.
    pub start: usize,
}

impl<'a> History<'a> {
    fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.path.is_empty()
    }

    /// What was generated: its part of the context, and the path.
    fn generated(&self) -> (&'a [Token], &'a [Token]) {
        (self.committed.get(self.start..).unwrap_or_default(), self.path)
    }

    /// The `n` latest tokens, or all for -1; latest first.
    fn latest(&self, n: i32, window: &mut Vec<Token>) {
        window.clear();
        let all = self.path.iter().rev().chain(self.committed.iter().rev());
        window.extend(all.take(usize::try_from(n).unwrap_or(usize::MAX)));
    }
}

/// What of a row of logits is enough to pick from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needs {
    /// So many of the largest.
    Largest(usize),
    /// Those that could have the largest `logit / temp + noise`, the noise being that of a draw under `seed`.
    Drawn {
        /// Temperature.
        temp: f32,
        /// Seed of the noise.
        seed: u64,
    },
}

/// Picks tokens. The only state is scratch memory, and what a grammar remembers to be quick.
pub struct Sampler {
    params: SampleParams,
    noise: Noise,
    vocab_size: usize,
    edits: penalty::Edits,
    survey: survey::Survey,
    kept: Vec<Candidate>,
    keyed: Vec<(f64, Candidate)>,
    /// Logits of some tokens among all.
    wide: Vec<f32>,
}

impl Sampler {
    /// A sampler for rows of `vocab_size` logits. `seed` is the resolved one, whatever `params` say; `piece` gives a
    /// token's bytes and is asked only if DRY is on, for its sequence breakers.
    pub fn new(
        params: SampleParams,
        seed: u64,
        vocab_size: usize,
        piece: impl FnMut(Token) -> Vec<u8>,
    ) -> Result<Self> {
        params.validate(vocab_size)?;
        Ok(Self {
            edits: penalty::Edits::new(&params, vocab_size, piece),
            noise: Noise::new(seed),
            survey: survey::Survey::default(),
            kept: Vec::new(),
            keyed: Vec::new(),
            wide: Vec::new(),
            params,
            vocab_size,
        })
    }

    /// Its noise.
    pub fn noise(&self) -> Noise {
        self.noise
    }

    /// Picks only what `constraint` allows from now on.
    pub fn constrain(&mut self, constraint: Option<Constraint>) {
        self.edits.constraint = constraint;
    }

    /// Whether a grammar lets anything follow `history`: not where it is illegal itself, or ends the text.
    pub fn goes_on(&mut self, history: History<'_>) -> bool {
        let (generated, path) = history.generated();
        self.edits.constraint.as_mut().is_none_or(|constraint| constraint.goes_on(generated, path))
    }

    /// Whether what it makes of logits depends on the history, not on the ordinal alone.
    pub fn reads_history(&self) -> bool {
        self.edits.read_history(&self.params)
    }

    /// The options in force.
    pub fn params(&self) -> &SampleParams {
        &self.params
    }

    /// The token that follows `history`, given its `logits`, as number `ordinal` of all tokens generated in the session.
    pub fn pick(&mut self, logits: &[f32], history: History<'_>, ordinal: u64) -> Result<Token> {
        ensure!(self.keep(logits, Some(history), ordinal)?, ALL_MASKED);
        Ok(self.choose(ordinal))
    }

    /// The token, of those kept.
    fn choose(&self, ordinal: u64) -> Token {
        match *self.kept {
            [only] => only.token,
            _ => draw(&self.kept, self.params.temp, self.noise.at(ordinal, Purpose::Draw, [0; 2])),
        }
    }

    /// What of a row's logits [`Sampler::pick`] needs to see, where less than all is enough: nothing changes single logits, and
    /// only the likeliest are kept, or all.
    pub fn needs(&self) -> Option<Needs> {
        let SampleParams { temp, top_k, top_n_sigma, typical, top_p, min_p, xtc_probability, .. } = self.params;
        let all = top_k == 0 || usize::try_from(top_k).is_ok_and(|k| k >= self.vocab_size);
        if self.edits.are_made(&self.params) {
            return None;
        }
        if temp == 0.0 {
            return (self.vocab_size > 1).then_some(Needs::Largest(1));
        }
        if top_n_sigma > 0.0 {
            return None;
        }
        if !all {
            return Some(Needs::Largest(top_k as usize));
        }
        let none_goes = typical >= 1.0 && top_p >= 1.0 && min_p <= 0.0 && xtc_probability <= 0.0;
        none_goes.then_some(Needs::Drawn { temp, seed: self.noise.seed() })
    }

    /// [`Sampler::pick`] from what it [needs](Sampler::needs) of a row, in any order.
    pub fn pick_among(&mut self, few: &[(Token, f32)], ordinal: u64) -> Result<Token> {
        ensure!(!few.is_empty(), ALL_MASKED);
        self.kept.clear();
        self.kept.extend(few.iter().map(|&(token, logit)| Candidate { token, logit }));
        self.kept.sort_unstable_by(cut::by_logit);
        if self.params.temp == 0.0 {
            return Ok(self.kept[0].token);
        }
        self.cut(ordinal);
        Ok(self.choose(ordinal))
    }

    /// The distribution that [`Sampler::pick`] draws from: tokens of non-zero probability, ascending by id. `ordinal`
    /// decides on XTC only.
    pub fn distribution(&mut self, logits: &[f32], history: History<'_>, ordinal: u64) -> Result<Vec<(Token, f64)>> {
        ensure!(self.keep(logits, Some(history), ordinal)?, ALL_MASKED);
        self.kept.sort_unstable_by_key(|c| c.token);
        let max = cut::best(&self.kept);
        let weight = |c: &Candidate| match c {
            c if *c == max => 1.0, // even at temperature 0
            c => heat(*c, max, self.params.temp).exp(),
        };
        let total: f64 = self.kept.iter().map(weight).sum();
        let shares = self.kept.iter().map(|c| (c.token, weight(c) / total));
        Ok(shares.filter(|&(_, share)| share > 0.0).collect())
    }

    /// The `n` tokens that [`Sampler::pick`] would pick from these logits, the runners-up after the pick itself, each
    /// with a guess at the probability that it is the pick from logits a little different; without noise the `n` likeliest
    /// ones with their probabilities.
    ///
    /// At temperature 0 the guess is the token's share of the softmax. Above, noise times temperature is added to the
    /// logits first: the larger the lead of a token after that, the less a small change of logits does to it.
    ///
    /// With `ids`, logit *i* is that of token `ids[i]`, and the other tokens have none. Where a grammar allows none of them
    /// there is nothing to guess.
    pub fn rank(
        &mut self,
        logits: &[f32],
        ids: Option<&[Token]>,
        history: History<'_>,
        ordinal: u64,
        (n, noisy): (usize, bool),
    ) -> Result<Vec<(Token, f64)>> {
        /// At temperature 0 the softmax is taken over the best few.
        const FEW: usize = 64;
        let mut history = Some(history);
        if let Some(ids) = ids {
            if self.edits.are_made(&self.params) {
                let mut wide = std::mem::take(&mut self.wide);
                wide.clear();
                wide.resize(self.vocab_size, f32::NEG_INFINITY);
                ids.iter().zip(logits).for_each(|(&token, &logit)| wide[token as usize] = logit);
                let ranked = self.rank(&wide, None, history.unwrap_or_default(), ordinal, (n, noisy));
                self.wide = wide;
                return ranked;
            }
            history = None;
        }
        let temp = self.params.temp;
        if temp == 0.0 {
            let (params, size) = (&self.params, self.vocab_size);
            let Some(logits) = edit(params, size, &mut self.survey, &mut self.edits, logits, history, false)? else {
                return Ok(vec![]);
            };
            let k = n.max(FEW).min(self.vocab_size);
            self.survey.top_k(logits, f32::NEG_INFINITY, k, &mut self.kept);
        } else if !self.keep(logits, history, ordinal)? {
            return Ok(vec![]);
        }
        if let Some(ids) = ids {
            self.kept.iter_mut().for_each(|kept| kept.token = ids[kept.token as usize]);
        }
        let max = cut::best(&self.kept);
        let mut noise = (noisy && temp > 0.0).then(|| self.noise.at(ordinal, Purpose::Draw, [0; 2]));
        let heated = |c| heat(c, max, if temp == 0.0 { 1.0 } else { temp });
        let score = |&c: &Candidate| match &mut noise {
            Some(noise) => (heated(c) + noise::gumbel(noise.bits(c.token)), c.token),
            None => (heated(c), c.token),
        };
        let mut scored: Vec<(f64, Token)> = self.kept.iter().map(score).collect();
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let scale = if noise.is_some() { f64::from(temp) } else { 1.0 };
        let best = scored[0].0;
        let weight = |score: f64| ((score - best) * scale).exp();
        let total: f64 = scored.iter().map(|&(score, _)| weight(score)).sum();
        scored.truncate(n);
        Ok(scored.into_iter().map(|(score, token)| (token, weight(score) / total)).collect())
    }

    /// Runs all stages up to temperature and leaves the survivors in `kept`; false if every token is masked. Without a
    /// history logits are taken as they are, however many there are.
    fn keep(&mut self, logits: &[f32], history: Option<History<'_>>, ordinal: u64) -> Result<bool> {
        let (params, size) = (&self.params, self.vocab_size);
        let only_best = params.temp == 0.0;
        let Some(logits) = edit(params, size, &mut self.survey, &mut self.edits, logits, history, only_best)? else {
            return Ok(false);
        };
        let max = self.survey.max();
        let kept = &mut self.kept;
        if params.temp == 0.0 {
            kept.clear();
            kept.extend(self.survey.arg_max(logits));
            return Ok(true);
        }
        let floor = cut::top_n_sigma(logits, max, params.top_n_sigma);
        let k = if params.top_k == 0 { size } else { params.top_k as usize };
        self.survey.top_k(logits, floor, k, kept);
        self.cut(ordinal);
        Ok(true)
    }

    /// The stages after top-k, on `kept`.
    fn cut(&mut self, ordinal: u64) {
        let (params, kept) = (&self.params, &mut self.kept);
        cut::typical(kept, params.typical, &mut self.keyed);
        cut::top_p(kept, params.top_p);
        cut::min_p(kept, params.min_p);
        cut::xtc(kept, params.xtc_probability, params.xtc_threshold, || self.noise.coin(ordinal, 0, Purpose::Xtc));
    }
}

const ALL_MASKED: &str = "logits: every token is masked, none can be picked";

/// Runs the stages that change single logits and surveys what they leave; nothing if they mask every token. If the caller
/// looks at the best token alone, and a grammar allows it, others that it bans may stay.
fn edit<'a>(
    params: &SampleParams,
    size: usize,
    survey: &mut survey::Survey,
    edits: &'a mut penalty::Edits,
    logits: &'a [f32],
    history: Option<History<'_>>,
    only_best: bool,
) -> Result<Option<&'a [f32]>> {
    let Some(history) = history else {
        survey.take(logits)?;
        return Ok((survey.max() > f32::NEG_INFINITY).then_some(logits));
    };
    ensure!(logits.len() == size, "logits: found {} values, the vocabulary has {size} tokens", logits.len());
    survey.take(logits)?;
    let mut mask = None;
    let (generated, path) = history.generated();
    let mut best = None;
    if only_best && edits.constraint.is_some() {
        let edited = edits.apply(params, logits, history, None).unwrap_or(logits);
        survey.take(edited)?;
        best = survey.arg_max(edited).filter(|best| best.logit > f32::NEG_INFINITY);
    }
    if let Some(constraint) = &mut edits.constraint {
        let is_legal = best.map_or(Ok(false), |best| constraint.allows(generated, path, best.token))?;
        mask = if is_legal { None } else { Some(constraint.mask(generated, path)?) };
    }
    let logits = match edits.apply(params, logits, history, mask.as_deref()) {
        Some(edited) => {
            survey.take(edited)?;
            edited
        }
        None => logits,
    };
    Ok((survey.max() > f32::NEG_INFINITY).then_some(logits))
}

/// Temperature: a candidate's distance to the largest logit, in units of it. The difference is taken first, so that no
/// temperature is too small.
fn heat(c: Candidate, max: Candidate, temp: f32) -> f64 {
    (f64::from(c.logit) - f64::from(max.logit)) / f64::from(temp)
}

/// Gumbel-max. The bound spares most tokens of a large set the logarithms and changes no outcome.
fn draw(kept: &[Candidate], temp: f32, mut noise: noise::Position) -> Token {
    let max = cut::best(kept);
    let mut winner = (noise::gumbel(noise.bits(max.token)), max.token);
    for &c in kept {
        let distance = heat(c, max, temp);
        let bits = noise.bits(c.token);
        if distance + noise::gumbel_bound(bits) < winner.0 {
            continue;
        }
        let score = distance + noise::gumbel(bits);
        if score > winner.0 || (score == winner.0 && c.token < winner.1) {
            winner = (score, c.token);
        }
    }
    winner.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_logits_are_as_good_as_all_where_they_are_enough() {
        const SIZE: usize = 300;
        let noise = Noise::new(9);
        let d = SampleParams::default;
        let cases = [
            (SampleParams { temp: 0.0, ..d() }, Some(Needs::Largest(1))),
            (d(), Some(Needs::Largest(40))),
            (SampleParams { top_k: 5, typical: 0.7, xtc_probability: 0.5, ..d() }, Some(Needs::Largest(5))),
            (SampleParams { top_k: 299, min_p: 0.0, top_p: 1.0, temp: 2.0, ..d() }, Some(Needs::Largest(299))),
            (SampleParams { top_k: 0, min_p: 0.0, top_p: 1.0, ..d() }, Some(Needs::Drawn { temp: 0.8, seed: 4 })),
            (SampleParams { top_k: 300, min_p: 0.0, top_p: 1.0, ..d() }, Some(Needs::Drawn { temp: 0.8, seed: 4 })),
            (SampleParams { top_k: 300, ..d() }, None),
            (SampleParams { top_k: 0, ..d() }, None),
            (SampleParams { top_n_sigma: 1.0, ..d() }, None),
            (SampleParams { repeat_penalty: 1.1, ..d() }, None),
            (SampleParams { logit_bias: LogitBias(vec![(3, 1.0)]), ..d() }, None),
        ];
        for (params, needs) in cases {
            let mut sampler = Sampler::new(params.clone(), 4, SIZE, |_| vec![]).unwrap();
            let noise_of = sampler.noise();
            assert_eq!(sampler.needs(), needs, "{params:?}");
            let Some(needs) = needs else { continue };
            for (ordinal, levels) in (0..).zip([2, 7, 50, 1000].repeat(20)) {
                // Many equal ones, and masked ones.
                let level = |i: usize| noise.bits(ordinal, i as Token, Purpose::Draw) % levels;
                let logit = |i: usize| if level(i) == 0 { f32::NEG_INFINITY } else { (level(i) % 90) as f32 * 0.1 };
                let logits: Vec<f32> = (0..SIZE).map(logit).collect();
                let mut few: Vec<Candidate> =
                    (0..).zip(&logits).map(|(token, &logit)| Candidate { token, logit }).collect();
                few.retain(|c| c.logit > f32::NEG_INFINITY);
                few.sort_by(cut::by_logit);
                match needs {
                    Needs::Largest(k) => few.truncate(k),
                    Needs::Drawn { temp, .. } => {
                        // As a device whose logarithms are not quite these would have it.
                        let of = |c: &Candidate| {
                            heat(*c, few[0], temp) + gumbel(noise_of.bits(ordinal, c.token, Purpose::Draw))
                        };
                        let scores: Vec<f64> = few.iter().map(of).collect();
                        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let mut score = scores.iter();
                        few.retain(|_| score.next().is_some_and(|&score| score > best - 0.3));
                    }
                }
                few.sort_by_key(|c| c.token.wrapping_mul(2_654_435_761));
                let few: Vec<(Token, f32)> = few.iter().map(|c| (c.token, c.logit)).collect();
                let want = sampler.pick(&logits, History::default(), ordinal).unwrap();
                assert_eq!(sampler.pick_among(&few, ordinal).unwrap(), want, "{params:?} at {ordinal}");
            }
            assert!(sampler.pick_among(&[], 0).is_err());
        }
    }
}
