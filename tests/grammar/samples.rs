//! Texts that SmolLM2 writes at temperature 1.2 under every sample grammar and a JSON schema: what ended by itself must
//! pass a checker that shares nothing with the engine, what was cut must be the beginning of something that would.

use crate::common::gbnf::{Naive, Verdict};
use crate::common::models;
use crate::drafting::Speaker;
use crate::words::samples;
use foretoken::engine::Finish;
use foretoken::grammar::Spec;
use foretoken::sample::SampleParams;
use serde_json::Value;
use std::time::Instant;

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
    "age": {"type": "integer", "minimum": 0, "maximum": 99}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["name", "age"], "additionalProperties": false}"#;

/// What the schema means, for texts that were cut.
const SCHEMA_IN_GBNF: &str = r#"
root ::= "{" ws "\"name\"" ws ":" ws "\"" char{0,20} "\"" ws "," ws "\"age\"" ws ":" ws ( [0-9] | [1-9] [0-9] ) ( ws "," ws "\"tags\"" ws ":" ws "[" ws ( tag ( ws "," ws tag ){0,2} ws )? "]" )? ws "}"
tag ::= "\"a\"" | "\"b\""
char ::= [^"\\\x00-\x1F\x7F] | "\\" ( ["\\bfnrt] | "u" [0-9a-fA-F]{4} ) | "\\u" [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}
ws ::= ( " " | "\n" [ \t]{0,20} )?
"#;

/// Sample, what the model is asked, and how many tokens it may take.
const ASKED: &[(&str, &str, usize)] = &[
    ("arithmetic", "Write one short equation, such as 1 + 1 = 2.", 200),
    ("c_like", "Write a very short function in C that adds two numbers.", 250),
    ("chess", "Write down a game of chess that ends in three moves.", 100),
    ("date_time", "When did the first man walk on the moon? Give only the date.", 50),
    ("json", "Describe a cat as a small JSON object with name and age.", 150),
    ("json_arr", "List three colours as a JSON array.", 150),
    ("list", "List three fruits.", 150),
    ("schema", "Describe a person as JSON.", 100),
    ("sql_select", "Write a query for all users older than 30.", 100),
];

fn schema_holds(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    let name = object.get("name").and_then(Value::as_str).is_some_and(|name| name.chars().count() <= 20);
    let age = object.get("age").and_then(Value::as_u64).is_some_and(|age| age <= 99);
    let tags = object.get("tags").is_none_or(|tags| {
        tags.as_array().is_some_and(|tags| tags.len() <= 3 && tags.iter().all(|tag| tag == "a" || tag == "b"))
    });
    name && age && tags && object.keys().all(|key| ["name", "age", "tags"].contains(&key.as_str()))
}

fn date_holds(text: &str) -> bool {
    let number = |from: usize| text.get(from..from + 2).and_then(|n| n.parse::<u32>().ok());
    let clock = |from| number(from).is_some_and(|h| h < 24) && number(from + 3).is_some_and(|m| m < 60);
    if !text.contains('-') || text.find(':').is_some_and(|colon| colon == 2) {
        return clock(0) && number(6).is_some_and(|s| s <= 60);
    }
    let days = |month| match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let date =
        number(5).is_some_and(|m| (1..=12).contains(&m) && number(8).is_some_and(|d| (1..=days(m)).contains(&d)));
    date && (text.len() == 10 || clock(11) && number(17).is_some_and(|s| s <= 60))
}

/// What a checker of its own says of a complete text.
fn holds(name: &str, text: &str) -> bool {
    let json = || serde_json::from_str::<Value>(text).ok();
    let lines = || text.strip_suffix('\n').map(|text| text.split('\n'));
    match name {
        "json" => json().is_some_and(|value| value.is_object()),
        "json_arr" => json().is_some_and(|value| value.is_array()),
        "schema" => json().is_some_and(|value| schema_holds(&value)),
        "date_time" => date_holds(text),
        "list" => lines().is_some_and(|mut lines| lines.all(|line| line.starts_with("- ") && line.len() > 2)),
        "arithmetic" => lines().is_some_and(|mut lines| {
            lines.all(|line| line.split(" = ").count() == 2 && line.matches('(').count() == line.matches(')').count())
        }),
        "c_like" => text.ends_with("}\n") && text.matches('{').count() >= 1,
        "chess" => text.starts_with("1. ") && text.ends_with('\n'),
        "sql_select" => text.starts_with("SELECT ") && text.ends_with(';') && text.contains(" FROM "),
        _ => panic!("{name} has no checker"),
    }
}

#[test]
fn sampled_texts_are_valid() {
    let Some(gguf) = models::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let n = if std::env::var_os("FORETOKEN_SLOW_TESTS").is_some() { 200 } else { 8 };
    let speaker = Speaker::load(&gguf, 2);
    let mut specs: Vec<(String, Spec, String)> =
        samples().into_iter().map(|(name, text)| (name, Spec::Gbnf(text.clone()), text)).collect();
    specs.push(("schema".into(), Spec::JsonSchema(SCHEMA.into()), SCHEMA_IN_GBNF.into()));
    specs.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(specs.len(), ASKED.len());
    let params = SampleParams { temp: 1.2, ..Default::default() };
    for ((name, spec, gbnf), (asked, question, most)) in specs.iter().zip(ASKED) {
        assert_eq!(name, asked);
        let started = Instant::now();
        let naive = Naive::new(gbnf);
        let tokenizer = &speaker.words.tokenizer;
        let prompt = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
        let prompt = tokenizer.encode(&prompt, true).unwrap();
        let mut session = speaker.session(prompt.len() + most + 1);
        let (mut ended, mut tokens) = (0, 0);
        for seed in 0..n {
            let mut sampler = speaker.sampler(&params, seed, spec);
            let (ids, outcome) = speaker.say(&mut session, &mut sampler, &prompt, *most);
            tokens += ids.len();
            let bytes = speaker.words.text(&ids);
            let shown = String::from_utf8_lossy(&bytes);
            let verdict = naive.judge(&bytes);
            match outcome.finish {
                Finish::End => {
                    assert_eq!(verdict, Verdict::Complete, "{name} {seed}: {shown:?}");
                    assert!(holds(name, std::str::from_utf8(&bytes).unwrap()), "{name} {seed}: {shown:?}");
                    ended += 1;
                }
                _ => assert_ne!(verdict, Verdict::Illegal, "{name} {seed}: {shown:?}"),
            }
            if seed < 2 {
                println!("{name} {seed}: {:?} {shown:?}", outcome.finish);
            }
        }
        println!("{name}: {ended} of {n} ended, {} tokens each, {:?}", tokens / n as usize, started.elapsed());
        assert!(2 * ended >= n, "{name}: {ended} of {n} ended");
    }
}
