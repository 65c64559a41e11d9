//! One request of a batch, from JSON. Whatever is not understood is an error that names the field: a misspelt option
//! silently ignored would be an answer to another question.

use super::draft;
use super::grammar::Asked;
use crate::grammar::Spec;
use crate::sample::{LogitBias, SampleParams};
use crate::spec::Choice;
use crate::text::{Message, kind};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

/// What is asked for.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The prompt.
    pub ask: Ask,
    /// What its template is told beside the messages: `tools` and `template_args`.
    pub extra: Map<String, Value>,
    /// Tokens at most, -1 for no limit, when the request says.
    pub max_tokens: Option<i64>,
    /// How to sample.
    pub params: SampleParams,
    /// Seed, when the request says.
    pub seed: Option<u64>,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// Drafters, when the request says.
    pub draft: Option<Vec<Choice>>,
    /// What the answer must match, when the request says.
    pub asked: Option<Asked>,
}

/// The three kinds of prompt.
#[derive(Debug, PartialEq)]
pub enum Ask {
    /// Text taken as it is.
    Raw(String),
    /// What a user says.
    Prompt(String),
    /// A conversation.
    Messages(Vec<Message>),
}

const FIELDS: &str = "id prompt messages tools template_args raw max_tokens temperature top_k top_p min_p seed stop logit_bias grammar json_schema draft";

/// Reads a request; `defaults` hold what it does not say. `null` is as good as nothing.
pub fn parse(fields: Map<String, Value>, defaults: &SampleParams) -> Result<Request> {
    let mut params = defaults.clone();
    let (mut prompt, mut messages, mut raw) = (None, None, false);
    let (mut tools, mut extra, mut draft) = (None, Map::new(), None);
    let (mut max_tokens, mut seed, mut stops) = (None, None, vec![]);
    let mut asked = None;
    for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
        let mut field = || -> Result<()> {
            match name.as_str() {
                "id" => {}
                "prompt" => prompt = Some(string(&value)?),
                "messages" => messages = Some(conversation(&value)?),
                "tools" => {
                    ensure!(value.is_array(), "{}", wanted(&value, "an array of functions"));
                    tools = Some(value.clone());
                }
                "template_args" => {
                    extra = value.as_object().cloned().with_context(|| wanted(&value, "an object"))?;
                    let ours = ["messages", "add_generation_prompt"].into_iter().find(|&name| extra.contains_key(name));
                    ensure!(ours.is_none(), "{} is not for it to say", ours.unwrap_or_default());
                }
                "raw" => raw = value.as_bool().with_context(|| wanted(&value, "true or false"))?,
                "max_tokens" => {
                    let n = integer(&value)?;
                    ensure!(n >= -1, "found {n}, supported -1 (no limit) and up");
                    max_tokens = Some(n);
                }
                "temperature" => params.temp = number(&value)?,
                "top_p" => params.top_p = number(&value)?,
                "min_p" => params.min_p = number(&value)?,
                "top_k" => {
                    let k = integer(&value)?;
                    params.top_k = i32::try_from(k).ok().with_context(|| format!("found {k}, out of range"))?;
                }
                "seed" => seed = Some(value.as_u64().with_context(|| wanted(&value, "an integer from 0 to 2^64 - 1"))?),
                "draft" => draft = Some(draft::choices_of(strings(&value)?.iter().map(String::as_str))?),
                "stop" => {
                    stops = strings(&value)?;
                    let fine = stops.iter().all(|stop| !stop.is_empty());
                    ensure!(fine, "found an empty string, which would end every answer");
                }
                "logit_bias" => {
                    let unnamed =
                        |e: serde_json::Error| anyhow!("{}", e.to_string().trim_start_matches("logit_bias: "));
                    params.logit_bias = LogitBias::deserialize(&value).map_err(unnamed)?;
                }
                "grammar" | "json_schema" => {
                    let spec = match &value {
                        Value::String(text) if name == "grammar" => Spec::Gbnf(text.clone()),
                        Value::Object(_) | Value::Bool(_) if name == "json_schema" => {
                            Spec::JsonSchema(value.to_string())
                        }
                        Value::String(text) => Spec::JsonSchema(text.clone()),
                        _ if name == "grammar" => bail!(wanted(&value, "a string")),
                        _ => bail!(wanted(&value, "a schema")),
                    };
                    spec.check()?;
                    let both = asked.replace(Asked { name: name.clone(), spec }).is_some();
                    ensure!(!both, "found both grammar and json_schema, supported one of them");
                }
                _ => bail!("not known; supported: {FIELDS}"),
            }
            Ok(())
        };
        field().with_context(|| name.clone())?;
    }
    extra.extend(tools.map(|tools| ("tools".to_owned(), tools)));
    ensure!(!raw || extra.is_empty(), "raw: goes with prompt alone, not with tools and template_args");
    let ask = match (prompt, messages) {
        (Some(text), None) if raw => Ask::Raw(text),
        (Some(text), None) => Ask::Prompt(text),
        (None, Some(_)) if raw => bail!("raw: goes with prompt, not with messages"),
        (None, Some(messages)) => Ask::Messages(messages),
        (Some(_), Some(_)) => bail!("found both prompt and messages, supported one of them"),
        (None, None) => bail!("found neither prompt nor messages"),
    };
    Ok(Request { ask, extra, max_tokens, params, seed, stops, asked, draft })
}

