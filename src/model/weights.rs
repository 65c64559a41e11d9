//! From checked tensors to packed weights.

use super::rope::Factors;
use super::tensors::{self, Fused};
use super::{Config, State};
use crate::backend::{Attention, Backend, KvType, Product};
use crate::gguf::Gguf;
use crate::quant;
use anyhow::{Context, Result};
use std::sync::Arc;

/// A model on a backend. Immutable; sessions on it are [`State`]s.
pub struct Model<B: Backend> {
    pub(super) backend: Arc<B>,
    pub(super) config: Config,
    pub(super) embedding: B::Table,
    pub(super) layers: Vec<Layer<B>>,
    pub(super) output_norm: B::Vector,
    pub(super) head: B::Weight,
    pub(super) factors: Factors,
    fused: Fused,
    warnings: Vec<String>,
    weight_bytes: u64,
    layer_matrices: Matrices,
    head_matrices: Matrices,
}

/// Weight matrices of a file, by what their products are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matrices {
    /// Elements of those that are multiplied as int8.
    pub int8: u64,
    /// Bytes of those.
    pub int8_bytes: u64,
    /// Elements of those that are multiplied as floats.
    pub float: u64,
    /// Bytes of those.
    pub float_bytes: u64,
}

/// A matrix and its bias.
pub(super) struct Dense<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Vector>,
}

/// `N` products that share their input, as so many matrices or as one.
pub(super) enum Projection<B: Backend, const N: usize> {
    Separate([Dense<B>; N]),
    Fused(Dense<B>),
}

/// One layer.
pub(super) struct Layer<B: Backend> {
    pub(super) attn_norm: B::Vector,
    pub(super) qkv: Projection<B, 3>,
    pub(super) q_norm: Option<B::Vector>,
    pub(super) k_norm: Option<B::Vector>,
    pub(super) attention: Attention,
    /// Whether its positions turn as in windowed layers.
    pub(super) local: bool,
    pub(super) output: Projection<B, 1>,
    pub(super) post_attn_norm: Option<B::Vector>,
    pub(super) ffn_norm: B::Vector,
    pub(super) gate_up: Projection<B, 2>,
    pub(super) down: Projection<B, 1>,
    pub(super) post_ffn_norm: Option<B::Vector>,
}

impl<B: Backend> Projection<B, 1> {
    /// `out = x * weight^T + bias`.
    pub(super) fn run(&self, backend: &B, x: &B::Mat, out: &mut B::Mat) {
        self.run_all(backend, x, None, [out]);
    }
}

impl<B: Backend, const N: usize> Projection<B, N> {
    /// All products of `x`. `fused` is the room for those that come as one; sessions on such models have it.
    pub(super) fn run_all(&self, backend: &B, x: &B::Mat, fused: Option<&mut B::Mat>, mut outs: [&mut B::Mat; N]) {
        match self {
            Projection::Separate(parts) => {
                let mut products: Vec<_> = parts.iter().zip(outs).map(|(part, out)| part.product(out)).collect();
                backend.linear(x, &mut products);
            }
            Projection::Fused(part) => {
                let fused = fused.expect("a session on this model has room for fused products");
                backend.linear(x, &mut [part.product(fused)]);
                backend.split(fused, &mut outs);
            }
        }
    }
}

impl<B: Backend> Dense<B> {
    fn product<'a>(&'a self, out: &'a mut B::Mat) -> Product<'a, B> {
        Product { weight: &self.weight, bias: self.bias.as_ref(), out }
    }
}

