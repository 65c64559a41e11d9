//! Filters and tests that jinja2 has and the engine has not, or has otherwise.

use super::{Arguments, is_space};
use minijinja::{
    Error, Value,
    value::{Kwargs, Rest, ValueKind},
};

/// Whether it has a length and items; texts and mappings have.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

/// `default(default_value='', boolean=false)`.
pub(super) fn default(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut arguments = Arguments::new(&given, named);
    let other = match given.first() {
        Some(none) if none.is_none() => arguments.next("default_value").map(|_| Value::from(()))?,
        _ => arguments.next("default_value")?.unwrap_or_else(|| "".into()),
    };
    let falsy = arguments.flag("boolean")?;
    arguments.end()?;
    Ok(if value.is_undefined() || (falsy && !value.is_true()) { other } else { value.clone() })
}

/// As markupsafe does it.
pub(super) fn escape(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    Value::from_safe_string(out)
}

/// `trim(chars=none)`.
pub(super) fn trim(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let mut arguments = Arguments::new(&given, named);
    let chars = arguments.text("chars")?;
    arguments.end()?;
    let text = value.to_string();
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    })
}

/// `indent(width=4, first=false, blank=false)`; the width may be a text to put in front.
pub(super) fn indent(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let mut arguments = Arguments::new(&given, named);
    let front = match arguments.next("width")? {
        Some(text) if text.as_str().is_some() => text.to_string(),
        Some(width) => " ".repeat(i64::try_from(width)?.clamp(0, 256) as usize),
        None => " ".repeat(4),
    };
    let (first, blank) = (arguments.flag("first")?, arguments.flag("blank")?);
    arguments.end()?;
    let text = value.to_string();
    let mut out = String::with_capacity(text.len() + 64);
    for (i, line) in lines(&format!("{text}\n")).enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&front);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `str.splitlines()`.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_end = |c: char| matches!(c, '\n'..='\r' | '\x1C'..='\x1E' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let end = rest.find(is_end).unwrap_or(rest.len());
        let line = &rest[..end];
        let after = &rest[end..];
        let mark = if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(0, char::len_utf8) };
        rest = &after[mark..];
        Some(line)
    })
}

/// `int(default=0)`; what is no number becomes the default.
pub(super) fn int(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut arguments = Arguments::new(&given, named);
    let default = arguments.next("default")?.unwrap_or_else(|| 0.into());
    arguments.end()?;
    let whole = |x: f64| (x.is_finite() && x.abs() < 9e18).then(|| Value::from(x.trunc() as i64));
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => f64::try_from(value.clone()).ok().and_then(whole).unwrap_or(default),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim_matches(is_space);
            let exact = text.parse::<i64>().ok().map(Value::from);
            exact.or_else(|| text.parse().ok().and_then(whole)).unwrap_or(default)
        }
        _ => default,
    })
}

/// `float(default=0.0)`; what is no number becomes the default.
pub(super) fn float(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut arguments = Arguments::new(&given, named);
    let default = arguments.next("default")?.unwrap_or_else(|| 0.0.into());
    arguments.end()?;
    let number = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().unwrap_or_default().trim_matches(is_space).parse().ok(),
        _ => None,
    };
    Ok(number.map_or(default, Value::from))
}
