//! Sidecars: heads that draft for one model, in a GGUF of their own. `models/SIDECARS.md` is the format.
//!
//! A [`Sidecar`] is the opened file: which of the architectures it is, whether it fits a target, and its keys and tensors,
//! each checked where it is read. Nothing the file says is believed: counts are bounded before anything is made of them,
//! and every error is one line that names the key or tensor, what was found and what is wanted.

use super::{Target, Tell};
use crate::backend::Backend;
use crate::gguf::{Gguf, Metadata, TensorView, type_name};
use crate::model::Config;
use crate::model::arch::{self, SIDECARS};
use crate::model::tensors::{Shape, check_one};
use crate::text::Tokenizer;
use crate::tree::Token;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

/// What a sidecar's heads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Heads that guess one token each, from the target's last hidden row.
    Medusa,
    /// A layer that continues the target's hidden rows (EAGLE-1 and EAGLE-2).
    Eagle,
    /// A layer over rows of three of the target's layers (EAGLE-3).
    Eagle3,
}

impl Architecture {
    /// All of them, in the order of [`SIDECARS`].
    pub const ALL: [Architecture; 3] = [Architecture::Medusa, Architecture::Eagle, Architecture::Eagle3];

    fn row(self) -> (&'static str, &'static str) {
        SIDECARS[Architecture::ALL.iter().position(|&one| one == self).unwrap_or_default()]
    }

    /// `general.architecture`, which is also the prefix of its keys.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The kind of drafter that reads it, as `--draft` names it.
    pub fn drafter(self) -> &'static str {
        self.row().1
    }

    /// What `spec.feature` must say: which of the target's rows the heads read.
    pub fn feature(self) -> &'static str {
        match self {
            Architecture::Medusa | Architecture::Eagle => "post_norm",
            Architecture::Eagle3 => "residual_in",
        }
    }
}

/// An opened sidecar.
#[derive(Debug)]
pub struct Sidecar {
    gguf: Gguf,
    architecture: Architecture,
}

/// The target a sidecar was made for, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// `general.architecture`.
    pub architecture: String,
    /// Width `D`.
    pub width: usize,
    /// Vocabulary `V`.
    pub vocab: usize,
    /// `tokenizer.ggml.model`.
    pub tokenizer: String,
    /// [`crate::text::Tokenizer::vocab_hash`].
    pub vocab_hash: String,
}

impl Fingerprint {
    /// That of a model.
    pub fn of(config: &Config, tokenizer: &Tokenizer) -> Self {
        Self {
            architecture: config.arch.name.into(),
            width: config.width,
            vocab: config.vocab,
            tokenizer: tokenizer.model().into(),
            vocab_hash: tokenizer.vocab_hash(),
        }
    }
}

/// Its keys.
const TARGET: [&str; 5] = [
    "spec.target.architecture",
    "spec.target.hidden_size",
    "spec.target.vocab_size",
    "spec.target.tokenizer",
    "spec.target.vocab_hash",
];

/// Largest numbers accepted, far above every model there is.
const MAX_WIDTH: usize = 1 << 17;
const MAX_VOCAB: usize = 1 << 22;

impl Sidecar {
    /// Opens the sidecar at `path`, which must be one of `wanted`.
    pub fn open(path: &Path, wanted: &[Architecture]) -> Result<Sidecar> {
        Self::new(Gguf::open(path)?, wanted)
    }

    /// The same from a file that is open.
    pub fn new(gguf: Gguf, wanted: &[Architecture]) -> Result<Sidecar> {
        const KEY: &str = "general.architecture";
        let names = || wanted.iter().map(|one| one.name()).collect::<Vec<_>>().join(" or ");
        let found = gguf.meta().str(KEY)?.with_context(|| format!("{KEY} is missing, {} is wanted", names()))?;
        let Some(architecture) = Architecture::ALL.into_iter().find(|one| one.name() == found) else {
            let hint = match arch::find(found) {
                Some(_) => ": the file is a model, not a sidecar; --draft model:FILE drafts with a small model",
                None => "",
            };
            bail!("{KEY} is {found:?}, {} is wanted{hint}", names());
        };
        let hint = architecture.drafter();
        ensure!(
            wanted.contains(&architecture),
            "{KEY} is {found:?}, {} is wanted: give it with --draft {hint}:FILE",
            names()
        );
        Ok(Sidecar { gguf, architecture })
    }

