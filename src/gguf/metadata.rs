//! The key-value part of the header.
//!
//! Numbers are decoded when the file is opened. Strings and arrays stay in the file as ranges that were walked and
//! checked once: a vocabulary of 150,000 tokens costs one entry here.

use super::{map::Data, read::Reader};
use anyhow::{Context, Result, anyhow, bail, ensure};
use gguf_rs_lib::format::{
    constants::{GGUF_MAX_METADATA_KEY_LENGTH, GGUF_MAX_METADATA_NESTING_DEPTH},
    metadata::MetadataValue,
    types::GGUFValueType,
};
use std::{ops::Range, sync::Arc};

/// What a model file says about itself. Look-ups are `None` for an absent key and an error for another type.
#[derive(Debug)]
pub struct Metadata {
    data: Arc<Data>,
    entries: Vec<Entry>,
    /// Indices of entries in the order of their keys.
    by_key: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    key: Range<usize>,
    value: Value,
}

#[derive(Debug)]
enum Value {
    /// Anything of fixed size.
    Scalar(MetadataValue),
    Text(Range<usize>),
    Array {
        of: GGUFValueType,
        len: usize,
        /// The elements, without type and length.
        at: Range<usize>,
    },
}

impl Value {
    fn type_name(&self) -> String {
        match self {
            Value::Scalar(v) => v.value_type().name().into(),
            Value::Text(_) => "string".into(),
            Value::Array { of, .. } => format!("array of {}", of.name()),
        }
    }
}

impl Metadata {
    /// The least bytes an entry takes: length of the key, type, a value of one byte.
    pub(super) const MIN_ENTRY: usize = 8 + 4 + 1;

    pub(super) fn read(r: &mut Reader<'_>, count: u64, data: Arc<Data>) -> Result<Metadata> {
        let mut entries = Vec::new();
        for i in 0..count {
            let key = read_key(r).with_context(|| format!("metadata key {i} of {count}"))?;
            let value = read_value(r).with_context(|| format!("metadata key {}", show_text(text(&data, &key))))?;
            entries.push(Entry { key, value });
        }
        let key = |i: usize| -> &[u8] { &data[entries[i].key.clone()] };
        let mut by_key: Vec<usize> = (0..entries.len()).collect();
        by_key.sort_unstable_by(|&a, &b| key(a).cmp(key(b)));
        if let Some(twice) = by_key.windows(2).find(|w| key(w[0]) == key(w[1])) {
            bail!("metadata key {} is there twice", show_text(text(&data, &entries[twice[0]].key)));
        }
        Ok(Metadata { data, entries, by_key })
    }

    fn find(&self, key: &str) -> Option<&Value> {
        let order = |&i: &usize| self.data[self.entries[i].key.clone()].cmp(key.as_bytes());
        let found = self.by_key.binary_search_by(order).ok()?;
        Some(&self.entries[self.by_key[found]].value)
    }

    /// Looks `key` up and reads it with `get`, which gives `None` for a type it does not take.
    fn get<'a, T>(&'a self, key: &str, wanted: &str, get: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let wrong =
            || anyhow!("metadata key {key:?} is {} ({}), {wanted} is wanted", self.show(value), value.type_name());
        get(value).map(Some).ok_or_else(wrong)
    }

    /// Whether `key` is there, whatever its type.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Whether `key` is there and holds an array: some models give one number for all layers, others one a layer.
    pub fn is_array(&self, key: &str) -> bool {
        matches!(self.find(key), Some(Value::Array { .. }))
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a string", |v| match v {
            Value::Text(at) => Some(text(&self.data, at)),
            _ => None,
        })
    }

    /// An integer of any width that is not negative.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.get(key, "an unsigned integer", |v| match v {
            Value::Scalar(v) => integer(v).and_then(|n| u64::try_from(n).ok()),
            _ => None,
        })
    }

    /// A float, rounded to 32 bits.
    pub fn float(&self, key: &str) -> Result<Option<f32>> {
        self.get(key, "a float", |v| match v {
            Value::Scalar(v) => v.as_f64().map(|x| x as f32),
            _ => None,
        })
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "a bool", |v| match v {
            Value::Scalar(v) => v.as_bool(),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<Strings<'_>>> {
        self.get(key, "an array of strings", |v| match v {
            Value::Array { of: GGUFValueType::String, len, at } => {
                Some(Strings { bytes: &self.data[at.clone()], left: *len })
            }
            _ => None,
        })
    }

    /// An array of integers of any width, or of bools as 0 and 1.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.get(key, "an array of integers of at most 63 bits", |v| {
            self.numbers(v, |v| match v {
                MetadataValue::Bool(b) => Some(i64::from(*b)),
                v => integer(v).and_then(|n| i64::try_from(n).ok()),
            })
        })
    }

    /// An array of floats, rounded to 32 bits.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.get(key, "an array of floats", |v| self.numbers(v, |v| v.as_f64().map(|x| x as f32)))
    }

    fn numbers<T>(&self, value: &Value, get: impl Fn(&MetadataValue) -> Option<T>) -> Option<Vec<T>> {
        let Value::Array { of, len, at } = value else { return None };
        let size = of.size_in_bytes()?;
        let sample = MetadataValue::read_from(&mut [0u8; 8].as_slice(), *of).ok()?;
        get(&sample)?; // no room is made for elements of the wrong type
        let mut all = Vec::with_capacity(*len);
        for element in self.data[at.clone()].chunks_exact(size) {
            all.push(get(&scalar(element, *of).ok()?)?);
        }
        Some(all)
    }

    /// Keys in file order, each with its value shortened to a line.
    pub fn iter(&self) -> impl Iterator<Item = (&str, String)> {
        self.entries.iter().map(|e| (text(&self.data, &e.key), self.show(&e.value)))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn show(&self, value: &Value) -> String {
        match value {
            Value::Scalar(v) => show_scalar(v),
            Value::Text(at) => show_text(text(&self.data, at)),
            Value::Array { of, len, at } => {
                let bytes = &self.data[at.clone()];
                let first: Vec<String> = match of.size_in_bytes() {
                    Some(size) => {
                        bytes.chunks_exact(size).take(4).flat_map(|e| scalar(e, *of)).map(|v| show_scalar(&v)).collect()
                    }
                    None if *of == GGUFValueType::String => {
                        Strings { bytes, left: *len }.take(4).map(show_text).collect()
                    }
                    None => vec![],
                };
                let dots = if *len > first.len() { ", .." } else { "" };
                format!("{len} x {} [{}{dots}]", of.name(), first.join(", "))
            }
        }
    }
}

