//! Shapes of models that people run, and small ones.

use super::file::Hollow;
use crate::quant::{self, Format};

/// A model's numbers.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What it is called.
    pub name: &'static str,
    /// Layers.
    pub layers: usize,
    /// Width.
    pub width: usize,
    /// Feed-forward width.
    pub ffn: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_width: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Whether the embedding is the output matrix too.
    pub tied: bool,
}

/// How its weights are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Q4_K, and Q6_K where llama.cpp has it in its Q4_K_M.
    Q4KM,
    /// Q8_0.
    Q8_0,
}

const fn shape(
    name: &'static str,
    [layers, width, ffn]: [usize; 3],
    [heads, kv_heads, head_width]: [usize; 3],
    vocab: usize,
    tied: bool,
) -> Shape {
    Shape { name, layers, width, ffn, heads, kv_heads, head_width, vocab, tied }
}

/// Shapes of SmolLM2-135M, Qwen2.5-1.5B, Llama-3.1-8B and Qwen2.5-32B.
pub const REAL: [Shape; 4] = [
    shape("SmolLM2", [30, 576, 1536], [9, 3, 64], 49_152, true),
    shape("1.5B", [28, 1536, 8960], [12, 2, 128], 151_936, true),
    shape("8B", [32, 4096, 14_336], [32, 8, 128], 128_256, false),
    shape("32B", [64, 5120, 27_648], [40, 8, 128], 152_064, false),
];

/// One layer of odd heads, and one of wide ones, for the laws: of real widths.
pub const LAWS: [Shape; 2] = [
    shape("two layers of the 8B", [2, 4096, 14_336], [32, 8, 128], 4096, false),
    shape("three layers of SmolLM2", [3, 576, 1536], [9, 3, 64], 8192, true),
];

/// What the emulator takes in the time of a test.
pub const TINY: [Shape; 2] =
    [shape("tiny", [3, 256, 512], [4, 2, 64], 320, false), shape("odd", [3, 96, 160], [3, 1, 32], 288, true)];

impl Mix {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Q4KM => "Q4_K_M",
            Mix::Q8_0 => "Q8_0",
        }
    }

    /// The format of a matrix with rows of `cols`; `fine` where more bits are spent.
    fn format(self, cols: usize, fine: bool) -> &'static Format {
        match (self, cols.is_multiple_of(256)) {
            (Mix::Q4KM, true) if fine => &quant::q6_k::FORMAT,
            (Mix::Q4KM, true) => &quant::q4_k::FORMAT,
            (Mix::Q4KM, false) if !fine => &quant::q5_0::FORMAT,
            _ => &quant::q8_0::FORMAT,
        }
    }
}

impl Shape {
    /// A file of this shape for contexts of `context`.
    pub fn file(&self, mix: Mix, context: usize) -> Hollow {
        let Shape { layers, width, ffn, heads, kv_heads, head_width, vocab, tied, .. } = *self;
        let mut file = Hollow::default()
            .word("general.architecture", "llama")
            .number("llama.context_length", context)
            .number("llama.embedding_length", width)
            .number("llama.block_count", layers)
            .number("llama.feed_forward_length", ffn)
            .number("llama.attention.head_count", heads)
            .number("llama.attention.head_count_kv", kv_heads)
            .number("llama.attention.key_length", head_width)
            .number("llama.attention.value_length", head_width)
            .float("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .float("llama.rope.freq_base", 500_000.0)
            .number("llama.vocab_size", vocab);
        file.matrix("token_embd", vocab, width, mix.format(width, tied));
        file.ones("output_norm", width);
        if !tied {
            file.matrix("output", vocab, width, mix.format(width, true));
        }
        for layer in 0..layers {
            let fine = layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
            let (q, kv) = (heads * head_width, kv_heads * head_width);
            for (name, rows, cols, fine) in [
                ("attn_q", q, width, false),
                ("attn_k", kv, width, false),
                ("attn_v", kv, width, fine),
                ("attn_output", width, q, false),
                ("ffn_gate", ffn, width, false),
                ("ffn_up", ffn, width, false),
                ("ffn_down", width, ffn, fine),
            ] {
                file.matrix(&format!("blk.{layer}.{name}"), rows, cols, mix.format(cols, fine));
            }
            file.ones(&format!("blk.{layer}.attn_norm"), width);
            file.ones(&format!("blk.{layer}.ffn_norm"), width);
        }
        file
    }

    /// Medusa heads for it.
    pub fn medusa(&self, mix: Mix) -> Hollow {
        let mut file = Hollow::default()
            .word("general.architecture", "medusa")
            .word("spec.feature", "post_norm")
            .number("medusa.embedding_length", self.width)
            .number("medusa.head_count", 3)
            .number("medusa.layer_count", 1)
            .flag("medusa.shares_output", true);
        for head in 0..3 {
            file.matrix(&format!("medusa.{head}.res.0"), self.width, self.width, mix.format(self.width, false));
        }
        file
    }

    /// An EAGLE head for it, of the first kind or the third.
    pub fn eagle(&self, mix: Mix, third: bool) -> Hollow {
        let arch = if third { "eagle3" } else { "eagle" };
        let key = |name: &str| format!("{arch}.{name}");
        let Shape { layers, width, ffn, heads, kv_heads, head_width, .. } = *self;
        let mut file = Hollow::default()
            .word("general.architecture", arch)
            .word("spec.feature", if third { "residual_in" } else { "post_norm" })
            .number(&key("block_count"), 1)
            .number(&key("context_length"), 4096)
            .number(&key("embedding_length"), width)
            .number(&key("feed_forward_length"), ffn)
            .number(&key("attention.head_count"), heads)
            .number(&key("attention.head_count_kv"), kv_heads)
            .number(&key("attention.key_length"), head_width)
            .number(&key("attention.value_length"), head_width)
            .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .float(&key("rope.freq_base"), 10_000.0);
        if third {
            file = file.numbers("eagle3.target_layers", &[1, layers / 2 + 1, layers]);
            file = file.number("eagle3.target_hidden_size", width);
        }
        let (q, kv, read) = (heads * head_width, kv_heads * head_width, if third { 2 * width } else { width });
        let reads = if third { 3 * width } else { 2 * width };
        for (name, rows, cols) in [
            ("fc", width, reads),
            ("blk.0.attn_q", q, read),
            ("blk.0.attn_k", kv, read),
            ("blk.0.attn_v", kv, read),
            ("blk.0.attn_output", width, q),
            ("blk.0.ffn_gate", ffn, width),
            ("blk.0.ffn_up", ffn, width),
            ("blk.0.ffn_down", width, ffn),
        ] {
            file.matrix(name, rows, cols, mix.format(cols, false));
        }
        file.ones("blk.0.ffn_norm", width);
        if third {
            file.ones("blk.0.attn_norm", width);
            file.ones("blk.0.attn_norm_2", width);
            file.ones("output_norm", width);
        }
        file
    }
}
