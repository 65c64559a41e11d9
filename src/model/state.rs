//! One session on a model: its cache and the room its pass works in.
//!
//! The cache has a slot for every position of the context and [`DraftTree::MAX`] more. Committed positions sit in the
//! slots of their own number; a tree is written behind them and [`State::commit`] moves one path of it down.

use super::forward::Input;
use super::{Config, Model};
use crate::backend::{Backend, KvType, Rope};
use crate::tree::{DraftTree, NodeId, Token};
use anyhow::{Result, bail, ensure};
use std::ops::Range;
use std::sync::Arc;

/// Most rows the head is run on at a time: logits are the widest activation by far.
pub(super) const HEAD_ROWS: usize = DraftTree::MAX;

/// A session.
pub struct State<B: Backend> {
    backend: Arc<B>,
    context: usize,
    max_rows: usize,
    len: usize,
    /// Ancestor sets of the tree that lies behind the committed positions.
    tree: Vec<u64>,
    pub(super) kv: B::Kv,
    /// Rotation of all layers, and of the windowed ones.
    pub(super) rope: Rope,
    pub(super) local_rope: Rope,
    pub(super) acts: Activations<B>,
    /// Where logits go, empty: see [`State::reuse`].
    pub(super) room: Vec<f32>,
}

/// What the pass writes, by the names of the pass.
pub(super) struct Activations<B: Backend> {
    /// The residual stream `[T, D]`.
    pub(super) x: B::Mat,
    /// A block's input, then its output `[T, D]`.
    pub(super) h: B::Mat,
    pub(super) q: B::Mat,
    pub(super) k: B::Mat,
    pub(super) v: B::Mat,
    /// What attention gathered `[T, H*K]`.
    pub(super) mixed: B::Mat,
    pub(super) gate: B::Mat,
    pub(super) up: B::Mat,
    /// Products of fused matrices, before they are split.
    pub(super) fused_qkv: Option<B::Mat>,
    pub(super) fused_gate_up: Option<B::Mat>,
    /// The residual stream `[T, D]` entering layers, as far as someone reads it.
    pub(super) taps: Vec<(usize, B::Mat)>,
    /// The stream after the output norm `[T, D]`.
    pub(super) hidden: B::Mat,
    /// Rows of it that the head is run on, and their logits.
    pub(super) picked: B::Mat,
    pub(super) logits: B::Mat,
}

impl<B: Backend> State<B> {
    pub(super) fn new(model: &Model<B>, context: usize, max_rows: usize, ty: KvType) -> Result<State<B>> {
        let (b, c) = (&*model.backend, &model.config);
        c.check_session(context, ty)?;
        // A pass never has more rows than slots; a tree must always fit.
        let max_rows = max_rows.clamp(DraftTree::MAX, context.max(DraftTree::MAX));
        let (q, kv) = (c.heads * c.head_width, c.kv_heads * c.head_width);
        let [fused_qkv, fused_gate_up] = model.fused_cols();
        let mat = |cols| b.mat(max_rows, cols);
        let acts = Activations {
            x: mat(c.width)?,
            h: mat(c.width)?,
            q: mat(q)?,
            k: mat(kv)?,
            v: mat(kv)?,
            mixed: mat(q)?,
            gate: mat(c.ffn_width)?,
            up: mat(c.ffn_width)?,
            fused_qkv: fused_qkv.map(mat).transpose()?,
            fused_gate_up: fused_gate_up.map(mat).transpose()?,
            taps: vec![],
            hidden: mat(c.width)?,
            picked: b.mat(HEAD_ROWS, c.width)?,
            logits: b.mat(HEAD_ROWS, c.vocab)?,
        };
        Ok(State {
            backend: model.backend.clone(),
            context,
            max_rows,
            len: 0,
            tree: vec![],
            kv: b.kv(c.kv_shape(context, ty))?,
            rope: c.turning.rope(&model.factors, context, false),
            local_rope: c.turning.rope(&model.factors, context, true),
            acts,
            room: vec![],
        })
    }

    /// Takes logits of an earlier pass back as room for the next: large memory that is fresh costs more than the copy.
    pub fn reuse(&mut self, mut logits: Vec<f32>) {
        logits.clear();
        self.room = logits;
    }

