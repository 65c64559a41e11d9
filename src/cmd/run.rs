//! `run`: one prompt, one answer.
//!
//! stdout gets the text as it comes and, unless it ends with one or is empty, a newline; nothing else.

use super::answer::Answer;
use super::cache::Cache;
use super::load::{self, Language};
use super::paint;
use super::place::{self, OnPlace, Place};
use super::report::Report;
use super::stats::{Sink, Stats};
use super::{Interrupted, Usage, draft, grammar, input, interrupt::Interrupt, prompt, sampling, template};
use crate::cli::RunArgs;
use crate::engine::{Finish, Limits};
use crate::text::{Message, TextStream};
use crate::tree::Token;
use anyhow::{Result, bail};
use std::ops::ControlFlow::{Break, Continue};
use std::time::Instant;

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    place::choose(&args.model, &Report::new(&args.report), args)
}

impl OnPlace for &RunArgs {
    fn run(self, place: &impl Place) -> Result<()> {
        answer(self, place)
    }
}

fn answer(args: &RunArgs, place: &impl Place) -> Result<()> {
    let report = Report::new(&args.report);
    let interrupt = Interrupt::install()?;
    let params = sampling::params(&args.sampling)?;
    let choices = draft::choices(&args.draft)?;
    let template = template::choice(&args.template)?;
    let asked = grammar::asked(&args.grammar)?;
    let stops = stops(&args.stop, args.shape.escape)?;
    let system = args.system.as_deref().map(|text| input::argument("--system", text, args.shape.escape)).transpose()?;
    let sink = Sink::open(args.report.stats.as_ref())?;
    let text = input::shaped(&args.text, &args.shape)?;

    let started = Instant::now();
    let (opened, mut language) = load::all(&args.model, place, &report)?;
    template.install(&mut language);
    let seed = sampling::seed(&args.sampling);
    let tokenizer = &language.tokenizer;
    let mut sampler = sampling::sampler(params, seed, tokenizer)?;
    sampler.constrain(grammar::constraint(asked.as_ref(), tokenizer)?);
    let mut session = opened.session()?;
    let drafting = draft::install(&args.draft, &choices, &opened, &language, &report, &mut session)?;
    let cache = Cache::open(args.prompt_cache.as_deref(), &args.model, &opened, &mut session, &report)?;
    let mut paint = args.show_draft.then(|| paint::start(drafting.as_ref(), &mut session, &report)).flatten();
    let mut stats = Stats::new(&args.model.model, &opened, seed, drafting, started.elapsed());

    let (tokens, is_chat) = tokens(args, &text, system.as_deref(), &language, &report)?;
    report.detail(2, format_args!("prompt: {:?}", prompt::shown(&language, &tokens)));
    report.detail(2, format_args!("prompt ids: {tokens:?}"));

    interrupt.watch();
    let Some(read) = prompt::read(&mut session, &tokens, &interrupt, &report)? else { bail!(Interrupted) };

    sampling::tell_seed(&args.sampling, seed, &report);
    let mut answer = Answer::new(prompt::ends_in_thought(&language, &tokens));
    if args.shape.echo {
        answer.echo(&text, is_chat)?;
    }
    let mut stream = TextStream::new(tokenizer, &stops, args.special);
    let limits = Limits { max_tokens: usize::try_from(args.n_predict).ok(), ends: tokenizer.end_tokens(), begun: 0 };
    let outcome = session.generate(
        &mut sampler,
        limits,
        || interrupt.asked(),
        |token| {
            let text = stream.push(token);
            match &mut paint {
                None => answer.write(&text)?,
                Some(paint) => answer.write_painted(&text, &paint.token(&text, stream.held()))?,
            }
            Ok(if stream.stopped() { Break(()) } else { Continue(()) })
        },
    );
    // Whatever ended it, what was generated is shown.
    let rest = stream.finish();
    match &mut paint {
        None => answer.write(&rest)?,
        Some(paint) => answer.write_painted(&rest, &paint.text(&rest))?,
    }
    answer.end()?;
    let outcome = outcome?;
    stats.add_reused(read.reused);
    stats.add(tokens.len(), read.time, &outcome);
    stats.weigh(&session);
    stats.tell(&report, sink)?;
    cache.map_or(Ok(()), |cache| cache.save(&session))?;
    if outcome.finish == Finish::Interrupted {
        bail!(Interrupted);
    }
    Ok(())
}

/// The texts that end an answer.
pub fn stops(given: &[String], escape: bool) -> Result<Vec<String>> {
    let stops = given.iter().map(|stop| input::argument("--stop", stop, escape)).collect::<Result<Vec<_>>>()?;
    if stops.iter().any(String::is_empty) {
        bail!(Usage("--stop: found an empty string, which would end every answer".into()));
    }
    Ok(stops)
}

/// What the model starts from: the text in the file's chat template where there is one and `--raw` does not forbid it,
/// else the text as it is. And whether it is the former.
fn tokens(
    args: &RunArgs,
    text: &str,
    system: Option<&str>,
    language: &Language,
    report: &Report,
) -> Result<(Vec<Token>, bool)> {
    if !args.raw {
        let system = system.iter().map(|system| Message::new("system", system));
        let messages: Vec<_> = system.chain([Message::new("user", text)]).collect();
        if let Some(tokens) = prompt::chat(language, &messages, &prompt::extra(args.think))? {
            return Ok((tokens, true));
        }
        if args.system.is_some() {
            bail!("--system: the model has no chat template to put a system message in");
        }
        report.note("the model has no chat template: it continues the text (--raw says so and silences this)");
    }
    if prompt::doubles_bos(language, text)? {
        report.warn("the text holds BOS although the model gets one anyway; at the start it is taken once");
    }
    Ok((prompt::raw(language, text)?, false))
}
