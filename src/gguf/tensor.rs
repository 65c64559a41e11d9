//! The tensor table, and a tensor as the rest of the crate sees it.

use super::{map::Data, read::Reader};
use anyhow::{Context, Result, bail, ensure};
use gguf_rs_lib::format::{
    constants::{GGUF_MAX_DIMENSIONS, GGUF_MAX_TENSOR_NAME_LENGTH},
    header::TensorInfo,
    types::GGUFTensorType,
};
use std::{
    fmt,
    ops::{Deref, Range},
    sync::Arc,
};

/// A tensor of a model file, or bytes laid out like one.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// ggml's number of the element type.
    pub ggml_type: u32,
    /// Dimensions as in the file: `dims[0]` is the row length.
    pub dims: &'a [u64],
    /// The encoded elements, row after row.
    pub bytes: &'a [u8],
    /// The file `bytes` come from, when they do.
    file: Option<&'a Arc<Data>>,
}

impl<'a> TensorView<'a> {
    /// Views `bytes` as a tensor; they must be exactly as many as its type and dimensions take.
    pub fn new(name: &'a str, ggml_type: u32, dims: &'a [u64], bytes: &'a [u8]) -> Result<Self> {
        let want = byte_len(ggml_type, dims).with_context(|| format!("tensor {name:?}"))?;
        ensure!(want == bytes.len() as u64, "tensor {name:?}: {} bytes given, {want} needed", bytes.len());
        Ok(Self { name, ggml_type, dims, bytes, file: None })
    }

    /// Elements in a row.
    pub fn cols(&self) -> usize {
        self.dims[0] as usize
    }

    /// Rows, all further dimensions taken together.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product::<u64>() as usize
    }

    /// Name of the element type.
    pub fn type_name(&self) -> String {
        type_name(self.ggml_type)
    }

    /// Gives the memory of the file's pages under `bytes` back; they are read again when touched. For a tensor that
    /// has been packed and is not read any more. Does nothing for bytes that are not mapped from a file.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Some((Data::Mapped(map), at)) = self.place().map(|(file, at)| (&**file, at)) {
            // Only pages of a file may be dropped: anonymous ones would come back as zeros.
            // SAFETY: `place` found the range inside a read-only shared map of a file, whose pages come back from the
            // file with the same content. Advice that fails leaves everything as it was.
            #[allow(unsafe_code)]
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, self.bytes.len()) };
        }
    }

    /// Asks for the file's pages under `bytes` to be read ahead.
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Some((Data::Mapped(map), at)) = self.place().map(|(file, at)| (&**file, at)) {
            let _ = map.advise_range(memmap2::Advice::WillNeed, at, self.bytes.len());
        }
    }

    /// The bytes, to be kept beyond the view, if that takes no more than that their file stays mapped.
    pub fn keep_in_file(&self) -> Option<TensorBytes> {
        self.place().map(|_| self.keep())
    }

    /// The bytes, to be kept beyond the view: the file stays mapped for them. Bytes from elsewhere are copied.
    pub fn keep(&self) -> TensorBytes {
        match self.place() {
            Some((file, at)) => TensorBytes { data: file.clone(), range: at..at + self.bytes.len() },
            None => TensorBytes { data: Arc::new(Data::Owned(self.bytes.to_vec())), range: 0..self.bytes.len() },
        }
    }

    /// The file and where in it `bytes` start, checked because `bytes` is a public field.
    fn place(&self) -> Option<(&'a Arc<Data>, usize)> {
        let file = self.file?;
        let (outer, inner) = (file.as_ptr_range(), self.bytes.as_ptr_range());
        let inside = !self.bytes.is_empty() && outer.start <= inner.start && inner.end <= outer.end;
        inside.then(|| (file, inner.start.addr() - outer.start.addr()))
    }
}

/// The encoded elements of a tensor that outlive the [`super::Gguf`] they come from.
#[derive(Debug)]
pub struct TensorBytes {
    data: Arc<Data>,
    range: Range<usize>,
}

impl Deref for TensorBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}

impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?} ({} bytes)", self.name, self.type_name(), self.dims, self.bytes.len())
    }
}

/// Name of ggml's element type `id`, also of types that were removed; `type 99` for one nobody knows.
pub fn type_name(id: u32) -> String {
    match (GGUFTensorType::from_u32(id), removed(id)) {
        (Ok(ty), _) => ty.name().into(),
        (_, Some(name)) => name.into(),
        _ => format!("type {id}"),
    }
}

fn removed(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return None,
    })
}

fn tensor_type(id: u32) -> Result<GGUFTensorType> {
    if let Ok(ty) = GGUFTensorType::from_u32(id) {
        return Ok(ty);
    }
    if let Some(name) = removed(id) {
        bail!("its type {id} ({name}) was removed from the format: quantise the model anew");
    }
    let known: Vec<&str> = (0..64).filter_map(|id| GGUFTensorType::from_u32(id).ok()).map(|ty| ty.name()).collect();
    bail!("its type {id} is unknown; known are {}", known.join(" "));
}

