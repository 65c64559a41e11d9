//! The drafters there are, and the choice of some of them: `KIND[:PATH][,key=value...]`.

use super::{Drafter, Target};
use crate::backend::Backend;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::{Display, Formatter, Write};
use std::path::{Path, PathBuf};

/// A kind of drafter, as `--draft` names it.
#[derive(Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// What the file after the colon is, for kinds that read one.
    pub path: Option<&'static str>,
    /// Its options.
    pub settings: &'static [Setting],
    /// Drafters of a lower rank guess first: those that look things up before those that compute.
    pub rank: u8,
}

/// An option of a drafter.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// What it can be.
    pub kind: SettingKind,
}

/// What an option can be.
#[derive(Clone, Copy, Debug)]
pub enum SettingKind {
    /// A whole number: its default, the least and the most.
    Count(usize, (usize, usize)),
    /// A number: its default, the least and the most.
    Real(f64, (f64, f64)),
    /// One of some words: the default, and all of them.
    Word(&'static str, &'static [&'static str]),
    /// Files; the option can be given again for more of them.
    Files,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Count(usize),
    Real(f64),
    Word(&'static str),
    Files(Vec<PathBuf>),
}

/// A drafter to be made: its kind and the values of all its options.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    index: usize,
    path: Option<PathBuf>,
    values: Vec<Value>,
}

type Open<B> = fn(&Choice, &Target<'_, B>) -> Result<Box<dyn Drafter<B>>>;

/// The table: for each kind the module that has its `KIND` and its `open`.
macro_rules! kinds {
    ($($module:ident),*) => {
        /// All kinds of drafters.
        pub const KINDS: &[&Kind] = &[$(&super::$module::KIND),*];

        fn openers<B: Backend>() -> [Open<B>; KINDS.len()] {
            [$(super::$module::open::<B>),*]
        }
    };
}

kinds!(lookup, standalone, medusa, eagle);

impl SettingKind {
    fn default(self) -> Value {
        match self {
            SettingKind::Count(default, _) => Value::Count(default),
            SettingKind::Real(default, _) => Value::Real(default),
            SettingKind::Word(default, _) => Value::Word(default),
            SettingKind::Files => Value::Files(vec![]),
        }
    }

    /// Takes `text` over the value so far.
    fn take(self, value: &mut Value, text: &str) -> Result<()> {
        match (self, value) {
            (SettingKind::Count(_, (least, most)), value) => {
                let number = text.parse().ok().filter(|n| (least..=most).contains(n));
                let number =
                    number.with_context(|| format!("found '{text}', supported a number from {least} to {most}"))?;
                *value = Value::Count(number);
            }
            (SettingKind::Real(_, (least, most)), value) => {
                let number = text.parse().ok().filter(|n| (least..=most).contains(n));
                let number =
                    number.with_context(|| format!("found '{text}', supported a number from {least} to {most}"))?;
                *value = Value::Real(number);
            }
            (SettingKind::Word(_, words), value) => {
                let word = words.iter().find(|word| **word == text);
                *value = Value::Word(word.with_context(|| format!("found '{text}', supported: {}", words.join(" ")))?);
            }
            (SettingKind::Files, Value::Files(files)) => {
                ensure!(!text.is_empty(), "found no file name");
                files.push(text.into());
            }
            (SettingKind::Files, _) => unreachable!("a value has the kind of its setting"),
        }
        Ok(())
    }
}

impl Choice {
    /// Reads `KIND[:PATH][,key=value...]`. A path may hold colons but no comma.
    pub fn parse(text: &str) -> Result<Choice> {
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or_default();
        let (name, path) = head.split_once(':').map_or((head, None), |(name, path)| (name, Some(path)));
        let index = KINDS.iter().position(|kind| kind.name == name).with_context(|| {
            let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            format!("found kind '{name}', supported: none, {} ('help' tells more)", names.join(", "))
        })?;
        let kind = KINDS[index];
        let path = match (kind.path, path) {
            (None, Some(path)) => bail!("{name}: found '{path}' after the colon, it takes no file"),
            (Some(what), None | Some("")) => bail!("{name}: found no file, supported {name}:FILE, {what}"),
            (_, path) => path.map(PathBuf::from),
        };
        let mut values: Vec<Value> = kind.settings.iter().map(|setting| setting.kind.default()).collect();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let at = kind.settings.iter().position(|setting| setting.name == key);
            let at = at.with_context(|| {
                let keys: Vec<_> = kind.settings.iter().map(|setting| setting.name).collect();
                format!("{name}: found option '{key}', supported: {}", keys.join(", "))
            })?;
            kind.settings[at].kind.take(&mut values[at], value).with_context(|| format!("{name}: {key}"))?;
        }
        Ok(Choice { index, path, values })
    }

    /// Its kind.
    pub fn kind(&self) -> &'static Kind {
        KINDS[self.index]
    }

    /// The file after the colon; empty for kinds that take none.
    pub fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Option number `i`, a [`SettingKind::Count`].
    pub fn count(&self, i: usize) -> usize {
        match self.values[i] {
            Value::Count(n) => n,
            _ => unreachable!("{}: option {i} is no count", self.kind().name),
        }
    }

    /// Option number `i`, a [`SettingKind::Real`].
    pub fn real(&self, i: usize) -> f64 {
        match self.values[i] {
            Value::Real(x) => x,
            _ => unreachable!("{}: option {i} is no number", self.kind().name),
        }
    }

    /// Option number `i`, a [`SettingKind::Word`].
    pub fn word(&self, i: usize) -> &'static str {
        match self.values[i] {
            Value::Word(word) => word,
            _ => unreachable!("{}: option {i} is no word", self.kind().name),
        }
    }

