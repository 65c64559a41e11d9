//! The stages that change single logits: a grammar's mask, bias, repetition penalties, DRY. They come first, on a copy,
//! and only when asked for.

use super::{History, SampleParams, dry::Dry};
use crate::grammar::{Constraint, Mask};
use crate::tree::Token;

/// The edited copy and what making it needs.
pub(super) struct Edits {
    logits: Vec<f32>,
    tally: Tally,
    dry: Option<Dry>,
    /// What makes the mask, if anything does.
    pub(super) constraint: Option<Constraint>,
    /// History within the reach of a penalty, latest first.
    window: Vec<Token>,
}

impl Edits {
    pub(super) fn new(params: &SampleParams, vocab_size: usize, piece: impl FnMut(Token) -> Vec<u8>) -> Self {
        let dry = Dry::is_on(params).then(|| Dry::new(&params.dry_sequence_breakers, vocab_size, piece));
        Self {
            logits: Vec::new(),
            tally: Tally { counts: vec![0; vocab_size], seen: Vec::new() },
            dry,
            constraint: None,
            window: Vec::new(),
        }
    }

    /// Whether the edits depend on what comes before.
    pub(super) fn read_history(&self, params: &SampleParams) -> bool {
        penalties_are_on(params) || self.dry.is_some() || self.constraint.is_some()
    }

    /// Whether there are any edits to make.
    pub(super) fn are_made(&self, params: &SampleParams) -> bool {
        self.read_history(params) || !params.logit_bias.0.is_empty()
    }

    /// The logits with all edits made, or `None` when there are none to make.
    pub(super) fn apply(
        &mut self,
        params: &SampleParams,
        logits: &[f32],
        history: History<'_>,
        mask: Option<&Mask>,
    ) -> Option<&[f32]> {
        let penalised = penalties_are_on(params) && !history.is_empty();
        let dry = self.dry.as_mut().filter(|_| !history.is_empty());
        if mask.is_none() && params.logit_bias.0.is_empty() && !penalised && dry.is_none() {
            return None;
        }
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        if let Some(mask) = mask {
            mask.apply(&mut self.logits);
        }
        add_bias(&mut self.logits, &params.logit_bias.0);
        if penalised {
            history.latest(params.repeat_last_n, &mut self.window);
            penalise(&mut self.logits, params, &self.window, &mut self.tally);
        }
        if let Some(dry) = dry {
            history.latest(params.dry_penalty_last_n, &mut self.window);
            dry.penalise(&mut self.logits, params, &self.window, &mut self.tally);
        }
        Some(&self.logits)
    }
}

/// A number per token, zero but for those in `seen`.
pub(super) struct Tally {
    counts: Vec<u32>,
    seen: Vec<Token>,
}

impl Tally {
    /// Replaces the number of `token`, given the old one, by a number above zero. Ids outside the vocabulary are left out.
    pub(super) fn update(&mut self, token: Token, change: impl FnOnce(u32) -> u32) {
        if let Some(count) = self.counts.get_mut(token as usize) {
            if *count == 0 {
                self.seen.push(token);
            }
            *count = change(*count);
        }
    }

    /// Takes all out, in order of first sight.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Token, u32)> {
        self.seen.drain(..).map(|token| (token, std::mem::take(&mut self.counts[token as usize])))
    }
}

/// Adds to an unmasked logit. Penalties never mask and rewards never make an infinity: the sum saturates.
pub(super) fn shift(logit: &mut f32, by: f64) {
    if *logit > f32::NEG_INFINITY {
        *logit = (f64::from(*logit) + by).clamp(f32::MIN.into(), f32::MAX.into()) as f32;
    }
}

fn add_bias(logits: &mut [f32], bias: &[(Token, f32)]) {
    for &(token, value) in bias {
        let logit = &mut logits[token as usize];
        if value == f32::NEG_INFINITY {
            *logit = value;
        }
        shift(logit, value.into());
    }
}

