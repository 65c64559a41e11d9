//! One of the products that a team makes together.

use super::{Cpu, Product, SharedRows};
use crate::isa::{self, Isa};
use crate::quant::panel::Activations;
use crate::quant::{Dot, Format, Input, Out, ROWS};
use std::ops::Range;

/// Cache lines of a result that are asked for once it is there.
const NEAR: usize = 128;

/// A product as members of the team take it: by value, for all of it to be where their job is.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    dot: fn(Isa, Dot<'_>),
    int8: bool,
    panels: &'a [u8],
    /// Bytes of a panel.
    pub size: usize,
    bias: Option<&'a [f32]>,
    out: SharedRows,
    /// Its panels among those of all products.
    first: usize,
    end: usize,
}

impl<'a> Part<'a> {
    /// A product whose first panel is number `first` among those of all products.
    pub fn new(p: &mut Product<'a, Cpu>, first: usize) -> Self {
        let Format { dot, int8, panel_bytes, .. } = *p.weight.format;
        let count = p.weight.panel_count();
        let (panels, size) = (p.weight.panels(0..count), panel_bytes(p.weight.cols));
        let (bias, out) = (p.bias.map(|bias| &bias[..]), p.out.shared());
        Self { dot, int8, panels, size, bias, out, first, end: first + count }
    }

    /// Multiplies those of the panels `units` that are its own with rows `tile` of the batch, which are `quants`
    /// `[rows, ceil(cols / 32)]` or `x` `[rows, cols]`.
    ///
    /// # Safety
    /// No one else touches these rows of these panels' outputs, which live.
    pub unsafe fn run(
        &self,
        isa: Isa,
        units: Range<usize>,
        tile: Range<usize>,
        cols: usize,
        quants: &[Activations],
        x: &[f32],
    ) {
        let units = units.start.max(self.first)..units.end.min(self.end);
        if units.is_empty() {
            return;
        }
        let mine = units.start - self.first..units.end - self.first;
        let input = if self.int8 { Input::Int8(quants) } else { Input::F32(x) };
        assert!(tile.end <= self.out.rows);
        // SAFETY: within the matrix, as asserted; the caller's alone, by this function's contract.
        let out = unsafe {
            let base = self.out.base.add(tile.start * self.out.cols);
            Out::new(base, tile.len(), self.out.cols, mine.start * ROWS, self.bias)
        };
        let panels = &self.panels[mine.start * self.size..mine.end * self.size];
        (self.dot)(isa, Dot { panels, cols, input, out });
    }

    /// Asks for the result: other cores wrote some of it, and this one reads it next.
    pub fn ask(&self, rows: usize) {
        let lines = (size_of::<f32>() * rows * self.out.cols).div_ceil(64).min(NEAR);
        let at = self.out.base.cast::<u8>();
        (0..lines).for_each(|line| isa::prefetch_near(at.wrapping_add(64 * line)));
    }
}
