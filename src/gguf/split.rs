//! Models split over several files, `NAME-00002-of-00003.gguf`.
//!
//! What a file is, its metadata says (`split.no`, `split.count`, `split.tensors.count`); its name only tells where its
//! siblings are. So a file that merely looks like a shard opens as the whole model it is.

use super::{metadata::Metadata, shard::Shard};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};

/// Where a file stands in its model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    /// Number of the shard, from 0.
    pub(super) no: u64,
    /// How many there are.
    pub(super) count: u64,
    /// Tensors in all shards together, where the file says.
    pub(super) tensors: Option<u64>,
}

/// What `meta` says about splitting; a file that says nothing is one of one.
pub(super) fn place(meta: &Metadata) -> Result<Place> {
    let count = meta.uint("split.count")?.unwrap_or(0).max(1);
    let no = meta.uint("split.no")?.unwrap_or(0);
    ensure!(no < count, "split.no is {no}, but split.count is {count}");
    Ok(Place { no, count, tensors: meta.uint("split.tensors.count")? })
}

/// All shards in order, `given` being the one at `path`.
pub(super) fn open_siblings(path: &Path, given: Shard, place: Place) -> Result<Vec<Shard>> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let Some((stem, no, count)) = parse_name(name).filter(|&(_, _, count)| count == place.count) else {
        bail!(
            "{}: this is shard {} of {}, but its name does not end in -{}, so the others cannot be found",
            path.display(),
            place.no + 1,
            place.count,
            tail(place.no, place.count)
        );
    };
    let at = |i: u64| path.with_file_name(format!("{stem}-{}", tail(i, count)));
    check(path, place, Place { no: no - 1, ..place })?;

    let missing: Vec<PathBuf> = (0..count).filter(|&i| i != place.no).map(at).filter(|p| !p.exists()).take(4).collect();
    if let Some(first) = missing.first() {
        let more = if missing.len() > 1 { " (and others)" } else { "" };
        bail!("{}: one of {count} shards, {} is missing{more}", path.display(), first.display());
    }
    let mut shards = Vec::new();
    let mut given = Some(given);
    for i in 0..count {
        if i == place.no {
            shards.extend(given.take());
            continue;
        }
        let path = at(i);
        let shard = Shard::open(&path)?;
        let found = self::place(shard.meta()).with_context(|| path.display().to_string())?;
        check(&path, found, Place { no: i, ..place })?;
        shards.push(shard);
    }
    Ok(shards)
}

fn check(path: &Path, found: Place, wanted: Place) -> Result<()> {
    let tensors = |p: Place| p.tensors.map_or("no count of".into(), |n| n.to_string());
    ensure!(
        found == wanted,
        "{}: says it is shard {} of {} with {} tensors in all, shard {} of {} with {} is wanted (files renamed or mixed up?)",
        path.display(),
        found.no + 1,
        found.count,
        tensors(found),
        wanted.no + 1,
        wanted.count,
        tensors(wanted)
    );
    Ok(())
}

fn tail(no: u64, count: u64) -> String {
    format!("{:05}-of-{count:05}.gguf", no + 1)
}

/// Splits `NAME-00002-of-00003.gguf` into (`NAME`, 2, 3).
fn parse_name(name: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    let number = |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok()).flatten();
    let (no, count): (u64, u64) = (number(no)?, number(count)?);
    (1..=count).contains(&no).then_some((stem, no, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shards() {
        for (name, want) in [
            ("m-00002-of-00003.gguf", Some(("m", 2, 3))),
            ("a-b-00001-of-00001.gguf", Some(("a-b", 1, 1))),
            ("-00001-of-00002.gguf", Some(("", 1, 2))),
            ("x-00001-of-00002-00002-of-00003.gguf", Some(("x-00001-of-00002", 2, 3))),
            ("m-00004-of-00003.gguf", None),
            ("m-00000-of-00003.gguf", None),
            ("m-2-of-3.gguf", None),
            ("m-0000２-of-00003.gguf", None),
            ("m-+0002-of-00003.gguf", None),
            ("m-00002-of-00003.bin", None),
            ("m.gguf", None),
            ("", None),
        ] {
            assert_eq!(parse_name(name), want, "{name}");
            if let Some((stem, no, count)) = want {
                assert_eq!(format!("{stem}-{}", tail(no - 1, count)), name);
            }
        }
    }
}
