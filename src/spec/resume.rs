//! Copies with changes: where to go on after a token that differs.
//!
//! An answer that repeats a text with names changed breaks off at every name, and until a few tokens agree again nothing
//! tells a lookup where it was. So the place it was copied from is kept for a while: the text may go on after the token
//! that was replaced, after as many tokens as were written since, or where it stood (then something was inserted).

use crate::tree::Token;

/// Tokens that must have been copied before a break counts as one.
const RUN: usize = 4;
/// Tokens after which a break is forgotten.
const PATIENCE: usize = 6;
/// Tokens of a guess.
pub const LENGTH: usize = 12;
/// Share of each further token of a guess.
pub const STEP: f64 = 0.9;
/// Shares of the ways to go on; they are calibrated by whoever uses them.
const SHARES: [f64; 3] = [0.45, 0.3, 0.15];

/// What is being copied from where.
#[derive(Clone, Debug, Default)]
pub struct Copying {
    text: Vec<Token>,
    /// Where the next token should stand, and how many did so far.
    at: Option<usize>,
    run: usize,
    /// Where the token stands that was not written, and how many others were written instead.
    gap: Option<(usize, usize)>,
}

impl Copying {
    /// Takes the next token of the text.
    pub fn push(&mut self, token: Token) {
        match self.at {
            Some(at) if self.text.get(at) == Some(&token) => (self.at, self.run) = (Some(at + 1), self.run + 1),
            Some(at) => {
                if self.run >= RUN {
                    self.gap = Some((at, 1));
                }
                (self.at, self.run) = (None, 0);
            }
            None => self.gap = self.gap.map(|(at, since)| (at, since + 1)).filter(|&(_, since)| since <= PATIENCE),
        }
        self.text.push(token);
    }

    /// Says that the text now follows what stands from `at` on.
    pub fn follow(&mut self, at: usize) {
        if self.at.is_none() {
            (self.at, self.run, self.gap) = (Some(at), 0, None);
        }
    }

    /// After a break, the places where the text may go on, each with its share, likeliest first.
    pub fn resumptions(&self) -> Vec<(f64, &[Token])> {
        let Some((broke, since)) = self.gap else { return vec![] };
        let mut places = vec![broke + since, broke];
        if since != 1 {
            places.push(broke + 1);
        }
        let all = places.into_iter().zip(SHARES);
        let rest = all.filter_map(|(at, share)| Some((share, self.text.get(at..)?)));
        rest.map(|(share, rest)| (share, &rest[..rest.len().min(LENGTH)]))
            .filter(|(_, rest)| !rest.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes 1 to 20, then copies from the beginning, writing `instead` in place of `cut` tokens at the tenth.
    fn copy(instead: &[Token], cut: usize) -> (Copying, Token) {
        let mut copying = Copying::default();
        (1..=20).for_each(|token| copying.push(token));
        copying.follow(0);
        (1..10).for_each(|token| copying.push(token));
        assert!(copying.resumptions().is_empty(), "nothing broke yet");
        instead.iter().for_each(|&token| copying.push(token));
        (copying, 10 + cut as Token)
    }

    #[test]
    fn changes_are_stepped_over() {
        let table: [(&str, &[Token], usize, usize); 6] = [
            ("one for one", &[90], 1, 0),
            ("two for two", &[90, 91], 2, 0),
            ("inserted", &[90], 0, 1),
            ("two inserted", &[90, 91], 0, 1),
            ("two for one", &[90, 91], 1, 2),
            ("three for three", &[90, 91, 92], 3, 0),
        ];
        for (name, instead, cut, rank) in table {
            let (copying, next) = copy(instead, cut);
            let resumptions = copying.resumptions();
            let want: Vec<Token> = (next..=20).chain(1..10).take(LENGTH).collect();
            let (share, guess) = resumptions[rank];
            assert_eq!(guess[..8], want[..8], "{name}");
            assert_eq!(share, SHARES[rank], "{name}");
        }
    }

    #[test]
    fn breaks_are_forgotten_and_need_something_before_them() {
        let (copying, _) = copy(&[90; PATIENCE + 1], 1);
        assert!(copying.resumptions().is_empty());
        let mut short = Copying::default();
        (1..=9).for_each(|token| short.push(token));
        short.follow(0);
        [1, 2, 3, 90].into_iter().for_each(|token| short.push(token));
        assert!(short.resumptions().is_empty());
        let (mut resumed, _) = copy(&[90], 1);
        resumed.follow(10);
        assert!(resumed.resumptions().is_empty());
    }
}
