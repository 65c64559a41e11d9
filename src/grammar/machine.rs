//! A grammar ready to run: all alternatives laid end to end, so that a place in the grammar is one number.

use super::class::ByteSet;
use super::lexicon::Lexicon;
use super::rules::{RuleId, Rules, Symbol, TokenName};
use crate::text::Tokenizer;
use crate::tree::Token;
use anyhow::Result;
use std::ops::Range;

/// A place in the grammar: an index of [`Machine::elements`].
pub(super) type Position = u32;

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Bytes(u32),
    Call(RuleId),
    Token(u32),
    /// The end of an alternative.
    End,
}

pub(super) struct Machine {
    elements: Vec<Element>,
    /// Where each alternative starts, and which of these each rule has.
    starts: Vec<Position>,
    alternatives: Vec<Range<u32>>,
    nullable: Vec<bool>,
    /// Which rules can begin with one another, numbered callees first, and the rules of each such component.
    component: Vec<u32>,
    members: Vec<Vec<RuleId>>,
    sets: Vec<ByteSet>,
    /// Bytes that no set tells apart have one class; a byte of each.
    classes: [u8; 256],
    samples: Vec<u8>,
    /// A token and whether all others are meant.
    tokens: Vec<(Token, bool)>,
    start: Position,
}

impl Machine {
    pub(super) fn new(rules: &Rules, tokenizer: &Tokenizer, lexicon: &Lexicon) -> Result<Self> {
        let nullable = rules.nullable();
        let component = rules.components(&nullable)?;
        let mut members = vec![vec![]; component.iter().map(|&c| c as usize + 1).max().unwrap_or(0)];
        (0..).zip(&component).for_each(|(rule, &c)| members[c as usize].push(rule));
        let (mut elements, mut starts, mut alternatives) = (vec![], vec![], vec![]);
        for rule in &rules.all {
            let first = starts.len() as u32;
            for body in &rule.alternatives {
                starts.push(elements.len() as Position);
                elements.extend(body.iter().map(|&symbol| match symbol {
                    Symbol::Bytes(set) => Element::Bytes(set),
                    Symbol::Call(rule) => Element::Call(rule),
                    Symbol::Token(token) => Element::Token(token),
                }));
                elements.push(Element::End);
            }
            alternatives.push(first..starts.len() as u32);
        }
        let start = elements.len() as Position;
        elements.extend([Element::Call(rules.root), Element::End]);
        let (classes, samples) = classify(rules.sets());
        Ok(Self {
            elements,
            starts,
            alternatives,
            nullable,
            component,
            members,
            sets: rules.sets().to_vec(),
            classes,
            samples,
            tokens: tokens(rules, tokenizer, lexicon)?,
            start,
        })
    }

    /// Where a text begins.
    pub(super) fn start(&self) -> Position {
        self.start
    }

    pub(super) fn at(&self, position: Position) -> Element {
        self.elements[position as usize]
    }

    /// Where the alternatives of a rule start.
    pub(super) fn alternatives(&self, rule: RuleId) -> &[Position] {
        let Range { start, end } = self.alternatives[rule as usize];
        &self.starts[start as usize..end as usize]
    }

    pub(super) fn is_nullable(&self, rule: RuleId) -> bool {
        self.nullable[rule as usize]
    }

    pub(super) fn component(&self, rule: RuleId) -> u32 {
        self.component[rule as usize]
    }

    pub(super) fn members(&self, component: u32) -> &[RuleId] {
        &self.members[component as usize]
    }

    pub(super) fn set(&self, set: u32) -> &ByteSet {
        &self.sets[set as usize]
    }

    /// The class of every byte.
    pub(super) fn classes(&self) -> &[u8; 256] {
        &self.classes
    }

    /// A byte of every class.
    pub(super) fn samples(&self) -> &[u8] {
        &self.samples
    }

    /// What a reference means: a token, and whether it is all others.
    pub(super) fn token(&self, reference: u32) -> (Token, bool) {
        self.tokens[reference as usize]
    }
}

/// Refines "all bytes" by one set after the other.
fn classify(sets: &[ByteSet]) -> ([u8; 256], Vec<u8>) {
    let mut classes = [0; 256];
    let mut count = 1;
    for set in sets {
        // New numbers of the members of a class, where it also has others.
        let mut inside = [None; 256];
        let mut has_others = [false; 256];
        (0..=255u8).for_each(|b| has_others[usize::from(classes[usize::from(b)])] |= !set.contains(b));
        for byte in (0..=255u8).filter(|&b| set.contains(b)) {
            let class = &mut classes[usize::from(byte)];
            if has_others[usize::from(*class)] {
                *class = *inside[usize::from(*class)].get_or_insert_with(|| {
                    count += 1;
                    (count - 1) as u8 // at most 256 classes
                });
            }
        }
    }
    let sample = |class| (0..=255u8).find(|&b| classes[usize::from(b)] == class).expect("no class is empty");
    let samples = (0..count).map(|class| sample(class as u8)).collect();
    (classes, samples)
}

/// Looks up what the grammar's tokens are in a vocabulary.
fn tokens(rules: &Rules, tokenizer: &Tokenizer, lexicon: &Lexicon) -> Result<Vec<(Token, bool)>> {
    let resolve = |reference: &super::rules::TokenRef| {
        let error = |what: String| Err(rules.error_at(reference.rule, reference.at, what));
        let token = match &reference.name {
            TokenName::Id(id) if (*id as usize) < lexicon.len() => *id,
            TokenName::Id(id) => return error(format!("found token {id}, the vocabulary has {}", lexicon.len())),
            TokenName::Text(text) => match tokenizer.encode(text, true)?[..] {
                [token] => token,
                ref many => {
                    return error(format!(
                        "{text} is {} tokens of this model, supported texts of one token",
                        many.len()
                    ));
                }
            },
        };
        if !reference.negated && lexicon.is_end(token) {
            return error(format!(
                "token {token} ends the text; it needs no mention, as it may follow whatever is complete"
            ));
        }
        Ok((token, reference.negated))
    };
    rules.tokens.iter().map(resolve).collect()
}
