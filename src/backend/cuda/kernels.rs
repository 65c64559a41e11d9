//! The kernels of `cuda/*.cu` as the host sees them: in which module each is, what it takes, over what grid it runs.
//!
//! Arguments are listed in order, as pointers to device memory (`*T`) and 32-bit numbers; structures are passed by value and
//! have their twins in `cuda/prelude.cuh`. All shared memory is static, so launches ask for none. What changes from step to
//! step while shapes stay (positions, slots) is read from device memory ([`Step`]), so that a captured launch can be
//! replayed.
//!
//! Every kernel obeys law 1: a row's result depends on that row's inputs alone. The kernels of one product (all of a
//! format's `dot` and `mma`) give the same bits, and so do all of attention.

use crate::backend::{Activation, KvType, Pairing};
use crate::quant::Format;

/// A launch: kernel, module and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The module's name, `cuda/ptx/NAME.ptx.gz` without folder and ending.
    pub module: String,
    /// The kernel's name in it.
    pub kernel: String,
    /// Blocks in x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of a block, all in x.
    pub block: u32,
}

impl Launch {
    fn new(module: &str, kernel: impl Into<String>, grid: (usize, usize, usize), block: usize) -> Self {
        let fit = |n: usize| u32::try_from(n.max(1)).expect("shapes are checked when they are made");
        let grid = (fit(grid.0), fit(grid.1), fit(grid.2));
        Self { module: module.into(), kernel: kernel.into(), grid, block: fit(block) }
    }

    /// A thread for each of `n` elements.
    fn over(kernel: &str, n: usize) -> Self {
        Self::new("ops", kernel, (n.div_ceil(ELEMENTS), 1, 1), ELEMENTS)
    }
}

/// Threads of a block of the elementwise kernels.
const ELEMENTS: usize = 256;

/// Where a batch begins; in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// Committed positions before the batch.
    pub base: u32,
    /// Slot that row 0 is stored in.
    pub slot: u32,
}

/// Bytes of what is kept of a block of 32 quantised activations beside its quants: scale and `scale * sum of quants` (f32),
/// sums of the first and of the last sixteen quants (i32).
pub const INFO_BYTES: usize = 16;

/// Quantised activations have room for a multiple of so many rows: what lies beyond a batch is read, but not used.
pub const ROOM: usize = 64;

/// `quantise(x: *f32, quants: *i8, info: *Info, blocks: i32)`: `[T, D]` to int8 in blocks of 32, `D` a multiple of 32; quants
/// are `[T, D]`, [`INFO_BYTES`] bytes a block `[T, D/32]`.
pub fn quantise(rows: usize, cols: usize) -> Launch {
    Launch::over("quantise", rows * cols / 4)
}

/// Rows of a weight matrix that lie together (see [`super::pack`]).
pub const TILE: usize = 32;
/// Parts a row of a product is cut into, each summed in order by one warp, then added up in order.
pub const PARTS: usize = 16;
/// Rows up to which a product runs on `dot` kernels; from there on on `mma` ones (integer formats only).
pub const DOT_ROWS: usize = 4;

/// Products that a launch takes together, at most.
pub const TOGETHER: usize = 3;

/// Weights of one format with the same input, which one launch multiplies it with. Passed by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Products {
    /// Each weight's three arrays (see [`super::pack::Layout`]).
    pub quants: [u64; TOGETHER],
    /// Scales of steps.
    pub steps: [u64; TOGETHER],
    /// Scales of blocks.
    pub blocks: [u64; TOGETHER],
    /// `[outputs]` f32, or 0 for none.
    pub bias: [u64; TOGETHER],
    /// `[rows, outputs]` f32.
    pub out: [u64; TOGETHER],
    /// Rows of each weight; 0 where there is none.
    pub outputs: [i32; TOGETHER],
}

