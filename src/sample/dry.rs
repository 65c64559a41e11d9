//! DRY ("don't repeat yourself", by p-e-w): a token that would extend a repetition of the latest tokens is penalised,
//! the more the longer the repetition. Sequence breakers are matched on the bytes of the tokens, so neither the
//! spelling of a breaker in tokens nor the tokenizer matters.

use super::{
    SampleParams,
    penalty::{Tally, shift},
};
use crate::tree::Token;
use std::collections::HashMap;

pub(super) struct Dry {
    breakers: Vec<Vec<u8>>,
    /// Per token: holds a whole breaker.
    whole: Vec<bool>,
    /// Per token: ends with the beginning of a breaker.
    head: Vec<bool>,
    /// Text of the tokens that can be part of a breaker.
    pieces: HashMap<Token, Vec<u8>>,
    /// Entry *i*: how many tokens before (and with) the *i*-th latest equal the latest ones.
    matches: Vec<usize>,
}

impl Dry {
    pub(super) fn is_on(params: &SampleParams) -> bool {
        params.dry_multiplier != 0.0 && params.dry_penalty_last_n != 0
    }

    pub(super) fn new(breakers: &[String], vocab_size: usize, mut piece: impl FnMut(Token) -> Vec<u8>) -> Self {
        let breakers: Vec<Vec<u8>> = breakers.iter().map(|b| b.clone().into_bytes()).collect();
        let mut dry = Self {
            whole: vec![false; vocab_size],
            head: vec![false; vocab_size],
            pieces: HashMap::new(),
            matches: Vec::new(),
            breakers,
        };
        for token in 0..vocab_size {
            let text = piece(token as Token);
            if text.is_empty() {
                continue;
            }
            dry.whole[token] = dry.breakers.iter().any(|b| text.windows(b.len()).any(|w| w == b));
            let mut splits = dry.breakers.iter().flat_map(|b| (1..b.len()).map(move |i| b.split_at(i)));
            dry.head[token] = splits.clone().any(|(start, _)| text.ends_with(start));
            if dry.head[token] || splits.any(|(_, end)| end.starts_with(&text) || text.starts_with(end)) {
                dry.pieces.insert(token as Token, text);
            }
        }
        dry
    }

    /// `window` is latest first.
    pub(super) fn penalise(&mut self, logits: &mut [f32], params: &SampleParams, window: &[Token], tally: &mut Tally) {
        let allowed = params.dry_allowed_length as usize;
        let limit = self.unbroken(window);
        if window.len() <= allowed || limit < allowed {
            return;
        }
        z_function(window, &mut self.matches);
        for (i, &length) in self.matches.iter().enumerate().skip(1) {
            let length = length.min(limit);
            if length >= allowed {
                // One more than the length, as zero stands for none.
                tally.update(window[i - 1], |old| old.max(length as u32 + 1));
            }
        }
        for (token, length) in tally.drain().filter(|&(token, _)| !self.whole[token as usize]) {
            let excess = length as usize - 1 - allowed;
            let penalty = f64::from(params.dry_multiplier) * f64::from(params.dry_base).powf(excess as f64);
            shift(&mut logits[token as usize], -penalty);
        }
    }

    /// How many of the latest tokens come after the latest breaker.
    fn unbroken(&self, window: &[Token]) -> usize {
        let is = |set: &[bool], token: Token| set.get(token as usize).is_some_and(|&b| b);
        (0..window.len())
            .find_map(|i| match window[i] {
                token if is(&self.whole, token) => Some(i),
                token if is(&self.head, token) => self.completed(&window[..=i]),
                _ => None,
            })
            .unwrap_or(window.len())
    }

    /// Where the latest breaker ends that begins within the last entry of `window`, its earliest token.
    fn completed(&self, window: &[Token]) -> Option<usize> {
        let (head, later) = window.split_last()?;
        let head = self.pieces.get(head)?;
        let splits = self.breakers.iter().flat_map(|b| (1..b.len()).map(move |i| b.split_at(i)));
        splits
            .filter(|(start, _)| head.ends_with(start))
            .filter_map(|(_, mut rest)| {
                for (i, token) in later.iter().enumerate().rev() {
                    let text = self.pieces.get(token)?;
                    if text.starts_with(rest) {
                        return Some(i);
                    }
                    rest = rest.strip_prefix(text.as_slice())?;
                }
                None
            })
            .min()
    }
}

