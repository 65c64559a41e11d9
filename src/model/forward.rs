//! The forward pass, the same for every architecture.

use super::state::{Activations, HEAD_ROWS};
use super::{Model, State};
use crate::backend::{Backend, Largest, Product, Span};
use crate::tree::{DraftTree, Token};
use anyhow::Result;
use std::ops::Range;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Tokens that follow the context and become part of it.
    Chain(&'a [Token]),
    /// Tokens that may follow it: their keys and values stay apart until [`State::commit`].
    Tree(&'a DraftTree),
    /// The nodes of a tree from number `.1` on, those before having been run by the passes just before this one.
    Grown(&'a DraftTree, usize),
}

/// Which rows to compute logits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// None: only the cache and [`State::hidden`] are wanted.
    None,
    /// The last.
    Last,
    /// All.
    All,
}

/// What a pass says of the tokens that may follow each of its rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Logits {
    /// `[N, V]`.
    All(Vec<f32>),
    /// Some of each row with their tokens, in any order.
    Few(Largest),
}

/// Takes of logits on the backend what is enough to pick from, such as [`Backend::largest`].
pub type Few<'a, B> = &'a dyn Fn(&B, &<B as Backend>::Mat) -> Result<Option<Largest>>;

impl<B: Backend> Model<B> {
    /// Runs `input` on top of the context of `state` and returns logits `[n, V]` of the wanted rows.
    pub fn forward(&self, state: &mut State<B>, input: Input<'_>, rows: Rows) -> Result<Vec<f32>> {
        let logits = self.forward_while(state, input, rows, &mut || true)?;
        Ok(logits.unwrap_or_default()) // nobody stops it
    }

