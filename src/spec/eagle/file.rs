//! From a sidecar to the weights of a head.

use super::layer::{Dense, Shape, Third, Weights};
use crate::backend::{Backend, Pairing};
use crate::model::rope::{Factors, Scaling, Turning};
use crate::model::{Model, tensors};
use crate::quant;
use crate::spec::sidecar::Architecture;
use crate::spec::{Output, Sidecar};
use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;

/// Largest numbers accepted, far above every head there is.
const MAX_WIDTH: usize = 1 << 17;
const MAX_HEADS: usize = 1024;
const MAX_HEAD_WIDTH: usize = 1024;
const MAX_FFN_WIDTH: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 27;

/// Layers that EAGLE-3 reads.
const TAPS: usize = 3;
/// The key of these layers, and its older spelling.
const TAP_KEYS: [&str; 2] = ["target_layers", "extract_layers"];
/// The norm of the feature, and its older spelling.
const FEATURE_NORMS: [&str; 2] = ["blk.0.attn_norm_2.weight", "blk.0.hidden_norm.weight"];
/// Later variants of EAGLE-3, by their keys, and by a tensor that none but they have.
const VARIANTS: [&str; 3] = ["norm_before_fc", "norm_output", "fc_norm"];

/// What a file says of its head.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its numbers.
    pub shape: Shape,
    /// Layers of the target whose input it reads; none for one that reads the target's last rows.
    pub taps: Vec<usize>,
}

/// Reads the weights of a head for sessions of `context` positions on `model`.
pub fn load<B: Backend>(
    sidecar: &Sidecar,
    layout: &Layout,
    model: &Arc<Model<B>>,
    context: usize,
) -> Result<Weights<B>> {
    let (b, config) = (&**model.backend(), model.config());
    let is_third = sidecar.architecture() == Architecture::Eagle3;
    let Layout { mut shape, taps } = layout.clone();
    shape.shown = if is_third { taps.len() * config.width } else { config.width };
    if !is_third {
        sidecar.need_same("embedding_length", config.width)?;
    } else if sidecar.count("target_hidden_size", 1..=MAX_WIDTH)?.is_some() {
        sidecar.need_same("target_hidden_size", config.width)?;
    }
    if let Some(beyond) = taps.iter().find(|&&layer| layer > config.layers) {
        bail!("{} has layer {beyond}, the target has {}", tap_key(sidecar), config.layers);
    }
    let Shape { width: d, heads, kv_heads, head_width, ffn_width, .. } = shape;
    // What the target lends is as wide as the target.
    for name in ["token_embd.weight", "output.weight"] {
        let lends = !sidecar.has(name) && d != config.width;
        let key = sidecar.key("embedding_length");
        ensure!(!lends, "tensor {name} is missing, and the target's is {} wide, {key} is {d}", config.width);
    }

    let dense = |name: &str, rows: usize, cols: usize| -> Result<Dense<B>> {
        let weight = sidecar.weight(b, &format!("{name}.weight"), rows, cols)?;
        Ok(Dense { weight, bias: sidecar.vector_if(b, &format!("{name}.bias"), rows)? })
    };
    let block = |name: &str, rows: usize, cols: usize| dense(&format!("blk.0.{name}"), rows, cols);
    let (read, q, kv) = (if is_third { 2 * d } else { d }, heads * head_width, kv_heads * head_width);
    let third = match is_third {
        false => {
            let norm = "blk.0.attn_norm.weight";
            ensure!(!sidecar.has(norm), "tensor {norm} is there, a layer of eagle has no such norm");
            None
        }
        true => Some(Third {
            token_norm: sidecar.vector(b, "blk.0.attn_norm.weight", d)?,
            feature_norm: sidecar.vector(b, spelling(sidecar, FEATURE_NORMS), d)?,
            output_norm: sidecar.vector(b, "output_norm.weight", d)?,
            norm_before_residual: sidecar.flag("norm_before_residual")?.unwrap_or(false),
        }),
    };
    let ids = sidecar.draft_ids(config.vocab)?.map(Arc::from);
    let head = match ids.is_some() || sidecar.has("output.weight") {
        true => {
            let rows = ids.as_ref().map_or(config.vocab, |ids: &Arc<[_]>| ids.len());
            Output::Own { weight: sidecar.weight(b, "output.weight", rows, d)?, rows, ids }
        }
        false => Output::Target(model.clone()),
    };
    let embedding = match sidecar.has("token_embd.weight") {
        true => Some(sidecar.table(b, "token_embd.weight", config.vocab, d)?),
        false => None,
    };
    Ok(Weights {
        rope: turning(sidecar, head_width)?.rope(&factors(sidecar, head_width)?, context, false),
        fc: dense("fc", d, if is_third { shape.shown } else { 2 * d })?,
        qkv: [block("attn_q", q, read)?, block("attn_k", kv, read)?, block("attn_v", kv, read)?],
        output: block("attn_output", d, q)?,
        ffn_norm: sidecar.vector(b, "blk.0.ffn_norm.weight", d)?,
        gate_up: [block("ffn_gate", ffn_width, d)?, block("ffn_up", ffn_width, d)?],
        down: block("ffn_down", d, ffn_width)?,
        third,
        embedding,
        head,
        shape,
    })
}

