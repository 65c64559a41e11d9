//! From a head's rows to logits: the matrix a sidecar brings, over all of the vocabulary or some of it, or the target's own.

use super::Sidecar;
use crate::backend::{Backend, Product};
use crate::model::Model;
use crate::tree::Token;
use anyhow::Result;
use std::sync::Arc;

/// What makes logits of rows `[T, D]` like those that the target's head reads.
pub enum Output<B: Backend> {
    /// The target's head, its soft cap included.
    Target(Arc<Model<B>>),
    /// A matrix of its own `[N, D]`. With `ids`, row *i* is about token `ids[i]` of the target.
    Own {
        /// The matrix.
        weight: B::Weight,
        /// Its size `N`.
        rows: usize,
        /// The target's tokens, where it is not about all of them in order.
        ids: Option<Arc<[Token]>>,
    },
}

impl<B: Backend> Output<B> {
    /// The matrix called `name`, about the tokens `ids` or all of them; the target's head if there is none.
    pub fn open(sidecar: &Sidecar, name: &str, ids: Option<Arc<[Token]>>, model: &Arc<Model<B>>) -> Result<Output<B>> {
        if !sidecar.has(name) && ids.is_none() {
            return Ok(Output::Target(model.clone()));
        }
        let config = model.config();
        let rows = ids.as_ref().map_or(config.vocab, |ids| ids.len());
        let weight = sidecar.weight(&**model.backend(), name, rows, config.width)?;
        Ok(Output::Own { weight, rows, ids })
    }

    /// Logits of a row.
    pub fn size(&self) -> usize {
        match self {
            Output::Target(model) => model.config().vocab,
            Output::Own { rows, .. } => *rows,
        }
    }

    /// Logits `[T, N]` of rows `x[T, D]`.
    pub fn run(&self, backend: &B, x: &B::Mat, logits: &mut B::Mat) {
        match self {
            Output::Target(model) => model.head(x, logits),
            Output::Own { weight, .. } => backend.linear(x, &mut [Product { weight, bias: None, out: logits }]),
        }
    }

    /// The target's tokens that logits are about, where not all of them in order.
    pub fn ids(&self) -> Option<&[Token]> {
        match self {
            Output::Target(_) => None,
            Output::Own { ids, .. } => ids.as_deref(),
        }
    }

    /// Makes of a row of them logits `[V]` over the target's vocabulary, -inf where it has no say.
    pub fn widen<'a>(&self, row: &'a [f32], vocab: usize, room: &'a mut Vec<f32>) -> &'a [f32] {
        let Some(ids) = self.ids() else { return row };
        room.clear();
        room.resize(vocab, f32::NEG_INFINITY);
        for (&token, &logit) in ids.iter().zip(row) {
            room[token as usize] = logit;
        }
        room
    }
}
