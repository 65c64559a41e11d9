//! Marks: how the tokenizer learns what of a rendered prompt was written by people.
//!
//! Three characters that occur in no message stand around control texts (*open*, *close*) and at ends that could be part
//! of one (*border*). They go through the template with the text and are taken out of what it makes.

use super::{Message, Tokenizer, python::is_space};
use anyhow::{Result, bail};
use serde_json::{Map, Value as Json};
use std::ops::Range;

/// Three characters that no message has.
pub(super) struct Marks {
    open: char,
    close: char,
    border: char,
}

impl Marks {
    /// Marks that none of these texts has.
    pub(super) fn unused_in<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut used = [false; 32];
        for c in texts.into_iter().flat_map(str::chars) {
            if let Some(i) = (c as u32).checked_sub(0xFDD0).filter(|&i| i < 32) {
                used[i as usize] = true;
            }
        }
        let mut free = ('\u{FDD0}'..='\u{FDEF}').zip(used).filter(|&(_, used)| !used).map(|(c, _)| c);
        match (free.next(), free.next(), free.next()) {
            (Some(open), Some(close), Some(border)) => Ok(Self { open, close, border }),
            _ => {
                bail!("the messages hold the Unicode noncharacters U+FDD0 to U+FDEF, at most 29 of which are supported")
            }
        }
    }

    fn is_mark(&self, c: char) -> bool {
        [self.open, self.close, self.border].contains(&c)
    }

    /// A message with its marks. Roles get no borders: templates compare them.
    pub(super) fn message(&self, tokenizer: &Tokenizer, message: &Message) -> Message {
        Message {
            role: self.mark(tokenizer, &message.role),
            content: self.mark_borders(tokenizer, &self.mark(tokenizer, &message.content)),
            more: self.map(tokenizer, &message.more),
        }
    }

    /// Variables with their marks.
    pub(super) fn map(&self, tokenizer: &Tokenizer, map: &Map<String, Json>) -> Map<String, Json> {
        map.iter().map(|(k, v)| (self.mark(tokenizer, k), self.json(tokenizer, k, v))).collect()
    }

    fn json(&self, tokenizer: &Tokenizer, key: &str, json: &Json) -> Json {
        match json {
            Json::String(s) => {
                let marked = self.mark(tokenizer, s);
                // Words get no borders: templates compare them, and none ends in a bracket or a bar.
                let is_word = s.chars().all(|c| c.is_alphanumeric() || "_- ".contains(c));
                match is_word && key != "text" && key != "content" {
                    true => marked.into(),
                    false => self.mark_borders(tokenizer, &marked).into(),
                }
            }
            Json::Array(items) => items.iter().map(|item| self.json(tokenizer, key, item)).collect(),
            Json::Object(map) => Json::Object(self.map(tokenizer, map)),
            other => other.clone(),
        }
    }

    /// Puts the texts of control tokens between marks.
    fn mark(&self, tokenizer: &Tokenizer, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let mut at = 0;
        for found in tokenizer.find_control_texts(text) {
            out.push_str(&text[at..found.start]);
            out.push(self.open);
            out.push_str(&text[found.clone()]);
            out.push(self.close);
            at = found.end;
        }
        out.push_str(&text[at..]);
        out
    }

    /// Marks the ends of `text` where, with text of the template's around it, it could be part of a control token:
    /// `<|im_` before `end|>`, `im_end` in `<|` `|>`. The ends as they are and those left after trimming.
    fn mark_borders(&self, tokenizer: &Tokenizer, text: &str) -> String {
        let mut borders: Vec<usize> = Vec::new();
        let start = text.len() - text.trim_start_matches(is_space).len();
        for (start, part) in
            [(0, text), (start, text.trim_matches(is_space))].into_iter().filter(|(_, part)| !part.is_empty())
        {
            let part_bytes = part.as_bytes();
            let (first, last) = (part_bytes[0], part_bytes[part.len() - 1]);
            let same_start = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
            let same_end = |a: &[u8], b: &[u8]| a.ends_with(b) || b.ends_with(a);
            let continues = |t: &str| {
                let t = t.as_bytes();
                (1..t.len()).any(|n| t[n] == first && same_start(part_bytes, &t[n..]))
            };
            let begins = |t: &str| {
                let t = t.as_bytes();
                (1..t.len()).any(|n| t[n - 1] == last && same_end(part_bytes, &t[..n]))
            };
            if tokenizer.control_texts().any(continues) {
                borders.push(start);
            }
            if tokenizer.control_texts().any(begins) {
                borders.push(start + part.len());
            }
        }
        borders.sort_unstable();
        borders.dedup();
        let mut out = text.to_owned();
        borders.iter().rev().for_each(|&at| out.insert(at, self.border));
        out
    }

    /// The text without marks, and what of it is plain: where an opening mark stood, the control text after it (the
    /// template may have lost the closing one); where any other stood, an empty range that no control token crosses.
    pub(super) fn take_out(&self, tokenizer: &Tokenizer, marked: &str) -> (String, Vec<Range<usize>>) {
        let mut text = String::with_capacity(marked.len());
        let mut plain: Vec<Range<usize>> = Vec::new();
        let mut rest = marked;
        while let Some((at, mark)) = rest.char_indices().find(|&(_, c)| self.is_mark(c)) {
            text.push_str(&rest[..at]);
            rest = &rest[at + mark.len_utf8()..];
            let until = rest.find(|c| self.is_mark(c)).unwrap_or(rest.len());
            let found = match mark == self.open {
                true => tokenizer.find_control_texts(&rest[..until]).into_iter().next().filter(|r| r.start == 0),
                false => None,
            };
            let range = text.len()..text.len() + found.map_or(0, |r| r.end);
            match plain.last() {
                Some(last) if range.is_empty() && range.start <= last.end => {}
                _ => plain.push(range),
            }
        }
        text.push_str(rest);
        (text, plain)
    }
}
