//! Synthetic sidecars: random heads for any target, and heads for a target that is known through and through.
//!
//! [`cyclic`] is that target: attention and feed-forward put out nothing, so its hidden row says which token was last and
//! nothing else, and the next token is a known one. Its heads are right, or wrong, by construction.

use super::gguf_writer::{Rng, Tensor, VOCAB, Value, Writer, encoding, random_weights, tiny_llama};
use foretoken::gguf::Gguf;
use foretoken::text::Tokenizer;
use foretoken::tree::Token;

/// Where a Medusa sidecar's logits come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// A matrix of each head's own.
    Own,
    /// One matrix of the sidecar.
    Shared,
    /// The target's head.
    Target,
}

/// What a Medusa sidecar is like.
#[derive(Clone, Debug)]
pub struct Medusa {
    pub heads: usize,
    pub blocks: usize,
    pub bias: bool,
    pub outputs: Outputs,
    /// The target's tokens that outputs are about, if not all.
    pub ids: Option<Vec<Token>>,
    pub encoding: &'static str,
    pub tree: Option<Vec<i32>>,
    pub accuracy: Option<Vec<f32>>,
}

impl Default for Medusa {
    fn default() -> Self {
        let (ids, tree, accuracy) = (None, None, None);
        Self { heads: 3, blocks: 1, bias: true, outputs: Outputs::Own, ids, encoding: "F32", tree, accuracy }
    }
}

/// A tree five levels deep with gaps among its ranks, deeper than most heads.
pub fn deep_tree() -> Vec<i32> {
    let paths: [&[i32]; 12] = [
        &[0],
        &[0, 0],
        &[1],
        &[0, 2],
        &[0, 0, 0],
        &[0, 0, 0, 0],
        &[3],
        &[3, 1],
        &[0, 0, 0, 0, 0],
        &[1, 0],
        &[0, 0, 1],
        &[0, 0, 0, 0, 7],
    ];
    paths.iter().flat_map(|path| [path, &[-1][..]].concat()).collect()
}

/// The keys that say which target a sidecar is for.
pub fn made_for(w: Writer, target: &Gguf) -> Writer {
    let meta = target.meta();
    let text = |key: &str| Value::Str(meta.str(key).unwrap().unwrap().to_owned());
    let arch = meta.str("general.architecture").unwrap().unwrap();
    let tokenizer = Tokenizer::from_gguf(meta).unwrap();
    let width = meta.uint(&format!("{arch}.embedding_length")).unwrap().unwrap() as u32;
    w.key("spec.target.architecture", text("general.architecture"))
        .key("spec.target.hidden_size", Value::U32(width))
        .key("spec.target.vocab_size", Value::U32(tokenizer.vocab_size() as u32))
        .key("spec.target.tokenizer", text("tokenizer.ggml.model"))
        .key("spec.target.vocab_hash", Value::Str(tokenizer.vocab_hash()))
}

impl Medusa {
    /// A sidecar for targets of width `width` and a vocabulary of `vocab`, with matrices from `matrix`, which is given a
    /// name, rows and columns.
    pub fn write(&self, width: usize, vocab: usize, mut matrix: impl FnMut(&str, usize, usize) -> Tensor) -> Writer {
        let mut w = Writer::default()
            .key("general.architecture", Value::Str("medusa".into()))
            .key("spec.feature", Value::Str("post_norm".into()))
            .key("medusa.embedding_length", Value::U32(width as u32))
            .key("medusa.head_count", Value::U32(self.heads as u32))
            .key("medusa.layer_count", Value::U32(self.blocks as u32))
            .key("medusa.shares_output", Value::Bool(self.outputs != Outputs::Own));
        if let Some(tree) = &self.tree {
            w = w.key("medusa.tree", Value::I32s(tree.clone()));
        }
        if let Some(accuracy) = &self.accuracy {
            w = w.key("medusa.accuracy", Value::F32s(accuracy.clone()));
        }
        let rows = self.ids.as_ref().map_or(vocab, Vec::len);
        if let Some(ids) = &self.ids {
            w = w.key("spec.draft_vocab_size", Value::U32(rows as u32));
            let bytes = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
            w.tensors.push(Tensor::new("d2t", &[rows as u64], 27, bytes));
        }
        for head in 0..self.heads {
            for block in 0..self.blocks {
                let name = format!("medusa.{head}.res.{block}");
                w.tensors.push(matrix(&format!("{name}.weight"), width, width));
                if self.bias {
                    w.tensors.push(matrix(&format!("{name}.bias"), 1, width));
                }
            }
            if self.outputs == Outputs::Own {
                w.tensors.push(matrix(&format!("medusa.{head}.output.weight"), rows, width));
            }
        }
        if self.outputs == Outputs::Shared {
            w.tensors.push(matrix("output.weight", rows, width));
        }
        w
    }

