//! Writes GGUF files by hand, right ones and wrong ones: every number can be overridden, nothing is checked.
//!
//! [`tiny_llama`] is a random but complete two-layer model with a byte-level vocabulary, for tests that need something
//! that loads and runs.

use half::f16;

/// A seeded stream of random numbers (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, mean 0 and variance 1.
    pub fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.unit()).sum::<f64>() - 6.0) as f32
    }
}

/// A metadata value.
#[derive(Clone, Debug)]
pub enum Value {
    U8(u8),
    U16(u16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type id and the bytes that follow it, whatever they are.
    Raw(u32, Vec<u8>),
}

/// A tensor and what its entry in the table says.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub ty: u32,
    pub bytes: Vec<u8>,
    /// Number of dimensions to claim.
    pub rank: Option<u32>,
    /// Offset to claim; by default where `bytes` are written.
    pub offset: Option<u64>,
}

impl Tensor {
    pub fn new(name: &str, dims: &[u64], ty: u32, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), dims: dims.into(), ty, bytes, rank: None, offset: None }
    }
}

/// A number of the header that says how much of something follows, or where it is.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub what: &'static str,
    pub at: usize,
    /// Bytes it takes, 4 or 8.
    pub size: usize,
}

/// A file to be written.
#[derive(Clone, Debug)]
pub struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    /// What the data section and the offsets are aligned to; declare it with `general.alignment` where it is not 32.
    pub alignment: usize,
    pub keys: Vec<(Vec<u8>, Value)>,
    pub tensors: Vec<Tensor>,
    /// Counts to claim.
    pub key_count: Option<u64>,
    pub tensor_count: Option<u64>,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            keys: vec![],
            tensors: vec![],
            key_count: None,
            tensor_count: None,
        }
    }
}

struct Out {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

impl Out {
    fn field(&mut self, what: &'static str, bytes: &[u8]) {
        self.fields.push(Field { what, at: self.bytes.len(), size: bytes.len() });
        self.bytes.extend(bytes);
    }

    fn string(&mut self, what: &'static str, s: &[u8]) {
        self.field(what, &(s.len() as u64).to_le_bytes());
        self.bytes.extend(s);
    }

    fn array<T>(&mut self, ty: u32, all: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.field("array type", &ty.to_le_bytes());
        self.field("array length", &(all.len() as u64).to_le_bytes());
        for x in all {
            each(self, x);
        }
    }

    fn value(&mut self, v: &Value) {
        let ty: u32 = match v {
            Value::U8(_) => 0,
            Value::U16(_) => 2,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::Str(_) => 8,
            Value::Strs(_) | Value::I32s(_) | Value::F32s(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
            Value::Raw(ty, _) => *ty,
        };
        self.field("value type", &ty.to_le_bytes());
        match v {
            Value::U8(x) => self.bytes.push(*x),
            Value::U16(x) => self.bytes.extend(x.to_le_bytes()),
            Value::U32(x) => self.bytes.extend(x.to_le_bytes()),
            Value::I32(x) => self.bytes.extend(x.to_le_bytes()),
            Value::U64(x) => self.bytes.extend(x.to_le_bytes()),
            Value::I64(x) => self.bytes.extend(x.to_le_bytes()),
            Value::F32(x) => self.bytes.extend(x.to_le_bytes()),
            Value::F64(x) => self.bytes.extend(x.to_le_bytes()),
            Value::Bool(x) => self.bytes.push(u8::from(*x)),
            Value::Str(s) => self.string("string length", s.as_bytes()),
            Value::Strs(all) => self.array(8, all, |out, s| out.string("element length", s.as_bytes())),
            Value::I32s(all) => self.array(5, all, |out, x| out.bytes.extend(x.to_le_bytes())),
            Value::F32s(all) => self.array(6, all, |out, x| out.bytes.extend(x.to_le_bytes())),
            Value::Raw(_, bytes) => self.bytes.extend(bytes),
        }
    }
}

impl Writer {
    /// Appends a key.
    pub fn key(mut self, key: &str, value: Value) -> Self {
        self.keys.push((key.into(), value));
        self
    }

    /// Replaces a key's value, or appends it.
    pub fn set(mut self, key: &str, value: Value) -> Self {
        match self.keys.iter_mut().find(|(k, _)| k == key.as_bytes()) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.into(), value)),
        }
        self
    }

    /// Removes a key.
    pub fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(k, _)| k != key.as_bytes());
        self
    }

    /// Declares and uses an alignment.
    pub fn aligned(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.set("general.alignment", Value::U32(alignment))
    }

    /// Appends a tensor.
    pub fn tensor(mut self, name: &str, dims: &[u64], ty: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push(Tensor::new(name, dims, ty, bytes));
        self
    }

    /// The tensor called `name`, to be spoilt.
    pub fn tensor_mut(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name.as_bytes()).expect("a tensor of this name")
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        self.layout().0
    }

    /// The file, every count, length, type and offset in its header, and where the data section starts.
    pub fn layout(&self) -> (Vec<u8>, Vec<Field>, usize) {
        let mut out = Out { bytes: self.magic.to_vec(), fields: vec![] };
        out.field("version", &self.version.to_le_bytes());
        out.field("tensor count", &self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.field("key count", &self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.string("key length", key);
            out.value(value);
        }
        let mut next = 0usize;
        for t in &self.tensors {
            out.string("name length", &t.name);
            out.field("rank", &t.rank.unwrap_or(t.dims.len() as u32).to_le_bytes());
            for d in &t.dims {
                out.field("dimension", &d.to_le_bytes());
            }
            out.field("tensor type", &t.ty.to_le_bytes());
            out.field("offset", &t.offset.unwrap_or(next as u64).to_le_bytes());
            next = (next + t.bytes.len()).next_multiple_of(self.alignment);
        }
        let Out { mut bytes, fields } = out;
        let base = bytes.len().next_multiple_of(self.alignment);
        for t in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
            bytes.extend(&t.bytes);
        }
        (bytes, fields, base)
    }
}

