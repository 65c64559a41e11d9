//! Files of prompts: JSON lines, in Spec-Bench's layout or plain.

use crate::cli::TextArgs;
use crate::cmd::input;
use crate::text::kind;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};
use std::path::Path;

/// One line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What the file calls it, or the number of its line.
    pub id: String,
    /// Its line, from 1.
    pub line: usize,
    /// Row of the table it belongs to.
    pub row: String,
    /// What the user says, turn by turn.
    pub turns: Vec<String>,
}

/// The row of prompts that name no category.
const UNNAMED: &str = "prompts";

/// Spec-Bench keeps MT-Bench's categories, ten questions each, and reports them together.
const MT_BENCH: &str = "mt_bench";
const OF_MT_BENCH: [&str; 8] =
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"];

/// All prompts of a file, in order.
pub fn read(path: &Path) -> Result<Vec<Prompt>> {
    let text = input::read(&TextArgs { file: Some(path.into()), ..TextArgs::default() })?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Prompt>> {
    let lines = input::without_mark(text).lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompt = |(i, line): (usize, &str)| one(line, i + 1).with_context(|| format!("line {}", i + 1));
    let prompts = lines.map(prompt).collect::<Result<Vec<_>>>()?;
    ensure!(!prompts.is_empty(), "found no prompts");
    Ok(prompts)
}

fn one(text: &str, line: usize) -> Result<Prompt> {
    let json: Value = serde_json::from_str(text).map_err(|e| {
        // Of this line, which is the first that the parser sees.
        anyhow::anyhow!("not JSON: {}", e.to_string().replace(" at line 1 column ", " at byte "))
    })?;
    let Value::Object(fields) = json else { bail!("found {}, supported an object", kind(&json)) };
    let id = match fields.get("question_id").or(fields.get("id")) {
        None | Some(Value::Null) => line.to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let category = match fields.get("category") {
        None | Some(Value::Null) => UNNAMED,
        Some(value) => said(value).context("category")?,
    };
    let (row, turns) = match (fields.get("prompt"), fields.get("turns")) {
        (Some(_), Some(_)) => bail!("found both prompt and turns, supported one of them"),
        (None, None) => bail!("found neither prompt nor turns"),
        (Some(prompt), None) => (category, vec![said(prompt).context("prompt")?.to_owned()]),
        (None, Some(_)) => {
            let row = if OF_MT_BENCH.contains(&category) { MT_BENCH } else { category };
            (row, turns(&fields).context("turns")?)
        }
    };
    Ok(Prompt { id, line, row: row.to_owned(), turns })
}

fn turns(fields: &Map<String, Value>) -> Result<Vec<String>> {
    let value = &fields["turns"];
    let list = value.as_array().with_context(|| format!("found {}, supported a list", kind(value)))?;
    ensure!(!list.is_empty(), "found none, supported one and more");
    let turn = |(i, value): (usize, &Value)| said(value).map(str::to_owned).with_context(|| format!("turn {}", i + 1));
    list.iter().enumerate().map(turn).collect()
}

/// A text that says something.
fn said(value: &Value) -> Result<&str> {
    let text = value.as_str().with_context(|| format!("found {}, supported a string", kind(value)))?;
    ensure!(!text.is_empty(), "found an empty string");
    Ok(text)
}

/// The rows there are, in the order of their first prompts.
pub fn rows(prompts: &[Prompt]) -> Vec<String> {
    let mut rows: Vec<String> = vec![];
    for prompt in prompts {
        if !rows.contains(&prompt.row) {
            rows.push(prompt.row.clone());
        }
    }
    rows
}

/// At most `limit` prompts of each row, spread evenly over those there are.
pub fn limit(prompts: Vec<Prompt>, limit: usize) -> Vec<Prompt> {
    let mut kept = vec![false; prompts.len()];
    for row in rows(&prompts) {
        let of_row: Vec<usize> = (0..prompts.len()).filter(|&i| prompts[i].row == row).collect();
        let n = of_row.len().min(limit);
        (0..n).for_each(|k| kept[of_row[k * of_row.len() / n]] = true);
    }
    prompts.into_iter().zip(kept).filter_map(|(prompt, kept)| kept.then_some(prompt)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(id: &str, line: usize, row: &str, turns: &[&str]) -> Prompt {
        let turns = turns.iter().map(|&turn| turn.to_owned()).collect();
        Prompt { id: id.into(), line, row: row.into(), turns }
    }

    #[test]
    fn both_layouts_are_read() {
        let text = "\u{FEFF}{\"question_id\": 81, \"category\": \"writing\", \"turns\": [\"a\", \"b\"], \"reference\": []}\n\n\
            {\"question_id\": 401, \"category\": \"math_reasoning\", \"turns\": [\"c\"]}\r\n\
            {\"prompt\": \"d\", \"category\": \"writing\", \"id\": \"x\"}\n{\"prompt\": \"e\"}";
        let want = [
            prompt("81", 1, "mt_bench", &["a", "b"]),
            prompt("401", 3, "math_reasoning", &["c"]),
            prompt("x", 4, "writing", &["d"]),
            prompt("5", 5, "prompts", &["e"]),
        ];
        let got = parse(text).unwrap();
        assert_eq!(got, want);
        assert_eq!(rows(&got), ["mt_bench", "math_reasoning", "writing", "prompts"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, parts) in [
            ("", &["no prompts"][..]),
            ("\n \n", &["no prompts"]),
            ("{\"prompt\": \"a\"}\n{", &["line 2: not JSON", "at byte 1"]),
            ("[]", &["line 1: found an array, supported an object"]),
            ("{}", &["line 1: found neither prompt nor turns"]),
            ("{\"prompt\": \"a\", \"turns\": []}", &["line 1: found both"]),
            ("{\"prompt\": 1}", &["line 1: prompt: found 1, supported a string"]),
            ("{\"prompt\": \"\"}", &["line 1: prompt: found an empty string"]),
            ("{\"turns\": \"a\"}", &["line 1: turns: found a string, supported a list"]),
            ("{\"turns\": []}", &["line 1: turns: found none"]),
            ("{\"turns\": [\"a\", null]}", &["line 1: turns: turn 2: found null"]),
            ("{\"prompt\": \"a\", \"category\": 7}", &["line 1: category: found 7"]),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            parts.iter().for_each(|part| assert!(error.contains(part), "{text}: {error}"));
        }
    }

    #[test]
    fn a_limit_takes_from_all_over() {
        let all: Vec<Prompt> = (0..13).map(|i| prompt("", i, if i < 10 { "a" } else { "b" }, &["t"])).collect();
        for (n, want) in [
            (1, &[0, 10][..]),
            (2, &[0, 5, 10, 11]),
            (4, &[0, 2, 5, 7, 10, 11, 12]),
            (99, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ] {
            let lines: Vec<usize> = limit(all.clone(), n).iter().map(|p| p.line).collect();
            assert_eq!(lines, want, "{n}");
        }
    }
}
