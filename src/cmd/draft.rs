//! From `--draft` and `--draft-max` to a session's drafters.

use super::load::{Language, Opened};
use super::report::Report;
use super::{Usage, memory};
use crate::backend::cpu::Cpu;
use crate::cli::DraftArgs;
use crate::engine::{Plan, Session};
use crate::spec::{Accept, Choice, Nodes, Target};
use anyhow::{Result, bail, ensure};

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
pub fn install(
    args: &DraftArgs,
    choices: &[Choice],
    opened: &Opened,
    language: &Language,
    report: &Report,
    session: &mut Session<Cpu>,
) -> Result<Option<Setup>> {
    if choices.is_empty() {
        return Ok(None);
    }
    if args.accept == Accept::Typical {
        report.warn("--accept typical is lossy: the text has another distribution than the model's");
    }
    let admit = |bytes| match memory::free() {
        Some(free) if bytes > free => {
            bail!("it needs {} of memory, {} are free", memory::size(bytes), memory::size(free))
        }
        _ => Ok(()),
    };
    let Opened { model, context, kv, .. } = opened;
    let target = Target { model, tokenizer: &language.tokenizer, context: *context, kv: *kv, admit: &admit };
    let mut choices: Vec<&Choice> = choices.iter().collect();
    choices.sort_by_key(|choice| choice.kind().rank);
    let drafters = choices.iter().map(|choice| choice.open(&target)).collect::<Result<_>>()?;
    session.set_drafters(drafters, Plan { nodes: args.draft_max, accept: args.accept });
    let drafters = choices.iter().map(|choice| choice.to_string()).collect();
    Ok(Some(Setup { drafters, nodes: args.draft_max, accept: args.accept }))
}
