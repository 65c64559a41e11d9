//! `batch`: JSON lines in, JSON lines out, in the same order, one at a time.
//!
//! Every line that is not blank gets its answer, flushed before the next is read, so that a program may wait for one
//! before it sends another. A line that cannot be answered gets an object with `error`; that is no failure of the
//! command. The model is loaded once and the session cleared before every request, so that answers do not depend on
//! what came before.

use super::load::{self, Language};
use super::report::Report;
use super::request::{self, Ask, Request};
use super::stats::{Sink, Stats};
use super::{draft, input, interrupt::Interrupt, prompt, sampling, template};
use crate::backend::cpu::Cpu;
use crate::cli::BatchArgs;
use crate::engine::{Finish, Limits, Session};
use crate::sample::{SampleParams, derive_seed};
use crate::text::{Message, TextStream, kind};
use crate::tree::Token;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, BufRead, Read, Write};
use std::ops::ControlFlow::{Break, Continue};
use std::time::Instant;

/// Most bytes of a line: many times what a context holds.
const LONGEST: u64 = 16 << 20;

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
    let report = Report::new(&args.report);
    let interrupt = Interrupt::install()?;
    let params = sampling::params(&args.sampling)?;
    let choices = draft::choices(&args.draft)?;
    let template = template::choice(&args.template)?;
    let sink = Sink::open(args.report.stats.as_ref())?;
    let started = Instant::now();
    let (opened, mut language) = load::all(&args.model, &report)?;
    template.install(&mut language);
    let seed = sampling::seed(&args.sampling);
    sampling::sampler(params.clone(), seed, &language.tokenizer)?;
    let mut session = opened.session()?;
    let drafting = draft::install(&args.draft, &choices, &opened, &language, &report, &mut session)?;
    sampling::tell_seed(&args.sampling, seed, &report);
    let stats = Stats::new(&args.model.model, &opened, seed, drafting, started.elapsed());
    let mut batch = Batch { args, language, params, seed, session, interrupt, report, stats };

    let mut lines = Lines { from: io::stdin().lock(), number: 0 };
    let mut out = io::stdout().lock();
    let (mut requests, mut errors) = (0, 0);
    while let Some((number, line)) = lines.next().context("stdin")? {
        let mut id = Value::from(number);
        let mut json = match batch.answer(line, number, &mut id)? {
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
    batch.stats.requests = Some(requests);
    batch.stats.errors = Some(errors);
    batch.stats.tell(&report, sink)
}

/// What all requests share.
struct Batch<'a> {
    args: &'a BatchArgs,
    language: Language,
    params: SampleParams,
    seed: u64,
    session: Session<Cpu>,
    interrupt: Interrupt,
    report: Report,
    stats: Stats,
}

impl Batch<'_> {
    /// Answers one line. The outer error ends the command, the inner one is the line's. `id` is set once it is known.
    fn answer(&mut self, line: Result<Vec<u8>>, number: u64, id: &mut Value) -> Result<Result<Answer>> {
        let request = match line.and_then(|line| self.parse(line, id)) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        self.interrupt.watch();
        let answer = self.generate(request, number, id);
        self.interrupt.unwatch()?;
        Ok(answer)
    }

    fn parse(&self, line: Vec<u8>, id: &mut Value) -> Result<Request> {
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
        request::parse(fields, &self.params)
    }

    fn generate(&mut self, request: Request, number: u64, id: &Value) -> Result<Answer> {
        let Request { ask, extra, max_tokens, params, seed, stops } = request;
        let prompt = self.prompt(&ask, &extra, number)?;
        let tokenizer = &self.language.tokenizer;
        let seed = seed.unwrap_or_else(|| derive_seed(self.seed, number));
        let mut sampler = sampling::sampler(params, seed, tokenizer).map_err(request::without_dashes)?;

        let interrupted = || self.interrupt.asked();
        let started = Instant::now();
        self.session.clear()?;
        let read = self.session.prefill(&prompt, |_| if interrupted() { Break(()) } else { Continue(()) })?;
        ensure!(read.is_continue(), "interrupted");
        let prefill = started.elapsed();

        let mut stream = TextStream::new(tokenizer, &stops, false);
        let (mut text, mut tokens) = (String::new(), vec![]);
        let max_tokens = max_tokens.unwrap_or(self.args.n_predict);
        let limits = Limits { max_tokens: usize::try_from(max_tokens).ok(), ends: tokenizer.end_tokens() };
        let outcome = self.session.generate(&mut sampler, limits, interrupted, |token| {
            tokens.push(token);
            text += &stream.push(token);
            Ok(if stream.stopped() { Break(()) } else { Continue(()) })
        })?;
        ensure!(outcome.finish != Finish::Interrupted, "interrupted");
        text += &stream.finish();
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

/// Lines that are not blank, numbered from 1, blank ones counted. What is longer than [`LONGEST`] is skipped and an error.
struct Lines<R> {
    from: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> io::Result<Option<(u64, Result<Vec<u8>>)>> {
        loop {
            let mut line = vec![];
            if (&mut self.from).take(LONGEST).read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if line.len() as u64 == LONGEST && !line.ends_with(b"\n") && self.skip_line()? {
                let error = anyhow!("the line is longer than {LONGEST} bytes, which is not supported");
                return Ok(Some((self.number, Err(error))));
            }
            if self.number == 1 && line.starts_with("\u{FEFF}".as_bytes()) {
                line.drain(..3); // of the file, not of the request
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some((self.number, Ok(line))));
            }
        }
    }

    /// Reads to the end of the line; whether there was anything.
    fn skip_line(&mut self) -> io::Result<bool> {
        let mut any = false;
        loop {
            let bytes = self.from.fill_buf()?;
            let end = bytes.iter().position(|&b| b == b'\n');
            let n = end.map_or(bytes.len(), |at| at + 1);
            any |= n > 0;
            self.from.consume(n);
            if end.is_some() || n == 0 {
                return Ok(any);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<(u64, Result<Vec<u8>, String>)> {
        let mut lines = Lines { from: bytes, number: 0 };
        let mut all = vec![];
        while let Some((number, line)) = lines.next().unwrap() {
            all.push((number, line.map_err(|e| e.to_string())));
        }
        all
    }

    #[test]
    fn lines_are_numbered_and_blank_ones_skipped() {
        let got = read(b"\xEF\xBB\xBFa\n\n \t\r\n\xEF\xBB\xBFb\r\nlast");
        let want = [(1, &b"a\n"[..]), (4, b"\xEF\xBB\xBFb\r\n"), (5, b"last")];
        assert_eq!(got, want.map(|(n, line)| (n, Ok(line.to_vec()))));
        assert!(read(b"").is_empty() && read(b"\n\n").is_empty());
    }

    #[test]
    fn a_line_too_long_is_one_error_and_the_next_is_read() {
        let longest = vec![b'x'; LONGEST as usize];
        let got = read(&[&longest[..], b"xx\nnext\n", &longest].concat());
        assert!(got[0].1.as_ref().unwrap_err().contains("longer than"));
        assert_eq!(got[1], (2, Ok(b"next\n".to_vec())));
        assert_eq!(got[2].1.as_ref().unwrap().len(), LONGEST as usize, "just fits");
        assert_eq!(got.len(), 3);
    }
}
