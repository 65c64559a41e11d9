//! Packed weights of the float formats: panels of sixteen rows, column after column, and their dot kernel.
//!
//! Activations stay in f32. Every output has two accumulators, for even and odd columns, added at the end: two chains of
//! multiply-adds, and the same order whatever the batch.

use super::panel::AHEAD;
use super::{Dot, Format, Input, Out, ROWS};
use crate::isa::{Isa, Kernel, Simd};
use std::marker::PhantomData;

/// A format whose weights are floats of their own.
pub trait Float: 'static {
    /// Bytes of a weight.
    const BYTES: usize;

    /// Sixteen weights, widened.
    fn load<S: Simd>(weights: &[u8]) -> S::F;
}

/// The row of [`super::FORMATS`] of a float format.
pub const fn format<W: Float>(name: &'static str, ggml_id: u32, dequant: fn(&[u8], &mut [f32])) -> Format {
    Format {
        name,
        ggml_id,
        block: 1,
        bytes: W::BYTES,
        dequant,
        int8: false,
        panel_bytes: bytes::<W>,
        pack: pack::<W>,
        dot: dot::<W>,
    }
}

fn bytes<W: Float>(cols: usize) -> usize {
    (cols * ROWS * W::BYTES).next_multiple_of(64)
}

fn pack<W: Float>(rows: &[u8], cols: usize, panel: &mut [u8]) {
    for (row, raw) in rows.chunks_exact(cols * W::BYTES).enumerate() {
        for (weight, column) in raw.chunks_exact(W::BYTES).zip(panel.chunks_exact_mut(ROWS * W::BYTES)) {
            column[row * W::BYTES..(row + 1) * W::BYTES].copy_from_slice(weight);
        }
    }
}

fn dot<W: Float>(isa: Isa, call: Dot<'_>) {
    isa.dispatch(Panels::<W>(call, PhantomData));
}

struct Panels<'a, W>(Dot<'a>, PhantomData<W>);

impl<W: Float> Kernel for Panels<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Dot { panels, cols, input, mut out } = self.0;
        let Input::F32(x) = input else { panic!("float weights take f32 activations") };
        for panel in panels.chunks_exact(bytes::<W>(cols)) {
            let mut first = 0;
            while first < out.rows() {
                let x = &x[first * cols..];
                first += match out.rows() - first {
                    1 => tile::<S, W, 1>(panel, cols, x, &mut out, first),
                    2..4 => tile::<S, W, 2>(panel, cols, x, &mut out, first),
                    4..8 => tile::<S, W, 4>(panel, cols, x, &mut out, first),
                    _ => tile::<S, W, 8>(panel, cols, x, &mut out, first),
                };
            }
            out.next_panel();
        }
    }
}

/// `N` rows of the batch, from row `first`, against one panel. Gives `N`.
#[inline(always)]
fn tile<S: Simd, W: Float, const N: usize>(
    panel: &[u8],
    cols: usize,
    x: &[f32],
    out: &mut Out<'_>,
    first: usize,
) -> usize {
    let x: [&[f32]; N] = std::array::from_fn(|n| &x[n * cols..][..cols]);
    let mut even = [S::splat(0.0); N];
    let mut odd = [S::splat(0.0); N];
    let size = ROWS * W::BYTES;
    let panel = &panel[..cols * size];
    let pairs = panel.chunks_exact(2 * size);
    let last = pairs.remainder();
    for (pair, columns) in pairs.enumerate() {
        S::prefetch(columns.as_ptr().wrapping_add(AHEAD));
        let (a, b) = (W::load::<S>(&columns[..size]), W::load::<S>(&columns[size..]));
        for n in 0..N {
            even[n] = S::fma(a, S::splat(x[n][2 * pair]), even[n]);
            odd[n] = S::fma(b, S::splat(x[n][2 * pair + 1]), odd[n]);
        }
    }
    for n in 0..N {
        if !last.is_empty() {
            even[n] = S::fma(W::load::<S>(last), S::splat(x[n][cols - 1]), even[n]);
        }
        out.put::<S>(0, first + n, S::add(even[n], odd[n]));
    }
    N
}
