//! Lines of JSON, one after the other, in constant memory.

use anyhow::{Result, anyhow};
use std::io::{self, BufRead, Read};

/// Most bytes of a line: many times what a context holds.
pub const LONGEST: u64 = 16 << 20;

/// Lines that are not blank, numbered from 1, blank ones counted. What is longer than [`LONGEST`] is skipped and an error.
pub struct Lines<R> {
    from: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// Lines of `from`.
    pub fn new(from: R) -> Self {
        Self { from, number: 0 }
    }

    /// The next line with its number; the inner error is the line's.
    pub fn next_line(&mut self) -> io::Result<Option<(u64, Result<Vec<u8>>)>> {
        loop {
            let mut line = vec![];
            if (&mut self.from).take(LONGEST).read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if line.len() as u64 == LONGEST && !line.ends_with(b"\n") && self.skip_line()? {
                let error = anyhow!("the line is longer than {LONGEST} bytes, which is not supported");
                return Ok(Some((self.number, Err(error))));
            }
            if self.number == 1 && line.starts_with("\u{FEFF}".as_bytes()) {
                line.drain(..3); // of the file, not of the request
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some((self.number, Ok(line))));
            }
        }
    }

    /// Reads to the end of the line; whether there was anything.
    fn skip_line(&mut self) -> io::Result<bool> {
        let mut any = false;
        loop {
            let bytes = self.from.fill_buf()?;
            let end = bytes.iter().position(|&b| b == b'\n');
            let n = end.map_or(bytes.len(), |at| at + 1);
            any |= n > 0;
            self.from.consume(n);
            if end.is_some() || n == 0 {
                return Ok(any);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<(u64, Result<Vec<u8>, String>)> {
        let mut lines = Lines::new(bytes);
        let mut all = vec![];
        while let Some((number, line)) = lines.next_line().unwrap() {
            all.push((number, line.map_err(|e| e.to_string())));
        }
        all
    }

    #[test]
    fn lines_are_numbered_and_blank_ones_skipped() {
        let got = read(b"\xEF\xBB\xBFa\n\n \t\r\n\xEF\xBB\xBFb\r\nlast");
        let want = [(1, &b"a\n"[..]), (4, b"\xEF\xBB\xBFb\r\n"), (5, b"last")];
        assert_eq!(got, want.map(|(n, line)| (n, Ok(line.to_vec()))));
        assert!(read(b"").is_empty() && read(b"\n\n").is_empty());
    }

    #[test]
    fn a_line_too_long_is_one_error_and_the_next_is_read() {
        let longest = vec![b'x'; LONGEST as usize];
        let got = read(&[&longest[..], b"xx\nnext\n", &longest].concat());
        assert!(got[0].1.as_ref().unwrap_err().contains("longer than"));
        assert_eq!(got[1], (2, Ok(b"next\n".to_vec())));
        assert_eq!(got[2].1.as_ref().unwrap().len(), LONGEST as usize, "just fits");
        assert_eq!(got.len(), 3);
    }
}
