//! The page of a trial: one file of HTML with its style, its program and its figures, which asks nothing of a network.

use super::figures::{Summary, Trace};
use super::play::{Round, Turn};
use crate::engine::Finish;
use crate::text::Tokenizer;
use crate::tree::Token;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const CHARTS: &str = include_str!("charts.js");
const TREES: &str = include_str!("trees.js");

/// Characters of a prompt that are shown.
const SHOWN: usize = 4000;

/// All that the page's program is told.
#[derive(Serialize)]
struct Data<'a> {
    summary: &'a Summary,
    answers: Vec<Answer<'a>>,
    /// The tokens that occur, as text.
    tokens: BTreeMap<Token, String>,
}

/// One turn of one set.
#[derive(Serialize)]
struct Answer<'a> {
    row: usize,
    set: usize,
    id: &'a str,
    turn: usize,
    prompt: String,
    finish: &'static str,
    rounds: Vec<Shown>,
}

/// A round, for the page.
#[derive(Serialize)]
struct Shown {
    /// Microseconds of drafting, of the pass and of picking tokens.
    us: [u64; 3],
    /// Tokens that became text, or its end.
    used: usize,
    /// The accepted nodes, the anchor first.
    path: Vec<u8>,
    /// The tokens it gave.
    tokens: Vec<Token>,
    /// Token, parent, drafter and score of each node.
    nodes: Vec<(Token, usize, u8, f32)>,
}

/// The page.
pub fn html(summary: &Summary, traces: &[Trace], tokenizer: &Tokenizer) -> Result<String> {
    let mut tokens = BTreeMap::new();
    let answers = traces.iter().flat_map(|trace| {
        trace.run.turns.iter().enumerate().map(|(i, turn)| Answer {
            row: trace.row,
            set: trace.set,
            id: &trace.prompt.id,
            turn: i + 1,
            prompt: trace.prompt.turns[i].chars().take(SHOWN).collect(),
            finish: turn.outcome.finish.reason(),
            rounds: shown(turn),
        })
    });
    let answers: Vec<Answer<'_>> = answers.collect();
    for round in answers.iter().flat_map(|answer| &answer.rounds) {
        for token in round.nodes.iter().map(|node| node.0).chain(round.tokens.iter().copied()) {
            tokens.entry(token).or_insert_with(|| String::from_utf8_lossy(tokenizer.piece(token)).into_owned());
        }
    }
    let data = serde_json::to_string(&Data { summary, answers, tokens })?;
    // Nothing in the data can end the element it is in.
    let data = data.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    // What is put in is not searched again, so it may say anything.
    let parts = [("STYLE", STYLE), ("DATA", data.as_str()), ("CHARTS", CHARTS), ("TREES", TREES)];
    let mut html = String::with_capacity(FRAME.len() + data.len() + 50_000);
    let mut rest = FRAME;
    for (name, text) in parts {
        let (before, after) = rest.split_once(&format!("@{name}@")).expect("the frame has a place for every part");
        html += before;
        html += text;
        rest = after;
    }
    Ok(html + rest)
}

fn shown(turn: &Turn) -> Vec<Shown> {
    let emitted = turn.ids.len() + usize::from(turn.outcome.finish == Finish::End);
    let mut left = emitted;
    let mut round = |round: &Round| {
        let used = round.tokens.len().min(left);
        left -= used;
        let nodes = round.nodes.iter().zip(&round.owners);
        let score = |score: f32| (score * 1000.0).round() / 1000.0;
        Shown {
            us: [round.times.draft, round.times.verify, round.times.sample].map(|time| time.as_micros() as u64),
            used,
            path: round.path.clone(),
            tokens: round.tokens.clone(),
            nodes: nodes.map(|(node, &owner)| (node.token, node.parent, owner, score(node.score))).collect(),
        }
    };
    turn.rounds.iter().map(&mut round).collect()
}
