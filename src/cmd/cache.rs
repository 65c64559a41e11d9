//! Prompt caches: what a session has evaluated, in a file, so that the next one need not do it again.
//!
//! ```text
//! magic, length of facts, facts, number of tokens, tokens u32 each, length of KV, KV,
//! number of drafters, for each its length and bytes, checksum of all before    (u64 LE)
//! ```
//!
//! Drafters that read what the model computes keep what they made of it there; one that finds nothing of its own has the
//! model compute it again.
//!
//! The facts are lines `name: value` of all that the bytes depend on: the model file, how it is run, and the version of
//! this program. A file that says otherwise, is cut or damaged is not used, which is said, and written anew. It never
//! changes an answer: rows of the cache do not depend on how many were evaluated at a time, and what differs from the
//! new prompt is forgotten.

use super::load::Opened;
use super::memory::size;
use super::report::Report;
use crate::backend::Backend;
use crate::cli::ModelArgs;
use crate::engine::Session;
use crate::gguf::Gguf;
use crate::tree::Token;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8] = b"foretoken prompt cache 2\n";

/// A prompt cache's file.
pub struct Cache {
    path: PathBuf,
    facts: String,
    /// The tokens it has.
    tokens: Vec<Token>,
    /// How many drafters found something.
    served: usize,
}

impl Cache {
    /// Opens the cache at `path`, if there is a path, and gives its tokens to `session`, which must be new but for its
    /// drafters. A missing file
    /// is an empty cache; one that is no good too, after a warning. A place where none can be written is an error.
    pub fn open<B: Backend>(
        path: Option<&Path>,
        args: &ModelArgs,
        opened: &Opened<B>,
        session: &mut Session<B>,
        report: &Report,
    ) -> Result<Option<Cache>> {
        let Some(path) = path else { return Ok(None) };
        let name = || format!("--prompt-cache: {}", path.display());
        let folder = folder(path);
        ensure!(folder.is_dir(), "{}: {} is not a folder", name(), folder.display());
        ensure!(!path.is_dir(), "{}: is a folder", name());
        let mut cache = Cache { path: path.to_owned(), facts: facts(args, opened)?, tokens: vec![], served: 0 };
        let kv = opened.model.config().kv_shape(opened.context, opened.kv).bytes();
        let drafters: u64 = session.drafters().iter().map(|drafter| drafter.memory()).sum();
        let most = (4 * opened.context + kv + (1 << 16)) as u64 + drafters;
        match cache.load(most, session) {
            Ok((tokens, served)) => (cache.tokens, cache.served) = (tokens, served),
            Err(error) => report.warn(format_args!("{}: {error:#}: not used, to be written anew", name())),
        }
        report.detail(1, format_args!("prompt cache: {} tokens", cache.tokens.len()));
        Ok(Some(cache))
    }

    fn load<B: Backend>(&self, most: u64, session: &mut Session<B>) -> Result<(Vec<Token>, usize)> {
        let length = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((vec![], 0)),
            found => found?.len(),
        };
        ensure!(length <= most, "{} is more than a cache of this context has", size(length));
        let bytes = fs::read(&self.path)?;
        let Content { tokens, kv, drafters } = parse(&bytes, &self.facts)?;
        ensure!(tokens.len() <= session.capacity(), "{} tokens are more than the context", tokens.len());
        session.restore(tokens.clone(), kv)?;
        match session.restore_drafters(&drafters) {
            Ok(served) => Ok((tokens, served)),
            Err(error) => session.clear().and(Err(error)),
        }
    }

    /// Writes what `session` has, unless the file has that and perhaps more.
    pub fn save<B: Backend>(&self, session: &Session<B>) -> Result<()> {
        let tokens = session.tokens();
        let tokens = &tokens[..tokens.len().min(session.cached() + 1)];
        let drafters = session.drafter_bytes()?;
        let known = self.tokens.starts_with(tokens) && drafters.len() <= self.served;
        if tokens.len() < 2 || known {
            return Ok(()); // the last token's keys and values are not there yet
        }
        let kv = session.kv_bytes()?;
        let ids: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let number = |n: usize| (n as u64).to_le_bytes();
        let mut checksum = Xxh3::new();
        replace(&self.path, |file| {
            let (facts, count, length) = (number(self.facts.len()), number(tokens.len()), number(kv.len()));
            let mut write = |file: &mut BufWriter<File>, part: &[u8]| {
                checksum.update(part);
                file.write_all(part)
            };
            for part in [MAGIC, &facts, self.facts.as_bytes(), &count, &ids, &length, &kv] {
                write(file, part)?;
            }
            write(file, &number(drafters.len()))?;
            for bytes in &drafters {
                write(file, &number(bytes.len()))?;
                write(file, bytes)?;
            }
            file.write_all(&checksum.digest().to_le_bytes())
        })
        .with_context(|| format!("--prompt-cache: {}", self.path.display()))
    }
}

/// What is in a cache.
#[derive(Debug, PartialEq)]
struct Content<'a> {
    tokens: Vec<Token>,
    kv: &'a [u8],
    drafters: Vec<&'a [u8]>,
}

