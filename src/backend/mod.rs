//! The ops a forward pass is made of, and who runs them.
//!
//! A backend owns packed weights, activations and the KV cache. What can fail fails when weights, activations and
//! caches are made; ops on them are infallible and `assert!` their shapes. Every op obeys the laws: the bits of a row
//! of its result depend on that row's inputs alone, never on how many rows there are, which slot of the cache a
//! position sits in, or how work was split over threads.
//!
//! Shape letters: `T` rows, `D` width, `H` query heads, `G` KV heads, `K` head width, `F` feed-forward width,
//! `V` vocabulary; row-major, written `[T, D]`.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod rates;
pub mod timed;

pub use device::Device;

use crate::{gguf::TensorView, tree::Token};
use anyhow::Result;
use rates::Rates;
use std::fmt;
use std::time::Duration;

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats, half the bytes of `f32`.
    #[default]
    F16,
    /// 8-bit integers in blocks of 32 with an f16 scale, about a quarter of `f32`.
    Q8_0,
}

impl KvType {
    /// Bytes that `n` elements take (`n` a multiple of 32 for `q8_0`).
    pub fn bytes(self, n: usize) -> usize {
        match self {
            KvType::F32 => n * 4,
            KvType::F16 => n * 2,
            KvType::Q8_0 => n / 32 * 34,
        }
    }
}

/// Shape of a KV cache: `[layers, slots, heads * width]`, once for keys and once for values.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    /// Layers, each with its own keys and values.
    pub layers: usize,
    /// Positions that fit, scratch slots of a tree included.
    pub slots: usize,
    /// KV heads `G`.
    pub heads: usize,
    /// Head width `K`, of keys and values alike.
    pub width: usize,
    /// Element type.
    pub ty: KvType,
}

impl KvShape {
    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        2 * self.layers * self.slots * self.ty.bytes(self.heads * self.width)
    }
}

/// Which cached positions the rows of a batch see.
#[derive(Clone, Copy, Debug)]
pub enum Span<'a> {
    /// Row *i* sits at logical position `base + i` (and in that slot) and sees all positions up to its own.
    Chain {
        /// Committed positions before row 0.
        base: usize,
    },
    /// Row *i* sees the committed slots `0..base`, then its ancestors: node *j* of the tree is in scratch slot `base + j`.
    Tree {
        /// Committed positions.
        base: usize,
        /// Per row the set of nodes it sees, itself included (see [`crate::tree::DraftTree::ancestors`]).
        ancestors: &'a [u64],
    },
}

impl Span<'_> {
    /// Committed positions before the batch.
    pub fn base(&self) -> usize {
        match *self {
            Span::Chain { base } | Span::Tree { base, .. } => base,
        }
    }

    /// Logical position of row `i`.
    pub fn position(&self, i: usize) -> usize {
        match *self {
            Span::Chain { base } => base + i,
            Span::Tree { base, ancestors } => base + ancestors[i].count_ones() as usize - 1,
        }
    }
}

/// What attention needs to know beside its operands.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Factor on the query-key products.
    pub scale: f32,
    /// `c * tanh(score / c)` when set (Gemma 2).
    pub softcap: Option<f32>,
    /// A row at position p sees positions above `p - window` only, when set.
    pub window: Option<usize>,
}

/// Which two elements of a head a rotation turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Elements 2i and 2i + 1 (`llama`).
    Adjacent,
    /// Elements i and i + R/2, R being the number of rotated elements ("neox").
    Halves,
}

/// Angles of one rotary embedding: turn per position of each pair, and a factor on the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `[R/2]` radians per position; elements from R on pass through.
    pub frequencies: Vec<f64>,
    /// Magnitude factor on sine and cosine (YaRN, longrope).
    pub magnitude: f32,
    /// Which elements pair up.
    pub pairing: Pairing,
}

