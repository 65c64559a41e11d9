//! One file: its bytes, its header, its tensor table.

use super::{
    kind,
    map::Data,
    metadata::Metadata,
    read::Reader,
    tensor::{self, Record, TensorView},
};
use anyhow::{Context, Result, bail, ensure};
use std::{path::Path, sync::Arc};

/// One validated file.
#[derive(Debug)]
pub(super) struct Shard {
    data: Arc<Data>,
    version: u32,
    meta: Metadata,
    tensors: Vec<Record>,
}

impl Shard {
    /// Maps and validates the file at `path`; errors start with the path.
    pub(super) fn open(path: &Path) -> Result<Shard> {
        let open = || {
            ensure!(!path.is_dir(), "is a directory, not a model: name the .gguf file in it");
            Self::parse(Arc::new(Data::map(path)?))
        };
        open().with_context(|| path.display().to_string())
    }

    pub(super) fn parse(data: Arc<Data>) -> Result<Shard> {
        if let Some(why) = kind::refusal(&data) {
            bail!(why);
        }
        let mut r = Reader::new(&data);
        r.bytes(4, "the magic")?;
        let version = r.u32("the version")?;
        let tensor_count = r.u64("the tensor count")?;
        let key_count = r.count(Metadata::MIN_ENTRY, "the metadata key count")?;
        r.holds(tensor_count, Record::MIN_ENTRY, "the tensor count")?;
        let meta = Metadata::read(&mut r, key_count, data.clone())?;
        r.holds(tensor_count, Record::MIN_ENTRY, "the tensor count")?;
        let alignment = alignment(&meta)?;
        let tensors = tensor::read_table(&mut r, tensor_count, alignment, data.len())?;

        // Shards glued together byte by byte: only the first header would ever be read.
        let end = tensors.iter().map(|t| t.bytes.end).max().unwrap_or(r.at());
        for end in [Some(end), end.checked_next_multiple_of(alignment)].into_iter().flatten() {
            ensure!(
                !data.get(end..).is_some_and(|rest| rest.starts_with(b"GGUF")),
                "another GGUF file starts at offset {end}: shards must stay separate files, not be concatenated"
            );
        }
        Ok(Shard { data, version, meta, tensors })
    }

    pub(super) fn meta(&self) -> &Metadata {
        &self.meta
    }

    pub(super) fn tensors(&self) -> &[Record] {
        &self.tensors
    }

    /// Everything before the first tensor.
    pub(super) fn header(&self) -> &[u8] {
        let end = self.tensors.iter().map(|t| t.bytes.start).min().unwrap_or(self.data.len());
        &self.data[..end]
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// Tensor number `t`.
    pub(super) fn view(&self, t: usize) -> TensorView<'_> {
        self.tensors[t].view(&self.data)
    }
}

/// What tensor offsets are multiples of.
fn alignment(meta: &Metadata) -> Result<usize> {
    let Some(n) = meta.uint("general.alignment")? else {
        return Ok(gguf_rs_lib::format::constants::GGUF_DEFAULT_ALIGNMENT);
    };
    ensure!(n.is_power_of_two() && n >= 8, "general.alignment is {n}, a power of two of at least 8 is wanted");
    usize::try_from(n).context("general.alignment")
}
