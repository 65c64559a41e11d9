//! Weight formats: one file each, and the table that everything else iterates.
//!
//! A tensor is a run of blocks; a block is a fixed number of weights in a fixed number of bytes, little-endian. The
//! `dequant` of each file is the oracle: plain scalar code, bit-equal to ggml's and to the `gguf` Python package
//! (`tests/dequant.rs`). It never fails, because the caller has checked shapes; wrong lengths are a bug and panic.
//!
//! In every block format a product of scale, sub-scale and quant has at most 23 significant bits (11 of the f16, then 7
//! and 5 or 5 and 7), so it is exact in f32 in whatever order it is taken, and a fused multiply-add gives the same bits.
//! The one rounding is the sum with a minimum, in the formats that have one.
//!
//! To add a format: its file with a `FORMAT`, its `mod` line and its line of [`FORMATS`]. The tests then ask for its
//! fixture, which `scripts/make_dequant_fixtures.py` makes.

#![allow(unsafe_code)] // disjoint columns of one result

pub mod bf16;
mod dot;
pub mod f16;
pub mod f32;
mod float;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod panel;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

use crate::isa::{Isa, Simd, load_part, store_part};
use std::marker::PhantomData;

/// A weight format.
#[derive(Debug)]
pub struct Format {
    /// ggml's name, as `inspect` and error messages print it.
    pub name: &'static str,
    /// The type's number in GGUF files.
    pub ggml_id: u32,
    /// Weights in a block; rows are whole blocks.
    pub block: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// Widens whole blocks to exactly as many f32; panics when the lengths do not match.
    pub dequant: fn(&[u8], &mut [f32]),
    /// Whether [`Format::dot`] takes int8 activations, rather than f32.
    pub int8: bool,
    /// Bytes of a packed panel of so many columns, a multiple of 64.
    pub panel_bytes: fn(usize) -> usize,
    /// Packs up to [`ROWS`] rows, back to back, of so many columns into a zeroed panel; missing rows weigh nothing.
    pub pack: fn(&[u8], usize, &mut [u8]),
    /// Products of panels with the rows of a batch.
    pub dot: fn(Isa, Dot<'_>),
}

/// Rows of a panel of packed weights.
pub const ROWS: usize = 16;

/// The rows of a batch, `[T, D]`.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// `[T, ceil(D / 32)]` blocks.
    Int8(&'a [panel::Activations]),
    /// `[T, D]`.
    F32(&'a [f32]),
}

/// One call of [`Format::dot`].
pub struct Dot<'a> {
    /// Consecutive packed panels.
    pub panels: &'a [u8],
    /// Columns `D` of the weight.
    pub cols: usize,
    /// What they are multiplied with.
    pub input: Input<'a>,
    /// Where the products go.
    pub out: Out<'a>,
}

/// The columns of a result `[T, N]` that one call fills, panel after panel. Different calls fill different columns.
pub struct Out<'a> {
    base: *mut f32,
    rows: usize,
    cols: usize,
    column: usize,
    bias: Option<&'a [f32]>,
    _result: PhantomData<&'a mut [f32]>,
}

impl<'a> Out<'a> {
    /// Columns from `column` on of the `[rows, cols]` result at `base`; `bias` `[cols]` is added to each row.
    ///
    /// # Safety
    /// `base` points to `rows * cols` floats that live for `'a`, and nothing else touches the columns of the panels that
    /// this call is given.
    pub unsafe fn new(base: *mut f32, rows: usize, cols: usize, column: usize, bias: Option<&'a [f32]>) -> Self {
        assert!(bias.is_none_or(|bias| bias.len() == cols) && column.is_multiple_of(ROWS));
        Self { base, rows, cols, column, bias, _result: PhantomData }
    }

    #[inline(always)]
    fn rows(&self) -> usize {
        self.rows
    }

    #[inline(always)]
    fn next_panel(&mut self) {
        self.column += ROWS;
    }

    /// Stores the sixteen outputs of row `row` of the panel `panel` beyond the current one, fewer at the right edge.
    #[inline(always)]
    fn put<S: Simd>(&mut self, panel: usize, row: usize, sums: S::F) {
        let column = self.column + panel * ROWS;
        let end = (column + ROWS).min(self.cols);
        assert!(row < self.rows && column < end);
        let sums = match self.bias {
            Some(bias) => S::add(sums, load_part::<S>(&bias[column..end])),
            None => sums,
        };
        // SAFETY: inside the result, as asserted; these columns are this call's alone (see `new`).
        let out = unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.cols + column), end - column) };
        store_part::<S>(sums, out);
    }
}

/// Every format there is, by ggml number.
pub static FORMATS: &[&Format] = &[
    &f32::FORMAT,
    &f16::FORMAT,
    &q4_0::FORMAT,
    &q4_1::FORMAT,
    &q5_0::FORMAT,
    &q5_1::FORMAT,
    &q8_0::FORMAT,
    &q2_k::FORMAT,
    &q3_k::FORMAT,
    &q4_k::FORMAT,
    &q5_k::FORMAT,
    &q6_k::FORMAT,
    &iq4_nl::FORMAT,
    &iq4_xs::FORMAT,
    &bf16::FORMAT,
    &mxfp4::FORMAT,
];

/// The format with this number in GGUF files.
pub fn format(ggml_id: u32) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|f| f.ggml_id == ggml_id)
}

/// The names of all formats, for error messages.
pub fn supported() -> String {
    FORMATS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
}

/// Each block of `blocks` with the weights of `out` it fills.
fn pairs<'a, const BYTES: usize, const BLOCK: usize>(
    blocks: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32; BLOCK])> {
    let (from, spare_bytes) = blocks.as_chunks();
    let (to, spare_weights) = out.as_chunks_mut();
    assert!(spare_bytes.is_empty(), "{} bytes beyond a whole block of {BYTES}", spare_bytes.len());
    assert!(spare_weights.is_empty(), "{} weights beyond a whole block of {BLOCK}", spare_weights.len());
    assert_eq!(from.len(), to.len(), "blocks to read and to write");
    from.iter().zip(to)
}

/// The f16 at byte `at` of a block.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