impl Rope {
    /// Cosines and sines `[T, R/2]` for rows at these positions, the magnitude in them.
    pub fn angles(&self, positions: &[u32]) -> [Vec<f32>; 2] {
        let pairs = || positions.iter().flat_map(|&p| self.frequencies.iter().map(move |f| f64::from(p) * f));
        let times = |x: f64| x as f32 * self.magnitude;
        [pairs().map(|angle| times(angle.cos())).collect(), pairs().map(|angle| times(angle.sin())).collect()]
    }
}

/// The gate's non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
}

/// For every row some of its columns and their values.
pub type Largest = Vec<Vec<(Token, f32)>>;

/// One matrix product of a [`Backend::linear`] call.
pub struct Product<'a, B: Backend> {
    /// `[N, D]`, packed.
    pub weight: &'a B::Weight,
    /// `[N]` added to every row.
    pub bias: Option<&'a B::Vector>,
    /// `[T, N]`, overwritten; its row count is set.
    pub out: &'a mut B::Mat,
}

/// What a backend runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// `cpu`, or the kind and number of a device.
    pub device: String,
    /// What its kernels are made for: the bits of results may depend on it.
    pub isa: String,
    /// Threads of the CPU that work.
    pub threads: usize,
    /// What people call it, where it is no CPU.
    pub name: Option<String>,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            None => write!(f, "{} with {} threads", self.isa, self.threads),
            Some(name) => write!(f, "{} ({name}, {})", self.device, self.isa),
        }
    }
}

