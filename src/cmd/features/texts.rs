//! From input lines to tokens, and which of them a model wrote.

use crate::cmd::input;
use crate::cmd::lines::Lines;
use crate::cmd::load::Language;
use crate::cmd::prompt::{self, Extra};
use crate::cmd::report::{Report, Unit};
use crate::cmd::request::{conversation, string, wanted};
use crate::text::Message;
use crate::tree::Token;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value};

/// Fewest tokens of a text: a row and the token it predicts.
pub const LEAST: usize = 2;

/// One line of the input.
#[derive(Debug, PartialEq)]
pub struct Text {
    /// Its number.
    pub line: u64,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// For each 1 if the model wrote it or might have, else 0.
    pub weights: Vec<u8>,
}

/// Reads all texts of `input`, which is called `name`, cut to `most` tokens each, up to the one with which they reach
/// `limit`. What was cut or left out is said; a line that cannot be read is an error.
pub fn read(
    input: &[u8],
    name: &str,
    language: &Language,
    most: usize,
    limit: Option<u64>,
    report: &Report,
) -> Result<Vec<Text>> {
    let bar = report.bar("reading texts", input.len() as u64, Unit::Bytes);
    let (mut texts, mut total) = (vec![], 0);
    let (mut cut, mut short) = (Told::default(), Told::default());
    let mut lines = Lines::new(input);
    while limit.is_none_or(|limit| total < limit) {
        let Some((number, line)) = lines.next_line().with_context(|| name.to_owned())? else { break };
        let text = line.and_then(|line| {
            bar.inc(line.len() as u64);
            text(line, number, language)
        });
        let mut text = text.with_context(|| format!("{name}: line {number}"))?;
        if text.tokens.len() > most {
            cut.add(number);
            text.tokens.truncate(most);
            text.weights.truncate(most);
        }
        if text.tokens.len() < LEAST {
            short.add(number);
            continue;
        }
        total += text.tokens.len() as u64;
        texts.push(text);
    }
    bar.finish_and_clear();
    if let Some(which) = cut.some() {
        report.warn(format_args!("{name}: {which}: texts of more than {most} tokens, cut there (-c)"));
    }
    if let Some(which) = short.some() {
        report.warn(format_args!("{name}: {which}: texts of less than {LEAST} tokens, left out"));
    }
    Ok(texts)
}

/// Lines of which something is to be said.
#[derive(Default)]
struct Told {
    first: u64,
    count: u64,
}

impl Told {
    fn add(&mut self, line: u64) {
        if self.count == 0 {
            self.first = line;
        }
        self.count += 1;
    }

    fn some(&self) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some(format!("line {}", self.first)),
            n => Some(format!("line {} and {} more", self.first, n - 1)),
        }
    }
}

/// The ways to give a text: the fields of each, all of which it needs.
const KINDS: [&[&str]; 4] = [&["text"], &["messages"], &["prompt", "response"], &["tokens"]];

fn text(line: Vec<u8>, number: u64, language: &Language) -> Result<Text> {
    let fields = fields(line)?;
    let field = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let given: Vec<_> = KINDS.iter().filter(|kind| kind.iter().any(|name| field(name).is_some())).collect();
    let [kind] = given[..] else {
        let found: Vec<_> = given.iter().map(|kind| kind[0]).collect();
        let found = if found.is_empty() { "none".into() } else { found.join(" and ") };
        bail!("found {found} of the supported fields: text, messages, prompt with response, tokens");
    };
    let value = |name: &str| field(name).with_context(|| format!("{name} is missing"));
    let of = |name: &str| string(value(name)?).with_context(|| name.to_owned());
    let tokenizer = &language.tokenizer;
    let (tokens, answers) = match kind[0] {
        "text" => (tokenizer.with_bos(tokenizer.encode(&of("text")?, true)?), None),
        "tokens" => (ids(value("tokens")?, tokenizer.vocab_size()).context("tokens")?, None),
        kind => {
            let (messages, extra) = match kind {
                "messages" => (conversation(value("messages")?).context("messages")?, tools(field("tools"))?),
                _ => {
                    let turns = [("user", of("prompt")?), ("assistant", of("response")?)];
                    (turns.map(|(role, text)| Message::new(role, &text)).to_vec(), Extra::new())
                }
            };
            let found = prompt::conversation(language, &messages, &extra)?;
            let found = found.with_context(|| format!("{kind}: the model has no chat template to put them in"))?;
            (found.tokens, Some(found.answers))
        }
    };
    let mut weights = vec![u8::from(answers.is_none()); tokens.len()];
    answers.into_iter().flatten().for_each(|answer| weights[answer].fill(1));
    Ok(Text { line: number, tokens, weights })
}

fn fields(line: Vec<u8>) -> Result<Map<String, Value>> {
    let line = input::utf8("the line", line)?;
    let json: Value = serde_json::from_str(&line).map_err(|e| {
        // The line is always 1.
        anyhow!("not JSON: {}", e.to_string().replace(" at line 1 column ", " at byte "))
    })?;
    match json {
        Value::Object(fields) => Ok(fields),
        other => bail!(wanted(&other, "an object")),
    }
}

fn tools(tools: Option<&Value>) -> Result<Extra> {
    let Some(tools) = tools else { return Ok(Extra::new()) };
    ensure!(tools.is_array(), "tools: {}", wanted(tools, "an array of functions"));
    Ok([("tools".to_owned(), tools.clone())].into_iter().collect())
}

fn ids(value: &Value, vocab: usize) -> Result<Vec<Token>> {
    let list = value.as_array().with_context(|| wanted(value, "an array of ids"))?;
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| Token::try_from(id).ok()).filter(|&id| (id as usize) < vocab);
        id.with_context(|| wanted(value, &format!("ids from 0 to {}", vocab - 1)))
    };
    list.iter().map(id).collect()
}