    /// As [`Model::forward`], asking before each half of a layer whether to `go_on`. If not, there are no logits and the context
    /// is what it was; the tree of an earlier pass is gone.
    pub fn forward_while(
        &self,
        state: &mut State<B>,
        input: Input<'_>,
        rows: Rows,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<f32>>> {
        let (tokens, tree, first) = match input {
            Input::Chain(tokens) => (tokens.to_vec(), None, 0),
            Input::Tree(tree) => (tree.tokens(), Some(tree), 0),
            Input::Grown(tree, first) => (tree.tokens().split_off(first.min(tree.nodes().len())), Some(tree), first),
        };
        state.admit(&self.config, input, &tokens)?;
        let base = state.len();
        let ancestors = tree.map(|tree| tree.ancestors().split_off(tree.nodes().len() - tokens.len()));
        let span = match &ancestors {
            None => Span::Chain { base },
            Some(ancestors) => Span::Tree { base, ancestors },
        };
        if !self.layers(state, &tokens, span, base + first, go_on) {
            // What was written lies behind the context, over the tree that may have been there.
            state.truncate(base);
            return Ok(None);
        }
        state.wrote(input);
        let wanted = match rows {
            Rows::None => return Ok(Some(vec![])),
            Rows::Last => tokens.len() - 1..tokens.len(),
            Rows::All => 0..tokens.len(),
        };
        self.logits(state, wanted).map(Some)
    }

    /// As [`Model::forward_while`] with logits of all rows, of each row only what `few` takes of them, where it can.
    pub fn forward_for(
        &self,
        state: &mut State<B>,
        input: Input<'_>,
        few: Option<Few<'_, B>>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Logits>> {
        if self.forward_while(state, input, Rows::None, go_on)?.is_none() {
            return Ok(None);
        }
        let rows = match input {
            Input::Chain(tokens) => tokens.len(),
            Input::Tree(tree) => tree.nodes().len(),
            Input::Grown(tree, first) => tree.nodes().len().saturating_sub(first),
        };
        if let Some(few) = few.filter(|_| rows <= HEAD_ROWS) {
            self.head_of(state, &(0..rows).collect::<Vec<_>>());
            if let Some(few) = few(&self.backend, &state.acts.logits)? {
                return Ok(Some(Logits::Few(few)));
            }
            let mut all = std::mem::take(&mut state.room);
            self.backend.read_into(&state.acts.logits, &mut all)?;
            return Ok(Some(Logits::All(all)));
        }
        self.logits(state, 0..rows).map(|logits| Some(Logits::All(logits)))
    }

    /// Runs the head on hidden rows of the last pass.
    fn head_of(&self, state: &mut State<B>, rows: &[usize]) {
        let a = &mut state.acts;
        self.backend.gather(&a.hidden, rows, &mut a.picked);
        self.head(&a.picked, &mut a.logits);
    }

    /// From tokens to hidden rows: per layer attention, then the gated feed-forward, each added to the stream `x`. Row 0
    /// has its keys and values in slot `slot`. Whether it came to the end.
    fn layers(
        &self,
        state: &mut State<B>,
        tokens: &[Token],
        span: Span<'_>,
        slot: usize,
        go_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        let (b, c) = (&*self.backend, &self.config);
        let positions: Vec<u32> = (0..tokens.len()).map(|i| span.position(i) as u32).collect();
        let State { kv, rope, local_rope, acts: a, .. } = state;

        self.embed(tokens, &mut a.x);
        for (i, layer) in self.layers.iter().enumerate() {
            if !go_on() {
                return false;
            }
            tap(b, a, i, tokens.len());
            b.rms_norm(&a.x, &layer.attn_norm, c.eps, &mut a.h);
            layer.qkv.run_all(b, &a.h, a.fused_qkv.as_mut(), [&mut a.q, &mut a.k, &mut a.v]);
            norm_if(b, &mut a.q, &layer.q_norm, c.eps);
            norm_if(b, &mut a.k, &layer.k_norm, c.eps);
            let rope = if layer.local { &*local_rope } else { &*rope };
            b.rope(&mut a.q, c.head_width, rope, &positions);
            b.rope(&mut a.k, c.head_width, rope, &positions);
            b.store(kv, i, slot, &a.k, &a.v);
            b.attend(&a.q, kv, i, span, layer.attention, &mut a.mixed);
            layer.output.run(b, &a.mixed, &mut a.h);
            norm_if(b, &mut a.h, &layer.post_attn_norm, c.eps);
            b.add(&mut a.x, &a.h);

            if !go_on() {
                return false;
            }
            b.rms_norm(&a.x, &layer.ffn_norm, c.eps, &mut a.h);
            layer.gate_up.run_all(b, &a.h, a.fused_gate_up.as_mut(), [&mut a.gate, &mut a.up]);
            b.glu(&mut a.gate, &a.up, c.arch.activation);
            layer.down.run(b, &a.gate, &mut a.h);
            norm_if(b, &mut a.h, &layer.post_ffn_norm, c.eps);
            b.add(&mut a.x, &a.h);
        }
        tap(b, a, self.layers.len(), tokens.len());
        b.rms_norm(&a.x, &self.output_norm, c.eps, &mut a.hidden);
        true
    }

    /// Rows `[T, D]` as they enter the first layer.
    pub fn embed(&self, tokens: &[Token], out: &mut B::Mat) {
        self.backend.embed(&self.embedding, tokens, self.config.embedding_scale, out);
    }

    /// Logits `[T, V]` of rows `[T, D]` like those of [`State::hidden`].
    pub fn head(&self, hidden: &B::Mat, logits: &mut B::Mat) {
        self.backend.linear(hidden, &mut [Product { weight: &self.head, bias: None, out: logits }]);
        if let Some(cap) = self.config.final_softcap {
            self.backend.softcap(logits, cap);
        }
    }

    /// Logits of hidden rows of the last pass, a few rows at a time.
    fn logits(&self, state: &mut State<B>, wanted: Range<usize>) -> Result<Vec<f32>> {
        let wanted: Vec<usize> = wanted.collect();
        let mut all = std::mem::take(&mut state.room);
        all.reserve(wanted.len() * self.config.vocab);
        for rows in wanted.chunks(HEAD_ROWS) {
            self.head_of(state, rows);
            self.backend.read_into(&state.acts.logits, &mut all)?;
        }
        Ok(all)
    }
}

/// Keeps the `rows` of the stream as it enters `layer`, if someone reads it.
fn tap<B: Backend>(backend: &B, acts: &mut Activations<B>, layer: usize, rows: usize) {
    if let Some((_, out)) = acts.taps.iter_mut().find(|(tapped, _)| *tapped == layer) {
        backend.gather(&acts.x, &(0..rows).collect::<Vec<_>>(), out);
    }
}

fn norm_if<B: Backend>(backend: &B, x: &mut B::Mat, weight: &Option<B::Vector>, eps: f32) {
    if let Some(weight) = weight {
        backend.rms_norm_in_place(x, weight, eps);
    }
}