/// The Z-function in linear time: `z[i]` is the length of the longest common prefix of `s` and `s[i..]`.
fn z_function(s: &[Token], z: &mut Vec<usize>) {
    z.clear();
    z.resize(s.len(), 0);
    let (mut left, mut right) = (0, 0);
    for i in 1..s.len() {
        let mut n = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + n < s.len() && s[n] == s[i + n] {
            n += 1;
        }
        z[i] = n;
        if i + n > right {
            (left, right) = (i, i + n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{History, Noise, noise::Purpose, penalty::Edits};

    const PIECES: [&str; 10] = ["a", "b", "c", ":", "x:y", "Us", "er", "User: ", "e", "r:\n"];

    fn penalties(params: &SampleParams, history: &[Token]) -> Vec<f64> {
        let mut edits = Edits::new(params, PIECES.len(), |t| PIECES[t as usize].into());
        let (committed, path) = history.split_at(history.len() / 2);
        let edited = edits.apply(params, &[0.0; PIECES.len()], History { committed, path, start: 0 }, None);
        edited.map_or(vec![0.0; PIECES.len()], |e| e.iter().map(|&l| f64::from(-l)).collect())
    }

    /// The definition: for every earlier place, how far back do the tokens before it equal the latest ones, without
    /// passing the last token that a breaker ends in?
    fn naive(params: &SampleParams, history: &[Token]) -> Vec<f64> {
        let reach = match params.dry_penalty_last_n {
            -1 => history.len(),
            n => history.len().min(n as usize),
        };
        let h = &history[history.len() - reach..];
        let text = |tokens: &[Token]| tokens.iter().map(|&t| PIECES[t as usize]).collect::<String>();
        let breakers = &params.dry_sequence_breakers;
        // Tokens after the latest breaker: cutting one more off the end of the text loses a breaker.
        let occurrences = |t: &str| {
            breakers.iter().map(|b| (0..t.len()).filter(|&i| t[i..].starts_with(b.as_str())).count()).sum::<usize>()
        };
        let total = occurrences(&text(h));
        let limit = (0..h.len()).find(|&i| occurrences(&text(&h[..h.len() - i - 1])) < total).unwrap_or(h.len());
        let mut worst = vec![None; PIECES.len()];
        for end in 0..h.len().saturating_sub(1) {
            let same = (0..=end).take_while(|&n| h[end - n] == h[h.len() - 1 - n]).count().min(limit);
            let entry = &mut worst[h[end + 1] as usize];
            *entry = (*entry).max(Some(same));
        }
        let allowed = params.dry_allowed_length as usize;
        let penalty = |(t, n): (usize, Option<usize>)| match n {
            Some(n)
                if n >= allowed
                    && limit >= allowed
                    && h.len() > allowed
                    && !breakers.iter().any(|b| PIECES[t].contains(b.as_str())) =>
            {
                f64::from(params.dry_multiplier) * f64::from(params.dry_base).powi((n - allowed) as i32)
            }
            _ => 0.0,
        };
        worst.into_iter().enumerate().map(penalty).collect()
    }

    fn params(breakers: &[&str]) -> SampleParams {
        SampleParams {
            dry_multiplier: 0.8,
            dry_sequence_breakers: breakers.iter().map(|&b| b.into()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn extends_are_penalised_by_length() {
        let on = |token: usize, penalty: f64| {
            let mut all = vec![0.0; PIECES.len()];
            all[token] = penalty;
            all
        };
        let table: [(&[Token], Vec<f64>); 6] = [
            (&[0, 1, 2, 0, 1], on(2, 0.8)),              // "abcab": c would make it three
            (&[2, 0, 1, 0, 2, 0, 1], on(0, 0.8 * 1.75)), // three match
            (&[0, 1, 2, 1], on(0, 0.0)),                 // one match is allowed
            (&[0, 1, 2, 0, 3, 1], on(0, 0.0)),           // a breaker in between
            (&[0, 1, 3, 0, 1], on(0, 0.0)),              // a breaker is never penalised
            (&[1, 6, 2, 0, 1, 5, 6, 1, 6], on(2, 0.8)),  // "User" unbroken without its colon
        ];
        for (history, want) in table {
            let got = penalties(&params(&[":", "User:"]), history);
            assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-6), "{history:?}: {got:?}");
        }
    }

    #[test]
    fn breakers_match_over_any_split_into_tokens() {
        // "User:" as Us+er+":", Us+er+"x:y" not, Us+e+"r:\n", "User: " whole.
        for (tokens, limit) in
            [(&[5, 6, 3, 0, 1][..], 2), (&[5, 6, 4, 0], 4), (&[5, 8, 9, 2], 1), (&[0, 7], 0), (&[5, 6], 2)]
        {
            let dry = Dry::new(&["User:".into()], PIECES.len(), |t| PIECES[t as usize].into());
            let window: Vec<Token> = tokens.iter().rev().copied().collect();
            assert_eq!(dry.unbroken(&window), limit, "{tokens:?}");
        }
    }

    #[test]
    fn agrees_with_the_definition() {
        for (case, breakers) in [&[][..], &[":"], &["User:"], &["er:", "b"], &["aa"]].iter().enumerate() {
            for seed in 0..300 {
                let noise = Noise::new(seed);
                let draw = |i, n| noise.bits(i, case as Token, Purpose::Draw) % n;
                let width = 1 + draw(0, 10);
                let history: Vec<Token> = (0..draw(1, 60)).map(|i| draw(i + 10, width) as Token).collect();
                let params = SampleParams {
                    dry_penalty_last_n: [-1, 1, 7, 30][draw(2, 4) as usize],
                    dry_allowed_length: draw(3, 4) as u32,
                    ..params(breakers)
                };
                let (got, want) = (penalties(&params, &history), naive(&params, &history));
                let close = got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-6 * w);
                assert!(close, "{breakers:?} {history:?} {params:?}\n{got:?}\n{want:?}");
            }
        }
    }

    #[test]
    fn equal_tokens_take_linear_time_and_stay_finite() {
        let history = vec![0; 200_000];
        let started = std::time::Instant::now();
        let got = penalties(&params(&[":"]), &history);
        assert_eq!(got[0], f64::from(f32::MAX));
        assert!(got[1..].iter().all(|&p| p == 0.0));
        assert!(started.elapsed().as_secs_f64() < 1.0);
    }
}
