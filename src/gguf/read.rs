//! A cursor over bytes nobody vouches for. Every read is bounded, every error says where it happened.

use anyhow::{Result, bail, ensure};
use std::ops::Range;

/// Reads little-endian fields in order.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `n` bytes as a range of the file.
    pub(super) fn range(&mut self, n: u64, what: &str) -> Result<Range<usize>> {
        if n > self.left() as u64 {
            bail!(
                "{what} at offset {} needs {n} bytes, {} are left (file truncated / download incomplete?)",
                self.at,
                self.left()
            );
        }
        let start = self.at;
        self.at += n as usize;
        Ok(start..self.at)
    }

    /// The next `n` bytes.
    pub(super) fn bytes(&mut self, n: u64, what: &str) -> Result<&'a [u8]> {
        let range = self.range(n, what)?;
        Ok(&self.bytes[range])
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        let b = self.bytes(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        let b = self.bytes(8, what)?;
        Ok(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }

    /// A number of entries that take at least `min` bytes each, refused when the file cannot hold them.
    pub(super) fn count(&mut self, min: usize, what: &str) -> Result<u64> {
        let n = self.u64(what)?;
        self.holds(n, min, what)?;
        Ok(n)
    }

    /// Checks that `n` entries of at least `min` bytes can follow.
    pub(super) fn holds(&self, n: u64, min: usize, what: &str) -> Result<()> {
        let most = (self.left() / min) as u64;
        ensure!(
            n <= most,
            "{what} is {n}, but the {} bytes left hold at most {most} (file truncated / download incomplete?)",
            self.left()
        );
        Ok(())
    }

    /// A length and as many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &str) -> Result<Range<usize>> {
        let n = self.u64(what)?;
        let range = self.range(n, what)?;
        if let Err(e) = std::str::from_utf8(&self.bytes[range.clone()]) {
            bail!("{what} is not UTF-8 at offset {}", range.start + e.valid_up_to());
        }
        Ok(range)
    }
}