    /// What it is.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Its metadata.
    pub fn meta(&self) -> &Metadata {
        self.gguf.meta()
    }

    /// The target it says it was made for; `None` where the file has none of the keys, as those of llama.cpp.
    pub fn made_for(&self) -> Result<Option<Fingerprint>> {
        let optional = self.architecture == Architecture::Eagle3;
        if optional && TARGET.iter().all(|key| !self.meta().contains(key)) {
            return Ok(None);
        }
        let text = |key: &str| -> Result<String> {
            Ok(self.meta().str(key)?.with_context(|| format!("{key} is missing"))?.to_owned())
        };
        Ok(Some(Fingerprint {
            architecture: text(TARGET[0])?,
            width: self.need_at(TARGET[1], 1..=MAX_WIDTH)?,
            vocab: self.need_at(TARGET[2], 1..=MAX_VOCAB)?,
            tokenizer: text(TARGET[3])?,
            vocab_hash: text(TARGET[4])?,
        }))
    }

    /// Checks that it was made for this target, and what there is to be checked of [`Architecture::feature`].
    pub fn check<B: Backend>(&self, target: &Target<'_, B>) -> Result<()> {
        let config = target.model.config();
        match self.made_for()? {
            Some(found) => {
                let here = Fingerprint::of(config, target.tokenizer);
                same(TARGET[0], &found.architecture, &here.architecture)?;
                same(TARGET[1], found.width, here.width)?;
                same(TARGET[2], found.vocab, here.vocab)?;
                same(TARGET[3], &found.tokenizer, &here.tokenizer)?;
                same(TARGET[4], &found.vocab_hash, &here.vocab_hash)?;
            }
            None => (target.tell)(Tell::Note(format!(
                "the sidecar does not say what model it was made for ({} is missing): only its sizes are checked",
                TARGET[0]
            ))),
        }
        let wanted = self.architecture.feature();
        match self.meta().str("spec.feature")? {
            Some(found) => ensure!(
                found == wanted,
                "spec.feature is {found:?}, supported for {}: {wanted}",
                self.architecture.name()
            ),
            None => ensure!(self.architecture == Architecture::Eagle3, "spec.feature is missing, supported: {wanted}"),
        }
        Ok(())
    }

