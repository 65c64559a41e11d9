//! `batch`: JSON lines in, JSON lines out, in the same order, one at a time.
//!
//! Every line that is not blank gets its answer, flushed before the next is read, so that a program may wait for one
//! before it sends another. A line that cannot be answered gets an object with `error`; that is no failure of the
//! command. The model is loaded once. What a prompt has in common with the tokens of the request before is not evaluated
//! again; by laws 1 and 2 that changes no bit, and noise and drafters start anew, so that answers do not depend on what
//! came before (with `--accept exact`; other rules let the text depend on drafters).

use super::answered::Answered;
use super::lines::Lines;
use super::load::{self, Language, Opened};
use super::place::{self, OnPlace, Place};
use super::report::Report;
use super::request::{self, Ask, Request};
use super::stats::{Sink, Stats};
use super::{draft, grammar, input, interrupt::Interrupt, prompt, sampling, template};
use crate::backend::Backend;
use crate::cli::BatchArgs;
use crate::engine::{Finish, Limits, Plan, Session};
use crate::grammar::Lexicon;
use crate::sample::{SampleParams, derive_seed};
use crate::spec::{Accept, Choice, Nodes};
use crate::text::{Message, TextStream, kind};
use crate::tree::Token;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;
use std::time::Instant;

/// An answer's line.
#[derive(Serialize)]
struct Answer {
    id: Value,
    text: String,
    /// Everything generated but the end token.
    tokens: Vec<Token>,
    finish_reason: &'static str,
    usage: Usage,
    timings: Timings,
}

/// What was counted.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
}

/// What was timed.
#[derive(Serialize)]
struct Timings {
    prefill_s: f64,
    decode_s: f64,
    rounds: usize,
    /// Prompt tokens that had been evaluated before.
    reused: usize,
}

/// The line of a request that cannot be answered.
#[derive(Serialize)]
struct Failure {
    id: Value,
    finish_reason: &'static str,
    error: String,
}

/// Runs the command.
pub fn run(args: &BatchArgs) -> Result<()> {
    place::choose(&args.model, &Report::new(&args.report), args)
}

impl OnPlace for &BatchArgs {
    fn run(self, place: &impl Place) -> Result<()> {
        answer(self, place)
    }
}

fn answer(args: &BatchArgs, place: &impl Place) -> Result<()> {
    let report = Report::new(&args.report);
    let interrupt = Interrupt::install()?;
    let params = sampling::params(&args.sampling)?;
    let choices = draft::choices(&args.draft)?;
    let template = template::choice(&args.template)?;
    let asked = grammar::asked(&args.grammar)?;
    let sink = Sink::open(args.report.stats.as_ref())?;
    let mut answered = args.resume.as_deref().map(|path| Answered::read(path, &report)).transpose()?;
    let started = Instant::now();
    let (opened, mut language) = load::all(&args.model, place, &report)?;
    template.install(&mut language);
    let seed = sampling::seed(&args.sampling);
    sampling::sampler(params.clone(), seed, &language.tokenizer)?;
    grammar::constraint(asked.as_ref(), &language.tokenizer)?;
    let mut session = opened.session()?;
    let drafting = draft::install(&args.draft, &choices, &opened, &language, &report, &mut session)?;
    sampling::tell_seed(&args.sampling, seed, &report);
    let stats = Stats::new(&args.model.model, &opened, seed, drafting, started.elapsed());
    let drafters = names(&choices);
    let mut batch = Batch {
        args,
        opened,
        language,
        params,
        asked,
        lexicon: None,
        seed,
        session,
        choices,
        drafters,
        interrupt,
        report,
        stats,
    };

    let mut lines = Lines::new(io::stdin().lock());
    let mut out = io::stdout().lock();
    let (mut requests, mut errors) = (0, 0);
    while let Some((number, line)) = lines.next_line().context("stdin")? {
        if args.shard.is_some_and(|shard| !shard.has(number)) {
            continue;
        }
        let mut id = Value::from(number);
        let fields = line.and_then(|line| fields(line, &mut id));
        if answered.as_mut().is_some_and(|answered| answered.take(&id)) {
            continue;
        }
        let mut json = match batch.answer(fields, number, &id)? {
            Ok(answer) => serde_json::to_vec(&answer)?,
            Err(error) => {
                errors += 1;
                serde_json::to_vec(&Failure { id, finish_reason: "error", error: format!("{error:#}") })?
            }
        };
        requests += 1;
        json.push(b'\n');
        out.write_all(&json)?;
        out.flush()?;
    }
    if let Some(left) = answered.map(|answered| answered.left()).filter(|&left| left > 0 && args.shard.is_none()) {
        report.warn(format_args!("--resume: {left} of the answers have ids that no request has"));
    }
    batch.stats.requests = Some(requests);
    batch.stats.errors = Some(errors);
    batch.stats.weigh(&batch.session);
    batch.stats.tell(&report, sink)
}

/// The fields of a request. `id` is set once it is known.
fn fields(line: Vec<u8>, id: &mut Value) -> Result<Map<String, Value>> {
    let line = input::utf8("the line", line)?;
    let json: Value = serde_json::from_str(&line).map_err(|e| {
        let what = e.to_string();
        // The line is always 1.
        anyhow!("not JSON: {}", what.replace(" at line 1 column ", " at byte "))
    })?;
    let Value::Object(fields) = json else { bail!("found {}, supported an object", kind(&json)) };
    if let Some(given) = fields.get("id").filter(|given| !given.is_null()) {
        *id = given.clone();
    }
    Ok(fields)
}

