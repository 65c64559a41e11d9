//! Model files: open, validate, view. The only module that knows files.
//!
//! A [`Gguf`] is one model, in one file or in shards, memory-mapped, GGUF version 2 or 3, little-endian. Opening walks
//! the whole header once and checks everything the file claims before anything is built from it: counts and lengths
//! against the bytes that are left, every sum and product for overflow, keys, strings, types, alignment, and for each
//! tensor that its bytes lie inside the file and are nobody else's. After that a [`TensorView`] is a plain slice of the
//! map and nothing here can fail but a look-up of the wrong type.
//!
//! The invariant: no number in the file is believed. Vectors grow as entries are read, so memory is bounded by a small
//! multiple of the header's real length whatever its counts say.
//!
//! What `gguf-rs-lib` does here and what not: its value types, scalar decoding, tensor record and block geometry are
//! used. Its reader is not, because it refuses version 2 and every key that is not lower snake case (`gpt-oss.*`,
//! `command-r.*`), its tensor records do not name the tensor they refuse, and its arrays hold one heap value an
//! element, which costs 30 ms and 100,000 allocations for a small vocabulary. So the loop is ours and arrays and
//! strings stay where they are: ranges of the map, checked once.
//!
//! A file that another process shortens or rewrites while it is mapped cannot be guarded against: the size is checked
//! when it is opened, and text is checked again when it is read so that not even that breaks a `str`.

mod kind;
mod map;
mod metadata;
mod read;
mod shard;
mod split;
mod tensor;

pub use map::FileBytes;
pub use metadata::{Metadata, Strings};
pub use tensor::{TensorBytes, TensorView, type_name};

use anyhow::{Context, Result, bail};
use shard::Shard;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use xxhash_rust::xxh3::Xxh3;

/// One opened model.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    shards: Vec<Shard>,
    /// (shard, index within it) of every tensor, by name.
    by_name: Vec<(usize, usize)>,
}

impl Gguf {
    /// Opens the model at `path`. Any shard of a split model stands for the whole; its siblings are found beside it.
    pub fn open(path: &Path) -> Result<Gguf> {
        let given = Shard::open(path)?;
        let place = split::place(given.meta()).with_context(|| path.display().to_string())?;
        let shards = if place.count > 1 { split::open_siblings(path, given, place)? } else { vec![given] };
        Self::join(path.to_path_buf(), shards, place.tensors).with_context(|| path.display().to_string())
    }

    /// A model whose whole file is in memory. A shard of a split model is refused: its siblings cannot be found.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf> {
        let shard = Shard::parse(Arc::new(map::Data::Owned(bytes)))?;
        let place = split::place(shard.meta())?;
        if place.count > 1 {
            bail!("this is shard {} of {} and the others cannot be found from memory", place.no + 1, place.count);
        }
        Self::join(PathBuf::new(), vec![shard], place.tensors)
    }

    fn join(path: PathBuf, shards: Vec<Shard>, promised: Option<u64>) -> Result<Gguf> {
        let mut by_name: Vec<(usize, usize)> = Vec::new();
        for (s, shard) in shards.iter().enumerate() {
            by_name.extend((0..shard.tensors().len()).map(|t| (s, t)));
        }
        if let Some(promised) = promised.filter(|&n| n != by_name.len() as u64) {
            bail!("split.tensors.count says {promised} tensors, {} found", by_name.len());
        }
        let name = |&(s, t): &(usize, usize)| shards[s].tensors()[t].name();
        by_name.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        if let Some(twice) = by_name.windows(2).find(|w| name(&w[0]) == name(&w[1])) {
            bail!("tensor {:?} is there twice", name(&twice[0]));
        }
        Ok(Gguf { path, shards, by_name })
    }

    /// The path that was opened; empty for a model from memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata, of the first shard where there are several.
    pub fn meta(&self) -> &Metadata {
        self.shards[0].meta()
    }

    /// All tensors in file order, shard by shard.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.shards.iter().flat_map(|shard| (0..shard.tensors().len()).map(|t| shard.view(t)))
    }

    /// How many tensors there are; a file that holds only a vocabulary has none.
    pub fn tensor_count(&self) -> usize {
        self.by_name.len()
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let found = self.by_name.binary_search_by(|&(s, t)| self.shards[s].tensors()[t].name().cmp(name)).ok()?;
        let (s, t) = self.by_name[found];
        Some(self.shards[s].view(t))
    }

    /// What is before the first tensor of each shard: metadata and the table of tensors.
    pub fn headers(&self) -> impl Iterator<Item = &[u8]> {
        self.shards.iter().map(Shard::header)
    }

    /// Tells files apart: of all headers and some weights of every tensor.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        self.headers().for_each(|header| hash.update(header));
        for bytes in self.tensors().map(|tensor| tensor.bytes) {
            hash.update(&bytes[..bytes.len().min(64)]);
            hash.update(&bytes[bytes.len().saturating_sub(64)..]);
        }
        hash.digest()
    }

    /// Size of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(Shard::file_bytes).sum()
    }

    /// How many files the model is split into.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// GGUF version of the first shard, 2 or 3.
    pub fn version(&self) -> u32 {
        self.shards[0].version()
    }
}
