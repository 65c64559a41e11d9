//! Hyper-parameters, read from the metadata and checked: non-zero, within caps, divisible where the pass divides.
//! Every message names the key.

use super::arch::{self, Arch};
use super::rope::{Scaling, Turning};
use crate::backend::{Attention, KvShape, KvType};
use crate::gguf::{Gguf, Metadata};
use crate::tree::DraftTree;
use anyhow::{Result, bail, ensure};

/// The numbers a forward pass needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The architecture's row of flags.
    pub arch: &'static Arch,
    /// Positions the model was trained for.
    pub context: usize,
    /// Layers.
    pub layers: usize,
    /// Model width `D`.
    pub width: usize,
    /// Query heads `H`.
    pub heads: usize,
    /// KV heads `G`.
    pub kv_heads: usize,
    /// Head width `K`.
    pub head_width: usize,
    /// Feed-forward width `F`.
    pub ffn_width: usize,
    /// Vocabulary `V`.
    pub vocab: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Factor on embedding rows.
    pub embedding_scale: f32,
    /// Factor on query-key products.
    pub attention_scale: f32,
    /// Soft cap on scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap on logits.
    pub final_softcap: Option<f32>,
    /// Sliding window of the layers that have one.
    pub window: Option<usize>,
    /// Position encoding.
    pub turning: Turning,
}

/// Largest values accepted: far above every model there is, low enough that no product of them overflows.
const MAX_LAYERS: usize = 512;
const MAX_WIDTH: usize = 1 << 17;
const MAX_HEADS: usize = 1024;
const MAX_HEAD_WIDTH: usize = 1024;
const MAX_FFN_WIDTH: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 22;
const MAX_CONTEXT: usize = 1 << 27;

impl Config {
    /// Reads and checks the metadata of a model file.
    pub fn read(gguf: &Gguf) -> Result<Config> {
        let Some(name) = gguf.meta().str("general.architecture")? else {
            bail!("general.architecture is missing; supported: {}", arch::supported());
        };
        if let Some((_, kind)) = arch::SIDECARS.iter().find(|(sidecar, _)| *sidecar == name) {
            bail!(
                "general.architecture {name:?} is not supported as a model: the file is a sidecar, heads that draft for a model; \
                 give the model with -m and this file with --draft {kind}:FILE"
            );
        }
        let Some(arch) = arch::find(name) else {
            bail!("general.architecture {name:?} is not supported; supported: {}", arch::supported());
        };
        if gguf.tensor_count() == 0 {
            bail!("the file holds no tensors: it is vocabulary-only and cannot generate");
        }
        let keys = Keys { meta: gguf.meta(), arch: arch.name };
        if let Some(n @ 1..) = keys.uint("expert_count")? {
            bail!("{} is {n}: mixtures of experts are not supported", keys.name("expert_count"));
        }
        if keys.meta.bool(&keys.name("attention.causal"))? == Some(false) {
            bail!("{} is false: only causal models are supported", keys.name("attention.causal"));
        }

        let width = keys.need("embedding_length", MAX_WIDTH)?;
        let layers = keys.need("block_count", MAX_LAYERS)?;
        let heads = keys.need("attention.head_count", MAX_HEADS)?;
        let kv_heads = keys.count("attention.head_count_kv", MAX_HEADS)?.unwrap_or(heads);
        ensure!(
            heads.is_multiple_of(kv_heads),
            "{} is {heads}, not a multiple of {} {kv_heads}",
            keys.name("attention.head_count"),
            keys.name("attention.head_count_kv")
        );
        let head_width = keys.head_width(width, heads)?;
        let ffn_width = keys.need("feed_forward_length", MAX_FFN_WIDTH)?;
        let context = keys.need("context_length", MAX_CONTEXT)?;
        let vocab = keys.vocabulary()?;

        let eps = keys.float("attention.layer_norm_rms_epsilon")?;
        let Some(eps) = eps.filter(|e| (0.0..1.0).contains(e)) else {
            bail!("{} is {}, must lie in [0, 1)", keys.name("attention.layer_norm_rms_epsilon"), found(eps));
        };
        let wide = arch.wide_scale_layers == Some(layers);
        let per_score = if wide { width as f64 / heads as f64 } else { head_width as f64 };
        let windowed = arch.windows != arch::Windows::Never;
        let window = keys.uint("attention.sliding_window")?.map(|w| w as usize).or(arch.window);

        Ok(Config {
            arch,
            context,
            layers,
            width,
            heads,
            kv_heads,
            head_width,
            ffn_width,
            vocab,
            eps: eps as f32,
            embedding_scale: if arch.scaled_embedding { (width as f32).sqrt() } else { 1.0 },
            attention_scale: keys.positive("attention.scale")?.unwrap_or(per_score.sqrt().recip()) as f32,
            attention_softcap: keys.softcap("attn_logit_softcapping", arch.attention_softcap)?,
            final_softcap: keys.softcap("final_logit_softcapping", arch.final_softcap)?,
            window: window.filter(|&w| windowed && w > 0),
            turning: keys.turning(arch, head_width, context)?,
        })
    }