impl Products {
    /// One product.
    pub fn one(arrays: [u64; 3], bias: u64, out: u64, outputs: usize) -> Self {
        let [quants, steps, blocks] = arrays;
        let outputs = i32::try_from(outputs).expect("shapes are checked when they are made");
        let first = |x| [x, 0, 0];
        Self {
            quants: first(quants),
            steps: first(steps),
            blocks: first(blocks),
            bias: first(bias),
            out: first(out),
            outputs: [outputs, 0, 0],
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.outputs.iter().take_while(|&&outputs| outputs > 0).count()
    }

    /// These and others, if they fit.
    pub fn and(mut self, others: &Self) -> Option<Self> {
        let (at, more) = (self.count(), others.count());
        if at + more > TOGETHER {
            return None;
        }
        for i in 0..more {
            self.quants[at + i] = others.quants[i];
            self.steps[at + i] = others.steps[i];
            self.blocks[at + i] = others.blocks[i];
            self.bias[at + i] = others.bias[i];
            self.out[at + i] = others.out[i];
            self.outputs[at + i] = others.outputs[i];
        }
        Some(self)
    }
}

/// The product kernel for a batch of `rows` rows and a weight of `outputs` rows.
///
/// Integer formats, `{format}_dot{1,2,4}` and `{format}_mma{8,16,32,64}` (some lack the last): `(products: Products, x: *i8,
/// info: *Info, cols: i32, rows: i32)`; `x` and `info` are what `quantise` gave, with [`ROOM`]. Kernels for at most eight rows
/// take several [`Products`] on a grid whose y is the sum of theirs, the others one.
///
/// Float formats, `{format}_dot{1,2,4,8}`:
/// `(weights: *u8, x: *f32, bias: *f32 or null, out: *f32, outputs: i32, cols: i32, rows: i32)`.
pub fn product(format: &Format, outputs: usize, rows: usize) -> Launch {
    product_as(format, outputs, rows, if rows <= DOT_ROWS || !format.int8 { Unit::Dot } else { Unit::Mma })
}

/// Whether a kernel takes several [`Products`].
pub fn takes_several(kernel: &str) -> bool {
    let float = ["f32_", "f16_", "bf16_"].iter().any(|module| kernel.starts_with(module));
    !float && ["_dot1", "_dot2", "_dot4", "_mma8"].iter().any(|ending| kernel.ends_with(ending))
}

/// What a product runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Four-way int8 dot products, or f32 multiply-adds.
    Dot,
    /// Tensor cores.
    Mma,
}

/// [`product`] on a unit of choice: both take any number of rows.
pub fn product_as(format: &Format, outputs: usize, rows: usize, unit: Unit) -> Launch {
    let (name, widths): (_, &[usize]) = match unit {
        Unit::Dot if format.int8 => ("dot", &[1, 2, 4]),
        Unit::Dot => ("dot", &[1, 2, 4, 8]),
        Unit::Mma if is_narrow(format) => ("mma", &[8, 16, 32]),
        Unit::Mma => ("mma", &[8, 16, 32, 64]),
    };
    let width = *widths.iter().find(|&&width| width >= rows).unwrap_or(&widths[widths.len() - 1]);
    let module = module(format);
    let kernel = format!("{module}_{name}{width}");
    Launch::new(&module, kernel, (rows.div_ceil(width), outputs.div_ceil(TILE), 1), 32 * PARTS)
}

/// Whether a format's widest kernel would need more registers than there are, and so is left out.
fn is_narrow(format: &Format) -> bool {
    matches!(format.name, "Q2_K" | "Q3_K" | "Q5_1" | "Q5_K" | "Q6_K")
}

/// The module of a weight format.
pub fn module(format: &Format) -> String {
    format.name.to_lowercase()
}

/// Rows of a table `[V, D]` packed as a weight is.
///
/// Integer formats, `{format}_embed`: `(quants: *u8, steps: *u8, blocks: *u8, tokens: *u32, out: *f32, cols: i32, rows: i32,
/// scale: f32)`. Float formats: `(weights: *u8, tokens: *u32, out: *f32, cols: i32, rows: i32, scale: f32)`.
pub fn embed(format: &Format, cols: usize, rows: usize) -> Launch {
    let module = module(format);
    let kernel = format!("{module}_embed");
    // Integer formats: a thread for eight columns. Float formats: one for each column.
    let per_row = if format.int8 { cols / 8 } else { cols };
    Launch::new(&module, kernel, (per_row.div_ceil(128), rows, 1), 128)
}

