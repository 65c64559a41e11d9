//! What chat templates expect of Python and the template engine does not bring: `tojson` as `json.dumps` writes it
//! (Hugging Face's filter: no HTML escapes, keyword arguments), and `strftime`.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};
use serde_json::Value as Json;
use std::time::SystemTime;

/// The filter `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = kwargs.get::<Option<usize>>("indent")?;
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|v| v.kind() == ValueKind::Seq);
    let (comma, colon) = match separators {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = Style {
        indent,
        comma,
        colon,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let json =
        serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::BadSerialization, "tojson").with_source(e))?;
    let mut out = String::new();
    style.write(&json, 0, &mut out);
    Ok(Value::from_safe_string(out))
}

struct Style {
    indent: Option<usize>,
    comma: String,
    colon: String,
    ascii: bool,
    sort: bool,
}

impl Style {
    fn write(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Null => out.push_str("null"),
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
                Some(x) => out.push_str(&float(x)),
                None => out.push_str(&n.to_string()),
            },
            Json::String(s) => self.string(s, out),
            Json::Array(items) => self.group('[', ']', items.iter(), depth, out, |item, out| {
                self.write(item, depth + 1, out);
            }),
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.group('{', '}', entries.into_iter(), depth, out, |(key, item), out| {
                    self.string(key, out);
                    out.push_str(&self.colon);
                    self.write(item, depth + 1, out);
                });
            }
        }
    }

    fn group<T>(
        &self,
        open: char,
        close: char,
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        write: impl Fn(T, &mut String),
    ) {
        let empty = items.len() == 0;
        let new_line = |depth: usize, out: &mut String| {
            if let Some(width) = self.indent.filter(|_| !empty) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', width.min(64) * depth));
            }
        };
        out.push(open);
        for (i, item) in items.enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            new_line(depth + 1, out);
            write(item, out);
        }
        new_line(depth, out);
        out.push(close);
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

/// As Python's `repr`: shortest digits, an exponent below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    let magnitude = x.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{x:?}");
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

/// The present time (UTC) in the usual directives of `strftime`; others stay as they are.
pub(super) fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(format, seconds)
}

fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = day;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (name, weekday) = (MONTHS[month], DAYS[(days % 7) as usize]);
    let hour12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        let directive = if c == '%' { chars.next() } else { None };
        out += &match directive {
            None => c.to_string(),
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{:02}", month + 1),
            Some('d') => format!("{:02}", day + 1),
            Some('e') => format!("{:2}", day + 1),
            Some('j') => format!("{:03}", day_of_year + 1),
            Some('B') => name.to_owned(),
            Some('b' | 'h') => name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{hour12:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('F') => format!("{year}-{:02}-{:02}", month + 1, day + 1),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendar_s() {
        let cases = [
            (0, "Thu 01 January 1970 001 12AM"),
            (951_782_400, "Tue 29 February 2000 060 12AM"),
            (1_735_689_599, "Tue 31 December 2024 366 11PM"),
            (4_107_542_400, "Mon 01 March 2100 060 12AM"),
        ];
        for (seconds, want) in cases {
            assert_eq!(strftime("%a %d %B %Y %j %I%p", seconds), want);
        }
        assert_eq!(strftime("%F %T 100%% %q %", 86_399), "1970-01-01 23:59:59 100% %q %");
    }

    #[test]
    fn floats_are_python_s() {
        let cases =
            [(1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1.5e-7, "1.5e-07"), (-2.5e200, "-2.5e+200"), (0.0, "0.0")];
        for (x, want) in cases {
            assert_eq!(float(x), want);
        }
    }
}
