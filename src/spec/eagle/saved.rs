//! What a prompt cache keeps of a head: its keys and values, and the rows that it has yet to make pairs of.
//!
//! ```text
//! tag, fingerprint of the sidecar, seen, cached, kept    (u64 LE), keys and values, rows f32 each
//! ```

use super::Eagle;
use crate::backend::Backend;
use anyhow::{Result, ensure};

const TAG: u64 = u64::from_le_bytes(*b"eagle  1");
const NUMBERS: usize = 5;

impl<B: Backend> Eagle<B> {
    /// The bytes.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let numbers = [TAG, self.fingerprint, self.seen as u64, self.cached as u64, self.kept as u64];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.append(&mut self.layer.read(self.cached)?);
        bytes.extend(self.rows.iter().flat_map(|x| x.to_le_bytes()));
        Ok(bytes)
    }

    /// Takes them up; false if they are not those of such a head.
    pub(super) fn take_bytes(&mut self, bytes: &[u8]) -> Result<bool> {
        let Some((numbers, rest)) = bytes.split_at_checked(8 * NUMBERS) else { return Ok(false) };
        let number = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| numbers[8 * i + b]));
        if number(0) != TAG || number(1) != self.fingerprint {
            return Ok(false);
        }
        let [seen, cached, kept] = [2, 3, 4].map(|i| usize::try_from(number(i)).unwrap_or(usize::MAX));
        let in_order = kept <= cached && cached <= seen && seen <= self.pairs();
        ensure!(in_order, "what was kept of a head says {seen} rows, {cached} pairs, rows from {kept}: it is damaged");
        let width = self.layer.shape().shown;
        let (cache, rows) = rest.split_at_checked(self.layer.bytes_of(cached)).unwrap_or((rest, &[]));
        let need = self.layer.bytes_of(cached) + 4 * width * (seen - kept);
        ensure!(rest.len() == need, "what was kept of a head has {} bytes, {need} are needed", rest.len());
        self.layer.write(cached, cache)?;
        self.rows = rows.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        (self.seen, self.cached, self.kept) = (seen, cached, kept);
        Ok(true)
    }
}
