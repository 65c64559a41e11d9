//! `str` and `repr` of Python's values.

use super::check_length;
use minijinja::{Error, Value, value::ValueKind};

/// Deeper than this nothing is written.
const DEEPEST: usize = 200;

/// Whether Python writes such a value in its own way.
pub(super) fn differs(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map) || is_float(value)
}

pub(super) fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    repr(value, 0, &mut out)?;
    Ok(out)
}

fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    let group = |open: char, close: char, out: &mut String| {
        check_length(out)?;
        out.push(open);
        let items = value.try_iter()?.enumerate();
        for (i, item) in items.take_while(|_| depth < DEEPEST) {
            if i > 0 {
                out.push_str(", ");
            }
            repr(&item, depth + 1, out)?;
            if value.kind() == ValueKind::Map {
                out.push_str(": ");
                repr(&value.get_item(&item)?, depth + 1, out)?;
            }
        }
        if value.is_tuple() && value.len() == Some(1) {
            out.push(',');
        }
        out.push(close);
        Ok(())
    };
    match value.kind() {
        ValueKind::Seq if value.is_tuple() => return group('(', ')', out),
        ValueKind::Seq => return group('[', ']', out),
        ValueKind::Map => return group('{', '}', out),
        ValueKind::String => text(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if is_float(value) => out.push_str(&float(f64::try_from(value.clone())?)),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn text(s: &str, out: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            // Marks must come out as they went in.
            '\u{FDD0}'..='\u{FDEF}' => out.push(c),
            c if is_printable(c) => out.push(c),
            c if c < '\u{100}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c < '\u{10000}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push(quote);
}

/// Whether `repr` leaves a character as it is. Characters that Unicode has not assigned are taken for printable.
fn is_printable(c: char) -> bool {
    let hidden = c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c as u32, 0xAD | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x180E | 0x200B..=0x200F | 0x202A..=0x202E
            | 0x2060..=0x206F | 0xFEFF | 0xFFF9..=0xFFFB | 0xE000..=0xF8FF | 0xE0001..=0xE007F | 0xF0000..);
    !hidden
}

/// As Python's `repr`: shortest digits, an exponent below 1e-4 and from 1e16.
pub(super) fn float(x: f64) -> String {
    let magnitude = x.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{x:?}");
    }
    if !x.is_finite() {
        return if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let text = format!("{x:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_python_s() {
        let cases =
            [(1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1.5e-7, "1.5e-07"), (-2.5e200, "-2.5e+200"), (0.0, "0.0")];
        for (x, want) in cases {
            assert_eq!(float(x), want);
        }
        assert_eq!([f64::NAN, f64::INFINITY, -f64::INFINITY].map(float), ["nan", "inf", "-inf"]);
    }
}
