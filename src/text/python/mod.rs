//! What chat templates expect of Python's jinja2 and the template engine does not bring, or brings otherwise.
//!
//! Templates are written for Hugging Face's set-up: `tojson` that is `json.dumps`, `strftime_now`, `raise_exception`,
//! `{% generation %}`, no HTML escapes. Known to differ: where Python fails by itself (a loop over `None`, a comparison
//! of kinds that have no order) the engine may go on; text added to what the filter `safe` made is not escaped; `%` of
//! a string and unary `+` are errors.

mod arguments;
mod filters;
mod generation;
mod json;
mod methods;
mod repr;
mod time;

pub(super) use generation::without_generation;

use arguments::Arguments;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::time::SystemTime;

/// Marks an error as the template's own.
#[derive(Debug)]
pub(super) struct Raised;

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Raised {}

/// Makes the engine's filters, tests, functions and methods Python's.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_formatter(|out, state, value| match repr::differs(value) {
        true => Ok(out.write_str(&repr::str(value)?)?),
        false => minijinja::escape_formatter(out, state, value),
    });
    environment.set_unknown_method_callback(methods::call);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", filters::is_sequence);
    environment.add_filter("default", filters::default);
    environment.add_filter("d", filters::default);
    environment.add_filter("e", filters::escape);
    environment.add_filter("escape", filters::escape);
    environment.add_filter("float", filters::float);
    environment.add_filter("indent", filters::indent);
    environment.add_filter("int", filters::int);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", filters::trim);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
    });
    environment.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        time::strftime(format, now.map_or(0, |passed| passed.as_secs()))
    });
}

/// Stops the clock that `strftime_now` reads, at seconds since the start of 1970, UTC.
pub(super) fn set_clock(environment: &mut Environment<'_>, seconds: u64) {
    environment.add_function("strftime_now", move |format: &str| time::strftime(format, seconds));
}

/// What `str.strip` takes away: a few separators more than Unicode's white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1C'..='\x1F').contains(&c)
}

/// Longest text made of a value, in bytes: one that holds another twice, and so on, would fill any memory.
const LONGEST: usize = 1 << 24;

fn check_length(out: &str) -> Result<(), Error> {
    match out.len() {
        ..=LONGEST => Ok(()),
        _ => Err(invalid(format!("a value's text is longer than {LONGEST} bytes, which is not supported"))),
    }
}

fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}