    /// Whether `layer` attends through the sliding window.
    pub fn is_local(&self, layer: usize) -> bool {
        self.window.is_some() && self.arch.windows.covers(layer)
    }

    /// How `layer` attends.
    pub fn attention(&self, layer: usize) -> Attention {
        let window = self.window.filter(|_| self.is_local(layer));
        Attention { scale: self.attention_scale, softcap: self.attention_softcap, window }
    }

    /// The cache of a session of `context` positions: these and the scratch slots of a tree.
    pub fn kv_shape(&self, context: usize, ty: KvType) -> KvShape {
        let slots = context + DraftTree::MAX;
        KvShape { layers: self.layers, slots, heads: self.kv_heads, width: self.head_width, ty }
    }

    /// Checks that a session can have `context` positions with a cache of type `ty`.
    pub fn check_session(&self, context: usize, ty: KvType) -> Result<()> {
        ensure!((1..=MAX_CONTEXT).contains(&context), "a context of {context} is not in 1..={MAX_CONTEXT}");
        let blocks = ty != KvType::Q8_0 || self.head_width.is_multiple_of(32);
        ensure!(blocks, "a q8_0 cache needs a head width that is a multiple of 32, not {}", self.head_width);
        Ok(())
    }
}

/// A number or its absence, for messages.
fn found<T: ToString>(value: Option<T>) -> String {
    value.map_or("missing".into(), |v| v.to_string())
}

