//! Files of models that hold no weights: headers over zeros that take no room on a disk. What the weights are is made up on
//! the device.

use crate::quant::{self, Format};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

/// What data and its parts begin at multiples of.
const ALIGNED: u64 = 32;

struct Tensor {
    name: String,
    /// Row length first.
    dims: Vec<u64>,
    format: &'static Format,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        self.dims.iter().product::<u64>() / self.format.block as u64 * self.format.bytes as u64
    }
}

/// A file in the making.
#[derive(Default)]
pub struct Hollow {
    keys: Vec<u8>,
    count: u64,
    tensors: Vec<Tensor>,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Hollow {
    fn key(mut self, name: &str, ty: u32, value: &[u8]) -> Self {
        text(&mut self.keys, name);
        self.keys.extend(ty.to_le_bytes());
        self.keys.extend(value);
        self.count += 1;
        self
    }

    /// A number.
    pub fn number(self, name: &str, n: usize) -> Self {
        self.key(name, 4, &(n as u32).to_le_bytes())
    }

    /// A float.
    pub fn float(self, name: &str, x: f32) -> Self {
        self.key(name, 6, &x.to_le_bytes())
    }

    /// Yes or no.
    pub fn flag(self, name: &str, yes: bool) -> Self {
        self.key(name, 7, &[u8::from(yes)])
    }

    /// A text.
    pub fn word(self, name: &str, word: &str) -> Self {
        let mut value = vec![];
        text(&mut value, word);
        self.key(name, 8, &value)
    }

    /// Numbers.
    pub fn numbers(self, name: &str, list: &[usize]) -> Self {
        let mut value = [5u32.to_le_bytes().to_vec(), (list.len() as u64).to_le_bytes().to_vec()].concat();
        value.extend(list.iter().flat_map(|&n| (n as i32).to_le_bytes()));
        self.key(name, 9, &value)
    }

    /// `[rows, cols]` zeros, whatever they stand for.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize, format: &'static Format) {
        self.tensors.push(Tensor { name: format!("{name}.weight"), dims: vec![cols as u64, rows as u64], format });
    }

    /// Ones.
    pub fn ones(&mut self, name: &str, n: usize) {
        self.tensors.push(Tensor { name: format!("{name}.weight"), dims: vec![n as u64], format: &quant::f32::FORMAT });
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Tensor::bytes).sum()
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.try_write(path).with_context(|| path.display().to_string())
    }

    fn try_write(&self, path: &Path) -> Result<()> {
        let mut head = b"GGUF".to_vec();
        head.extend(3u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend(self.count.to_le_bytes());
        head.extend(&self.keys);
        let (mut at, mut places) = (0u64, vec![]);
        for tensor in &self.tensors {
            text(&mut head, &tensor.name);
            head.extend((tensor.dims.len() as u32).to_le_bytes());
            head.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            head.extend(tensor.format.ggml_id.to_le_bytes());
            head.extend(at.to_le_bytes());
            places.push(at);
            at = (at + tensor.bytes()).next_multiple_of(ALIGNED);
        }
        head.resize(head.len().next_multiple_of(ALIGNED as usize), 0);
        let file = File::create(path)?;
        // A hole, as far as the file system has such.
        file.set_len(head.len() as u64 + at)?;
        let mut file = BufWriter::new(file);
        file.write_all(&head)?;
        for (tensor, place) in self.tensors.iter().zip(places).filter(|(tensor, _)| tensor.dims.len() == 1) {
            file.seek(SeekFrom::Start(head.len() as u64 + place))?;
            file.write_all(&1f32.to_le_bytes().repeat(tensor.dims[0] as usize))?;
        }
        Ok(file.flush()?)
    }
}