    /// Committed positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions that fit.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Rows that one pass takes at most.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Rows `[T, D]` of the last pass after the output norm, in the order of its input.
    pub fn hidden(&self) -> &B::Mat {
        &self.acts.hidden
    }

    /// Has the residual stream that enters each of `layers` kept from every pass; the number of layers itself stands for
    /// what the last one puts out.
    pub fn tap(&mut self, model: &Model<B>, layers: impl IntoIterator<Item = usize>) -> Result<()> {
        let (most, width) = (model.config.layers, model.config.width);
        let mut taps: Vec<(usize, B::Mat)> = vec![];
        for layer in layers {
            ensure!(layer <= most, "layer {layer} is to be read, the model has {most}");
            if taps.iter().all(|(known, _)| *known != layer) {
                taps.push((layer, self.backend.mat(self.max_rows, width)?));
            }
        }
        self.acts.taps = taps;
        Ok(())
    }

    /// Rows `[T, D]` of the last pass as they entered `layer`, which must be tapped.
    pub fn tapped(&self, layer: usize) -> Option<&B::Mat> {
        self.acts.taps.iter().find(|(known, _)| *known == layer).map(|(_, rows)| rows)
    }

    /// Forgets all positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.tree.clear();
    }

    /// Makes a path of the last tree, from the anchor down, part of the context.
    pub fn commit(&mut self, path: &[NodeId]) -> Result<()> {
        let mut above = 0u64;
        for &node in path {
            let Some(&set) = self.tree.get(node) else {
                bail!("node {node} is not in the last tree of {} nodes", self.tree.len());
            };
            ensure!(set == above | 1 << node, "{path:?} is not a path from the anchor of the last tree");
            above = set;
        }
        let from: Vec<usize> = path.iter().map(|node| self.len + node).collect();
        self.backend.move_kv(&mut self.kv, &from, self.len);
        self.len += path.len();
        self.tree.clear();
        Ok(())
    }

    /// The stored bytes of positions `range` in all layers, keys and values (for tests of the laws and for saving).
    pub fn kv_bytes(&self, range: Range<usize>) -> Result<Vec<u8>> {
        self.backend.read_kv(&self.kv, range)
    }

    /// Makes `bytes`, which [`State::kv_bytes`] gave for positions `0..len` of a state like this one, the whole context.
    pub fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        ensure!(len <= self.context, "{len} positions are more than the context of {}", self.context);
        self.truncate(0);
        self.backend.write_kv(&mut self.kv, 0..len, bytes)?;
        self.len = len;
        Ok(())
    }

    /// Checks that a batch fits and can be looked up.
    pub(super) fn admit(&self, c: &Config, input: Input<'_>, tokens: &[Token]) -> Result<()> {
        let deepest = match input {
            Input::Chain(tokens) => tokens.len(),
            Input::Tree(tree) | Input::Grown(tree, _) => {
                tree.nodes().iter().map(|n| n.depth as usize + 1).max().unwrap_or(0)
            }
        };
        if let Input::Grown(tree, first) = input {
            let fits = first == 0 || self.tree.len() == first && tree.ancestors().starts_with(&self.tree);
            ensure!(fits, "the first {first} nodes of the tree are not those of the last pass");
        }
        let (rows, need) = (tokens.len(), self.len + deepest);
        ensure!(rows > 0, "a batch needs at least one token");
        ensure!(rows <= self.max_rows, "a batch of {rows} tokens is more than the {} of this session", self.max_rows);
        ensure!(need <= self.context, "{need} positions are more than the context of {}", self.context);
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= c.vocab) {
            bail!("token {token} is not in the vocabulary of {}", c.vocab);
        }
        Ok(())
    }

    /// Takes note of what the pass has written to the cache.
    pub(super) fn wrote(&mut self, input: Input<'_>) {
        match input {
            Input::Chain(tokens) => {
                self.len += tokens.len();
                self.tree.clear();
            }
            Input::Tree(tree) | Input::Grown(tree, _) => self.tree = tree.ancestors(),
        }
    }
}