/// A device that can run the forward pass.
pub trait Backend: Sized + Send + Sync + 'static {
    /// Activations `[rows, cols]` in f32, allocated for a most number of rows.
    type Mat: Send;
    /// A packed weight matrix `[rows, cols]` with its kernel chosen.
    type Weight: Send + Sync;
    /// A table of rows looked up by token, dequantised on the way; not packed.
    type Table: Send + Sync;
    /// Norm weights and biases, `[n]` in f32.
    type Vector: Send + Sync;
    /// Keys and values of all layers.
    type Kv: Send;

    /// What it runs on.
    fn describe(&self) -> Description;
    /// Free bytes of its own memory; none where it works in that of the system.
    fn own_memory(&self) -> Result<Option<u64>>;
    /// Bytes that this tensor takes once it is loaded.
    fn packed_bytes(&self, tensor: &TensorView<'_>) -> u64;
    /// Measures the machine, `each` long for every rate, in at most about `room` bytes.
    fn rates(&self, room: u64, each: Duration) -> Result<Rates>;
    /// Returns when all ops that were called are done; for clocks.
    fn wait(&self) {}

    /// Packs a matrix `[rows, cols]` for products.
    fn weight(&self, tensor: &TensorView<'_>) -> Result<Self::Weight>;
    /// Opens a matrix `[V, D]` for look-ups.
    fn table(&self, tensor: &TensorView<'_>) -> Result<Self::Table>;
    /// Reads a vector (F32, F16 or BF16).
    fn vector(&self, tensor: &TensorView<'_>) -> Result<Self::Vector>;
    /// Room for `[max_rows, cols]`.
    fn mat(&self, max_rows: usize, cols: usize) -> Result<Self::Mat>;
    /// An empty cache.
    fn kv(&self, shape: KvShape) -> Result<Self::Kv>;
    /// Appends the rows of `m`, row-major, to `out`: the one synchronisation point, where late device errors surface.
    fn read_into(&self, m: &Self::Mat, out: &mut Vec<f32>) -> Result<()>;
    /// The rows of `m`, as [`Backend::read_into`] has them.
    fn read(&self, m: &Self::Mat) -> Result<Vec<f32>> {
        let mut values = vec![];
        self.read_into(m, &mut values)?;
        Ok(values)
    }
    /// The `k` largest values of each row of `m` and their columns, in any order, of equal ones the first columns; fewer where
    /// the rest is -inf. Nothing where that takes no less than [`Backend::read`] or a row has NaN, +inf or nothing but -inf.
    fn largest(&self, _m: &Self::Mat, _k: usize) -> Result<Option<Largest>> {
        Ok(None)
    }
    /// Of each row those values, with their columns, in any order, one of which has the largest `value / temperature + noise`, the
    /// noise being that of [`crate::sample`] under `seed` at the row's ordinal: almost always one. Nothing as for
    /// [`Backend::largest`].
    fn drawn(&self, _m: &Self::Mat, _temperature: f32, _seed: u64, _ordinals: &[u64]) -> Result<Option<Largest>> {
        Ok(None)
    }
    /// Makes `values`, row-major, the rows of `m`: the reverse of [`Backend::read`].
    fn write(&self, values: &[f32], m: &mut Self::Mat);
    /// The stored bytes of positions `slots` of all layers, keys then values (for tests of the laws and for saving).
    fn read_kv(&self, kv: &Self::Kv, slots: std::ops::Range<usize>) -> Result<Vec<u8>>;
    /// Stores what [`Backend::read_kv`] gave for so many slots; an error when it is not as long as that.
    fn write_kv(&self, kv: &mut Self::Kv, slots: std::ops::Range<usize>, bytes: &[u8]) -> Result<()>;

    /// `out[T, D] = scale * table[tokens]`.
    fn embed(&self, table: &Self::Table, tokens: &[Token], scale: f32, out: &mut Self::Mat);
    /// `out = x[T, D] * weight^T + bias` for every product; `x` is quantised once.
    fn linear(&self, x: &Self::Mat, products: &mut [Product<'_, Self>]);
    /// Root-mean-square norm of each row of `x`, cut into heads of the weight's length: `[T, D]`, or `[T, H*K]` with a weight `[K]`.
    fn rms_norm(&self, x: &Self::Mat, weight: &Self::Vector, eps: f32, out: &mut Self::Mat);
    /// [`Backend::rms_norm`] with `x` as its own result.
    fn rms_norm_in_place(&self, x: &mut Self::Mat, weight: &Self::Vector, eps: f32);
    /// Turns heads of width `width` of `x[T, heads * width]`; row *i* is at logical position `positions[i]`.
    fn rope(&self, x: &mut Self::Mat, width: usize, rope: &Rope, positions: &[u32]);
    /// Rounds `k`, `v` `[T, G*K]` to the cache's type and stores row *i* in slot `slot + i` of `layer`.
    fn store(&self, kv: &mut Self::Kv, layer: usize, slot: usize, k: &Self::Mat, v: &Self::Mat);
    /// `out[T, H*K]` = softmax(q k^T) v over what `span` lets each row of `q[T, H*K]` see in `layer`.
    fn attend(&self, q: &Self::Mat, kv: &Self::Kv, layer: usize, span: Span<'_>, how: Attention, out: &mut Self::Mat);
    /// `gate[T, F] = activation(gate) * up`.
    fn glu(&self, gate: &mut Self::Mat, up: &Self::Mat, activation: Activation);
    /// `x = activation(x)`.
    fn activate(&self, x: &mut Self::Mat, activation: Activation);
    /// The rows of all `parts`, which have as many columns as `out`, one below the other.
    fn stack(&self, parts: &[&Self::Mat], out: &mut Self::Mat);
    /// Splits `x[T, sum of cols]` by columns into `parts` (fused qkv, fused gate and up).
    fn split(&self, x: &Self::Mat, parts: &mut [&mut Self::Mat]);
    /// `out[T, sum of cols]` is the `parts` side by side: the reverse of [`Backend::split`].
    fn join(&self, parts: &[&Self::Mat], out: &mut Self::Mat);
    /// `x += y`.
    fn add(&self, x: &mut Self::Mat, y: &Self::Mat);
    /// `out[i] = x[rows[i]]`.
    fn gather(&self, x: &Self::Mat, rows: &[usize], out: &mut Self::Mat);
    /// `x = cap * tanh(x / cap)`.
    fn softcap(&self, x: &mut Self::Mat, cap: f32);
    /// In all layers moves slot `from[i]` to slot `to + i`, in order; `from` ascends and `from[i] >= to + i`.
    fn move_kv(&self, kv: &mut Self::Kv, from: &[usize], to: usize);
}
