//! The head's pass: from pairs of a token and a feature to the features that come next, and their logits.
//!
//! ```text
//! EAGLE-1, 2   r = fc [emb(x); h]       a = r                                    h: the target's hidden row, or the pass's own y
//! EAGLE-3      g = fc [t1; t2; t3]      a = [norm(emb(x)); norm(g)]   r = g      t: the target's taps; or g is the pass's own y
//!              y' = r + attention(a)    y = y' + mlp(norm(y'))                   y: the feature that comes next
//! ```
//!
//! One layer, made of the ops that the target's pass is made of; so it obeys the same laws.

use crate::backend::{Activation, Attention, Backend, KvShape, KvType, Product, Rope, Span};
use crate::model::Model;
use crate::spec::Output;
use crate::tree::{DraftTree, Token};
use anyhow::{Result, ensure};
use std::sync::Arc;

/// Pairs that one pass takes at most.
pub const CHUNK: usize = 256;

/// The numbers of a head.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Width of the layer, `D`.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Head width `K`.
    pub head_width: usize,
    /// Feed-forward width `F`.
    pub ffn_width: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Floats of the row that the target shows of a token: `D`, or three times its width.
    pub shown: usize,
}

impl Shape {
    /// Its cache in sessions of `context` positions: these and the scratch slots of a tree.
    pub fn cache(&self, context: usize, ty: KvType) -> KvShape {
        KvShape { layers: 1, slots: context + DraftTree::MAX, heads: self.kv_heads, width: self.head_width, ty }
    }
}

/// A matrix and its bias.
pub struct Dense<B: Backend> {
    /// `[N, D]`.
    pub weight: B::Weight,
    /// `[N]`.
    pub bias: Option<B::Vector>,
}

impl<B: Backend> Dense<B> {
    fn to<'a>(&'a self, out: &'a mut B::Mat) -> Product<'a, B> {
        Product { weight: &self.weight, bias: self.bias.as_ref(), out }
    }
}

/// What EAGLE-3 has beside the others.
pub struct Third<B: Backend> {
    /// Norm of the embedding.
    pub token_norm: B::Vector,
    /// Norm of the feature.
    pub feature_norm: B::Vector,
    /// Norm before the head.
    pub output_norm: B::Vector,
    /// Whether the normed feature is what the layer adds to.
    pub norm_before_residual: bool,
}

/// All that is packed.
pub struct Weights<B: Backend> {
    /// The head's numbers.
    pub shape: Shape,
    /// Turns of the positions.
    pub rope: Rope,
    /// From what the target shows (EAGLE-3), or from embedding and feature.
    pub fc: Dense<B>,
    /// Queries, keys, values.
    pub qkv: [Dense<B>; 3],
    /// Attention's output.
    pub output: Dense<B>,
    /// Norm before the feed-forward.
    pub ffn_norm: B::Vector,
    /// Gate and up.
    pub gate_up: [Dense<B>; 2],
    /// Down.
    pub down: Dense<B>,
    /// What only EAGLE-3 has.
    pub third: Option<Third<B>>,
    /// Its own embedding, unless it is the target's.
    pub embedding: Option<B::Table>,
    /// From the result to logits.
    pub head: Output<B>,
}

