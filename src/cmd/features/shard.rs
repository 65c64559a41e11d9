//! Files of features: safetensors, written row by row.
//!
//! ```text
//! length of the header (u64 LE), header (JSON, padded with spaces to a multiple of 8), tensors one after the other
//! ```
//!
//! How many tokens a shard gets is known before its first is computed, so the header comes first and every row has its
//! place: nothing but a chunk of rows is held in memory, for which the `safetensors` crate has no way (its writer wants
//! whole tensors). A shard is written under another name, which it loses when it is whole and on the disk; a file of that
//! other name is nobody's and is written over.

use super::rows::Rows;
use super::texts::Text;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What is said of a shard: names and texts.
pub type Facts = Map<String, Value>;

/// Facts that differ from shard to shard: the first and the last line of the input that is in it.
const LINES: [&str; 2] = ["first", "last"];

/// No header is longer.
const LONGEST: u64 = 1 << 20;

fn name(number: usize) -> String {
    format!("features-{number:05}.safetensors")
}

/// The shards that a folder has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many.
    pub shards: usize,
    /// Tokens in them.
    pub tokens: u64,
    /// Last line of the input that is in them.
    pub last: u64,
}

/// Looks for the shards in `folder`, which must be whole and of these `facts`.
pub fn find(folder: &Path, facts: &Facts) -> Result<Found> {
    let context = || folder.display().to_string();
    let mut shards = 0;
    for entry in fs::read_dir(folder).with_context(context)? {
        let file = entry.with_context(context)?.file_name();
        let number = file.to_str().and_then(|name| name.strip_prefix("features-")?.strip_suffix(".safetensors"));
        shards += usize::from(number.is_some_and(|number| number.parse::<usize>().is_ok()));
    }
    let mut found = Found { shards, ..Found::default() };
    for number in 0..shards {
        let path = folder.join(name(number));
        let shard = read(&path).and_then(|(tokens, told)| {
            same(&told, facts)?;
            let [first, last] = LINES.map(|name| told.get(name).and_then(Value::as_str).unwrap_or_default().parse());
            let (first, last): (u64, u64) = (first.context("first")?, last.context("last")?);
            ensure!(first > found.last && last >= first, "its lines do not follow those of the shard before it");
            Ok((tokens, last))
        });
        let (tokens, last) = shard.with_context(|| path.display().to_string())?;
        found.tokens += tokens;
        found.last = last;
    }
    Ok(found)
}

/// Tokens and facts of a shard.
fn read(path: &Path) -> Result<(u64, Facts)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).context("is cut short")?;
    let size = u64::from_le_bytes(size);
    ensure!(size <= LONGEST, "is no shard of features: its header has {size} bytes");
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).context("is cut short")?;
    let header: Value = serde_json::from_slice(&header).context("is no shard of features")?;
    let facts = header["__metadata__"].as_object().context("is no shard of features")?.clone();
    let tokens = header["tokens"]["shape"][0].as_u64().context("is no shard of features")?;
    let ends = header.as_object().into_iter().flatten().filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
    let whole = ends.max().unwrap_or(0).checked_add(8 + size);
    ensure!(whole == Some(length), "is cut short or damaged: it has {length} bytes");
    Ok((tokens, facts))
}

/// Refuses facts that differ, those of lines aside.
fn same(found: &Facts, here: &Facts) -> Result<()> {
    let names = found.keys().chain(here.keys()).filter(|name| !LINES.contains(&name.as_str()));
    for name in names {
        let text = |facts: &Facts| facts.get(name).map_or("missing".into(), Value::to_string);
        if found.get(name) != here.get(name) {
            bail!("{name} is {}, here it is {}: the folder is of another run (-o)", text(found), text(here));
        }
    }
    Ok(())
}

/// A shard in the making.
pub struct Shard {
    file: File,
    /// Its name until it is whole, and then.
    part: PathBuf,
    path: PathBuf,
    /// Where the next hidden and tapped rows go, and where they end.
    hidden: u64,
    taps: u64,
    ends: [u64; 2],
    done: bool,
}