/// Whether a head has a use for a tensor.
pub fn uses(name: &str) -> bool {
    let parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let name = name.strip_suffix(".bias").map_or(name.to_owned(), |name| format!("{name}.weight"));
    match name.strip_prefix("blk.0.").and_then(|name| name.strip_suffix(".weight")) {
        Some(part) => parts.contains(&part) || ["attn_norm", "attn_norm_2", "hidden_norm", "ffn_norm"].contains(&part),
        None => {
            let outer = ["fc", "output", "output_norm", "token_embd", "rope_freqs"];
            name == "d2t" || name.strip_suffix(".weight").is_some_and(|name| outer.contains(&name))
        }
    }
}

/// Reads and checks what the file says.
pub fn read(sidecar: &Sidecar) -> Result<Layout> {
    let blocks = sidecar.need("block_count", 0..=usize::MAX)?;
    ensure!(blocks == 1, "{} is {blocks}, supported: 1", sidecar.key("block_count"));
    let width = sidecar.need("embedding_length", 1..=MAX_WIDTH)?;
    let heads = sidecar.need("attention.head_count", 1..=MAX_HEADS)?;
    let kv_heads = sidecar.count("attention.head_count_kv", 1..=MAX_HEADS)?.unwrap_or(heads);
    let (key, kv_key) = (sidecar.key("attention.head_count"), sidecar.key("attention.head_count_kv"));
    ensure!(heads.is_multiple_of(kv_heads), "{key} is {heads}, not a multiple of {kv_key} {kv_heads}");
    let head_width = match sidecar.count("attention.key_length", 2..=MAX_HEAD_WIDTH)? {
        Some(stated) => stated,
        None => {
            let width_key = sidecar.key("embedding_length");
            ensure!(width.is_multiple_of(heads), "{width_key} is {width}, not a multiple of {key} {heads}");
            width / heads
        }
    };
    let key = sidecar.key("attention.key_length");
    ensure!(
        head_width.is_multiple_of(2) && head_width <= MAX_HEAD_WIDTH,
        "{key} is {head_width}, must be even and at most {MAX_HEAD_WIDTH}"
    );
    let value = sidecar.count("attention.value_length", 1..=MAX_HEAD_WIDTH)?.unwrap_or(head_width);
    ensure!(
        value == head_width,
        "{} is {value}, {key} is {head_width}: not supported",
        sidecar.key("attention.value_length")
    );
    let key = sidecar.key("attention.layer_norm_rms_epsilon");
    let eps = sidecar.real("attention.layer_norm_rms_epsilon")?;
    let Some(eps) = eps.filter(|eps| (0.0..1.0).contains(eps)) else {
        bail!("{key} is {}, must lie in 0 to 1", eps.map_or("missing".into(), |eps| eps.to_string()));
    };
    let shape = Shape {
        width,
        heads,
        kv_heads,
        head_width,
        ffn_width: sidecar.need("feed_forward_length", 1..=MAX_FFN_WIDTH)?,
        eps,
        shown: width,
    };
    if sidecar.architecture() != Architecture::Eagle3 {
        return Ok(Layout { shape, taps: vec![] });
    }
    for variant in VARIANTS {
        let stated = sidecar.flag(variant)? == Some(true);
        ensure!(!stated, "{} is true, supported: false (EAGLE-3 as first published)", sidecar.key(variant));
        let tensor = format!("{variant}.weight");
        ensure!(!sidecar.has(&tensor), "tensor {tensor} is there, supported: EAGLE-3 as first published, without it");
    }
    Ok(Layout { shape, taps: tapped(sidecar)? })
}