/// Where the features of a pass come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Rows `[T, shown]` of the target's.
    Target(&'a [f32]),
    /// Rows of the last pass's result.
    Own(&'a [usize]),
}

/// A head with its cache, which has a slot for every pair of the context and more for a tree.
pub struct Layer<B: Backend> {
    target: Arc<Model<B>>,
    weights: Weights<B>,
    /// Its keys and values.
    kv: B::Kv,
    kv_shape: KvShape,
    acts: Activations<B>,
}

/// What a pass writes.
struct Activations<B: Backend> {
    shown: B::Mat,
    /// `[T, D]`: embeddings, features, what is added to, what is added; `x` is the result.
    token: B::Mat,
    feature: B::Mat,
    base: B::Mat,
    x: B::Mat,
    h: B::Mat,
    /// `[T, 2 D]`.
    both: B::Mat,
    q: B::Mat,
    k: B::Mat,
    v: B::Mat,
    mixed: B::Mat,
    gate: B::Mat,
    up: B::Mat,
    picked: B::Mat,
    logits: B::Mat,
}

impl<B: Backend> Layer<B> {
    /// A head for a target in sessions of `context` positions.
    pub fn new(target: Arc<Model<B>>, weights: Weights<B>, context: usize, ty: KvType) -> Result<Self> {
        let (b, s) = (&**target.backend(), &weights.shape);
        let blocks = ty != KvType::Q8_0 || s.head_width.is_multiple_of(32);
        ensure!(blocks, "a q8_0 cache needs a head width that is a multiple of 32, its own is {}", s.head_width);
        let kv_shape = s.cache(context, ty);
        let mat = |cols| b.mat(CHUNK, cols);
        let acts = Activations {
            shown: mat(s.shown)?,
            token: mat(s.width)?,
            feature: mat(s.width)?,
            base: mat(s.width)?,
            x: mat(s.width)?,
            h: mat(s.width)?,
            both: mat(2 * s.width)?,
            q: mat(s.heads * s.head_width)?,
            k: mat(s.kv_heads * s.head_width)?,
            v: mat(s.kv_heads * s.head_width)?,
            mixed: mat(s.heads * s.head_width)?,
            gate: mat(s.ffn_width)?,
            up: mat(s.ffn_width)?,
            picked: b.mat(DraftTree::MAX, s.width)?,
            logits: b.mat(DraftTree::MAX, weights.head.size())?,
        };
        let kv = b.kv(kv_shape)?;
        Ok(Self { target, weights, kv, kv_shape, acts })
    }

    /// Its numbers.
    pub fn shape(&self) -> &Shape {
        &self.weights.shape
    }

    /// What makes its logits.
    pub fn head(&self) -> &Output<B> {
        &self.weights.head
    }

    /// What it runs on.
    pub fn backend(&self) -> &Arc<B> {
        self.target.backend()
    }

    /// The stored bytes of the first `len` pairs.
    pub fn read(&self, len: usize) -> Result<Vec<u8>> {
        self.target.backend().read_kv(&self.kv, 0..len)
    }

    /// Bytes that [`Layer::read`] gives of `len` pairs.
    pub fn bytes_of(&self, len: usize) -> usize {
        KvShape { slots: len, ..self.kv_shape }.bytes()
    }

    /// Stores what [`Layer::read`] gave.
    pub fn write(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        ensure!(len <= self.kv_shape.slots - DraftTree::MAX, "{len} pairs are more than the context");
        self.target.backend().write_kv(&mut self.kv, 0..len, bytes)
    }

    /// Runs pairs: token *i* with feature *i* of `source`. Keys and values of pair 0 go to slot `slot`.
    pub fn run(&mut self, tokens: &[Token], source: Source<'_>, span: Span<'_>, slot: usize) {
        let Self { target, weights: w, kv, acts: a, .. } = self;
        let (b, s) = (&**target.backend(), &w.shape);
        b.embed(w.embedding.as_ref().unwrap_or(target.embedding()), tokens, 1.0, &mut a.token);
        match (source, &w.third) {
            (Source::Target(rows), None) => b.write(rows, &mut a.feature),
            (Source::Target(rows), Some(_)) => {
                b.write(rows, &mut a.shown);
                b.linear(&a.shown, &mut [w.fc.to(&mut a.feature)]);
            }
            (Source::Own(rows), _) => b.gather(&a.x, rows, &mut a.feature),
        }
        let (input, base) = match &w.third {
            None => {
                b.join(&[&a.token, &a.feature], &mut a.both);
                b.linear(&a.both, &mut [w.fc.to(&mut a.base)]);
                (&a.base, &a.base)
            }
            Some(third) => {
                b.rms_norm_in_place(&mut a.token, &third.token_norm, s.eps);
                b.rms_norm(&a.feature, &third.feature_norm, s.eps, &mut a.base);
                b.join(&[&a.token, &a.base], &mut a.both);
                (&a.both, if third.norm_before_residual { &a.base } else { &a.feature })
            }
        };
        let [q, k, v] = &w.qkv;
        b.linear(input, &mut [q.to(&mut a.q), k.to(&mut a.k), v.to(&mut a.v)]);
        let positions: Vec<u32> = (0..tokens.len()).map(|i| span.position(i) as u32).collect();
        b.rope(&mut a.q, s.head_width, &w.rope, &positions);
        b.rope(&mut a.k, s.head_width, &w.rope, &positions);
        b.store(kv, 0, slot, &a.k, &a.v);
        let how = Attention { scale: (s.head_width as f32).sqrt().recip(), softcap: None, window: None };
        b.attend(&a.q, kv, 0, span, how, &mut a.mixed);
        b.linear(&a.mixed, &mut [w.output.to(&mut a.x)]);
        b.add(&mut a.x, base);

        b.rms_norm(&a.x, &w.ffn_norm, s.eps, &mut a.h);
        let [gate, up] = &w.gate_up;
        b.linear(&a.h, &mut [gate.to(&mut a.gate), up.to(&mut a.up)]);
        b.glu(&mut a.gate, &a.up, Activation::Silu);
        b.linear(&a.gate, &mut [w.down.to(&mut a.h)]);
        b.add(&mut a.x, &a.h);
    }

    /// Logits `[n, vocab]` of rows of the last pass's result, at most [`DraftTree::MAX`].
    pub fn logits(&mut self, rows: &[usize]) -> Result<Vec<f32>> {
        let Self { target, weights: w, acts: a, .. } = self;
        let b = &**target.backend();
        b.gather(&a.x, rows, &mut a.picked);
        if let Some(third) = &w.third {
            b.rms_norm_in_place(&mut a.picked, &third.output_norm, w.shape.eps);
        }
        w.head.run(b, &a.picked, &mut a.logits);
        b.read(&a.logits)
    }
}
