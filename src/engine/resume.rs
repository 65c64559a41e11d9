//! Taking a session up again: what a conversation and a prompt cache need.

use super::Session;
use crate::backend::Backend;
use crate::tree::Token;
use anyhow::{Result, ensure};

impl<B: Backend> Session<B> {
    /// Forgets all from the first token that is not that of `tokens`; how many remain.
    pub fn keep_common(&mut self, tokens: &[Token]) -> Result<usize> {
        let common = self.context.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.rewind(common)?;
        Ok(common)
    }

    /// The stored keys and values of all tokens but the last, for [`Session::restore`].
    pub fn kv_bytes(&self) -> Result<Vec<u8>> {
        self.state.kv_bytes(0..self.state.len())
    }

    /// What drafters keep of the rows they saw (see [`Drafter::save`](crate::spec::Drafter::save)), for [`Session::restore_drafters`].
    pub fn drafter_bytes(&self) -> Result<Vec<Vec<u8>>> {
        let all = self.drafters.iter().map(|drafter| drafter.save()).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|bytes| !bytes.is_empty()).collect())
    }

    /// Offers what drafters had kept when the session was as it is now to those it has; how many took something.
    pub fn restore_drafters(&mut self, kept: &[&[u8]]) -> Result<usize> {
        self.observe(self.context.len())?;
        let mut taken = 0;
        for drafter in &mut self.drafters {
            for bytes in kept {
                if drafter.restore(bytes)? {
                    taken += 1;
                    break;
                }
            }
        }
        Ok(taken)
    }

    /// Takes up a session that had `tokens` and whose [`Session::kv_bytes`] were `kv`. On an error it is empty.
    pub fn restore(&mut self, tokens: Vec<Token>, kv: &[u8]) -> Result<()> {
        self.rewind(0)?;
        let (found, vocab) = (tokens.iter().max(), self.model.config().vocab);
        ensure!(found.is_none_or(|&t| (t as usize) < vocab), "tokens that the vocabulary of {vocab} does not have");
        self.state.restore(tokens.len().saturating_sub(1), kv)?;
        self.context = tokens;
        Ok(())
    }
}
