//! From `--draft` and `--draft-max` to a session's drafters.

use super::Usage;
use crate::backend::Backend;
use crate::cli::DraftArgs;
use crate::engine::Session;
use crate::spec::Choice;
use anyhow::{Result, bail};

/// What a session drafts with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its drafters, with all their options.
    pub drafters: Vec<String>,
    /// Guesses a round, at most.
    pub draft_max: usize,
}

/// The drafters asked for; none is as good as not asking.
pub fn choices(args: &DraftArgs) -> Result<Vec<Choice>> {
    let chosen: Vec<Choice> = args.draft.iter().flat_map(|draft| draft.0.clone()).collect();
    if !chosen.is_empty() && chosen.len() < args.draft.len() {
        bail!(Usage("--draft: found none beside another drafter, supported alone".into()));
    }
    Ok(chosen)
}

/// Gives `session` the drafters asked for, if any.
pub fn install<B: Backend>(args: &DraftArgs, choices: &[Choice], session: &mut Session<B>) -> Result<Option<Setup>> {
    if choices.is_empty() {
        return Ok(None);
    }
    let drafters = choices.iter().map(Choice::open).collect::<Result<_>>()?;
    session.set_drafters(drafters, args.draft_max);
    let drafters = choices.iter().map(Choice::to_string).collect();
    Ok(Some(Setup { drafters, draft_max: args.draft_max }))
}