/// The metadata under an architecture's prefix.
struct Keys<'a> {
    meta: &'a Metadata,
    arch: &'static str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        Ok(self.meta.float(&self.name(key))?.map(f64::from))
    }

    fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.meta.uint(&self.name(key))
    }

    /// A finite float above zero.
    fn positive(&self, key: &str) -> Result<Option<f64>> {
        let value = self.float(key)?;
        let fine = value.is_none_or(|v| v > 0.0 && v.is_finite());
        ensure!(fine, "{} is {}, must be above zero", self.name(key), found(value));
        Ok(value)
    }

    /// A count in `1..=max`. One value per layer will do if all are the same.
    fn count(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let name = self.name(key);
        let value = if self.meta.is_array(&name) {
            let list = self.meta.ints(&name)?.unwrap_or_default();
            let Some((&first, rest)) = list.split_first() else { bail!("{name} is an empty array") };
            if let Some(other) = rest.iter().find(|&&v| v != first) {
                bail!("{name} differs between layers ({first} and {other}): not supported");
            }
            u64::try_from(first).unwrap_or(0)
        } else {
            let Some(value) = self.meta.uint(&name)? else { return Ok(None) };
            value
        };
        let fits = usize::try_from(value).ok().filter(|v| (1..=max).contains(v));
        let Some(value) = fits else { bail!("{name} is {value}, must lie in 1..={max}") };
        Ok(Some(value))
    }

    fn need(&self, key: &str, max: usize) -> Result<usize> {
        let value = self.count(key, max)?;
        value.ok_or_else(|| anyhow::anyhow!("{} is missing", self.name(key)))
    }

    /// The file's head width wins over D/H: many models have heads wider than their share.
    fn head_width(&self, width: usize, heads: usize) -> Result<usize> {
        let key = self.count("attention.key_length", MAX_HEAD_WIDTH)?;
        let value = self.count("attention.value_length", MAX_HEAD_WIDTH)?;
        let share = || {
            let (d, h) = (self.name("embedding_length"), self.name("attention.head_count"));
            ensure!(width.is_multiple_of(heads), "{d} is {width}, not a multiple of {h} {heads}");
            Ok(width / heads)
        };
        let key = key.map_or_else(share, Ok)?;
        let value = value.unwrap_or(key);
        let (k, v) = (self.name("attention.key_length"), self.name("attention.value_length"));
        ensure!(key == value, "{k} {key} differs from {v} {value}: not supported");
        ensure!(key.is_multiple_of(2), "{k} is {key}, must be even");
        ensure!(key <= MAX_HEAD_WIDTH, "{k} is {key}, must lie in 1..={MAX_HEAD_WIDTH}");
        Ok(key)
    }

    /// The vocabulary is what the tokenizer lists; a file without one must state a size.
    fn vocabulary(&self) -> Result<usize> {
        let (key, count) = match self.meta.strings("tokenizer.ggml.tokens")? {
            Some(tokens) => ("tokenizer.ggml.tokens".to_string(), tokens.len()),
            None => (self.name("vocab_size"), self.need("vocab_size", MAX_VOCAB)?),
        };
        ensure!((1..=MAX_VOCAB).contains(&count), "{key} has {count} tokens, must lie in 1..={MAX_VOCAB}");
        Ok(count)
    }

    /// A soft cap; zero switches it off.
    fn softcap(&self, key: &str, default: Option<f32>) -> Result<Option<f32>> {
        let Some(cap) = self.float(key)? else { return Ok(default) };
        ensure!(cap >= 0.0 && cap.is_finite(), "{} is {cap}, must not be negative", self.name(key));
        Ok(Some(cap as f32).filter(|&c| c > 0.0))
    }

    fn turning(&self, arch: &Arch, head_width: usize, context: usize) -> Result<Turning> {
        let dims = self.count("rope.dimension_count", MAX_HEAD_WIDTH)?.unwrap_or(head_width);
        let key = self.name("rope.dimension_count");
        ensure!(dims <= head_width && dims.is_multiple_of(2), "{key} is {dims}, must be even and at most {head_width}");

        let mut factor = self.float("rope.scaling.factor")?.filter(|&f| f != 0.0);
        if factor.is_none() {
            factor = self.float("rope.scale_linear")?.filter(|&f| f != 0.0);
        }
        let factor = factor.unwrap_or(1.0);
        ensure!(
            factor > 0.0 && factor.is_finite(),
            "{} is {factor}, must be above zero",
            self.name("rope.scaling.factor")
        );
        let key = self.name("rope.scaling.type");
        let scaling = match self.meta.str(&key)? {
            Some("none") => Scaling::Linear { factor: 1.0 },
            Some("linear") | None => Scaling::Linear { factor },
            Some("yarn") => Scaling::Yarn {
                factor,
                beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            },
            Some("longrope") => Scaling::Tensors,
            Some(other) => bail!("{key} {other:?} is not supported; supported: none linear yarn longrope"),
        };
        let mut local_base = None;
        if let Some(default) = arch.local_rope_base {
            let stated = self.positive("rope.freq_base_swa")?;
            let stated = stated.map_or_else(|| self.positive("rope.local.freq_base"), |v| Ok(Some(v)))?;
            local_base = Some(stated.unwrap_or(default));
        }
        let base = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        ensure!(base > 1.0, "{} is {base}, must be above 1", self.name("rope.freq_base"));
        Ok(Turning {
            pairing: arch.pairing,
            dims,
            base,
            local_base,
            scaling,
            context,
            original_context: self.count("rope.scaling.original_context_length", MAX_CONTEXT)?.unwrap_or(context),
            magnitude: self.positive("rope.scaling.attn_factor")?,
        })
    }
}