/// Bytes of a tensor, or what is wrong with its type or shape.
fn byte_len(ggml_type: u32, dims: &[u64]) -> Result<u64> {
    ensure!(
        (1..=GGUF_MAX_DIMENSIONS).contains(&dims.len()),
        "it has {} dimensions, 1 to {GGUF_MAX_DIMENSIONS} are supported",
        dims.len()
    );
    if let Some(d) = dims.iter().position(|&n| n == 0) {
        bail!("dimension {d} of {dims:?} is zero");
    }
    let ty = tensor_type(ggml_type)?;
    let block = ty.block_size() as u64;
    ensure!(dims[0].is_multiple_of(block), "row length {} is no multiple of {}'s block of {block}", dims[0], ty.name());
    dims.iter()
        .try_fold(1u64, |product, &n| product.checked_mul(n))
        .and_then(|elements| ty.checked_calculate_size(elements))
        .filter(|&n| usize::try_from(n).is_ok())
        .with_context(|| format!("the size of {} {dims:?} overflows", ty.name()))
}

/// A validated entry of the table.
#[derive(Debug)]
pub(super) struct Record {
    info: TensorInfo,
    /// Where in the file its bytes are.
    pub(super) bytes: Range<usize>,
}

impl Record {
    /// The least bytes an entry takes: length of the name, rank, type, offset.
    pub(super) const MIN_ENTRY: usize = 8 + 4 + 4 + 8;

    pub(super) fn name(&self) -> &str {
        &self.info.name
    }

    pub(super) fn view<'a>(&'a self, file: &'a Arc<Data>) -> TensorView<'a> {
        let info = &self.info;
        let bytes = &file[self.bytes.clone()];
        TensorView { name: &info.name, ggml_type: info.tensor_type, dims: &info.dimensions, bytes, file: Some(file) }
    }
}

/// Reads `count` entries and checks that each tensor has its own place in a file of `file_len` bytes.
pub(super) fn read_table(r: &mut Reader<'_>, count: u64, alignment: usize, file_len: usize) -> Result<Vec<Record>> {
    let mut infos = Vec::new();
    for i in 0..count {
        infos.push(read_info(r).with_context(|| format!("tensor {i} of {count}"))?);
    }
    let base = r.at().checked_next_multiple_of(alignment).context("general.alignment overflows")? as u64;
    let mut records = Vec::with_capacity(infos.len());
    for (info, len) in infos {
        let bytes = locate(&info, len, base, alignment as u64, file_len as u64);
        let bytes = bytes.with_context(|| format!("tensor {:?}", info.name))?;
        records.push(Record { info, bytes });
    }
    let mut order: Vec<&Record> = records.iter().collect();
    order.sort_unstable_by_key(|t| t.bytes.start);
    if let Some(w) = order.windows(2).find(|w| w[1].bytes.start < w[0].bytes.end) {
        bail!("tensors {:?} and {:?} overlap at offset {}", w[0].name(), w[1].name(), w[1].bytes.start);
    }
    Ok(records)
}

/// One entry and the bytes its tensor takes.
fn read_info(r: &mut Reader<'_>) -> Result<(TensorInfo, u64)> {
    let len = r.u64("the name")?;
    ensure!(
        (1..=GGUF_MAX_TENSOR_NAME_LENGTH as u64).contains(&len),
        "its name has {len} bytes, 1 to {GGUF_MAX_TENSOR_NAME_LENGTH} are allowed"
    );
    let name = std::str::from_utf8(r.bytes(len, "the name")?).context("its name is not UTF-8")?.to_owned();
    let rest = |r: &mut Reader<'_>| -> Result<(Vec<u64>, u32, u64, u64)> {
        let rank = r.u32("the number of dimensions")?;
        ensure!(
            (1..=GGUF_MAX_DIMENSIONS as u32).contains(&rank),
            "it has {rank} dimensions, 1 to {GGUF_MAX_DIMENSIONS} are supported"
        );
        let dims = (0..rank).map(|_| r.u64("a dimension")).collect::<Result<Vec<u64>>>()?;
        let ggml_type = r.u32("the type")?;
        let offset = r.u64("the offset")?;
        let len = byte_len(ggml_type, &dims)?;
        Ok((dims, ggml_type, offset, len))
    };
    let (dims, ggml_type, offset, len) = rest(r).with_context(|| format!("{name:?}"))?;
    Ok((TensorInfo::new(name, dims, ggml_type, offset), len))
}

fn locate(info: &TensorInfo, len: u64, base: u64, alignment: u64, file_len: u64) -> Result<Range<usize>> {
    let offset = info.offset;
    ensure!(offset.is_multiple_of(alignment), "its offset {offset} is no multiple of the alignment {alignment}");
    let start = base.checked_add(offset).with_context(|| format!("its offset {offset} overflows"))?;
    let end = start.checked_add(len).with_context(|| format!("its offset {offset} and size {len} overflow"))?;
    ensure!(
        end <= file_len,
        "its bytes {start}..{end} need a file of {end} bytes, this one has {file_len} (file truncated / download incomplete?)"
    );
    Ok(start as usize..end as usize)
}
