//! Rows as shards have them: in f16, side by side.

use anyhow::{Result, bail};
use half::f16;

/// Rows of some tokens, as bytes of f16 (LE).
#[derive(Debug, Default)]
pub struct Rows {
    /// `[n, D]` after the output norm.
    pub hidden: Vec<u8>,
    /// `[n, K, D]` of the tapped layers.
    pub taps: Vec<u8>,
    /// How many values were beyond what f16 holds.
    pub clamped: u64,
}

impl Rows {
    /// Takes rows `[n, D]` of the last hidden state and of each tapped layer. Values beyond the largest of f16 become
    /// that one (residual streams of some models have such, in few places), those that are no numbers are an error.
    pub fn set(&mut self, width: usize, hidden: &[f32], taps: &[Vec<f32>]) -> Result<()> {
        self.hidden.clear();
        self.taps.clear();
        self.clamped = 0;
        for (n, row) in hidden.chunks_exact(width).enumerate() {
            narrow(row, &mut self.hidden, &mut self.clamped, || (n, None))?;
            for (tap, rows) in taps.iter().enumerate() {
                let row = &rows[n * width..(n + 1) * width];
                narrow(row, &mut self.taps, &mut self.clamped, || (n, Some(tap)))?;
            }
        }
        Ok(())
    }
}

/// A value that is no number: number of the row, and of the tap unless it is of the hidden state.
#[derive(Debug)]
pub struct NotFinite {
    /// The row.
    pub row: usize,
    /// The tap.
    pub tap: Option<usize>,
}

impl std::fmt::Display for NotFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NaN or infinite")
    }
}

impl std::error::Error for NotFinite {}

fn narrow(row: &[f32], out: &mut Vec<u8>, clamped: &mut u64, place: impl Fn() -> (usize, Option<usize>)) -> Result<()> {
    let most = f16::MAX.to_f32();
    if row.iter().any(|x| !x.is_finite()) {
        let (row, tap) = place();
        bail!(NotFinite { row, tap });
    }
    *clamped += row.iter().filter(|x| x.abs() > most).count() as u64;
    out.extend(row.iter().flat_map(|x| f16::from_f32(x.clamp(-most, most)).to_le_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_clamped_or_refused() {
        let mut rows = Rows::default();
        let hidden = [1.0, -1e30, 65504.0, 65519.0, 0.1, -0.0];
        let taps = [vec![1.0, 2.0, 3.0, 7.0, 8.0, 9.0], vec![4.0, 5.0, 6.0, 1e5, 0.0, 0.0]];
        for _ in 0..2 {
            rows.set(3, &hidden, &taps).unwrap();
            let values = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect()
            };
            assert_eq!(values(&rows.hidden), [1.0, -65504.0, 65504.0, 65504.0, 0.099_975_586, -0.0]);
            assert_eq!(values(&rows.taps), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 65504.0, 0.0, 0.0]);
            assert_eq!(rows.clamped, 3);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let place = |error: anyhow::Error| error.downcast::<NotFinite>().map(|bad| (bad.row, bad.tap)).unwrap();
            let mut hidden = hidden;
            hidden[4] = bad;
            assert_eq!(place(rows.set(3, &hidden, &taps).unwrap_err()), (1, None));
            hidden[4] = 0.0;
            let mut taps = taps.clone();
            taps[1][0] = bad;
            assert_eq!(place(rows.set(3, &hidden, &taps).unwrap_err()), (0, Some(1)));
        }
    }
}