    /// Option number `i`, [`SettingKind::Files`].
    pub fn files(&self, i: usize) -> &[PathBuf] {
        match &self.values[i] {
            Value::Files(files) => files,
            _ => unreachable!("{}: option {i} is no list of files", self.kind().name),
        }
    }

    /// Makes the drafter.
    pub fn open<B: Backend>(&self, target: &Target<'_, B>) -> Result<Box<dyn Drafter<B>>> {
        openers::<B>()[self.index](self, target).with_context(|| format!("--draft {self}"))
    }
}

impl Display for Choice {
    /// With all options, as it could be typed.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind().name)?;
        if let Some(path) = &self.path {
            write!(f, ":{}", path.display())?;
        }
        for (setting, value) in self.kind().settings.iter().zip(&self.values) {
            match value {
                Value::Count(n) => write!(f, ",{}={n}", setting.name)?,
                Value::Real(x) => write!(f, ",{}={x}", setting.name)?,
                Value::Word(word) => write!(f, ",{}={word}", setting.name)?,
                Value::Files(files) => {
                    files.iter().try_for_each(|file| write!(f, ",{}={}", setting.name, file.display()))?;
                }
            }
        }
        Ok(())
    }
}

/// Every kind with its options and their defaults, for people.
pub fn help() -> String {
    let mut text = String::from("--draft KIND[:FILE][,key=value...], repeatable: several drafters fill one tree\n\n");
    let _ = writeln!(text, "none\n    No drafter (the default): one token a pass");
    for kind in KINDS {
        let file = if kind.path.is_some() { ":FILE" } else { "" };
        let _ = writeln!(text, "{}{file}\n    {}", kind.name, kind.help);
        for Setting { name, help, kind } in kind.settings {
            let (what, default) = match kind {
                SettingKind::Count(default, (least, most)) => ("N", format!("{default}, {least} to {most}")),
                SettingKind::Real(default, (least, most)) => ("X", format!("{default}, {least} to {most}")),
                SettingKind::Word(default, words) => ("WORD", format!("{default}, one of {}", words.join(" "))),
                SettingKind::Files => ("FILE", "none, repeatable".into()),
            };
            let _ = writeln!(text, "    {:<12} {help} [default: {default}]", format!("{name}={what}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What to type for a kind when only its name matters.
    fn typed(kind: &Kind) -> String {
        kind.name.to_owned() + if kind.path.is_some() { ":a:b.gguf" } else { "" }
    }

    #[test]
    fn choices_are_read_and_shown() {
        for kind in KINDS {
            let choice = Choice::parse(&typed(kind)).unwrap();
            let defaults: Vec<Value> = kind.settings.iter().map(|s| s.kind.default()).collect();
            assert_eq!(choice.values, defaults);
            assert_eq!(choice.path(), Path::new(if kind.path.is_some() { "a:b.gguf" } else { "" }));
            for (i, s) in kind.settings.iter().enumerate() {
                let values = match s.kind {
                    SettingKind::Count(default, (least, most)) => {
                        assert!((least..=most).contains(&default), "{} {}", kind.name, s.name);
                        vec![(least.to_string(), Value::Count(least)), (most.to_string(), Value::Count(most))]
                    }
                    SettingKind::Real(default, (least, most)) => {
                        assert!((least..=most).contains(&default), "{} {}", kind.name, s.name);
                        vec![(least.to_string(), Value::Real(least)), (most.to_string(), Value::Real(most))]
                    }
                    SettingKind::Word(default, words) => {
                        assert!(words.contains(&default), "{} {}", kind.name, s.name);
                        words.iter().map(|&word| (word.into(), Value::Word(word))).collect()
                    }
                    SettingKind::Files => {
                        let (key, two) = (s.name, ["x".into(), "y=z".into()].to_vec());
                        vec![(format!("x,{key}=y=z"), Value::Files(two))]
                    }
                };
                for (text, value) in values {
                    let choice = Choice::parse(&format!("{},{}={text}", typed(kind), s.name)).unwrap();
                    assert_eq!(choice.values[i], value);
                    assert_eq!(Choice::parse(&choice.to_string()).unwrap().values, choice.values);
                }
                assert!(help().contains(&format!("\n    {}=", s.name)));
            }
            assert!(help().contains(kind.help));
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (text, needle) in [
            ("", "found kind '', supported: none, lookup"),
            ("lookop", "found kind 'lookop', supported: none, lookup"),
            ("lookup:x", "lookup: found 'x' after the colon, it takes no file"),
            ("lookup,", "lookup: found option '', supported: min, max, width"),
            ("lookup,mim=2", "lookup: found option 'mim', supported: min, max, width"),
            ("lookup,min", "lookup: min: found '', supported a number from 1"),
            ("lookup,min=0", "lookup: min: found '0'"),
            ("lookup,max=-1", "lookup: max: found '-1'"),
            ("lookup,max=64", "lookup: max: found '64', supported a number from 1 to 63"),
            ("lookup,width=99999999999999999999", "lookup: width: found '999"),
            ("medusa:x,tree=oak", "medusa: tree: found 'oak', supported: auto static chain"),
        ] {
            let error = format!("{:#}", Choice::parse(text).unwrap_err());
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