/// The content of a file that was made under the same `facts`.
fn parse<'a>(bytes: &'a [u8], facts: &str) -> Result<Content<'a>> {
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else { bail!("this is not a prompt cache of this kind") };
    let cut = || anyhow::anyhow!("the file is cut short or damaged");
    let take = |rest: &mut &'a [u8], n: usize| rest.split_off(..n).ok_or_else(cut);
    let number = |rest: &mut &'a [u8]| -> Result<usize> {
        let bytes = take(rest, 8)?;
        usize::try_from(u64::from_le_bytes(bytes.try_into()?)).map_err(|_| cut())
    };
    let length = number(&mut rest)?;
    let found = String::from_utf8_lossy(take(&mut rest, length)?).into_owned();
    // Told before anything else, because it is the usual case.
    if found != facts && found.lines().count() == facts.lines().count() {
        let mut both = found.lines().zip(facts.lines());
        let (found, here) = both.find(|(found, here)| found != here).with_context(cut)?;
        bail!("made with {}, not {}", found, here.split_once(": ").map_or(here, |(_, value)| value));
    }
    let (whole, sum) = bytes.split_at_checked(bytes.len().saturating_sub(8)).with_context(cut)?;
    let right = u64::from_le_bytes(sum.try_into()?) == xxhash_rust::xxh3::xxh3_64(whole) && found == facts;
    ensure!(right, cut());
    let count = number(&mut rest)?;
    let ids = take(&mut rest, count.checked_mul(4).with_context(cut)?)?;
    let length = number(&mut rest)?;
    let kv = take(&mut rest, length)?;
    let mut drafters = vec![];
    for _ in 0..number(&mut rest)? {
        let length = number(&mut rest)?;
        drafters.push(take(&mut rest, length)?);
    }
    ensure!(rest.len() == 8, cut());
    let tokens = ids.as_chunks().0.iter().map(|id| Token::from_le_bytes(*id)).collect();
    Ok(Content { tokens, kv, drafters })
}

/// All that keys and values depend on.
fn facts<B: Backend>(args: &ModelArgs, opened: &Opened<B>) -> Result<String> {
    let gguf = Gguf::open(&args.model)?;
    let kv_type = opened.kv.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let activations = args.activations.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    Ok([
        format!("version: {}", env!("CARGO_PKG_VERSION")),
        format!("architecture: {}", opened.model.config().arch.name),
        format!("model file of bytes: {}", gguf.file_bytes()),
        format!("model file of fingerprint: {:016x}", gguf.fingerprint()),
        format!("--kv-type: {kv_type}"),
        format!("-c: {}", opened.context),
        format!("--isa: {}", opened.description.isa),
        format!("--activations: {activations}"),
    ]
    .join("\n"))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file so that whoever looks finds the old one or the new one, whole.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(format!(".{}", std::process::id()));
    let beside = folder(path).join(name);
    let result = File::create(&beside).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner()?.sync_all()?;
        fs::rename(&beside, path)
    });
    if result.is_err() {
        let _ = fs::remove_file(&beside);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(facts: &str, ids: &[Token], kv: &[u8], drafters: &[&[u8]]) -> Vec<u8> {
        let number = |n: usize| (n as u64).to_le_bytes().to_vec();
        let ids: Vec<Vec<u8>> = ids.iter().map(|id| id.to_le_bytes().to_vec()).collect();
        let (count, ids) = (number(ids.len()), ids.concat());
        let parts = [MAGIC, &number(facts.len()), facts.as_bytes(), &count, &ids, &number(kv.len()), kv];
        let kept: Vec<u8> = drafters.iter().flat_map(|bytes| [&number(bytes.len()), *bytes].concat()).collect();
        let whole = [parts.concat(), number(drafters.len()), kept].concat();
        let sum = xxhash_rust::xxh3::xxh3_64(&whole).to_le_bytes();
        [&whole[..], &sum].concat()
    }

    #[test]
    fn only_a_whole_file_of_the_same_facts_is_taken() {
        let good = file("a: 1\nb: 2", &[7, 70_000], b"kv", &[b"rows", b""]);
        let content = Content { tokens: vec![7, 70_000], kv: b"kv", drafters: vec![b"rows", b""] };
        assert_eq!(parse(&good, "a: 1\nb: 2").unwrap(), content);
        let why = |bytes: &[u8], facts: &str| parse(bytes, facts).unwrap_err().to_string();
        assert_eq!(why(&good, "a: 1\nb: 3"), "made with b: 2, not 3");
        for n in 0..good.len() {
            why(&good[..n], "a: 1\nb: 2");
            let mut bad = good.clone();
            bad[n] ^= 0x10;
            why(&bad, "a: 1\nb: 2");
        }
        why(&[&good[..], b"x"].concat(), "a: 1\nb: 2");
        // A right checksum over lengths that are not.
        let mut huge = good[..good.len() - 8].to_vec();
        let at = MAGIC.len() + 8 + 9;
        huge[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let sum = xxhash_rust::xxh3::xxh3_64(&huge).to_le_bytes();
        assert!(why(&[&huge[..], &sum].concat(), "a: 1\nb: 2").contains("damaged"));
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("foretoken-replace-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x");
        replace(&path, |file| file.write_all(b"old")).unwrap();
        let failed = replace(&path, |file| file.write_all(b"new").and(Err(io::ErrorKind::StorageFull.into())));
        assert!(failed.is_err() && fs::read(&path).unwrap() == b"old");
        replace(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(&dir).unwrap().count()), (b"new".to_vec(), 1));
        fs::remove_dir_all(&dir).unwrap();
    }
}
