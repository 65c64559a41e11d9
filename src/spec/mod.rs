//! Speculation: what is guessed (drafters) and what is kept of it (verification).
//!
//! A drafter only ever adds nodes to a tree. What becomes text is decided by [`walk`] alone, so the worst a drafter can
//! do is cost time. Adding one takes a file with its [`Kind`] and a line in [`KINDS`].

#![forbid(unsafe_code)]

mod automaton;
pub mod lookup;
pub mod tally;
pub mod verify;

pub use tally::Tally;
pub use verify::{Verdict, walk};

use crate::tree::{DraftTree, Token};
use anyhow::{Context, Result};
use std::fmt::{Display, Formatter, Write};

/// Guesses what comes next.
pub trait Drafter: Send {
    /// Tells what has become context, prompts included: every token once, in order.
    fn observe(&mut self, tokens: &[Token]) -> Result<()>;
    /// Adds guesses below the anchor of `tree`, which is the last token of `context`, until there is no more to say or the
    /// tree takes no more. All of `context` has been observed. Other drafters' nodes may be there already.
    fn draft(&mut self, context: &[Token], tree: &mut DraftTree) -> Result<()>;
    /// Forgets everything observed: the session begins anew.
    fn reset(&mut self);
}

/// All kinds of drafters. A new one adds its line here.
pub const KINDS: &[&Kind] = &[&lookup::KIND];

/// A kind of drafter, as `--draft` names it.
#[derive(Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// Its options.
    pub settings: &'static [Setting],
    /// Makes one, given the values of its options in their order.
    pub open: fn(&[usize]) -> Result<Box<dyn Drafter>>,
}

/// An option of a drafter: a number.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// Its value when none is given.
    pub default: usize,
    /// The least and the most it can be.
    pub range: (usize, usize),
}

/// A drafter to be made: its kind and the values of all its options.
#[derive(Clone, Debug)]
pub struct Choice {
    kind: &'static Kind,
    values: Vec<usize>,
}

impl Choice {
    /// Reads `KIND[,key=value...]`.
    pub fn parse(text: &str) -> Result<Choice> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let kind = *kind.with_context(|| {
            let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            format!("found kind '{name}', supported: none, {} ('help' tells more)", names.join(", "))
        })?;
        let mut values: Vec<usize> = kind.settings.iter().map(|setting| setting.default).collect();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let at = kind.settings.iter().position(|setting| setting.name == key);
            let at = at.with_context(|| {
                let keys: Vec<_> = kind.settings.iter().map(|setting| setting.name).collect();
                format!("{name}: found option '{key}', supported: {}", keys.join(", "))
            })?;
            let (least, most) = kind.settings[at].range;
            let number = value.parse().ok().filter(|n| (least..=most).contains(n));
            values[at] = number.with_context(|| {
                format!("{name}: {key}: found '{value}', supported a number from {least} to {most}")
            })?;
        }
        Ok(Choice { kind, values })
    }

    /// Makes the drafter.
    pub fn open(&self) -> Result<Box<dyn Drafter>> {
        (self.kind.open)(&self.values).with_context(|| self.to_string())
    }
}

impl Display for Choice {
    /// With all options, as it could be typed.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind.name)?;
        let mut settings = self.kind.settings.iter().zip(&self.values);
        settings.try_for_each(|(setting, value)| write!(f, ",{}={value}", setting.name))
    }
}

/// Every kind with its options and their defaults, for people.
pub fn help() -> String {
    let mut text = String::from("--draft KIND[,key=value...], repeatable: several drafters fill one tree\n\n");
    let _ = writeln!(text, "none\n    No drafter (the default): one token a pass");
    for kind in KINDS {
        let _ = writeln!(text, "{}\n    {}", kind.name, kind.help);
        for Setting { name, help, default, range: (least, most) } in kind.settings {
            let _ = writeln!(text, "    {:<10} {help} [default: {default}, {least} to {most}]", format!("{name}=N"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_shown() {
        for kind in KINDS {
            let choice = Choice::parse(kind.name).unwrap();
            let defaults: Vec<usize> = kind.settings.iter().map(|s| s.default).collect();
            assert_eq!(choice.values, defaults);
            assert_eq!(Choice::parse(&choice.to_string()).unwrap().values, defaults);
            choice.open().unwrap();
            for (i, s) in kind.settings.iter().enumerate() {
                assert!((s.range.0..=s.range.1).contains(&s.default), "{} {}", kind.name, s.name);
                for value in [s.range.0, s.range.1] {
                    let choice = Choice::parse(&format!("{},{}={value}", kind.name, s.name)).unwrap();
                    assert_eq!(choice.values[i], value);
                    choice.open().unwrap();
                }
                assert!(help().contains(&format!("{}=N", s.name)));
            }
            assert!(help().contains(kind.help));
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (text, needle) in [
            ("", "found kind '', supported: none, lookup"),
            ("lookop", "found kind 'lookop', supported: none, lookup"),
            ("lookup:x", "found kind 'lookup:x'"),
            ("lookup,", "lookup: found option '', supported: min, max, width"),
            ("lookup,mim=2", "lookup: found option 'mim', supported: min, max, width"),
            ("lookup,min", "lookup: min: found '', supported a number from 1"),
            ("lookup,min=0", "lookup: min: found '0'"),
            ("lookup,max=-1", "lookup: max: found '-1'"),
            ("lookup,max=64", "lookup: max: found '64', supported a number from 1 to 63"),
            ("lookup,width=99999999999999999999", "lookup: width: found '999"),
        ] {
            let error = format!("{:#}", Choice::parse(text).unwrap_err());
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
