//! The filter `tojson`: `json.dumps` with Hugging Face's defaults, no HTML escapes.

use super::{Arguments, check_length, invalid, repr};
use minijinja::{
    Error, Value,
    value::{Kwargs, Rest, ValueKind},
};

/// Deeper than this is an error, as in Python.
const DEEPEST: usize = 900;

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut arguments = Arguments::new(&given, named);
    let ascii = arguments.flag("ensure_ascii")?;
    let indent = match arguments.next("indent")? {
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(width) => Some(" ".repeat(i64::try_from(width)?.clamp(0, 64) as usize)),
        None => None,
    };
    let (comma, colon) = match arguments.next("separators")? {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort = arguments.flag("sort_keys")?;
    arguments.end()?;
    let mut out = String::new();
    Style { indent, comma, colon, ascii, sort }.write(value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

struct Style {
    indent: Option<String>,
    comma: String,
    colon: String,
    ascii: bool,
    sort: bool,
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(invalid(format!("tojson: nested deeper than {DEEPEST}, which is not supported")));
        }
        check_length(out)?;
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.group('[', ']', &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let keys = value.try_iter()?.map(|key| Ok((self.key(&key)?, value.get_item(&key)?)));
                let mut entries = keys.collect::<Result<Vec<_>, Error>>()?;
                if self.sort {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.group('{', '}', &entries, depth, out, |(key, item), out| {
                    self.string(key, out);
                    out.push_str(&self.colon);
                    self.write(item, depth + 1, out)
                })?;
            }
            _ => out.push_str(&scalar(value)?),
        }
        Ok(())
    }

    fn key(&self, key: &Value) -> Result<String, Error> {
        match key.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => scalar(key),
        }
    }

    fn group<T>(
        &self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !items.is_empty()) {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            new_line(depth + 1, out);
            write(item, out)?;
        }
        new_line(depth, out);
        out.push(close);
        Ok(())
    }

    fn string(&self, s: &str, out: &mut String) {
        out.push('"');
        for c in s.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0C' => out.push_str("\\f"),
                '\0'..'\x20' => out.push_str(&format!("\\u{:04x}", c as u32)),
                // The chat template's marks are noncharacters; they must come out as they went in.
                '\x7F'.. if self.ascii && !('\u{FDD0}'..='\u{FDEF}').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(match f64::try_from(value.clone())? {
            x if x.is_nan() => "NaN".into(),
            x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
            x => repr::float(x),
        }),
        kind => Err(invalid(format!("tojson: {kind} cannot be written as JSON"))),
    }
}