    /// With random weights.
    pub fn random(&self, width: usize, vocab: usize, seed: u64) -> Writer {
        let mut rng = Rng(seed);
        self.write(width, vocab, |name, rows, cols| {
            if name.ends_with(".bias") {
                let bytes = random_weights(&mut rng, encoding("F32"), cols, 0.3);
                return Tensor::new(name, &[cols as u64], 0, bytes);
            }
            let encoding = encoding(self.encoding);
            let spread = if name.ends_with("output.weight") { 0.2 } else { 1.0 / (cols as f32).sqrt() };
            let bytes = random_weights(&mut rng, encoding, rows * cols, spread);
            Tensor::new(name, &[cols as u64, rows as u64], encoding.ty, bytes)
        })
    }

    /// Heads of [`cyclic`] each of which is right about the token `late` places after the one it should guess: always right,
    /// or always wrong.
    pub fn cyclic(&self, late: usize) -> Writer {
        let mut ids: Vec<Token> = (0..VOCAB as Token).collect();
        if let Some(reduced) = &self.ids {
            ids.clone_from(reduced);
        }
        // From a hidden row that says "last was t" to one that says "last was t, some steps on".
        let ahead = |head: usize| -> Vec<f32> {
            let mut matrix = vec![0.0; WIDTH * WIDTH];
            (0..WIDTH).for_each(|t| matrix[steps(t, head + 1 + late) * WIDTH + t] = 4.0);
            matrix
        };
        let output = |ahead: usize| -> Vec<f32> {
            let mut matrix = vec![0.0; ids.len() * WIDTH];
            for t in 0..WIDTH {
                if let Some(row) = ids.iter().position(|&id| id == live(steps(t, ahead))) {
                    matrix[row * WIDTH + t] = 8.0;
                }
            }
            matrix
        };
        self.write(WIDTH, VOCAB, |name, rows, cols| {
            let head = name.split('.').nth(1).and_then(|head| head.parse::<usize>().ok());
            let last = name.contains(&format!(".res.{}.", self.blocks - 1));
            let values = match (head, name.rsplit('.').next()) {
                (_, Some("bias")) => vec![0.0; cols],
                (Some(head), _) if last && self.outputs != Outputs::Own => ahead(head),
                (Some(head), _) if name.ends_with("output.weight") => output(head + 2 + late),
                (None, _) => output(1),
                _ => vec![0.0; rows * cols],
            };
            let dims: &[u64] = if rows == 1 { &[cols as u64] } else { &[cols as u64, rows as u64] };
            Tensor::new(name, dims, 0, bytes(&values))
        })
    }
}

/// Width of the target, and tokens of its cycle.
const WIDTH: usize = 64;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Place in the cycle `n` steps after `t`.
pub fn steps(t: usize, n: usize) -> usize {
    (0..n).fold(t, |t, _| (5 * t + 3) % WIDTH)
}

/// The token at a place of the cycle.
pub fn live(t: usize) -> Token {
    4 * t as Token + 1
}

/// The token that follows another.
pub fn next(token: Token) -> Token {
    live(steps(token as usize / 4 % WIDTH, 1))
}

/// A target of which [`next`] is the whole law: after every token comes one of 64, which take turns.
pub fn cyclic() -> Writer {
    let mut w = tiny_llama(3, "F32");
    let mut set = |name: &str, value: &dyn Fn(usize, usize) -> f32| {
        let tensor = w.tensor_mut(name);
        let (cols, rows) = (tensor.dims[0] as usize, *tensor.dims.get(1).unwrap_or(&1) as usize);
        let values: Vec<f32> = (0..rows * cols).map(|i| value(i / cols, i % cols)).collect();
        tensor.bytes = bytes(&values);
    };
    for layer in 0..2 {
        for part in ["attn_output", "ffn_down"] {
            set(&format!("blk.{layer}.{part}.weight"), &|_, _| 0.0);
        }
    }
    set("output_norm.weight", &|_, _| 1.0);
    set("token_embd.weight", &|token, t| f32::from(u8::from(token / 4 % WIDTH == t)));
    set("output.weight", &|token, t| if token as Token == live(steps(t, 1)) { 8.0 } else { 0.0 });
    w
}
