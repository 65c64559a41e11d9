//! `chat`: a conversation, from a terminal or a pipe.
//!
//! stdout gets the answers, each ending with a newline; prompts and everything else go elsewhere. On a terminal an error
//! costs a turn, in a pipe it ends the command, for nobody is there to say it again.

mod command;
mod lines;
mod talk;
mod turns;

use super::cache::{self, Cache};
use super::interrupt::Interrupt;
use super::load::{self, Opened};
use super::place::{self, OnPlace, Place};
use super::report::{self, Report};
use super::stats::{Sink, Stats};
use super::{Interrupted, draft, grammar, input, is_closed_pipe, paint, prompt, run, sampling, template};
use crate::backend::Backend;
use crate::cli::{ChatArgs, DraftArgs};
use crate::engine::Plan;
use crate::spec::{Choice, choice};
use anyhow::{Context, Result, bail};
use command::Line;
use lines::{Lines, Said};
use std::io::{IsTerminal, Write, stderr, stdin};
use std::ops::ControlFlow::{self, Break, Continue};
use std::path::Path;
use std::time::Instant;
use talk::Talk;
use turns::Turns;

/// Runs the command.
pub fn run(args: &ChatArgs) -> Result<()> {
    place::choose(&args.model, &Report::new(&args.report), args)
}

impl OnPlace for &ChatArgs {
    fn run(self, place: &impl Place) -> Result<()> {
        chat(self, place)
    }
}

fn chat(args: &ChatArgs, place: &impl Place) -> Result<()> {
    let report = Report::new(&args.report);
    let interrupt = Interrupt::install()?;
    let params = sampling::params(&args.sampling)?;
    let choices = draft::choices(&args.draft)?;
    let stops = run::stops(&args.stop, false)?;
    let template = template::choice(&args.template)?;
    let asked = grammar::asked(&args.grammar)?;
    let sink = Sink::open(args.report.stats.as_ref())?;

    let started = Instant::now();
    let (opened, mut language) = load::all(&args.model, place, &report)?;
    template.install(&mut language);
    match &language.template {
        Ok(Some(_)) => {}
        Ok(None) => {
            bail!("chat: the model has no chat template: give one with --chat-template, or continue a text with `run`")
        }
        Err(error) => bail!("{error:#}: chat needs the template"),
    }
    let seed = sampling::seed(&args.sampling);
    let mut sampler = sampling::sampler(params, seed, &language.tokenizer)?;
    sampler.constrain(grammar::constraint(asked.as_ref(), &language.tokenizer)?);
    let mut session = opened.session()?;
    let drafting = draft::install(&args.draft, &choices, &opened, &language, &report, &mut session)?;
    let cache = Cache::open(args.prompt_cache.as_deref(), &args.model, &opened, &mut session, &report)?;
    let paint = args.show_draft.then(|| paint::start(drafting.as_ref(), &mut session, &report)).flatten();
    let stats = Stats::new(&args.model.model, &opened, seed, drafting, started.elapsed());
    let mut lines = Lines::open(args.history.as_ref(), &report)?;
    sampling::tell_seed(&args.sampling, seed, &report);
    if stdin().is_terminal() {
        report.note("/help lists commands, Ctrl-D ends");
    }

    let talk = Talk {
        language: &language,
        session,
        sampler,
        turns: Turns::new(args.system.clone()),
        extra: prompt::extra(args.think),
        stops,
        max_tokens: usize::try_from(args.n_predict).ok(),
        stats,
        paint,
        interrupt: &interrupt,
        report,
    };
    let mut chat = Chat { talk, opened: &opened, draft: &args.draft, given: String::new() };
    let ended = chat.converse(&mut lines);
    let Talk { session, stats, .. } = chat.talk;
    if ended.is_ok() || ended.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
        cache.map_or(Ok(()), |cache| cache.save(&session))?;
    }
    if sink.is_some() || args.report.verbose > 0 {
        stats.tell(&report, sink)?;
    }
    ended
}

struct Chat<'a, B: Backend> {
    talk: Talk<'a, B>,
    opened: &'a Opened<B>,
    draft: &'a DraftArgs,
    /// Text of files that goes with the next message.
    given: String,
}

