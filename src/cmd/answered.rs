//! What an earlier run of `batch` has answered.

use super::report::Report;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Most bytes of an answer's line.
const LONGEST: u64 = 1 << 28;

/// Answers by the ids of their requests, each with how many there are.
#[derive(Debug, Default)]
pub struct Answered(HashMap<String, usize>);

/// What every answer has, errors too.
#[derive(Deserialize)]
struct Line {
    id: Value,
    #[serde(rename = "finish_reason")]
    _finish_reason: String,
}

impl Answered {
    /// Reads the output of an earlier run; a file that is not there has no answers. What is after its last newline was
    /// torn off by the end of that run: it counts as none, and is cut off when stdout goes on in the same file.
    pub fn read(path: &Path, report: &Report) -> Result<Self> {
        let name = format!("--resume: {}", path.display());
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                report.note(format_args!("{name} is not there: nothing is answered yet"));
                return Ok(Self::default());
            }
            Err(error) => return Err(error).context(name),
        };
        let is_stdout = same(&file.metadata()?, &stdout_file()?.metadata()?);
        let (answered, whole, torn) = Self::from(BufReader::new(file)).with_context(|| name.clone())?;
        if torn && is_stdout {
            let cut = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(whole));
            cut.with_context(|| name.clone())?;
        }
        let again = if torn { ", and a torn line, which is done again" } else { "" };
        report.note(format_args!("{name} has {} answers{again}", answered.left()));
        Ok(answered)
    }

    /// The answers, the length of their lines, and whether there is more.
    fn from(mut lines: impl BufRead) -> Result<(Self, u64, bool)> {
        let (mut answered, mut whole, mut number) = (Self::default(), 0, 0);
        loop {
            number += 1;
            let mut line = vec![];
            let len = (&mut lines).take(LONGEST).read_until(b'\n', &mut line)? as u64;
            ensure!(len < LONGEST, "line {number}: longer than {LONGEST} bytes, which is not supported");
            if !line.ends_with(b"\n") {
                return Ok((answered, whole, len > 0));
            }
            whole += len;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Ok(Line { id, .. }) = serde_json::from_slice(&line) else {
                bail!("line {number}: found something else than an answer of batch");
            };
            *answered.0.entry(id.to_string()).or_default() += 1;
        }
    }

    /// Whether there is an answer to a request with this id, which is then taken: a second request needs a second one.
    pub fn take(&mut self, id: &Value) -> bool {
        let Some(count) = self.0.get_mut(&id.to_string()).filter(|count| **count > 0) else { return false };
        *count -= 1;
        true
    }

    /// Answers that were not taken.
    pub fn left(&self) -> usize {
        self.0.values().sum()
    }
}

fn stdout_file() -> io::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_counted_by_id_and_torn_lines_are_none() {
        let line = |id: &str| format!("{{\"id\":{id},\"text\":\"\",\"finish_reason\":\"stop\"}}\n");
        let lines = [line("1"), line("\"1\""), "\n".into(), line("[1]"), line("1")].concat();
        for (torn, is_torn) in [("", false), ("{\"id\":2", true), (line("2").trim_end(), true)] {
            let (mut answered, whole, found) =
                Answered::from([lines.as_bytes(), torn.as_bytes()].concat().as_slice()).unwrap();
            assert_eq!((whole, found, answered.left()), (lines.len() as u64, is_torn, 4), "{torn}");
            for (id, want) in
                [(json!(1), true), (json!(1), true), (json!(1), false), (json!("1"), true), (json!(2), false)]
            {
                assert_eq!(answered.take(&id), want, "{id}");
            }
            assert_eq!(answered.left(), 1);
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for text in ["{\"id\": 1, \"prompt\": \"a\"}\n", "nonsense\n", "[1]\n", "\u{0}\n"] {
            let error = Answered::from(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, "line 1: found something else than an answer of batch");
        }
    }
}
