//! Methods of Python's texts, lists and dictionaries, beside those that `minijinja-contrib` has.

use super::{Arguments, invalid, is_space};
use minijinja::{
    Error, State, Value,
    value::{Tuple, ValueKind, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Longest text that padding makes.
const WIDEST: i64 = 1 << 16;

/// Calls `method` of `value`.
pub(super) fn call(state: &mut State, value: &Value, method: &str, given: &[Value]) -> Result<Value, Error> {
    match (value.kind(), method) {
        (ValueKind::String, _) => match of_text(value.as_str().unwrap_or_default(), method, given)? {
            Some(result) => Ok(result),
            None => unknown_method_callback(state, value, method, given),
        },
        (ValueKind::Map, "copy") if given.is_empty() => Ok(value.clone()),
        (ValueKind::Seq, "index") => {
            let [wanted] = given else { return Err(invalid("index: supported is one argument")) };
            let at = value.try_iter()?.position(|item| item == *wanted);
            at.map(Value::from).ok_or_else(|| invalid("index: the value is not in the list"))
        }
        _ => unknown_method_callback(state, value, method, given),
    }
}

fn of_text(text: &str, method: &str, given: &[Value]) -> Result<Option<Value>, Error> {
    let (positional, named) = from_args(given)?;
    let mut arguments = Arguments::new(positional, named);
    let needed = |text: Option<String>| text.ok_or_else(|| invalid(format!("{method}: an argument is missing")));
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let chars = arguments.text("chars")?;
            let drop = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(c));
            match method {
                "strip" => text.trim_matches(drop),
                "lstrip" => text.trim_start_matches(drop),
                _ => text.trim_end_matches(drop),
            }
            .into()
        }
        "removeprefix" => {
            let prefix = needed(arguments.text("prefix")?)?;
            text.strip_prefix(prefix.as_str()).unwrap_or(text).into()
        }
        "removesuffix" => {
            let suffix = needed(arguments.text("suffix")?)?;
            text.strip_suffix(suffix.as_str()).unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let mark = needed(arguments.text("sep")?)?;
            let found = if method == "partition" { text.split_once(&*mark) } else { text.rsplit_once(&*mark) };
            let parts = match found {
                Some((before, after)) => [before, &mark, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from).to_vec()))
        }
        "rsplit" => {
            let mark = arguments.text("sep")?;
            let most = arguments.count("maxsplit")?.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            let mut parts: Vec<&str> = match &mark {
                Some(mark) if mark.is_empty() => return Err(invalid("rsplit: the separator is empty")),
                Some(mark) => text.rsplitn(most.saturating_add(1), mark.as_str()).collect(),
                None => rsplit_at_space(text, most),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "split" if given.is_empty() => text.split(is_space).filter(|part| !part.is_empty()).map(Value::from).collect(),
        "index" | "rindex" => {
            let part = needed(arguments.text("sub")?)?;
            let at = if method == "index" { text.find(&*part) } else { text.rfind(&*part) };
            let at = at.ok_or_else(|| invalid(format!("{method}: the text is not found")))?;
            Value::from(text[..at].chars().count())
        }
        "zfill" | "ljust" | "rjust" => {
            let width = arguments.count("width")?.unwrap_or_default();
            if width > WIDEST {
                return Err(invalid(format!("{method}: found {width}, supported up to {WIDEST}")));
            }
            let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
            let fill =
                if method == "zfill" { "0".to_owned() } else { arguments.text("fillchar")?.unwrap_or(" ".into()) };
            let (sign, digits) = match text.chars().next() {
                Some('+' | '-') if method == "zfill" => text.split_at(1),
                _ => ("", text),
            };
            let fill = fill.repeat(missing);
            if method == "ljust" { format!("{text}{fill}") } else { format!("{sign}{fill}{digits}") }.into()
        }
        "swapcase" => {
            let swapped = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().to_string(),
                false => c.to_uppercase().to_string(),
            };
            text.chars().map(swapped).collect::<String>().into()
        }
        "title" => title(text).into(),
        _ => return Ok(None),
    };
    arguments.end()?;
    Ok(Some(result))
}

/// The last `most` words and what is before them, the last first.
fn rsplit_at_space(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        let at = rest.char_indices().rev().find(|&(_, c)| is_space(c)).map(|(at, c)| at + c.len_utf8());
        match at.filter(|_| parts.len() < most) {
            Some(at) => {
                parts.push(&rest[at..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            None => {
                parts.push(if parts.len() < most { rest } else { rest.trim_start_matches(is_space) });
                break;
            }
        }
    }
    parts
}

/// `str.title`: every letter after what is no letter is large, the others small.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}
