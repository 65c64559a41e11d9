//! Which tensors a model file must have, and of what shape: a table, checked in full before anything is built.

use super::Config;
use crate::gguf::{Gguf, TensorView};
use crate::quant;
use anyhow::{Result, bail, ensure};
use std::collections::HashSet;

/// Shape and use of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `[rows, cols]`, in any weight format.
    Matrix(usize, usize),
    /// `[n]`, in floats: a norm, a bias or frequency factors.
    Vector(usize),
}

/// When a file has to have a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Always.
    Needed,
    /// If it likes, but in all layers or in none.
    Optional,
}

/// One row of the table.
pub type Row = (&'static str, Shape, Presence);

/// Tensors outside the layers.
pub fn global_rows(c: &Config) -> Vec<Row> {
    use Presence::*;
    use Shape::*;
    let pairs = c.turning.dims / 2;
    let long = if c.turning.scaling == super::rope::Scaling::Tensors { Needed } else { Optional };
    vec![
        ("token_embd.weight", Matrix(c.vocab, c.width), Needed),
        ("output_norm.weight", Vector(c.width), Needed),
        ("output.weight", Matrix(c.vocab, c.width), Optional),
        ("rope_freqs.weight", Vector(pairs), Optional),
        ("rope_factors_long.weight", Vector(pairs), long),
        ("rope_factors_short.weight", Vector(pairs), long),
    ]
}

/// Tensors of a layer (names without `blk.N.`), given which of its products the file holds fused.
pub fn layer_rows(c: &Config, fused: Fused) -> Vec<Row> {
    use Presence::*;
    use Shape::*;
    let (d, f, k) = (c.width, c.ffn_width, c.head_width);
    let (q, kv) = (c.heads * k, c.kv_heads * k);
    let mut rows = vec![
        ("attn_norm.weight", Vector(d), Needed),
        ("attn_q_norm.weight", Vector(k), Optional),
        ("attn_k_norm.weight", Vector(k), Optional),
        ("attn_output.weight", Matrix(d, q), Needed),
        ("attn_output.bias", Vector(d), Optional),
        ("post_attention_norm.weight", Vector(d), Optional),
        ("ffn_norm.weight", Vector(d), Needed),
        ("ffn_down.weight", Matrix(d, f), Needed),
        ("ffn_down.bias", Vector(d), Optional),
        ("post_ffw_norm.weight", Vector(d), Optional),
    ];
    if fused.qkv {
        rows.push(("attn_qkv.weight", Matrix(q + 2 * kv, d), Needed));
        rows.push(("attn_qkv.bias", Vector(q + 2 * kv), Optional));
    } else {
        rows.push(("attn_q.weight", Matrix(q, d), Needed));
        rows.push(("attn_q.bias", Vector(q), Optional));
        rows.push(("attn_k.weight", Matrix(kv, d), Needed));
        rows.push(("attn_k.bias", Vector(kv), Optional));
        rows.push(("attn_v.weight", Matrix(kv, d), Needed));
        rows.push(("attn_v.bias", Vector(kv), Optional));
    }
    let up = if fused.gate_up { 2 * f } else { f };
    if !fused.gate_up {
        rows.push(("ffn_gate.weight", Matrix(f, d), Needed));
        rows.push(("ffn_gate.bias", Vector(f), Optional));
    }
    rows.push(("ffn_up.weight", Matrix(up, d), Needed));
    rows.push(("ffn_up.bias", Vector(up), Optional));
    for (name, _, presence) in &mut rows {
        if c.arch.needs.contains(name) {
            *presence = Needed;
        }
    }
    rows
}

/// Which products of a layer share one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fused {
    /// `attn_qkv`: queries, keys, values, one below the other.
    pub qkv: bool,
    /// `ffn_up` of twice the width: the gate, then up.
    pub gate_up: bool,
}

impl Fused {
    /// What the first layer of the file looks like; the others must be the same.
    pub fn of(gguf: &Gguf, c: &Config) -> Fused {
        let up = gguf.tensor("blk.0.ffn_up.weight");
        let wide = up.is_some_and(|t| t.dims.get(1) == Some(&(2 * c.ffn_width as u64)));
        Fused {
            qkv: gguf.tensor("blk.0.attn_qkv.weight").is_some(),
            gate_up: wide && gguf.tensor("blk.0.ffn_gate.weight").is_none(),
        }
    }
}

/// Checks presence, shape and element type of every tensor; what remains unused is worth one warning.
pub fn check(gguf: &Gguf, c: &Config) -> Result<Option<String>> {
    let mut known = HashSet::new();
    let mut expect = |name: String, shape: Shape, needed: bool| -> Result<()> {
        match gguf.tensor(&name) {
            Some(tensor) => check_one(&tensor, shape)?,
            None => ensure!(!needed, "tensor {name} is missing, expected {}", shape.text()),
        }
        known.insert(name);
        Ok(())
    };
    for (name, shape, presence) in global_rows(c) {
        expect(name.into(), shape, presence == Presence::Needed)?;
    }
    for (name, shape, presence) in layer_rows(c, Fused::of(gguf, c)) {
        let full = |layer: usize| format!("blk.{layer}.{name}");
        let everywhere = presence == Presence::Needed || (0..c.layers).any(|i| gguf.tensor(&full(i)).is_some());
        for layer in 0..c.layers {
            expect(full(layer), shape, everywhere)?;
        }
    }
    let has = |name| gguf.tensor(name).is_some();
    let (long, short) = ("rope_factors_long.weight", "rope_factors_short.weight");
    ensure!(has(long) == has(short), "one of {long} and {short} is missing");

    let unused: Vec<&str> = gguf.tensors().map(|t| t.name).filter(|&n| !known.contains(n)).collect();
    Ok(unused.first().map(|first| match unused.len() - 1 {
        0 => format!("tensor {first} is not used by {}", c.arch.name),
        more => format!("tensor {first} and {more} more are not used by {}", c.arch.name),
    }))
}

/// Checks shape and element type of a tensor.
pub fn check_one(tensor: &TensorView<'_>, shape: Shape) -> Result<()> {
    let name = tensor.name;
    let want = shape.dims();
    // Trailing dimensions of 1 mean nothing.
    let used = tensor.dims.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1);
    let same = used <= want.len() && want.iter().enumerate().all(|(i, &w)| tensor.dims.get(i).unwrap_or(&1) == &w);
    ensure!(same, "tensor {name} has shape {:?}, expected {}", tensor.dims, shape.text());

    let Some(format) = quant::format(tensor.ggml_type) else {
        let ty = tensor.type_name();
        bail!("tensor {name}: format {ty} is not supported; supported: {}", quant::supported());
    };
    match shape {
        Shape::Vector(_) => {
            let float = format.block == 1;
            ensure!(float, "tensor {name}: format {} is not supported here; supported: F32 F16 BF16", format.name);
        }
        Shape::Matrix(_, cols) => {
            let whole = cols.is_multiple_of(format.block);
            ensure!(whole, "tensor {name}: rows of {cols} are not whole blocks of {} ({})", format.block, format.name);
        }
    }
    Ok(())
}

impl Shape {
    /// As the file writes it, row length first.
    fn dims(self) -> Vec<u64> {
        match self {
            Shape::Matrix(rows, cols) => vec![cols as u64, rows as u64],
            Shape::Vector(n) => vec![n as u64],
        }
    }

    /// As messages write it, in the order of the file.
    pub fn text(self) -> String {
        format!("{:?}", self.dims())
    }
}