fn penalties_are_on(params: &SampleParams) -> bool {
    let neutral = params.repeat_penalty == 1.0 && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0;
    params.repeat_last_n != 0 && !neutral
}

fn penalise(logits: &mut [f32], params: &SampleParams, window: &[Token], tally: &mut Tally) {
    window.iter().for_each(|&token| tally.update(token, |count| count + 1));
    let [repeat, frequency, presence] =
        [params.repeat_penalty, params.frequency_penalty, params.presence_penalty].map(f64::from);
    for (token, count) in tally.drain() {
        let logit = &mut logits[token as usize];
        let value = f64::from(*logit);
        let scaled = if value > 0.0 { value / repeat } else { value * repeat };
        // A mask has no distance to move.
        if value > f64::NEG_INFINITY {
            shift(logit, scaled - value - (f64::from(count) * frequency + presence));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::params::LogitBias;

    fn edit(params: &SampleParams, logits: &[f32], committed: &[Token], path: &[Token]) -> Option<Vec<f32>> {
        let mut edits = Edits::new(params, logits.len(), |_| Vec::new());
        let first = edits.apply(params, logits, History { committed, path, start: 0 }, None).map(<[f32]>::to_vec);
        let again = edits.apply(params, logits, History { committed, path, start: 0 }, None).map(<[f32]>::to_vec);
        assert_eq!(first, again, "scratch was not left clean");
        first
    }

    #[test]
    fn nothing_asked_nothing_copied() {
        assert_eq!(edit(&SampleParams::default(), &[1.0, 2.0], &[0, 1], &[1]), None);
        let off = SampleParams { repeat_penalty: 2.0, repeat_last_n: 0, ..Default::default() };
        assert_eq!(edit(&off, &[1.0, 2.0], &[0, 1], &[1]), None);
    }

    #[test]
    fn penalties_follow_sign_count_and_window() {
        let inf = f32::NEG_INFINITY;
        let logits = [4.0, -4.0, 0.0, 4.0, inf];
        let base =
            SampleParams { repeat_penalty: 2.0, frequency_penalty: 0.5, presence_penalty: 1.0, ..Default::default() };
        // (last n, committed, path) -> edited
        type Case = (i32, &'static [Token], &'static [Token], [f32; 5]);
        let table: [Case; 5] = [
            (64, &[0, 1, 4], &[2, 0], [0.0, -9.5, -1.5, 4.0, inf]),
            (-1, &[0, 1, 4], &[2, 0], [0.0, -9.5, -1.5, 4.0, inf]),
            (1, &[0, 1, 4], &[2, 0], [0.5, -4.0, 0.0, 4.0, inf]),
            (3, &[0, 3, 1], &[2], [4.0, -9.5, -1.5, 0.5, inf]),
            (64, &[99], &[u32::MAX], logits), // no token of this vocabulary
        ];
        for (repeat_last_n, committed, path, want) in table {
            let params = SampleParams { repeat_last_n, ..base.clone() };
            assert_eq!(
                edit(&params, &logits, committed, path).unwrap(),
                want,
                "{repeat_last_n} {committed:?} {path:?}"
            );
        }
    }

    #[test]
    fn extremes_stay_finite_and_masks_stay() {
        let huge = f32::MAX;
        let params = SampleParams {
            logit_bias: LogitBias(vec![(0, huge), (1, huge), (2, f32::NEG_INFINITY), (2, 5.0)]),
            repeat_penalty: f32::MIN_POSITIVE,
            frequency_penalty: -huge,
            presence_penalty: huge,
            ..Default::default()
        };
        let edited = edit(&params, &[huge, f32::NEG_INFINITY, 1.0, -huge], &[0, 0, 1, 2, 3], &[3]).unwrap();
        assert_eq!(edited, [huge, f32::NEG_INFINITY, f32::NEG_INFINITY, huge]);
    }
}
