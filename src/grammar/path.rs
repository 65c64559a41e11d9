//! A GBNF grammar over tokens: the recogniser, and the states along the path that was asked about last.

use super::lexicon::{Lexicon, NONE};
use super::mask::Mask;
use super::recogniser::{DEAD, Recogniser, State};
use crate::tree::Token;
use anyhow::{Result, ensure};
use std::collections::HashMap;
use std::sync::Arc;

/// Masks that are kept.
const MASKS: usize = 256;

/// Follows tokens.
pub(super) struct Path {
    lexicon: Arc<Lexicon>,
    recogniser: Recogniser,
    /// The tokens asked about last, as far as legal, and the state before each and after the last.
    tokens: Vec<Token>,
    states: Vec<State>,
    masks: HashMap<State, Arc<Mask>>,
}

impl Path {
    pub(super) fn new(recogniser: Recogniser, lexicon: Arc<Lexicon>) -> Self {
        let states = vec![recogniser.start()];
        Self { lexicon, recogniser, tokens: vec![], states, masks: HashMap::new() }
    }

    /// The tokens that may follow; perhaps none.
    pub(super) fn mask(&mut self, generated: &[Token], path: &[Token]) -> Result<Arc<Mask>> {
        let state = self.state(generated, path)?;
        if let Some(mask) = self.masks.get(&state) {
            return Ok(mask.clone());
        }
        let mask = Arc::new(self.compute(state));
        ensure!(!self.recogniser.is_exhausted(), "grammar: it is too deep or too ambiguous to go on");
        if self.masks.len() == MASKS {
            self.masks.clear();
        }
        self.masks.insert(state, mask.clone());
        Ok(mask)
    }

    /// Whether `token` may follow.
    pub(super) fn allows(&mut self, generated: &[Token], path: &[Token], token: Token) -> Result<bool> {
        let state = self.state(generated, path)?;
        if self.lexicon.is_end(token) {
            return Ok(self.recogniser.is_complete(state));
        }
        let next = self.after(state, token);
        ensure!(!self.recogniser.is_exhausted(), "grammar: it is too deep or too ambiguous to go on");
        Ok(next != DEAD)
    }

    /// The state after `generated` and `path`. What they share with the tokens asked about before is not run again.
    fn state(&mut self, generated: &[Token], path: &[Token]) -> Result<State> {
        if self.recogniser.is_full() {
            self.recogniser.forget();
            self.masks.clear();
            self.tokens.clear();
            self.states = vec![self.recogniser.start()];
        }
        let all = || generated.iter().chain(path);
        let shared = self.tokens.iter().zip(all()).take_while(|(a, b)| a == b).count();
        self.tokens.truncate(shared);
        self.states.truncate(shared + 1);
        for &token in all().skip(shared) {
            let state = self.after(self.states[self.tokens.len()], token);
            ensure!(!self.recogniser.is_exhausted(), "grammar: it is too deep or too ambiguous to go on");
            ensure!(
                state != DEAD,
                "grammar: token {token} ({:?}) is not legal after {:?}",
                self.lexicon.shown([token].iter()),
                self.lexicon.shown(self.tokens.iter())
            );
            self.tokens.push(token);
            self.states.push(state);
        }
        Ok(self.states[self.tokens.len()])
    }

    /// The state after one more token, as text or as what references mean; [`DEAD`] if it is not legal.
    fn after(&mut self, state: State, token: Token) -> State {
        let is_text = self.lexicon.is_text(token);
        let spelled = if is_text { self.recogniser.walk(state, self.lexicon.piece(token)) } else { DEAD };
        let mut referred = DEAD;
        if self.recogniser.tokens(state).next().is_some() && !self.lexicon.is_end(token) {
            referred = self.recogniser.refer(state, token, is_text);
        }
        self.recogniser.either(spelled, referred)
    }

    fn compute(&mut self, state: State) -> Mask {
        let (lexicon, recogniser) = (&*self.lexicon, &mut self.recogniser);
        let mut mask = Mask::none(lexicon.len());
        let classes = recogniser.classes();
        let trie = lexicon.trie();
        // The state after each byte of the current token.
        let mut states = vec![state; lexicon.depth() + 1];
        let mut at = 0;
        while let Some(node) = trie.get(at) {
            let depth = usize::from(node.depth);
            let next = recogniser.step(states[depth - 1], classes[usize::from(node.byte)]);
            if next == DEAD {
                at = node.end as usize;
                continue;
            }
            states[depth] = next;
            if node.token != NONE {
                lexicon.equals(node.token).for_each(|token| mask.insert(token));
            }
            at += 1;
        }
        for (token, negated) in recogniser.tokens(state) {
            if negated {
                let all = 0..lexicon.len() as Token;
                all.filter(|&other| other != token && lexicon.is_text(other)).for_each(|other| mask.insert(other));
            } else {
                mask.insert(token);
            }
        }
        if recogniser.is_complete(state) {
            lexicon.end_tokens().iter().for_each(|&token| mask.insert(token));
        }
        mask
    }
}
