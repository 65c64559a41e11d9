//! `run`: one prompt, one answer.
//!
//! stdout gets the text as it comes and, unless it ends with one or is empty, a newline; nothing else.

use super::draft::Setup;
use super::load::{self, Language};
use super::paint::{self, Paint};
use super::report::{Report, Unit};
use super::stats::{Sink, Stats};
use super::{Interrupted, Usage, draft, grammar, input, interrupt::Interrupt, prompt, sampling, template};
use crate::backend::Backend;
use crate::cli::RunArgs;
use crate::engine::{CHUNK, Finish, Limits, Session};
use crate::text::{Message, TextStream};
use crate::tree::Token;
use anyhow::{Result, bail};
use std::io::{self, StdoutLock, Write};
use std::ops::ControlFlow::{Break, Continue};
use std::time::Instant;

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let report = Report::new(&args.report);
    let interrupt = Interrupt::install()?;
    let params = sampling::params(&args.sampling)?;
    let choices = draft::choices(&args.draft)?;
    let template = template::choice(&args.template)?;
    let asked = grammar::asked(&args.grammar)?;
    if args.stop.iter().any(String::is_empty) {
        bail!(Usage("--stop: found an empty string, which would end every answer".into()));
    }
    let sink = Sink::open(args.report.stats.as_ref())?;
    let text = input::read(&args.text)?;

    let started = Instant::now();
    let (opened, mut language) = load::all(&args.model, &report)?;
    template.install(&mut language);
    let seed = sampling::seed(&args.sampling);
    let tokenizer = &language.tokenizer;
    let mut sampler = sampling::sampler(params, seed, tokenizer)?;
    sampler.constrain(grammar::constraint(asked.as_ref(), tokenizer)?);
    let mut session = opened.session()?;
    let drafting = draft::install(&args.draft, &choices, &opened, &language, &report, &mut session)?;
    let mut paint = paint(args, drafting.as_ref(), &mut session, &report);
    let mut stats = Stats::new(&args.model.model, &opened, seed, drafting, started.elapsed());

    let tokens = tokens(args, input::without_mark(&text), &language, &report)?;
    report.detail(2, format_args!("prompt: {:?}", prompt::shown(&language, &tokens)));
    report.detail(2, format_args!("prompt ids: {tokens:?}"));

    interrupt.watch();
    let started = Instant::now();
    let bar = (tokens.len() > 2 * CHUNK).then(|| report.bar("reading the prompt", tokens.len() as u64, Unit::Tokens));
    let read = session.prefill(&tokens, |done| {
        bar.iter().for_each(|bar| bar.set_position(done as u64));
        if interrupt.asked() { Break(()) } else { Continue(()) }
    })?;
    bar.iter().for_each(|bar| bar.finish_and_clear());
    if read.is_break() {
        bail!(Interrupted);
    }
    let prefill = started.elapsed();

    sampling::tell_seed(&args.sampling, seed, &report);
    let mut answer = Answer { out: io::stdout().lock(), last: None };
    let mut stream = TextStream::new(tokenizer, &args.stop, args.special);
    let limits = Limits { max_tokens: usize::try_from(args.n_predict).ok(), ends: tokenizer.end_tokens() };
    let outcome = session.generate(
        &mut sampler,
        limits,
        || interrupt.asked(),
        |token| {
            let text = stream.push(token);
            match &mut paint {
                None => answer.write(&text)?,
                Some(paint) => answer.write(&paint.token(&text, stream.held()))?,
            }
            Ok(if stream.stopped() { Break(()) } else { Continue(()) })
        },
    );
    // Whatever ended it, what was generated is shown.
    let rest = stream.finish();
    answer.write(&paint.as_mut().map_or_else(|| rest.clone(), |paint| paint.text(&rest)))?;
    answer.end()?;
    let outcome = outcome?;
    stats.add(tokens.len(), prefill, &outcome);
    stats.weigh(&session);
    stats.tell(&report, sink)?;
    if outcome.finish == Finish::Interrupted {
        bail!(Interrupted);
    }
    Ok(())
}

/// The colours of `--show-draft`, where they are asked for and can be seen.
fn paint<B: Backend>(
    args: &RunArgs,
    drafting: Option<&Setup>,
    session: &mut Session<B>,
    report: &Report,
) -> Option<Paint> {
    if !args.show_draft {
        return None;
    }
    if !paint::is_seen() {
        report.note("--show-draft: stdout is no terminal that shows colours, the text stays plain");
        return None;
    }
    report.note(paint::legend(drafting.map_or(&[], |setup| &setup.drafters)));
    let paint = Paint::default();
    session.watch(Some(paint.witness()));
    Some(paint)
}

/// What the model starts from: the text in the file's chat template where there is one and `--raw` does not forbid it,
/// else the text as it is.
fn tokens(args: &RunArgs, text: &str, language: &Language, report: &Report) -> Result<Vec<Token>> {
    if !args.raw {
        let system = args.system.iter().map(|system| Message::new("system", system));
        let messages: Vec<_> = system.chain([Message::new("user", text)]).collect();
        if let Some(tokens) = prompt::chat(language, &messages, &prompt::Extra::new())? {
            return Ok(tokens);
        }
        if args.system.is_some() {
            bail!("--system: the model has no chat template to put a system message in");
        }
        report.note("the model has no chat template: it continues the text (--raw says so and silences this)");
    }
    if prompt::doubles_bos(language, text)? {
        report.warn("the text holds BOS although the model gets one anyway; at the start it is taken once");
    }
    prompt::raw(language, text)
}

/// The text on stdout, piece by piece.
struct Answer {
    out: StdoutLock<'static>,
    last: Option<u8>,
}

impl Answer {
    fn write(&mut self, text: &str) -> io::Result<()> {
        let Some(&last) = text.as_bytes().last() else { return Ok(()) };
        self.last = Some(last);
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    fn end(&mut self) -> io::Result<()> {
        if self.last.is_some_and(|last| last != b'\n') { self.write("\n") } else { Ok(()) }
    }
}
