//! Tokens in, readable text out as soon as it is certain.
//!
//! Two things can make text uncertain. A token may end within a character: at most three bytes wait for the next.
//! And text may be the beginning of a stop string: it waits until that is decided. Nothing else waits.

use super::Tokenizer;
use crate::tree::Token;

/// Decodes a stream of tokens, watching for stop strings.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    stops: Vec<String>,
    show_control: bool,
    /// The beginning of a character.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl<'a> TextStream<'a> {
    /// A stream that ends before the first of `stops`. Control tokens are left out unless `show_control`.
    pub fn new(tokenizer: &'a Tokenizer, stops: &[String], show_control: bool) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        Self { tokenizer, stops, show_control, bytes: Vec::new(), held: String::new(), stopped: false }
    }

    /// Takes a token and gives the text that is ready, often one word, perhaps none. After a stop string always none.
    pub fn push(&mut self, token: Token) -> String {
        if self.stopped {
            return String::new();
        }
        let piece = self.tokenizer.piece(token);
        if self.tokenizer.is_control(token) && !self.show_control {
            // A hidden token is no part of the text, but its own text can be a stop string.
            if !self.stops.iter().any(|s| s.as_bytes() == piece) {
                return String::new();
            }
            let text = self.flush();
            self.stopped = true;
            return text;
        }
        self.bytes.extend_from_slice(piece);
        let used = decode_complete(&self.bytes, &mut self.held);
        self.bytes.drain(..used);
        self.release()
    }

    /// Whether a stop string came.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Bytes of text that wait because a stop string may begin there.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The text still held, at the end of the tokens: what only looked like a stop string, and U+FFFD for a character
    /// that was never completed.
    pub fn finish(mut self) -> String {
        if self.stopped { String::new() } else { self.flush() }
    }

    fn flush(&mut self) -> String {
        let mut text = String::new();
        if !self.bytes.is_empty() {
            self.bytes.clear();
            self.held.push('\u{FFFD}');
            text = self.release();
        }
        if !self.stopped {
            text += &std::mem::take(&mut self.held);
        }
        text
    }

    /// Takes from `held` what cannot be part of a stop string. The stop string that ends first wins, of those the
    /// longest, so that the outcome does not depend on how the text came in tokens.
    fn release(&mut self) -> String {
        let ends = |s: &String| self.held.find(s.as_str()).map(|at| (at + s.len(), at));
        if let Some((_, at)) = self.stops.iter().filter_map(ends).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begins = |at: &usize| self.stops.iter().any(|s| s.as_bytes().starts_with(&self.held.as_bytes()[*at..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = (self.held.len() + 1).saturating_sub(longest.max(1));
        let keep = (from..self.held.len()).filter(|&at| self.held.is_char_boundary(at)).find(begins);
        let tail = self.held.split_off(keep.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, tail)
    }
}

/// Appends the characters of `bytes` to `text`, U+FFFD for each maximal run that cannot become one, as
/// [`String::from_utf8_lossy`] does; gives the bytes used, all but the beginning of a last character.
fn decode_complete(bytes: &[u8], text: &mut String) -> usize {
    let mut at = 0;
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(e) => {
                let good = at + e.valid_up_to();
                text.push_str(std::str::from_utf8(&bytes[at..good]).expect("checked"));
                let Some(bad) = e.error_len() else { return good };
                text.push('\u{FFFD}');
                at = good + bad;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::decode_complete;

    #[test]
    fn bytes_decode_the_same_in_any_portions() {
        let texts: &[&[u8]] = &[
            "🦙👨\u{200d}👩\u{200d}👧 Привет 日本語".as_bytes(),
            b"a\xFFb\xF0\x9F\x98c\xC3(\xE2\x82",
            b"\xF0\x9F\xF0\x9F\x98\x80\x80\x80",
            b"\xED\xA0\x80\xF4\x90\x80\x80",
        ];
        for whole in texts {
            for portion in 1..=5 {
                let (mut text, mut held) = (String::new(), Vec::new());
                for bytes in whole.chunks(portion) {
                    held.extend_from_slice(bytes);
                    let used = decode_complete(&held, &mut text);
                    held.drain(..used);
                    assert!(held.len() <= 3);
                }
                if !held.is_empty() {
                    text.push('\u{FFFD}');
                }
                assert_eq!(text, String::from_utf8_lossy(whole), "{portion}");
            }
        }
    }
}