impl Shard {
    /// Begins shard `number` of `folder` with these `texts`, of whose tokens each gets a row of `width` and `taps` more.
    pub fn create(
        folder: &Path,
        number: usize,
        texts: &[Text],
        facts: &Facts,
        width: usize,
        taps: usize,
    ) -> Result<Self> {
        let path = folder.join(name(number));
        let part = folder.join(format!(".{}.part", name(number)));
        Self::begin(path, &part, texts, facts, width, taps).with_context(|| part.display().to_string())
    }

    fn begin(path: PathBuf, part: &Path, texts: &[Text], facts: &Facts, width: usize, taps: usize) -> Result<Self> {
        // Not cut before it is ours: another process may be writing it.
        let file = File::options().create(true).truncate(false).write(true).open(part)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => bail!("another run writes into this folder"),
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => return Err(error.into()),
            _ => {}
        }
        let part = part.to_owned();
        let mut shard = Self { file, part, path, hidden: 0, taps: 0, ends: [0; 2], done: false };
        shard.file.set_len(0)?;

        let tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
        let tapped: &[usize] = if taps > 0 { &[tokens, taps, width] } else { &[] };
        // Wide elements first, so that all are aligned.
        let tensors: [(&str, &str, usize, &[usize]); 5] = [
            ("starts", "I64", 8, &[texts.len() + 1]),
            ("tokens", "I32", 4, &[tokens]),
            ("hidden", "F16", 2, &[tokens, width]),
            ("taps", "F16", 2, tapped),
            ("weights", "U8", 1, &[tokens]),
        ];
        let mut facts = facts.clone();
        let lines = [texts.first(), texts.last()].map(|text| text.map_or(0, |text| text.line));
        facts.extend(LINES.iter().zip(lines).map(|(name, line)| (name.to_string(), Value::from(line.to_string()))));
        let mut header = Map::new();
        header.insert("__metadata__".into(), facts.into());
        let mut at = [0u64; 6];
        for (i, &(name, dtype, bytes, shape)) in tensors.iter().enumerate() {
            let elements = if shape.is_empty() { 0 } else { shape.iter().product::<usize>() };
            at[i + 1] = at[i] + (elements * bytes) as u64;
            if !shape.is_empty() {
                let place = json!({"dtype": dtype, "shape": shape, "data_offsets": &at[i..i + 2]});
                header.insert(name.into(), place);
            }
        }
        let mut header = serde_json::to_string(&header)?;
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());

        let mut starts = vec![0i64];
        texts.iter().for_each(|text| starts.push(starts[starts.len() - 1] + text.tokens.len() as i64));
        let mut head = (header.len() as u64).to_le_bytes().to_vec();
        head.extend(header.as_bytes());
        let data = head.len() as u64;
        head.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
        head.extend(texts.iter().flat_map(|text| &text.tokens).flat_map(|&token| (token as i32).to_le_bytes()));
        shard.file.write_all(&head)?;
        let weights: Vec<u8> = texts.iter().flat_map(|text| &text.weights).copied().collect();
        shard.file.write_all_at(&weights, data + at[4])?;
        (shard.hidden, shard.taps) = (data + at[2], data + at[3]);
        shard.ends = [data + at[3], data + at[4]];
        Ok(shard)
    }

    /// Adds the rows of the tokens that follow.
    pub fn push(&mut self, rows: &Rows) -> Result<()> {
        let write = || {
            self.file.write_all_at(&rows.hidden, self.hidden)?;
            self.file.write_all_at(&rows.taps, self.taps)
        };
        write().with_context(|| self.part.display().to_string())?;
        self.hidden += rows.hidden.len() as u64;
        self.taps += rows.taps.len() as u64;
        Ok(())
    }

    /// Ends it, and gives it its name.
    pub fn finish(mut self) -> Result<()> {
        debug_assert_eq!([self.hidden, self.taps], self.ends, "every token has its rows");
        let end = self.file.sync_all().and_then(|()| fs::rename(&self.part, &self.path));
        self.done = end.is_ok();
        end.with_context(|| self.path.display().to_string())
    }
}

/// What did not become a shard takes no room.
impl Drop for Shard {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_file(&self.part);
        }
    }
}
