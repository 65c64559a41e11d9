//! EAGLE heads for tests: random ones of any size, and heads of a target that is known through and through.

use super::gguf_writer::{Rng, Tensor, Value, Writer, encoding, random_weights};
use super::sidecars;
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::gguf::Gguf;
use foretoken::model::Model;
use foretoken::spec::Drafter;
use foretoken::spec::eagle::{Eagle, Growth};
use foretoken::spec::sidecar::{Architecture, Sidecar};
use foretoken::tree::Token;
use std::sync::Arc;

/// A head to be made.
#[derive(Clone, Debug)]
pub struct Head {
    pub third: bool,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub ff: usize,
    /// Width and layers of the target, and its vocabulary.
    pub target: (usize, usize, usize),
    /// Tokens of a reduced head.
    pub ids: Option<Vec<Token>>,
    /// Whether it has its own embedding, and its own output.
    pub owns: (bool, bool),
    pub biased: bool,
    pub weights: &'static str,
    pub seed: u64,
}

impl Head {
    /// A small one for a target.
    pub fn of(model: &Model<Cpu>, third: bool, seed: u64) -> Head {
        let c = model.config();
        Head {
            third,
            width: c.width,
            heads: 4,
            kv_heads: 2,
            head_width: 16,
            ff: 96,
            target: (c.width, c.layers, c.vocab),
            ids: None,
            owns: (false, false),
            biased: false,
            weights: "F32",
            seed,
        }
    }

    fn arch(&self) -> &'static str {
        if self.third { "eagle3" } else { "eagle" }
    }

    /// The head's file, but for what it says of the target.
    pub fn file(&self) -> Writer {
        let number = |n: usize| Value::U32(n as u32);
        let (arch, (wide, layers, vocab)) = (self.arch(), self.target);
        let key = |name: &str| format!("{arch}.{name}");
        let mut w = Writer::default()
            .key("general.architecture", Value::Str(arch.into()))
            .key("spec.feature", Value::Str(if self.third { "residual_in" } else { "post_norm" }.into()))
            .key(&key("block_count"), number(1))
            .key(&key("context_length"), number(512))
            .key(&key("embedding_length"), number(self.width))
            .key(&key("feed_forward_length"), number(self.ff))
            .key(&key("attention.head_count"), number(self.heads))
            .key(&key("attention.head_count_kv"), number(self.kv_heads))
            .key(&key("attention.key_length"), number(self.head_width))
            .key(&key("attention.value_length"), number(self.head_width))
            .key(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5))
            .key(&key("rope.freq_base"), Value::F32(10_000.0))
            .key(&key("rope.dimension_count"), number(self.head_width));
        if self.third {
            let taps = [1, layers / 2, layers].map(|layer| layer as i32);
            w = w.key(&key("target_layers"), Value::I32s(taps.into())).key(&key("target_hidden_size"), number(wide));
        }
        let (d, q, kv) = (self.width, self.heads * self.head_width, self.kv_heads * self.head_width);
        let read = if self.third { 2 * d } else { d };
        let mut rng = Rng(self.seed);
        let mut matrix = |w: &mut Writer, name: &str, rows: usize, cols: usize, spread: f32| {
            let bytes = random_weights(&mut rng, encoding(self.weights), rows * cols, spread);
            let name = format!("{name}.weight");
            w.tensors.push(Tensor::new(&name, &[cols as u64, rows as u64], encoding(self.weights).ty, bytes));
        };
        let mut other = Rng(self.seed ^ 1 << 40);
        let mut vector = |w: &mut Writer, name: &str, n: usize, mean: f32| {
            let bytes = (0..n).flat_map(|_| (mean + 0.1 * other.normal()).to_le_bytes()).collect();
            w.tensors.push(Tensor::new(name, &[n as u64], 0, bytes));
        };
        let even = |n: usize| 1.0 / (n as f32).sqrt();
        let fc = if self.third { 3 * wide } else { 2 * d };
        matrix(&mut w, "fc", d, fc, even(fc));
        for (name, rows, cols) in [
            ("attn_q", q, read),
            ("attn_k", kv, read),
            ("attn_v", kv, read),
            ("attn_output", d, q),
            ("ffn_gate", self.ff, d),
            ("ffn_up", self.ff, d),
            ("ffn_down", d, self.ff),
        ] {
            matrix(&mut w, &format!("blk.0.{name}"), rows, cols, even(cols));
            if self.biased {
                vector(&mut w, &format!("blk.0.{name}.bias"), rows, 0.0);
            }
        }
        vector(&mut w, "blk.0.ffn_norm.weight", d, 1.0);
        if self.biased {
            vector(&mut w, "fc.bias", d, 0.0);
        }
        if self.third {
            vector(&mut w, "blk.0.attn_norm.weight", d, 1.0);
            vector(&mut w, "blk.0.attn_norm_2.weight", d, 1.0);
            vector(&mut w, "output_norm.weight", d, 1.0);
        }
        if let Some(ids) = &self.ids {
            w = w.key("spec.draft_vocab_size", number(ids.len()));
            let bytes = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
            w.tensors.push(Tensor::new("d2t", &[ids.len() as u64], 27, bytes));
        }
        if self.owns.1 || self.ids.is_some() {
            matrix(&mut w, "output", self.ids.as_ref().map_or(vocab, Vec::len), d, 3.0 * even(d));
        }
        if self.owns.0 {
            matrix(&mut w, "token_embd", vocab, d, 0.5);
        }
        w
    }
}