/// `rms_norm_warp` or `rms_norm_block(x: *f32, weight: *f32, out: *f32, width: i32, eps: f32, rows: i32)`: `rows` is the
/// number of heads of `width` in all; `out` may be `x`.
pub fn rms_norm(width: usize, rows: usize) -> Launch {
    if width <= WARP_NORM {
        Launch::new("ops", "rms_norm_warp", (rows.div_ceil(8), 1, 1), 256)
    } else {
        Launch::new("ops", "rms_norm_block", (rows, 1, 1), 256)
    }
}

/// Rows of up to so many elements are normed by a warp, longer ones by a block.
const WARP_NORM: usize = 256;

/// `rms_norm_fused(x: *f32, y: *f32 or null, weight: *f32, out: *f32, quants: *i8 or null, info: *Info, width: i32, eps: f32,
/// rows: i32)`: what `add(x, y)`, `rms_norm_block(x, ..)` and `quantise(out, ..)` do one after the other, with the same bits.
pub fn rms_norm_fused(rows: usize) -> Launch {
    Launch::new("ops", "rms_norm_fused", (rows, 1, 1), 256)
}

/// `glu_silu_quantised` or `glu_gelu_quantised(gate: *f32, up: *f32, quants: *i8, info: *Info, n: i32)`: `glu` and then
/// `quantise(gate, ..)`, with the same bits.
pub fn glu_quantised(activation: Activation, n: usize) -> Launch {
    Launch::over(if activation == Activation::Silu { "glu_silu_quantised" } else { "glu_gelu_quantised" }, n)
}

/// `rope_adjacent` or `rope_halves(x: *f32, cos: *f32, sin: *f32, cols: i32, width: i32, half: i32, rows: i32)`: turns `x[T,
/// cols]` in heads of `width` by the angles `[T, half]`, magnitude included, of each row's position.
pub fn rope(pairing: Pairing, cols: usize, width: usize, half: usize, rows: usize) -> Launch {
    let kernel = match pairing {
        Pairing::Adjacent => "rope_adjacent",
        Pairing::Halves => "rope_halves",
    };
    Launch::over(kernel, rows * (cols / width) * half)
}

/// `glu_silu` or `glu_gelu(gate: *f32, up: *f32, n: i32)`: `gate = activation(gate) * up`.
pub fn glu(activation: Activation, n: usize) -> Launch {
    Launch::over(if activation == Activation::Silu { "glu_silu" } else { "glu_gelu" }, n)
}

/// `silu` or `gelu(x: *f32, n: i32)`.
pub fn activate(activation: Activation, n: usize) -> Launch {
    Launch::over(if activation == Activation::Silu { "silu" } else { "gelu" }, n)
}

/// `add(x: *f32, y: *f32, n: i32)`: `x += y`.
pub fn add(n: usize) -> Launch {
    Launch::over("add", n)
}

/// `softcap(x: *f32, cap: f32, n: i32)`: `x = cap * tanh(x / cap)`.
pub fn softcap(n: usize) -> Launch {
    Launch::over("softcap", n)
}

/// `gather(x: *f32, rows: *u32, out: *f32, cols: i32, count: i32)`: `out[i] = x[rows[i]]`.
pub fn gather(cols: usize, count: usize) -> Launch {
    Launch::over("gather", cols * count)
}

/// `columns(from: *f32, to: *f32, from_cols: i32, from_at: i32, to_cols: i32, to_at: i32, cols: i32, rows: i32)`: copies `cols`
/// columns from column `from_at` of a matrix of `from_cols` to column `to_at` of one of `to_cols` (`split` and `join`).
pub fn columns(cols: usize, rows: usize) -> Launch {
    Launch::over("columns", cols * rows)
}

/// The ending of kernels that know the cache's type.
fn kv_name(ty: KvType) -> &'static str {
    match ty {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::Q8_0 => "q8_0",
    }
}

