//! A grammar as rules, and what must be known of them before they can be run: which can be empty, which begin with
//! which, and that none begins with itself.

use super::class::ByteSet;
use super::source;
use crate::tree::Token;
use anyhow::{Error, Result};
use std::collections::HashMap;
use std::fmt::Display;

pub(super) type RuleId = u32;

/// What a rule's alternative is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    /// A byte of this one of the sets.
    Bytes(u32),
    /// Whatever this rule matches.
    Call(RuleId),
    /// A token that this reference means.
    Token(u32),
}

/// A rule: one of its alternatives must match.
pub(super) struct Rule {
    /// Its name, or that of the rule it was made for.
    pub(super) name: u32,
    /// Where the rule of this name is defined, or used while it is not defined.
    pub(super) at: usize,
    pub(super) alternatives: Vec<Vec<Symbol>>,
    pub(super) is_defined: bool,
}

/// A token in a grammar.
pub(super) struct TokenRef {
    pub(super) name: TokenName,
    /// Any token but this.
    pub(super) negated: bool,
    pub(super) at: usize,
    /// Name of the rule that it is in.
    pub(super) rule: u32,
}

/// How a grammar names a token.
pub(super) enum TokenName {
    Id(Token),
    Text(String),
}

/// All rules of a grammar.
#[derive(Default)]
pub(super) struct Rules {
    /// What was read.
    text: String,
    pub(super) all: Vec<Rule>,
    pub(super) names: Vec<String>,
    pub(super) tokens: Vec<TokenRef>,
    pub(super) root: RuleId,
    sets: Vec<ByteSet>,
    set_ids: HashMap<ByteSet, u32>,
}

impl Rules {
    /// No rules yet, but the text they will be read from.
    pub(super) fn of(text: &str) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// The id of a set of bytes.
    pub(super) fn bytes(&mut self, set: ByteSet) -> u32 {
        *self.set_ids.entry(set).or_insert_with(|| {
            self.sets.push(set);
            self.sets.len() as u32 - 1
        })
    }

    pub(super) fn sets(&self) -> &[ByteSet] {
        &self.sets
    }

    pub(super) fn error(&self, rule: &Rule, what: impl Display) -> Error {
        self.error_at(rule.name, rule.at, what)
    }

    /// An error at byte `at` of the text, in a rule by the number of its name.
    pub(super) fn error_at(&self, name: u32, at: usize, what: impl Display) -> Error {
        source::error(&self.text, at, format_args!("rule '{}': {what}", self.names[name as usize]))
    }

    /// Which rules match the empty text.
    pub(super) fn nullable(&self) -> Vec<bool> {
        // Per alternative the rules that must still prove empty, and per rule the alternatives that wait for it.
        let mut missing = vec![];
        let mut waiting: Vec<Vec<(u32, RuleId)>> = vec![vec![]; self.all.len()];
        let mut nullable = vec![false; self.all.len()];
        let mut news = vec![];
        for (id, body) in self.bodies() {
            let calls = || body.iter().filter_map(|s| if let Symbol::Call(rule) = s { Some(*rule) } else { None });
            if calls().count() < body.len() {
                continue;
            }
            calls().for_each(|rule| waiting[rule as usize].push((missing.len() as u32, id)));
            missing.push(body.len());
            if body.is_empty() {
                news.push(id);
            }
        }
        while let Some(id) = news.pop() {
            if std::mem::replace(&mut nullable[id as usize], true) {
                continue;
            }
            for &(alternative, owner) in &waiting[id as usize] {
                missing[alternative as usize] -= 1;
                if missing[alternative as usize] == 0 {
                    news.push(owner);
                }
            }
        }
        nullable
    }

    /// The component of each rule among those that can begin with one another: a rule's number is not below that of
    /// one it begins with. Fails if a rule begins with itself and something follows, as then there is no end to what
    /// is to follow; where nothing follows (`a ::= a | "x"`) it is harmless.
    pub(super) fn components(&self, nullable: &[bool]) -> Result<Vec<u32>> {
        let calls: Vec<Vec<(RuleId, bool)>> = self.all.iter().map(|rule| left_calls(rule, nullable)).collect();
        let components = strongly_connected(&calls);
        for (id, rule) in self.all.iter().enumerate() {
            let within =
                |&&(callee, is_last): &&(RuleId, bool)| !is_last && components[callee as usize] == components[id];
            if let Some(&(callee, _)) = calls[id].iter().find(within) {
                let through = &self.names[self.all[callee as usize].name as usize];
                let itself = self.all[callee as usize].name == rule.name;
                let via = if itself { String::new() } else { format!(", through '{through}'") };
                return Err(self.error(
                    rule,
                    format_args!(
                        "it can begin with itself{via}; left recursion is not supported, 'x*' and right recursion are"
                    ),
                ));
            }
        }
        Ok(components)
    }

    fn bodies(&self) -> impl Iterator<Item = (RuleId, &Vec<Symbol>)> {
        (0..).zip(&self.all).flat_map(|(id, rule)| rule.alternatives.iter().map(move |body| (id, body)))
    }
}

/// The rules that a rule can begin with, and whether each ends an alternative.
fn left_calls(rule: &Rule, nullable: &[bool]) -> Vec<(RuleId, bool)> {
    let mut calls = vec![];
    for body in &rule.alternatives {
        for (i, symbol) in body.iter().enumerate() {
            let Symbol::Call(callee) = *symbol else { break };
            calls.push((callee, i + 1 == body.len()));
            if !nullable[callee as usize] {
                break;
            }
        }
    }
    calls
}

/// Tarjan's algorithm without recursion: components are numbered callees first.
fn strongly_connected(calls: &[Vec<(RuleId, bool)>]) -> Vec<u32> {
    const NEW: u32 = u32::MAX;
    let n = calls.len();
    let (mut order, mut low, mut component) = (vec![NEW; n], vec![0; n], vec![NEW; n]);
    let (mut visited, mut components) = (0, 0);
    let (mut open, mut path): (Vec<usize>, Vec<(usize, usize)>) = (vec![], vec![]);
    for root in 0..n {
        if order[root] != NEW {
            continue;
        }
        path.push((root, 0));
        while let Some((rule, next)) = path.pop() {
            if next == 0 {
                (order[rule], low[rule]) = (visited, visited);
                visited += 1;
                open.push(rule);
            } else {
                let (callee, _) = calls[rule][next - 1];
                low[rule] = low[rule].min(low[callee as usize]);
            }
            // The next callee that is new; older ones that are still open count by their order.
            let mut at = next;
            let mut deeper = None;
            while let Some(&(callee, _)) = calls[rule].get(at) {
                at += 1;
                let callee = callee as usize;
                if order[callee] == NEW {
                    deeper = Some(callee);
                    break;
                }
                if component[callee] == NEW {
                    low[rule] = low[rule].min(order[callee]);
                }
            }
            if let Some(callee) = deeper {
                path.push((rule, at));
                path.push((callee, 0));
                continue;
            }
            if low[rule] == order[rule] {
                while let Some(member) = open.pop() {
                    component[member] = components;
                    if member == rule {
                        break;
                    }
                }
                components += 1;
            }
        }
    }
    component
}
