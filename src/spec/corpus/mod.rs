//! A corpus: texts like those that are to be written, in which the last tokens are looked up, so that what followed them
//! there is guessed. REST, <https://arxiv.org/abs/2311.08252>.
//!
//! Its files are made into tokens once and indexed; the index is kept in the cache directory, named after a hash of all
//! it follows from, and mapped. A file named `*.tokens` holds ids, little-endian and of 32 bits each, with 4294967295 (all
//! bits set) between documents; any other is one document of UTF-8 text.
//!
//! What a search finds are [`Matches`]: some hundred of the places where the context stands, evenly from all of them in
//! the order of what follows. A longer context is looked up by [following](Corpus::follow) a token from there.

mod index;
mod source;
mod suffix;

use super::Tell;
use crate::gguf::FileBytes;
use crate::text::Tokenizer;
use crate::tree::Token;
use anyhow::{Context, Result, ensure};
use index::{BORDER, Index, Key};
use source::Source;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};
pub use suffix::DEPTH;
use suffix::Sorted;

/// Places of one context that are looked at.
const SAMPLE: usize = 256;

/// Searches in one round. A path that leaves all matches is looked up anew, in some tens of microseconds.
pub(super) const SEARCHES: usize = 4;

/// What a corpus is made with.
pub struct Making<'a> {
    /// Makes texts into tokens.
    pub tokenizer: &'a Tokenizer,
    /// Where indexes are kept; without, they are made each time.
    pub cache: Option<&'a Path>,
    /// Asked before so many bytes of memory are taken.
    pub admit: &'a dyn Fn(u64) -> Result<()>,
    /// Told how it goes.
    pub tell: &'a dyn Fn(Tell),
}

/// A corpus, and what was found in it this round.
#[derive(Debug)]
pub struct Corpus {
    index: Index,
    /// Tokens that follow matches, with their places: matches after matches, each in the order of the tokens.
    found: Vec<(Token, usize)>,
    searches: usize,
}

/// Places where a context stands, with a token after them each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Matches {
    start: usize,
    end: usize,
    /// Tokens of the context; none where nothing was found.
    len: usize,
}

impl Matches {
    /// How many tokens the context has.
    pub fn length(&self) -> usize {
        self.len
    }

    /// Number of places.
    pub fn count(&self) -> usize {
        self.end - self.start
    }
}

impl Corpus {
    /// Makes a corpus of `files`, or opens the index that was made of them before.
    pub fn open(files: &[PathBuf], making: &Making<'_>) -> Result<Self> {
        let sources: Vec<Source> = files.iter().map(|file| Source::open(file)).collect::<Result<_>>()?;
        let key = source::key(&sources, making.tokenizer)?;
        let vocab = making.tokenizer.vocab_size();
        let kept = making.cache.map(|folder| folder.join(format!("corpus-{}.index", hex(&key))));
        if let Some(path) = kept.as_ref().filter(|path| path.exists()) {
            match FileBytes::map(path).and_then(|bytes| Index::open(bytes, &key, vocab)) {
                Ok(index) => return Ok(Self::new(index)),
                Err(error) => {
                    (making.tell)(Tell::Note(format!("corpus: {}: {error:#}, it is made anew", path.display())))
                }
            }
        }

        let started = Instant::now();
        let (text, sorted) = make(&sources, making)?;
        let bytes = match &kept {
            Some(path) => keep(path, &key, &text, &sorted).with_context(|| path.display().to_string()),
            None => Err(anyhow::anyhow!("neither XDG_CACHE_HOME nor HOME names a folder for caches")),
        };
        let place = if bytes.is_ok() { kept.map(|path| path.display().to_string()) } else { None };
        let bytes = bytes.or_else(|error| {
            (making.tell)(Tell::Warning(format!("the index of the corpus is made each time: {error:#}")));
            (making.admit)(index::size(&text, &sorted) as u64)?;
            anyhow::Ok(in_memory(&key, &text, &sorted))
        })?;
        (making.tell)(Tell::Note(format!(
            "corpus: {} tokens indexed in {:.1} s, kept in {}",
            sorted.places.len(),
            started.elapsed().as_secs_f64(),
            place.as_deref().unwrap_or("memory")
        )));
        Ok(Self::new(Index::open(bytes, &key, vocab)?))
    }

    /// A corpus of `documents` in tokens less than `vocab`, in memory.
    pub fn of(documents: &[&[Token]], vocab: usize) -> Self {
        let text = documents.join(&BORDER);
        let sorted = suffix::sort(&text, vocab, &mut |_, _| ());
        let key = Key::default();
        let index = Index::open(in_memory(&key, &text, &sorted), &key, vocab);
        Self::new(index.expect("an index just made is whole"))
    }

