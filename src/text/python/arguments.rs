//! Arguments as Python functions take them: each by its position or by its name.

use minijinja::{Error, ErrorKind, Value, value::Kwargs};

/// What a call was given, read one parameter after the other.
pub(super) struct Arguments<'a> {
    positional: &'a [Value],
    named: Kwargs,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(positional: &'a [Value], named: Kwargs) -> Self {
        Self { positional, named }
    }

    /// The next parameter's value, if the call has one that is not `none`.
    pub(super) fn next(&mut self, name: &str) -> Result<Option<Value>, Error> {
        let value = match self.positional.split_first() {
            Some((first, rest)) => {
                self.positional = rest;
                Some(first.clone())
            }
            None => self.named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none()))
    }

    /// The next parameter's value as a flag, false if there is none.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Error> {
        Ok(self.next(name)?.is_some_and(|value| value.is_true()))
    }

    /// The next parameter's value as text.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        let Some(value) = self.next(name)? else { return Ok(None) };
        let wrong =
            || Error::new(ErrorKind::InvalidOperation, format!("{name}: found {}, supported text", value.kind()));
        value.as_str().map(|text| Some(text.to_owned())).ok_or_else(wrong)
    }

    /// The next parameter's value as a number of things.
    pub(super) fn count(&mut self, name: &str) -> Result<Option<i64>, Error> {
        self.next(name)?.map(i64::try_from).transpose()
    }

    /// Checks that nothing was given that no parameter takes.
    pub(super) fn end(self) -> Result<(), Error> {
        if !self.positional.is_empty() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.named.assert_all_used()
    }
}