    /// The key `name` under its architecture's prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name())
    }

    /// A whole number of its architecture's keys.
    pub fn count(&self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        self.count_at(&self.key(name), range)
    }

    /// One that must be there.
    pub fn need(&self, name: &str, range: RangeInclusive<usize>) -> Result<usize> {
        self.need_at(&self.key(name), range)
    }

    /// One that must be there and `want`, which is the target's.
    pub fn need_same(&self, name: &str, want: usize) -> Result<()> {
        same(&self.key(name), self.need(name, 1..=MAX_WIDTH)?, want)
    }

    fn need_at(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        self.count_at(key, range)?.with_context(|| format!("{key} is missing"))
    }

    fn count_at(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(found) = self.meta().uint(key)? else { return Ok(None) };
        let fits = usize::try_from(found).ok().filter(|n| range.contains(n));
        let (least, most) = (range.start(), range.end());
        fits.map(Some).with_context(|| format!("{key} is {found}, must lie in {least}..={most}"))
    }

    /// A truth value of its architecture's keys.
    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.meta().bool(&self.key(name))
    }

    /// A finite number of its architecture's keys.
    pub fn real(&self, name: &str) -> Result<Option<f32>> {
        let key = self.key(name);
        let found = self.meta().float(&key)?;
        ensure!(found.is_none_or(f32::is_finite), "{key} is {}, must be finite", found.unwrap_or_default());
        Ok(found)
    }

    /// Shares, each in 0 to 1, under a full key.
    pub fn shares(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let found = self.meta().floats(key)?;
        let bad = found.iter().flatten().position(|share| !(0.0..=1.0).contains(share));
        match (found, bad) {
            (Some(all), Some(at)) => bail!("{key}[{at}] is {}, must lie in 0 to 1", all[at]),
            (found, _) => Ok(found),
        }
    }

    /// Whether it has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// A tensor that is there and of this shape.
    pub fn tensor(&self, name: &str, shape: Shape) -> Result<TensorView<'_>> {
        let found = self.gguf.tensor(name);
        let tensor = found.with_context(|| format!("tensor {name} is missing, expected {}", shape.text()))?;
        check_one(&tensor, shape)?;
        Ok(tensor)
    }

    /// A matrix `[rows, cols]` for products.
    pub fn weight<B: Backend>(&self, backend: &B, name: &str, rows: usize, cols: usize) -> Result<B::Weight> {
        let tensor = self.tensor(name, Shape::Matrix(rows, cols))?;
        backend.weight(&tensor).with_context(|| format!("tensor {name}"))
    }

    /// A matrix `[rows, cols]` for look-ups.
    pub fn table<B: Backend>(&self, backend: &B, name: &str, rows: usize, cols: usize) -> Result<B::Table> {
        let tensor = self.tensor(name, Shape::Matrix(rows, cols))?;
        backend.table(&tensor).with_context(|| format!("tensor {name}"))
    }

    /// A vector `[n]`.
    pub fn vector<B: Backend>(&self, backend: &B, name: &str, n: usize) -> Result<B::Vector> {
        let tensor = self.tensor(name, Shape::Vector(n))?;
        backend.vector(&tensor).with_context(|| format!("tensor {name}"))
    }

    /// The same, if it is there.
    pub fn vector_if<B: Backend>(&self, backend: &B, name: &str, n: usize) -> Result<Option<B::Vector>> {
        self.has(name).then(|| self.vector(backend, name, n)).transpose()
    }

    /// The target's token of each row of a reduced head, each once, of a vocabulary of `vocab`; `None` if the head is not
    /// reduced.
    pub fn draft_ids(&self, vocab: usize) -> Result<Option<Vec<Token>>> {
        const KEY: &str = "spec.draft_vocab_size";
        let stated = self.count_at(KEY, 1..=vocab)?;
        let Some(tensor) = self.gguf.tensor("d2t") else {
            ensure!(stated.is_none(), "tensor d2t is missing, {KEY} is {}", stated.unwrap_or_default());
            return Ok(None);
        };
        let dims = tensor.dims;
        let one = dims.iter().skip(1).all(|&n| n == 1);
        ensure!(one && dims[0] <= vocab as u64, "tensor d2t has shape {dims:?}, expected one of 1 to {vocab} ids");
        let n = dims[0] as usize;
        ensure!(
            stated.is_none_or(|stated| stated == n),
            "tensor d2t has {n} ids, {KEY} is {}",
            stated.unwrap_or_default()
        );
        let ids: Vec<i64> = match tensor.ggml_type {
            26 => tensor.bytes.as_chunks().0.iter().map(|&id| i32::from_le_bytes(id).into()).collect(),
            27 => tensor.bytes.as_chunks().0.iter().map(|&id| i64::from_le_bytes(id)).collect(),
            other => bail!("tensor d2t: format {} is not supported here; supported: I64 I32", type_name(other)),
        };
        let mut places = vec![None; vocab];
        for (at, &id) in ids.iter().enumerate() {
            let place = usize::try_from(id).ok().and_then(|id| places.get_mut(id));
            let place = place.with_context(|| format!("tensor d2t: id {at} is {id}, the target has {vocab} tokens"))?;
            if let Some(before) = place.replace(at) {
                bail!("tensor d2t: ids {before} and {at} are both {id}, must differ");
            }
        }
        Ok(Some(ids.into_iter().map(|id| id as Token).collect()))
    }

    /// A line about tensors that are not among `used`, if there are any.
    pub fn unused(&self, used: impl Fn(&str) -> bool) -> Option<String> {
        let mut unused = self.gguf.tensors().map(|tensor| tensor.name).filter(|name| !used(name));
        let (first, more) = (unused.next()?, unused.count());
        let and = if more > 0 { format!(" and {more} more are") } else { " is".into() };
        Some(format!("tensor {}{and} not used by {}", first.escape_debug(), self.architecture.name()))
    }

    /// Tells files apart.
    pub fn fingerprint(&self) -> u64 {
        self.gguf.fingerprint()
    }
}

/// Refuses what differs from the target.
fn same<T: PartialEq + Display + std::fmt::Debug>(key: &str, found: T, target: T) -> Result<()> {
    ensure!(found == target, "{key} is {found:?}, the target's is {target:?}: the sidecar was made for another model");
    Ok(())
}