/// Slots of a cache are a multiple of this, for every head's part of it to be aligned.
pub const SLOTS: usize = 16;

/// `store_{f32,f16,q8_0}(k: *f32, v: *f32, keys: *u8, values: *u8, step: *Step, heads: i32, width: i32, slots: i32, rows: i32)`:
/// rounds rows of `k` and `v` and puts them into slots `step.slot ..` of one layer.
///
/// The cache is `[layers, 2 (keys, values), heads]` of parts of `slots * KvType::bytes(width)` bytes; `keys` and `values`
/// point to a layer's. A part holds its slots' elements, `[slots, width]`, and after them, for `q8_0`, the f16 scales
/// `[slots, width / 32]`.
pub fn store(ty: KvType, heads: usize, width: usize, rows: usize) -> Launch {
    // A warp for 32 elements of keys or values.
    let units = 2 * rows * heads * width.div_ceil(32);
    Launch::new("cache", format!("store_{}", kv_name(ty)), (units.div_ceil(8), 1, 1), 256)
}

/// `move_{f32,f16,q8_0}(cache: *u8, from: *u32, to: i32, count: i32, parts: i32, width: i32, slots: i32)`: in all `parts =
/// layers * 2 * heads` parts moves slot `from[i]` to slot `to + i`; `from` ascends and `from[i] >= to + i`.
pub fn move_kv(ty: KvType, parts: usize) -> Launch {
    Launch::new("cache", format!("move_{}", kv_name(ty)), (parts, 1, 1), 128)
}

/// Positions of a block of attention.
pub const ATTEND_BLOCK: usize = 128;

/// What the kernels of attention take beside their operands. Passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AttendShape {
    /// Rows of the batch.
    pub rows: i32,
    /// KV heads.
    pub heads: i32,
    /// Query heads of a KV head.
    pub group: i32,
    /// Head width.
    pub width: i32,
    /// Slots of the cache.
    pub slots: i32,
    /// Blocks of [`ATTEND_BLOCK`] positions that the grid (or the partial results) has room for: at least those up to the
    /// last row's position.
    pub blocks: i32,
    /// Factor on the query-key products.
    pub scale: f32,
    /// `c * tanh(score / c)`; 0 for none.
    pub softcap: f32,
    /// A row at position p sees positions above `p - window`; 0 for all.
    pub window: i32,
}

/// How a call of attention runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttendPlan {
    /// Every block of positions on its own, then their sum in order. Needs [`split_floats`] floats of scratch.
    ///
    /// `attend_split_{type}_{queries}(q: *f32, keys: *u8, values: *u8, step: *Step, ancestors: *u64 or null, scratch: *f32,
    /// shape: AttendShape)`, then `attend_merge(scratch: *f32, step: *Step, ancestors: *u64 or null, out: *f32, shape:
    /// AttendShape)`, which as `attend_merge_quantised(.., quants: *i8, info: *Info)` does `quantise(out, ..)` too where heads
    /// are a multiple of 32 wide.
    Split {
        /// The blocks.
        split: Launch,
        /// Their sum.
        merge: Launch,
    },
    /// Blocks one after the other.
    ///
    /// `attend_whole_{type}_{queries}(q: *f32, keys: *u8, values: *u8, step: *Step, ancestors: *u64 or null, out: *f32, shape:
    /// AttendShape)`.
    Whole(Launch),
}

/// Floats of scratch for a split call.
pub fn split_floats(shape: &AttendShape) -> usize {
    let [rows, heads, group, blocks, width] =
        [shape.rows, shape.heads, shape.group, shape.blocks, shape.width].map(|n| n as usize);
    rows * heads * group * blocks * (width + 2)
}

/// Thread blocks that fill a device several times over.
const ENOUGH: usize = 512;

/// The better plan: split while the rows alone would leave the device idle and the scratch fits into `scratch` floats.
/// Both give the same bits. `ancestors` is null for a chain.
pub fn attend(ty: KvType, shape: &AttendShape, scratch: usize) -> AttendPlan {
    let queries = (shape.rows * shape.group) as usize;
    let tiles = queries.div_ceil(query_tile(queries)) * shape.heads as usize;
    if tiles < ENOUGH && shape.blocks > 1 && split_floats(shape) <= scratch {
        attend_split(ty, shape)
    } else {
        attend_whole(ty, shape)
    }
}