impl<B: Backend> Chat<'_, B> {
    /// Message by message to the end.
    fn converse(&mut self, lines: &mut Lines) -> Result<()> {
        let (interrupt, report, terminal) = (self.talk.interrupt, self.talk.report, stdin().is_terminal());
        let mut pressed = false;
        loop {
            if terminal {
                interrupt.watch(); // one that comes too late for an answer is no reason to end
            }
            let text = match lines.next(interrupt.modes(), &report)? {
                Said::End => return Ok(()),
                Said::Text(text) => text,
                Said::Interrupt { empty: true } if pressed => bail!(Interrupted),
                Said::Interrupt { empty } => {
                    pressed = empty;
                    if empty {
                        report.note("Ctrl-C again ends, Ctrl-D too");
                    }
                    continue;
                }
            };
            pressed = false;
            match self.act(&text) {
                Ok(Break(())) => return Ok(()),
                Ok(Continue(())) => {}
                Err(error) if !terminal || is_closed_pipe(&error) => return Err(error),
                Err(error) => {
                    let _ = writeln!(stderr(), "error: {}", report::one_line(&format!("{error:#}")));
                }
            }
            if interrupt.ends() || !terminal && interrupt.unwatch().is_err() {
                bail!(Interrupted);
            }
        }
    }

    /// Does what a line says.
    fn act(&mut self, text: &str) -> Result<ControlFlow<()>> {
        let talk = &mut self.talk;
        match command::parse(text)? {
            Line::Message(text) => {
                let message = std::mem::take(&mut self.given) + &text;
                talk.answer(&message)?;
            }
            Line::Regen => {
                let turn = talk.turns.pop().context("/regen: nothing has been said yet")?;
                let answered = talk.answer(&turn.message);
                if !matches!(answered, Ok(true)) {
                    talk.turns.push(turn);
                }
                answered?;
            }
            Line::Undo => {
                talk.turns.pop().context("/undo: nothing has been said yet")?;
            }
            Line::Clear => {
                talk.turns.clear();
                self.given.clear();
            }
            Line::System(text) => talk.turns.system = text,
            Line::Read(path) => self.read(&path)?,
            Line::Save(path) => {
                let json = talk.turns.to_json()?;
                cache::replace(&path, |file| file.write_all(json.as_bytes()))
                    .with_context(|| format!("/save: {}", path.display()))?;
                talk.report.note(format_args!("{} turns saved", talk.turns.all().len()));
            }
            Line::Load(path) => {
                let text = input::file(&path).context("/load")?;
                let text = input::without_mark(&text);
                talk.turns = Turns::from_json(text).with_context(|| format!("/load: {}", path.display()))?;
                talk.report.note(format_args!("{} turns loaded", talk.turns.all().len()));
            }
            Line::Draft(kinds) => self.draft(kinds.as_deref())?,
            Line::Stats => talk.stats.clone().tell(&Report::default(), None)?,
            Line::Help => Report::default().note(command::help()),
            Line::Quit => return Ok(Break(())),
        }
        Ok(Continue(()))
    }

    /// Keeps a file's text for the next message.
    fn read(&mut self, path: &Path) -> Result<()> {
        let text = input::file(path).context("/read")?;
        let text = input::without_mark(&text);
        self.given += text;
        if !text.is_empty() && !text.ends_with('\n') {
            self.given.push('\n');
        }
        self.talk.report.note(format_args!("{} bytes go with the next message", self.given.len()));
        Ok(())
    }

    /// Changes the drafters, or tells what they are.
    fn draft(&mut self, kinds: Option<&str>) -> Result<()> {
        let talk = &mut self.talk;
        let choices = match kinds {
            None => {
                Report::default().note(format_args!("drafting: {}", talk.stats.drafters()));
                return Ok(());
            }
            Some("help") => {
                Report::default().note(choice::help());
                return Ok(());
            }
            Some("none") => vec![],
            // The name of a file may have spaces.
            Some(kinds) => match Choice::parse(kinds) {
                Ok(one) => vec![one],
                Err(_) => kinds.split_whitespace().map(Choice::parse).collect::<Result<_>>().context("/draft")?,
            },
        };
        let drafting =
            draft::install(self.draft, &choices, self.opened, talk.language, &talk.report, &mut talk.session)?;
        if drafting.is_none() {
            talk.session.set_drafters(vec![], Plan { nodes: self.draft.draft_max, accept: self.draft.accept })?;
        }
        talk.stats.set_drafting(drafting);
        talk.report.note(format_args!("drafting: {}", talk.stats.drafters()));
        Ok(())
    }
}
