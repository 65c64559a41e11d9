//! Files as bytes of memory.

use anyhow::{Context, Result, ensure};
use memmap2::Mmap;
use std::{fs::File, ops::Deref, path::Path};

/// The bytes of a file.
#[derive(Debug)]
pub(super) enum Data {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for Data {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Data::Mapped(map) => map,
            Data::Owned(bytes) => bytes,
        }
    }
}

impl Data {
    /// Maps the file at `path`, which must be a regular one.
    pub(super) fn map(path: &Path) -> Result<Data> {
        // Asked before opening: opening a pipe would wait for its writer.
        let about = std::fs::metadata(path).context("cannot open")?;
        ensure!(!about.is_dir(), "is a directory");
        ensure!(about.is_file(), "is not a regular file and cannot be mapped");
        let file = File::open(path).context("cannot open")?;
        if about.len() == 0 {
            return Ok(Data::Owned(Vec::new()));
        }
        // SAFETY: the map is read-only. That nobody changes the file meanwhile cannot be enforced; what is read from the
        // map is plain bytes, and text is checked each time it is made into a `str`.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.context("cannot map")?;
        Ok(Data::Mapped(map))
    }
}

/// The bytes of a file that is no model: mapped, or made in memory. A file that is rewritten or cut meanwhile is read
/// as it then is, so nothing may follow from having read it before.
#[derive(Debug)]
pub struct FileBytes(Data);

impl FileBytes {
    /// Maps a regular file.
    pub fn map(path: &Path) -> Result<Self> {
        Data::map(path).map(Self)
    }

    /// Bytes that take memory of their own.
    pub fn owned(&self) -> usize {
        match &self.0 {
            Data::Mapped(_) => 0,
            Data::Owned(bytes) => bytes.len(),
        }
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Data::Owned(bytes))
    }
}

impl Deref for FileBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