/// Queries a thread block takes together.
fn query_tile(queries: usize) -> usize {
    [1, 4].into_iter().find(|&tile| tile >= queries).unwrap_or(8)
}

/// [`AttendPlan::Split`], whatever the shape.
pub fn attend_split(ty: KvType, shape: &AttendShape) -> AttendPlan {
    let (heads, blocks) = (shape.heads as usize, shape.blocks as usize);
    let queries = (shape.rows * shape.group) as usize;
    let tile = query_tile(queries);
    let kernel = format!("attend_split_{}_{tile}", kv_name(ty));
    let split = Launch::new("attend", kernel, (blocks, heads, queries.div_ceil(tile)), ATTEND_BLOCK);
    let merge = Launch::new("attend", "attend_merge", (queries * heads, 1, 1), ATTEND_BLOCK);
    AttendPlan::Split { split, merge }
}

/// The merging kernel that quantises, for one that does not.
pub fn merge_quantised(merge: &Launch) -> Launch {
    Launch { kernel: "attend_merge_quantised".into(), ..merge.clone() }
}

/// [`AttendPlan::Whole`], whatever the shape.
pub fn attend_whole(ty: KvType, shape: &AttendShape) -> AttendPlan {
    let queries = (shape.rows * shape.group) as usize;
    let tile = query_tile(queries);
    let kernel = format!("attend_whole_{}_{tile}", kv_name(ty));
    AttendPlan::Whole(Launch::new("attend", kernel, (queries.div_ceil(tile), shape.heads as usize, 1), ATTEND_BLOCK))
}

/// `arg_max(logits: *f32, counts: *i32, tokens: *u32, values: *f32, vocab: i32)`: as [`top_k`] with `k` = 1, in one go.
pub fn arg_max(rows: usize) -> Launch {
    Launch::new("sample", "arg_max", (rows, 1, 1), 1024)
}

/// `top_k(logits: *f32, counts: *i32, tokens: *u32, values: *f32, vocab: i32, k: i32)`: of each row the `k` largest logits
/// and their tokens, `[rows, k]` in no order, of equal ones the lowest ids, and how many these are: fewer where more are
/// masked (-inf), -1 where a logit is NaN or +inf, or all are -inf.
pub fn top_k(rows: usize) -> Launch {
    Launch::new("sample", "top_k", (rows, 1, 1), 1024)
}

/// `gumbel(logits: *f32, counts: *i32, tokens: *u32, values: *f32, ordinals: *u64, vocab: i32, room: i32, temperature: f32,
/// seed_low: u32, seed_high: u32)`: of each row the tokens one of which is drawn at its ordinal by the noise of
/// [`crate::sample`] from all unmasked ones: those whose `logit / temperature + noise` is nearly the largest, almost always
/// one. Exact arithmetic decides among them, on the host, which has the same logarithms on every device. `[rows, room]`, in
/// no order; counts as of [`top_k`], but above `room` where they do not fit.
pub fn gumbel(rows: usize) -> Launch {
    Launch::new("sample", "gumbel", (rows, 1, 1), 1024)
}

/// `fill_bits(words: *u32, n: i32, seed: u32)`: the same random words everywhere, for weights of benchmarks.
pub fn fill_bits(words: usize) -> Launch {
    Launch::over("fill_bits", words)
}

/// `fill_halves(halves: *u16, n: i32, most: f32, seed: u32)`: random f16 between `-most` and `most`.
pub fn fill_halves(halves: usize) -> Launch {
    Launch::over("fill_halves", halves)
}

/// The modules there are: weight formats first, then the rest.
pub fn modules() -> impl Iterator<Item = String> {
    let formats = crate::quant::FORMATS.iter().map(|format| module(format));
    formats.chain(["ops", "cache", "attend", "sample"].map(String::from))
}