/// The sampler's complaints name flags; in a request they are fields.
pub fn without_dashes(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let (flag, rest) = text.split_once(':').unwrap_or((&text, ""));
    let field = match flag.trim_start_matches('-').replace('-', "_") {
        temp if temp == "temp" => "temperature".into(),
        other => other,
    };
    anyhow!("{field}:{rest}")
}

/// What was found and what is supported.
pub fn wanted(value: &Value, what: &str) -> String {
    format!("found {}, supported {what}", kind(value))
}

/// A text.
pub fn string(value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).with_context(|| wanted(value, "a string"))
}

fn strings(value: &Value) -> Result<Vec<String>> {
    match value {
        Value::Array(list) => list.iter().map(string).collect(),
        one => Ok(vec![string(one)?]),
    }
}

fn integer(value: &Value) -> Result<i64> {
    value.as_i64().with_context(|| wanted(value, "an integer"))
}

fn number(value: &Value) -> Result<f32> {
    value.as_f64().map(|v| v as f32).with_context(|| wanted(value, "a number"))
}

/// Messages, one at least.
pub fn conversation(value: &Value) -> Result<Vec<Message>> {
    let list = value.as_array().with_context(|| wanted(value, "an array of {role, content}"))?;
    ensure!(!list.is_empty(), "found none, supported one and more");
    list.iter().enumerate().map(|(i, m)| Message::try_from(m.clone()).with_context(|| format!("message {i}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Request> {
        parse(serde_json::from_str(json).unwrap(), &SampleParams::default())
    }

    #[test]
    fn everything_that_can_be_said() {
        let got = read(
            r#"{"id": [1], "prompt": "p", "raw": true, "max_tokens": 5, "temperature": 0.5, "top_k": 3, "top_p": 1,
            "min_p": 0.25, "seed": 18446744073709551615, "stop": ["a", "b"], "logit_bias": {"7": -1}}"#,
        );
        let params = SampleParams {
            temp: 0.5,
            top_k: 3,
            top_p: 1.0,
            min_p: 0.25,
            logit_bias: LogitBias(vec![(7, -1.0)]),
            ..Default::default()
        };
        let stops = vec!["a".into(), "b".into()];
        let (ask, extra, seed) = (Ask::Raw("p".into()), Map::new(), Some(u64::MAX));
        assert_eq!(
            got.unwrap(),
            Request { ask, extra, max_tokens: Some(5), params, seed, stops, asked: None, draft: None }
        );
        for (draft, want) in [
            (r#""lookup""#, &["lookup"][..]),
            (r#""none""#, &[]),
            (r#"["lookup", "lookup,max=7"]"#, &["lookup", "lookup,max=7"]),
        ] {
            let got = read(&format!(r#"{{"prompt": "p", "draft": {draft}}}"#)).unwrap().draft;
            assert_eq!(got, Some(want.iter().map(|text| Choice::parse(text).unwrap()).collect()));
        }
        let got = read(r#"{"prompt": "p", "tools": [1], "template_args": {"enable_thinking": false}}"#).unwrap();
        assert_eq!(Value::Object(got.extra), serde_json::json!({"enable_thinking": false, "tools": [1]}));
        let got = read(r#"{"messages": [{"role": "user", "content": "c"}], "stop": "x", "seed": null, "raw": false}"#)
            .unwrap();
        assert_eq!(
            (got.ask, got.stops, got.seed),
            (Ask::Messages(vec![Message::new("user", "c")]), vec!["x".into()], None)
        );
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (json, want) in [
            ("{}", "found neither prompt nor messages"),
            (r#"{"prompt": "a", "messages": [{"role": "a", "content": "b"}]}"#, "found both prompt and messages"),
            (r#"{"prompt": 7}"#, "prompt: found 7, supported a string"),
            (r#"{"prompt": "", "max_token": 1}"#, "max_token: not known; supported: id prompt"),
            (r#"{"prompt": "", "max_tokens": 1.5}"#, "max_tokens: found 1.5, supported an integer"),
            (r#"{"prompt": "", "max_tokens": -2}"#, "max_tokens: found -2, supported -1"),
            (r#"{"prompt": "", "max_tokens": 1e99}"#, "max_tokens: found 1e+99, supported an integer"),
            (r#"{"prompt": "", "temperature": "hot"}"#, "temperature: found a string, supported a number"),
            (r#"{"prompt": "", "top_k": 3000000000}"#, "top_k: found 3000000000, out of range"),
            (r#"{"prompt": "", "seed": -1}"#, "seed: found -1, supported an integer from 0"),
            (r#"{"prompt": "", "stop": [1]}"#, "stop: found 1, supported a string"),
            (r#"{"prompt": "", "draft": 1}"#, "draft: found 1, supported a string"),
            (r#"{"prompt": "", "draft": "x"}"#, "draft: found kind 'x', supported: none"),
            (r#"{"prompt": "", "draft": ["none", "lookup"]}"#, "draft: found none beside another drafter"),
            (r#"{"prompt": "", "stop": ""}"#, "stop: found an empty string"),
            (r#"{"prompt": "", "raw": "yes"}"#, "raw: found a string, supported true or false"),
            (r#"{"prompt": "", "logit_bias": 3}"#, "logit_bias: supported"),
            (r#"{"messages": []}"#, "messages: found none"),
            (r#"{"messages": "hi"}"#, "messages: found a string, supported an array"),
            (r#"{"messages": [{"role": "user"}]}"#, "messages: message 0: content: found null, supported a string or"),
            (r#"{"messages": ["hi"]}"#, "messages: message 0: found a string, supported an object"),
            (r#"{"prompt": "", "tools": {}}"#, "tools: found an object, supported an array"),
            (r#"{"prompt": "", "template_args": []}"#, "template_args: found an array, supported an object"),
            (r#"{"prompt": "", "template_args": {"messages": 1}}"#, "template_args: messages is not for it to say"),
            (r#"{"prompt": "", "raw": true, "tools": []}"#, "raw: goes with prompt alone"),
            (r#"{"messages": [{"role": "a", "content": "b"}], "raw": true}"#, "raw: goes with prompt"),
        ] {
            let error = format!("{:#}", read(json).unwrap_err());
            assert!(error.starts_with(want), "{json}: {error}");
        }
    }

    #[test]
    fn flags_become_fields() {
        for (flag, field) in
            [("--temp: found -1", "temperature: found -1"), ("--logit-bias: found", "logit_bias: found")]
        {
            assert_eq!(without_dashes(anyhow!(flag)).to_string(), field);
        }
    }
}