/// Drafters as they could be typed.
fn names(choices: &[Choice]) -> Vec<String> {
    choices.iter().map(Choice::to_string).collect()
}

/// What all requests share.
struct Batch<'a, B: Backend> {
    args: &'a BatchArgs,
    opened: Opened<B>,
    language: Language,
    params: SampleParams,
    /// What answers must match, where a request does not say.
    asked: Option<grammar::Asked>,
    lexicon: Option<Arc<Lexicon>>,
    seed: u64,
    session: Session<B>,
    /// The drafters of requests that do not say.
    choices: Vec<Choice>,
    /// Those of the session.
    drafters: Vec<String>,
    interrupt: Interrupt,
    report: Report,
    stats: Stats,
}

impl<B: Backend> Batch<'_, B> {
    /// Answers one line. The outer error ends the command, the inner one is the line's.
    fn answer(&mut self, fields: Result<Map<String, Value>>, number: u64, id: &Value) -> Result<Result<Answer>> {
        let request = match fields.and_then(|fields| request::parse(fields, &self.params)) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        self.interrupt.watch();
        let answer = self.generate(request, number, id);
        self.interrupt.unwatch()?;
        Ok(answer)
    }

    /// Gives the session the drafters asked for, if it has others.
    fn draft_with(&mut self, asked: Option<&[Choice]>) -> Result<()> {
        let choices = asked.unwrap_or(&self.choices);
        let names = names(choices);
        if names == self.drafters {
            return Ok(());
        }
        self.session.clear()?;
        self.session.set_drafters(vec![], Plan { nodes: Nodes::Fixed(0), accept: Accept::Exact })?;
        self.drafters.clear();
        let (opened, language, report) = (&self.opened, &self.language, &self.report);
        let setup = draft::install(&self.args.draft, choices, opened, language, report, &mut self.session);
        self.stats.add_drafting(setup.context("draft")?);
        self.drafters = names;
        Ok(())
    }

    fn generate(&mut self, request: Request, number: u64, id: &Value) -> Result<Answer> {
        let Request { ask, extra, max_tokens, params, seed, stops, asked, draft } = request;
        let prompt = self.prompt(&ask, &extra, number)?;
        self.draft_with(draft.as_deref())?;
        let tokenizer = &self.language.tokenizer;
        let seed = seed.unwrap_or_else(|| derive_seed(self.seed, number));
        let mut sampler = sampling::sampler(params, seed, tokenizer).map_err(request::without_dashes)?;
        if let Some(asked) = asked.as_ref().or(self.asked.as_ref()) {
            sampler.constrain(Some(grammar::constraint_with(asked, tokenizer, &mut self.lexicon)?));
        }

        let interrupted = || self.interrupt.asked();
        let started = Instant::now();
        let reused = self.session.restart(&prompt)?;
        let read = self.session.prefill(&prompt[reused..], |_| if interrupted() { Break(()) } else { Continue(()) })?;
        ensure!(read.is_continue(), "interrupted");
        let prefill = started.elapsed();

        let mut stream = TextStream::new(tokenizer, &stops, false);
        let (mut text, mut tokens) = (String::new(), vec![]);
        let max_tokens = max_tokens.unwrap_or(self.args.n_predict);
        let limits = Limits { max_tokens: usize::try_from(max_tokens).ok(), ends: tokenizer.end_tokens(), begun: 0 };
        let outcome = self.session.generate(&mut sampler, limits, interrupted, |token| {
            tokens.push(token);
            text += &stream.push(token);
            Ok(if stream.stopped() { Break(()) } else { Continue(()) })
        })?;
        ensure!(outcome.finish != Finish::Interrupted, "interrupted");
        text += &stream.finish();
        self.stats.add_reused(reused);
        self.stats.add(prompt.len(), prefill, &outcome);
        Ok(Answer {
            id: id.clone(),
            text,
            finish_reason: outcome.finish.reason(),
            usage: Usage { prompt_tokens: prompt.len(), completion_tokens: tokens.len() },
            tokens,
            timings: Timings {
                prefill_s: prefill.as_secs_f64(),
                decode_s: outcome.time.as_secs_f64(),
                rounds: outcome.rounds,
                reused,
            },
        })
    }

    fn prompt(&self, ask: &Ask, extra: &prompt::Extra, number: u64) -> Result<Vec<Token>> {
        let language = &self.language;
        let raw = match ask {
            Ask::Messages(messages) => {
                let tokens = prompt::chat(language, messages, extra)?;
                return tokens.context("messages: the model has no chat template to put them in");
            }
            Ask::Prompt(text) => match prompt::chat(language, &[Message::new("user", text)], extra)? {
                Some(tokens) => return Ok(tokens),
                None if !extra.is_empty() => bail!("tools, template_args: the model has no chat template to tell them"),
                None => text,
            },
            Ask::Raw(text) => text,
        };
        if prompt::doubles_bos(language, raw)? {
            self.report.warn(format_args!("line {number}: the text holds BOS although the model gets one anyway"));
        }
        prompt::raw(language, raw)
    }
}