/// The strings of an array, read in place.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.checked_sub(1)?;
        let (item, rest) = next_string(self.bytes).unwrap_or_default();
        self.bytes = rest;
        Some(std::str::from_utf8(item).unwrap_or_default())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

fn next_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

/// Text that was valid when the file was opened; empty if somebody has rewritten the file since.
fn text<'a>(data: &'a [u8], at: &Range<usize>) -> &'a str {
    std::str::from_utf8(&data[at.clone()]).unwrap_or_default()
}

fn integer(v: &MetadataValue) -> Option<i128> {
    v.as_u64().map(i128::from).or(v.as_i64().map(i128::from))
}

fn scalar(mut bytes: &[u8], ty: GGUFValueType) -> Result<MetadataValue> {
    Ok(MetadataValue::read_from(&mut bytes, ty)?)
}

fn show_scalar(v: &MetadataValue) -> String {
    match v {
        MetadataValue::F32(x) => format!("{x:?}"),
        MetadataValue::F64(x) => format!("{x:?}"),
        MetadataValue::Bool(b) => b.to_string(),
        v => integer(v).map_or_else(String::new, |n| n.to_string()),
    }
}

/// Quoted on one line, so that a file cannot write control sequences to a terminal.
fn show_text(s: &str) -> String {
    const MOST: usize = 60;
    let short: String = s.chars().take(MOST).collect();
    let dots = if short.len() < s.len() { ".." } else { "" };
    format!("{short:?}{dots}")
}

fn read_key(r: &mut Reader<'_>) -> Result<Range<usize>> {
    let at = r.string("the key")?;
    ensure!(
        (1..=GGUF_MAX_METADATA_KEY_LENGTH).contains(&at.len()),
        "the key has {} bytes, 1 to {GGUF_MAX_METADATA_KEY_LENGTH} are allowed",
        at.len()
    );
    Ok(at)
}

fn read_type(r: &mut Reader<'_>) -> Result<GGUFValueType> {
    let id = r.u32("the value type")?;
    GGUFValueType::from_u32(id).map_err(|_| anyhow!("value type {id} is unknown, 0 to 12 are known"))
}

fn read_value(r: &mut Reader<'_>) -> Result<Value> {
    let ty = read_type(r)?;
    match ty.size_in_bytes() {
        Some(size) => Ok(Value::Scalar(scalar(r.bytes(size as u64, "the value")?, ty)?)),
        None if ty == GGUFValueType::String => Ok(Value::Text(r.string("the string")?)),
        None => read_array(r, 1),
    }
}

fn read_array(r: &mut Reader<'_>, depth: usize) -> Result<Value> {
    ensure!(
        depth <= GGUF_MAX_METADATA_NESTING_DEPTH,
        "arrays are nested deeper than {GGUF_MAX_METADATA_NESTING_DEPTH}"
    );
    let of = read_type(r)?;
    // A string takes at least its length, an array its type and length.
    let least = of.size_in_bytes().unwrap_or(if of == GGUFValueType::String { 8 } else { 12 });
    let len = r.count(least, "the array length")?;
    let start = r.at();
    match of {
        GGUFValueType::String => {
            for i in 0..len {
                r.string("the string").with_context(|| format!("element {i} of {len}"))?;
            }
        }
        GGUFValueType::Array => {
            for i in 0..len {
                read_array(r, depth + 1).with_context(|| format!("element {i} of {len}"))?;
            }
        }
        _ => {
            let bytes = r.bytes(len * least as u64, "the array")?;
            let bad = |b: &u8| of == GGUFValueType::Bool && *b > 1;
            if let Some(i) = bytes.iter().position(bad) {
                bail!("element {i} of {len} is a bool of value {}, 0 or 1 is wanted", bytes[i]);
            }
        }
    }
    Ok(Value::Array { of, len: len as usize, at: start..r.at() })
}
