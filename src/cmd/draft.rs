//! From `--draft` and `--draft-max` to a session's drafters.

use super::load::{Language, Opened};
use super::report::{Report, Unit};
use super::{Usage, memory};
use crate::backend::Backend;
use crate::cli::DraftArgs;
use crate::engine::{Plan, Session};
use crate::spec::{Accept, Choice, Nodes, Target, Tell};
use anyhow::{Result, bail, ensure};
use indicatif::ProgressBar;
use std::cell::RefCell;

/// What a session drafts with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its drafters, with all their options.
    pub drafters: Vec<String>,
    /// Guesses a round.
    pub nodes: Nodes,
    /// The rule of acceptance.
    pub accept: Accept,
}

/// The drafters asked for; none is as good as not asking.
pub fn choices(args: &DraftArgs) -> Result<Vec<Choice>> {
    together(args.draft.iter().map(|draft| draft.0.clone()).collect())
        .map_err(|e| Usage(format!("--draft: {e}")).into())
}

/// The same from texts, as a request has them.
pub fn choices_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<Choice>> {
    let one = |text| if text == "none" { Ok(None) } else { Choice::parse(text).map(Some) };
    together(texts.into_iter().map(one).collect::<Result<_>>()?)
}

fn together(asked: Vec<Option<Choice>>) -> Result<Vec<Choice>> {
    let len = asked.len();
    let chosen: Vec<Choice> = asked.into_iter().flatten().collect();
    ensure!(chosen.is_empty() || chosen.len() == len, "found none beside another drafter, supported alone");
    Ok(chosen)
}

/// Gives `session` the drafters asked for, if any; those that look up first.
pub fn install<B: Backend>(
    args: &DraftArgs,
    choices: &[Choice],
    opened: &Opened<B>,
    language: &Language,
    report: &Report,
    session: &mut Session<B>,
) -> Result<Option<Setup>> {
    if choices.is_empty() {
        return Ok(None);
    }
    if args.accept == Accept::Typical {
        report.warn("--accept typical is lossy: the text has another distribution than the model's");
    }
    let admit = |bytes| match opened.free() {
        Some(free) if bytes > free => {
            bail!("it needs {} of memory, {} are free", memory::size(bytes), memory::size(free))
        }
        _ => Ok(()),
    };
    let bar = RefCell::new(None::<(&str, ProgressBar)>);
    let tell = |what| {
        let (name, done, total) = match what {
            Tell::Progress(name, done, total) => (name, done, total),
            Tell::Note(line) => return report.note(line),
            Tell::Warning(line) => return report.warn(line),
        };
        let mut bar = bar.borrow_mut();
        if bar.as_ref().is_none_or(|(shown, _)| *shown != name) {
            bar.take().iter().for_each(|(_, bar)| bar.finish_and_clear());
            *bar = Some((name, report.bar(name, total, Unit::Bytes)));
        }
        bar.iter().for_each(|(_, bar)| bar.set_position(done));
        if done == total {
            bar.take().iter().for_each(|(_, bar)| bar.finish_and_clear());
        }
    };
    let Opened { model, context, kv, .. } = opened;
    let tokenizer = &language.tokenizer;
    let target = Target { model, tokenizer, context: *context, kv: *kv, admit: &admit, tell: &tell };
    let mut choices: Vec<&Choice> = choices.iter().collect();
    choices.sort_by_key(|choice| choice.kind().rank);
    let drafters = choices.iter().map(|choice| choice.open(&target)).collect::<Result<_>>()?;
    session.set_drafters(drafters, Plan { nodes: args.draft_max, accept: args.accept })?;
    let drafters = choices.iter().map(|choice| choice.to_string()).collect();
    Ok(Some(Setup { drafters, nodes: args.draft_max, accept: args.accept }))
}