impl<B: Backend> Model<B> {
    /// Checks all of the file, then builds the model. `progress` hears of bytes done and bytes in all.
    pub fn load(backend: Arc<B>, gguf: &Gguf, progress: &mut dyn FnMut(u64, u64)) -> Result<Model<B>> {
        let config = Config::read(gguf)?;
        let unused = tensors::check(gguf, &config)?;
        let fused = Fused::of(gguf, &config);
        let total = gguf.tensors().map(|t| t.bytes.len() as u64).sum();
        let (weight_bytes, matrices) = (0, Matrices::default());
        let mut loader = Loader { backend: &*backend, gguf, progress, done: 0, total, weight_bytes, matrices };

        let layers = (0..config.layers).map(|i| loader.layer(i, &config, fused)).collect::<Result<_>>()?;
        let output_norm = loader.vector("output_norm.weight")?;
        let layer_matrices = std::mem::take(&mut loader.matrices);
        // The head first: a backend may drop a tensor's file pages once it is packed, and look-ups read them again.
        let tied = gguf.tensor("output.weight").is_none();
        let head = loader.weight(if tied { "token_embd.weight" } else { "output.weight" })?;
        let embedding = loader.table("token_embd.weight", !tied)?;
        let factors = Factors {
            any: loader.floats("rope_freqs.weight")?,
            short: loader.floats("rope_factors_short.weight")?,
            long: loader.floats("rope_factors_long.weight")?,
        };
        (loader.progress)(total, total);
        let (warnings, weight_bytes) = (unused.into_iter().collect(), loader.weight_bytes);
        let head_matrices = loader.matrices;
        Ok(Model {
            backend,
            config,
            embedding,
            layers,
            output_norm,
            head,
            factors,
            fused,
            warnings,
            weight_bytes,
            layer_matrices,
            head_matrices,
        })
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The backend it lives on.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// The embedding as the file has it, without the factor that the pass puts on it.
    pub fn embedding(&self) -> &B::Table {
        &self.embedding
    }

    /// What is odd about the file but harmless.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Bytes of weights, as encoded in the file, that one token's pass reads.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// The matrices that every row of a pass is multiplied with.
    pub fn layer_matrices(&self) -> Matrices {
        self.layer_matrices
    }

    /// The one that rows are multiplied with whose logits are wanted.
    pub fn head_matrices(&self) -> Matrices {
        self.head_matrices
    }

    /// Products of a row whose logits are wanted, over those of one whose are not.
    pub fn with_head(&self) -> f64 {
        let elements = |m: Matrices| (m.int8 + m.float) as f64;
        1.0 + elements(self.head_matrices) / elements(self.layer_matrices).max(1.0)
    }

    /// A session of at most `context` positions, fed at most `max_rows` rows at a time, with an empty cache of type `kv`.
    pub fn state(&self, context: usize, max_rows: usize, kv: KvType) -> Result<State<B>> {
        State::new(self, context, max_rows, kv)
    }

    /// Widths of fused products, where there are any: of queries, keys and values, and of gate and up.
    pub(super) fn fused_cols(&self) -> [Option<usize>; 2] {
        let c = &self.config;
        let qkv = (c.heads + 2 * c.kv_heads) * c.head_width;
        [self.fused.qkv.then_some(qkv), self.fused.gate_up.then_some(2 * c.ffn_width)]
    }
}

/// Hands tensors that [`tensors::check`] has passed to the backend.
struct Loader<'a, B: Backend> {
    backend: &'a B,
    gguf: &'a Gguf,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
    weight_bytes: u64,
    matrices: Matrices,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&mut self, i: usize, c: &Config, fused: Fused) -> Result<Layer<B>> {
        let at = |name: &str| format!("blk.{i}.{name}");
        let qkv = match fused.qkv {
            true => Projection::Fused(self.dense(&at("attn_qkv"))?),
            false => Projection::Separate([
                self.dense(&at("attn_q"))?,
                self.dense(&at("attn_k"))?,
                self.dense(&at("attn_v"))?,
            ]),
        };
        let gate_up = match fused.gate_up {
            true => Projection::Fused(self.dense(&at("ffn_up"))?),
            false => Projection::Separate([self.dense(&at("ffn_gate"))?, self.dense(&at("ffn_up"))?]),
        };
        Ok(Layer {
            attn_norm: self.vector(&at("attn_norm.weight"))?,
            qkv,
            q_norm: self.optional(&at("attn_q_norm.weight"))?,
            k_norm: self.optional(&at("attn_k_norm.weight"))?,
            attention: c.attention(i),
            local: c.is_local(i),
            output: Projection::Separate([self.dense(&at("attn_output"))?]),
            post_attn_norm: self.optional(&at("post_attention_norm.weight"))?,
            ffn_norm: self.vector(&at("ffn_norm.weight"))?,
            gate_up,
            down: Projection::Separate([self.dense(&at("ffn_down"))?]),
            post_ffn_norm: self.optional(&at("post_ffw_norm.weight"))?,
        })
    }

    fn dense(&mut self, name: &str) -> Result<Dense<B>> {
        let weight = self.weight(&format!("{name}.weight"))?;
        Ok(Dense { weight, bias: self.optional(&format!("{name}.bias"))? })
    }

    fn weight(&mut self, name: &str) -> Result<B::Weight> {
        let weight = self.with(name, |backend, tensor| backend.weight(tensor))?;
        let bytes = self.count(name);
        self.weight_bytes += bytes;
        if let Some(tensor) = self.gguf.tensor(name) {
            let elements = (tensor.rows() * tensor.cols()) as u64;
            let m = &mut self.matrices;
            let (count, size) = match quant::format(tensor.ggml_type).is_some_and(|format| format.int8) {
                true => (&mut m.int8, &mut m.int8_bytes),
                false => (&mut m.float, &mut m.float_bytes),
            };
            *count += elements;
            *size += bytes;
        }
        Ok(weight)
    }

    /// A table of its own counts as progress; one that shares the head's bytes was counted with it.
    fn table(&mut self, name: &str, own: bool) -> Result<B::Table> {
        let table = self.with(name, |backend, tensor| backend.table(tensor))?;
        if own {
            self.count(name);
        }
        Ok(table)
    }

    fn vector(&mut self, name: &str) -> Result<B::Vector> {
        let vector = self.with(name, |backend, tensor| backend.vector(tensor))?;
        self.weight_bytes += self.count(name);
        Ok(vector)
    }

    fn optional(&mut self, name: &str) -> Result<Option<B::Vector>> {
        self.gguf.tensor(name).map(|_| self.vector(name)).transpose()
    }

    /// Frequency factors, for use on this side of the backend.
    fn floats(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        let format = quant::format(tensor.ggml_type).with_context(|| format!("tensor {name}"))?;
        let mut values = vec![0.0; tensor.bytes.len() / format.bytes * format.block];
        (format.dequant)(tensor.bytes, &mut values);
        let bad = values.iter().find(|v| !(v.is_finite() && **v > 0.0));
        anyhow::ensure!(bad.is_none(), "tensor {name} holds {:?}, its values must be above zero", bad.unwrap_or(&0.0));
        self.count(name);
        Ok(Some(values))
    }

    fn with<T>(&self, name: &str, make: impl FnOnce(&B, &crate::gguf::TensorView<'_>) -> Result<T>) -> Result<T> {
        let tensor = self.gguf.tensor(name).with_context(|| format!("tensor {name} is missing"))?;
        make(self.backend, &tensor).with_context(|| format!("tensor {name}"))
    }

    /// Reports a tensor as done and gives its bytes.
    fn count(&mut self, name: &str) -> u64 {
        let bytes = self.gguf.tensor(name).map_or(0, |t| t.bytes.len() as u64);
        self.done += bytes;
        (self.progress)(self.done, self.total);
        bytes
    }
}