/// How random weights of a type are made: `block` elements take `bytes`, all random but the f16 scales, each of which
/// is the wanted standard deviation times its factor, so that the weights spread about as wanted around zero.
pub struct Encoding {
    pub name: &'static str,
    pub ty: u32,
    pub block: usize,
    pub bytes: usize,
    scales: &'static [(usize, f32)],
}

/// The types [`random_weights`] can make.
pub const ENCODINGS: &[Encoding] = &[
    Encoding { name: "F32", ty: 0, block: 1, bytes: 4, scales: &[] },
    Encoding { name: "F16", ty: 1, block: 1, bytes: 2, scales: &[] },
    Encoding { name: "BF16", ty: 30, block: 1, bytes: 2, scales: &[] },
    Encoding { name: "Q4_0", ty: 2, block: 32, bytes: 18, scales: &[(0, 0.22)] },
    Encoding { name: "Q4_1", ty: 3, block: 32, bytes: 20, scales: &[(0, 0.22), (2, -1.65)] },
    Encoding { name: "Q5_0", ty: 6, block: 32, bytes: 22, scales: &[(0, 0.11)] },
    Encoding { name: "Q5_1", ty: 7, block: 32, bytes: 24, scales: &[(0, 0.11), (2, -1.7)] },
    Encoding { name: "Q8_0", ty: 8, block: 32, bytes: 34, scales: &[(0, 0.0135)] },
    Encoding { name: "Q2_K", ty: 10, block: 256, bytes: 84, scales: &[(80, 0.07), (82, 0.105)] },
    Encoding { name: "Q3_K", ty: 11, block: 256, bytes: 110, scales: &[(108, 0.024)] },
    Encoding { name: "Q4_K", ty: 12, block: 256, bytes: 144, scales: &[(0, 0.0028), (2, 0.021)] },
    Encoding { name: "Q5_K", ty: 13, block: 256, bytes: 176, scales: &[(0, 0.0014), (2, 0.0217)] },
    Encoding { name: "Q6_K", ty: 14, block: 256, bytes: 210, scales: &[(208, 0.00073)] },
    Encoding { name: "IQ4_NL", ty: 20, block: 32, bytes: 18, scales: &[(0, 0.015)] },
    Encoding { name: "IQ4_XS", ty: 23, block: 256, bytes: 136, scales: &[(0, 0.0008)] },
    Encoding { name: "MXFP4", ty: 39, block: 32, bytes: 17, scales: &[] },
];

/// The encoding called `name`.
pub fn encoding(name: &str) -> &'static Encoding {
    ENCODINGS.iter().find(|e| e.name == name).expect("an encoding of this name")
}

/// `n` random weights of standard deviation about `spread`, encoded. `n` is a multiple of the type's block.
pub fn random_weights(rng: &mut Rng, encoding: &Encoding, n: usize, spread: f32) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..n / encoding.block {
        match encoding.name {
            "F32" => out.extend((rng.normal() * spread).to_le_bytes()),
            "F16" => out.extend(f16::from_f32(rng.normal() * spread).to_le_bytes()),
            "BF16" => out.extend(half::bf16::from_f32(rng.normal() * spread).to_le_bytes()),
            _ => {
                let mut block: Vec<u8> = (0..encoding.bytes).map(|_| rng.next() as u8).collect();
                for &(at, factor) in encoding.scales {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(spread * factor).to_le_bytes());
                }
                if encoding.name == "MXFP4" {
                    // An exponent of 2 biased by 127, on values of spread 3.
                    block[0] = (127.0 + (spread / 3.0).log2().round()) as u8;
                }
                out.extend(block);
            }
        }
    }
    out
}

fn byte_atoms() -> Vec<char> {
    let printable = |b: u32| (33..127).contains(&b) || (161..173).contains(&b) || (174..256).contains(&b);
    let mut unprintable = 256;
    let mut atom = |b: u32| {
        if printable(b) {
            return char::from_u32(b).unwrap();
        }
        unprintable += 1;
        char::from_u32(unprintable - 1).unwrap()
    };
    (0..256).map(&mut atom).collect()
}

/// Tokens in the vocabulary of [`vocabulary`].
pub const VOCAB: usize = 320;