/// What makes a head of [`sidecars::cyclic`] guess right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// The row of the token before the last: one step further is the last, the guess is two steps on.
    Feature,
    /// The last token: the guess is one step on.
    Token,
}

impl Head {
    /// A head of [`sidecars::cyclic`] that knows one half of its pairs and is blind to the other, `late` steps behind what
    /// would be right. Of EAGLE-3 those that know the token do so for one guess only.
    pub fn cyclic(model: &Model<Cpu>, third: bool, knows: Knows, late: usize) -> Writer {
        const D: usize = 64;
        let head = Head { heads: 2, head_width: 32, biased: third, ff: D, ..Head::of(model, third, 1) };
        let mut w = head.file();
        let mut set = |name: &str, value: &dyn Fn(usize, usize) -> f32| {
            let tensor = w.tensor_mut(name);
            let (cols, rows) = (tensor.dims[0] as usize, *tensor.dims.get(1).unwrap_or(&1) as usize);
            tensor.bytes = (0..rows * cols).flat_map(|i| value(i / cols, i % cols).to_le_bytes()).collect();
        };
        let on = |is: bool| f32::from(u8::from(is));
        // From "last was t" to "last was t, some steps on".
        let ahead = |n: usize| move |row: usize, col: usize| on(row == sidecars::steps(col, n));
        let feature = knows == Knows::Feature;
        let norms: &[&str] = if third {
            &["blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm"]
        } else {
            &["blk.0.ffn_norm"]
        };
        norms.iter().for_each(|norm| set(&format!("{norm}.weight"), &|_, _| 1.0));
        if !third {
            set("blk.0.attn_output.weight", &|_, _| 0.0);
            set("blk.0.ffn_down.weight", &|_, _| 0.0);
            set("fc.weight", &|row, col| match (col < D, feature) {
                (true, false) => 8.0 * ahead(late)(row, col),
                (false, true) => ahead(1 + late)(row, col - D),
                _ => 0.0,
            });
            return w;
        }
        for name in ["fc", "blk.0.attn_v", "blk.0.attn_output", "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"] {
            set(&format!("{name}.bias"), &|_, _| 0.0);
        }
        // A pair looks at none but itself: queries and keys are alike, and turned alike only where they are of one place.
        for part in ["q", "k"] {
            set(&format!("blk.0.attn_{part}.weight"), &|_, _| 0.0);
            set(&format!("blk.0.attn_{part}.bias"), &|_, col| 20.0 * on(col % 2 == 0));
        }
        set("blk.0.attn_v.weight", &|row, col| on(row == col));
        set("blk.0.attn_output.weight", &|row, col| 8.0 * on(!feature) * ahead(late)(row, col));
        set("fc.weight", &|row, col| on(feature && row == col % D) / 3.0);
        // Normed rows are 8 where they are not 0; 80 is its own SiLU.
        set("blk.0.ffn_gate.weight", &|row, col| 10.0 * on(row == col));
        set("blk.0.ffn_up.weight", &|row, col| on(row == col));
        let step = |row, col| (ahead(1 + late)(row, col) - on(row == col)) / 640.0;
        set("blk.0.ffn_down.weight", &|row, col| on(feature) * step(row, col));
        w
    }
}

/// Opens a head.
pub fn open(
    file: Vec<u8>,
    model: &Arc<Model<Cpu>>,
    context: usize,
    kv: KvType,
    growth: Growth,
) -> Box<dyn Drafter<Cpu>> {
    let sidecar = Sidecar::new(Gguf::from_bytes(file).unwrap(), &[Architecture::Eagle, Architecture::Eagle3]).unwrap();
    Box::new(Eagle::load(&sidecar, model, context, kv, growth).unwrap())
}
