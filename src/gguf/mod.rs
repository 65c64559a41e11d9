//! stub
use anyhow::Result;
use std::path::{Path, PathBuf};
/// An opened model.
pub struct Gguf {
    path: PathBuf,
}
/// Tensor.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// ggml's number of the element type.
    pub ggml_type: u32,
    /// Dimensions as in the file: `dims[0]` is the row length.
    pub dims: &'a [u64],
    /// The bytes.
    pub bytes: &'a [u8],
}
impl Gguf {
    /// Opens.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.into() })
    }
    /// path
    pub fn path(&self) -> &Path {
        &self.path
    }
}