/// Adds a byte-level BPE vocabulary: 256 byte atoms, ten merges, unused tokens, `<|end|>` and `<|start|>` last.
pub fn vocabulary(w: Writer) -> Writer {
    let mut tokens: Vec<String> = byte_atoms().into_iter().map(String::from).collect();
    let pairs = ["t h", "th e", "i n", "e r", "a n", "Ġ t", "o n", "r e", "Ġ a", "s t"];
    tokens.extend(pairs.iter().map(|p| p.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    while tokens.len() < VOCAB - 2 {
        tokens.push(format!("<|unused{}|>", tokens.len()));
        types.push(5);
    }
    tokens.extend(["<|end|>".into(), "<|start|>".into()]);
    types.extend([3, 3]);
    w.set("tokenizer.ggml.model", Value::Str("gpt2".into()))
        .set("tokenizer.ggml.pre", Value::Str("gpt-2".into()))
        .set("tokenizer.ggml.tokens", Value::Strs(tokens))
        .set("tokenizer.ggml.token_type", Value::I32s(types))
        .set("tokenizer.ggml.merges", Value::Strs(pairs.iter().map(|p| p.to_string()).collect()))
        .set("tokenizer.ggml.bos_token_id", Value::U32(VOCAB as u32 - 1))
        .set("tokenizer.ggml.eos_token_id", Value::U32(VOCAB as u32 - 2))
}

/// A random llama of two layers, 64 wide (256 where the type's blocks are that long), 4 heads over 2 KV heads,
/// context 512, its matrices in the encoding called `weights`, norms in F32. The same seed gives the same file.
pub fn tiny_llama(seed: u64, weights: &str) -> Writer {
    let encoding = encoding(weights);
    let d = if encoding.block == 256 { 256 } else { 64 };
    let (heads, groups, width, ff, layers) = (4, 2, d / 4, 2 * d, 2);
    let number = |n: usize| Value::U32(n as u32);
    let mut w = vocabulary(
        Writer::default()
            .key("general.architecture", Value::Str("llama".into()))
            .key("general.name", Value::Str("tiny".into()))
            .key("llama.context_length", number(512))
            .key("llama.embedding_length", number(d))
            .key("llama.block_count", number(layers))
            .key("llama.feed_forward_length", number(ff))
            .key("llama.attention.head_count", number(heads))
            .key("llama.attention.head_count_kv", number(groups))
            .key("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
            .key("llama.rope.freq_base", Value::F32(10000.0))
            .key("llama.vocab_size", number(VOCAB))
            .key("llama.attention.key_length", number(width))
            .key("llama.attention.value_length", number(width))
            .key("llama.rope.dimension_count", number(width))
            .key("general.file_type", number(0)),
    );
    let mut rng = Rng(seed);
    let mut matrix = |w: &mut Writer, name: &str, rows: usize, cols: usize, spread: f32| {
        let bytes = random_weights(&mut rng, encoding, rows * cols, spread);
        w.tensors.push(Tensor::new(name, &[cols as u64, rows as u64], encoding.ty, bytes));
    };
    let norm = |w: &mut Writer, name: &str, salt: u64| {
        let mut rng = Rng(seed ^ salt);
        let bytes = (0..d).flat_map(|_| (1.0 + 0.1 * rng.normal()).to_le_bytes()).collect();
        w.tensors.push(Tensor::new(name, &[d as u64], 0, bytes));
    };
    matrix(&mut w, "token_embd.weight", VOCAB, d, 0.5);
    norm(&mut w, "output_norm.weight", 1 << 32);
    matrix(&mut w, "output.weight", VOCAB, d, 0.2);
    let even = |n: usize| 1.0 / (n as f32).sqrt();
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        norm(&mut w, &name("attn_norm"), (2 * layer as u64 + 2) << 32);
        norm(&mut w, &name("ffn_norm"), (2 * layer as u64 + 3) << 32);
        matrix(&mut w, &name("attn_q"), heads * width, d, 0.12);
        matrix(&mut w, &name("attn_k"), groups * width, d, 0.12);
        matrix(&mut w, &name("attn_v"), groups * width, d, even(d));
        matrix(&mut w, &name("attn_output"), d, heads * width, even(d));
        matrix(&mut w, &name("ffn_gate"), ff, d, even(d));
        matrix(&mut w, &name("ffn_up"), ff, d, even(d));
        matrix(&mut w, &name("ffn_down"), d, ff, even(ff));
    }
    w
}

/// Cuts a model into `n` shards, all keys in the first, as other programs write them.
pub fn split(whole: &Writer, n: usize) -> Vec<Writer> {
    let per = whole.tensors.len().div_ceil(n);
    let shard = |no: usize| {
        let first = Writer { tensors: vec![], ..whole.clone() };
        let mut w = if no == 0 { first } else { Writer::default() };
        w.tensors = whole.tensors.iter().skip(no * per).take(per).cloned().collect();
        w.key("split.no", Value::U16(no as u16))
            .key("split.count", Value::U16(n as u16))
            .key("split.tensors.count", Value::I32(whole.tensors.len() as i32))
    };
    (0..n).map(shard).collect()
}