    fn new(index: Index) -> Self {
        Self { index, found: vec![], searches: 0 }
    }

    /// Bytes of memory it takes. What is mapped is not counted: it goes when memory is short.
    pub fn memory(&self) -> u64 {
        (self.index.memory() + self.found.capacity() * size_of::<(Token, usize)>()) as u64
    }

    /// Tokens in it.
    pub fn tokens(&self) -> usize {
        self.index.count()
    }

    /// Forgets what was found, for a round begins, and searches.
    pub fn begin(&mut self, context: &[Token], min: usize) -> Matches {
        self.found.clear();
        self.searches = 0;
        self.search(context, min)
    }

    /// Finds the longest end of `context`, of no fewer than `min` tokens, that stands in the corpus. Nothing where
    /// that is at ends of documents only, and nothing when too much was searched for in this round.
    pub fn search(&mut self, context: &[Token], min: usize) -> Matches {
        self.searches += 1;
        if self.searches > SEARCHES {
            return Matches::default();
        }
        let Some((len, range)) = self.index.find(context, min) else { return Matches::default() };
        let count = range.len().min(SAMPLE);
        let places = (0..count).map(|i| self.index.place(range.start + i * range.len() / count));
        let start = self.found.len();
        let after = places.filter_map(|place| after(&self.index, place.saturating_add(len)));
        self.found.extend(after);
        self.matches(start, len)
    }

    /// Those of `matches` that `token` follows, with it.
    pub fn follow(&mut self, matches: Matches, token: Token) -> Matches {
        let found = &self.found[matches.start..matches.end];
        let first = matches.start + found.partition_point(|f| f.0 < token);
        let beyond = matches.start + found.partition_point(|f| f.0 <= token);
        let start = self.found.len();
        for i in first..beyond {
            let next = after(&self.index, self.found[i].1 + 1);
            self.found.extend(next);
        }
        self.matches(start, matches.len + 1)
    }

    /// The tokens that follow matches, ascending, with how often they do.
    pub fn followers(&self, matches: Matches) -> impl Iterator<Item = (Token, usize)> {
        let found = &self.found[matches.start..matches.end];
        found.chunk_by(|a, b| a.0 == b.0).map(|same| (same[0].0, same.len()))
    }

    /// What was found from `start` on.
    fn matches(&mut self, start: usize, len: usize) -> Matches {
        self.found[start..].sort_unstable();
        let end = self.found.len();
        Matches { start, end, len: if start < end { len } else { 0 } }
    }
}

/// The token at a place, with the place; none where a document ends.
fn after(index: &Index, place: usize) -> Option<(Token, usize)> {
    Some((index.token(place)?, place))
}

/// Where indexes are kept by default.
pub fn cache() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join("foretoken"))
}

/// The text of all sources, and its places in order.
fn make(sources: &[Source], making: &Making<'_>) -> Result<(Vec<Token>, Sorted)> {
    let total: u64 = sources.iter().map(Source::bytes).sum();
    // Four bytes of text a token are common; there it takes four bytes, and four for its place.
    (making.admit)(2 * total)?;
    let (mut text, mut done) = (vec![], 0);
    for source in sources {
        source.read(making, done, total, &mut text)?;
        done += source.bytes();
    }
    ensure!(u32::try_from(text.len()).is_ok(), "the corpus has {} tokens, supported up to {}", text.len(), u32::MAX);
    (making.admit)(4 * text.len() as u64)?;
    let sorted = suffix::sort(&text, making.tokenizer.vocab_size(), &mut |done, total| {
        (making.tell)(Tell::Progress("indexing the corpus", 4 * done as u64, 4 * total as u64));
    });
    ensure!(!sorted.places.is_empty(), "the corpus has no tokens");
    Ok((text, sorted))
}

/// Writes an index to `path`, all of it or nothing, and maps it.
fn keep(path: &Path, key: &Key, text: &[Token], sorted: &Sorted) -> Result<FileBytes> {
    let folder = path.parent().context("has no folder")?;
    fs::create_dir_all(folder).context("cannot make the folder")?;
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let draft = path.with_extension(format!("{}-{now}", std::process::id()));
    let written = write(&draft, key, text, sorted).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.context("cannot be written")?;
    FileBytes::map(path)
}

fn write(path: &Path, key: &Key, text: &[Token], sorted: &Sorted) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create_new(path)?);
    index::write(&mut out, key, text, sorted)?;
    out.flush()?;
    out.get_ref().sync_data()
}

fn in_memory(key: &Key, text: &[Token], sorted: &Sorted) -> FileBytes {
    let mut bytes = Vec::with_capacity(index::size(text, sorted));
    index::write(&mut bytes, key, text, sorted).expect("memory can be written to");
    bytes.into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