/// The key of the layers that the head reads, as this file spells it.
fn tap_key(sidecar: &Sidecar) -> String {
    let [key, old] = TAP_KEYS.map(|key| sidecar.key(key));
    if sidecar.meta().contains(&old) && !sidecar.meta().contains(&key) { old } else { key }
}

/// The layers whose input the head reads.
fn tapped(sidecar: &Sidecar) -> Result<Vec<usize>> {
    let key = tap_key(sidecar);
    let list = sidecar.meta().ints(&key)?;
    let list = list.with_context(|| format!("{key} is missing, the {TAPS} layers whose input the head reads"))?;
    ensure!(list.len() == TAPS, "{key} has {} layers, supported: {TAPS}", list.len());
    let taps = list.iter().map(|&layer| usize::try_from(layer));
    taps.collect::<Result<_, _>>().with_context(|| format!("{key} is {list:?}, not layers"))
}

fn turning(sidecar: &Sidecar, head_width: usize) -> Result<Turning> {
    let dims = sidecar.count("rope.dimension_count", 2..=MAX_HEAD_WIDTH)?.unwrap_or(head_width);
    let key = sidecar.key("rope.dimension_count");
    ensure!(dims <= head_width && dims.is_multiple_of(2), "{key} is {dims}, must be even and at most {head_width}");
    let base = f64::from(sidecar.real("rope.freq_base")?.unwrap_or(10_000.0));
    ensure!(base > 1.0, "{} is {base}, must be above 1", sidecar.key("rope.freq_base"));
    let key = sidecar.key("rope.scaling.type");
    let factor = match sidecar.meta().str(&key)? {
        None | Some("none") => 1.0,
        Some("linear") => f64::from(sidecar.real("rope.scaling.factor")?.unwrap_or(1.0)),
        Some(other) => bail!("{key} {other:?} is not supported; supported: none linear"),
    };
    ensure!(factor > 0.0, "{} is {factor}, must be above 0", sidecar.key("rope.scaling.factor"));
    let context = sidecar.count("context_length", 1..=MAX_CONTEXT)?.unwrap_or(MAX_CONTEXT);
    Ok(Turning {
        pairing: Pairing::Adjacent,
        dims,
        base,
        local_base: None,
        scaling: Scaling::Linear { factor },
        context,
        original_context: context,
        magnitude: None,
    })
}

/// Divisors of the frequencies, as llama 3 has them.
fn factors(sidecar: &Sidecar, head_width: usize) -> Result<Factors> {
    const NAME: &str = "rope_freqs.weight";
    if !sidecar.has(NAME) {
        return Ok(Factors::default());
    }
    let pairs = sidecar.count("rope.dimension_count", 2..=MAX_HEAD_WIDTH)?.unwrap_or(head_width) / 2;
    let tensor = sidecar.tensor(NAME, tensors::Shape::Vector(pairs))?;
    let mut values = vec![0.0; pairs];
    if let Some(format) = quant::format(tensor.ggml_type) {
        (format.dequant)(tensor.bytes, &mut values);
    }
    let bad = values.iter().find(|v| !(v.is_finite() && **v > 0.0));
    ensure!(bad.is_none(), "tensor {NAME} holds {:?}, its values must be above zero", bad.unwrap_or(&0.0));
    Ok(Factors { any: Some(values), ..Factors::default() })
}

fn spelling(sidecar: &Sidecar, names: [&'static str; 2]) -> &'static str {
    if sidecar.has(names[1]) && !sidecar.has(names[0]) { names[1] } else { names[0] }
}

/// Lines about a head, for people.
pub fn describe(sidecar: &Sidecar) -> Result<Vec<(&'static str, String)>> {
    let Layout { shape: s, taps } = read(sidecar)?;
    let reads = match taps.as_slice() {
        [] => "the target's last rows".into(),
        taps => format!("what enters layers {}", taps.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")),
    };
    let heads = format!("{} heads of {} over {}", s.heads, s.head_width, s.kv_heads);
    let owner = |name: &str| if sidecar.has(name) { "its own" } else { "the target's" };
    let size = sidecar.gguf().tensor("output.weight").and_then(|t| t.dims.get(1).copied());
    let over = size.map_or(String::new(), |n| format!(" over {n} tokens"));
    let (embedding, output) = (owner("token_embd.weight"), owner("output.weight"));
    Ok(vec![
        ("layer", format!("width {}, {heads}, feed-forward {}, reads {reads}", s.width, s.ffn_width)),
        ("tokens", format!("embedding {embedding}, output {output}{over}")),
    ])
}
