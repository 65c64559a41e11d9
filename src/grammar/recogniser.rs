//! Runs a grammar over bytes.
//!
//! A *stack* is a place in the grammar on top of the places to return to. After some bytes there may be many stacks;
//! a *set* of them is a list of tops, ascending, each with the set of stacks below it, plus whether the empty stack is
//! among them (the text may end). Equal sets are one and the same number, so sets share whatever they have in common,
//! a state is a number that costs nothing to keep, and what follows a state on a byte is computed once.
//!
//! A call that ends its alternative leaves no place to return to, so right recursion and loops take no room.
//!
//! ```text
//! s ::= "(" s ")" | ""      after "((" :  { "(" over R, ")" over { ")" over {done} } }     R: what the s within would
//! ```
//!
//! Stacks never loop, as rules do not begin with themselves. A grammar that is ambiguous beyond measure is stopped by
//! a budget: then everything is refused and [`Recogniser::is_exhausted`].

use super::machine::{Element, Machine, Position};
use crate::tree::Token;
use ahash::{AHashMap, AHashSet, RandomState};
use hashbrown::HashTable;
use std::collections::BTreeMap;

/// A set of stacks, by number.
pub(super) type State = u32;

/// No stack at all: the text is not legal.
pub(super) const DEAD: State = 0;
/// The empty stack alone.
const DONE: State = 1;

const UNKNOWN: State = u32::MAX;
/// Words of memory from which on it is better to forget everything and begin anew.
const FULL: usize = 1 << 23;
/// Words of memory that one step may not exceed, beyond [`FULL`].
const EXHAUSTED: usize = 4 * FULL;
/// How deep stacks may differ below equal tops.
const DEEPEST: usize = 1000;

/// A top, and the set of stacks below it.
type Item = (Position, State);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
    is_done: bool,
}

/// A place to return to, gathered for a component of rules.
#[derive(Default)]
struct Below {
    items: Vec<Item>,
    is_done: bool,
}

pub(super) struct Recogniser {
    machine: Machine,
    items: Vec<Item>,
    spans: Vec<Span>,
    ids: HashTable<State>,
    hasher: RandomState,
    unions: AHashMap<(State, State), State>,
    /// Where in `steps` a state's row begins, one word a class of bytes.
    rows: Vec<u32>,
    steps: Vec<State>,
    is_exhausted: bool,
    start: State,
}

impl Recogniser {
    pub(super) fn new(machine: Machine) -> Self {
        let mut new = Self {
            machine,
            items: vec![],
            spans: vec![],
            ids: HashTable::new(),
            hasher: RandomState::with_seeds(5, 6, 7, 8),
            unions: AHashMap::new(),
            rows: vec![],
            steps: vec![],
            is_exhausted: false,
            start: DEAD,
        };
        new.forget();
        new
    }

    /// Forgets all states: they mean nothing any more.
    pub(super) fn forget(&mut self) {
        self.items.clear();
        self.spans.clear();
        self.ids.clear();
        self.unions.clear();
        self.rows.clear();
        self.steps.clear();
        self.is_exhausted = false;
        self.intern(vec![], false);
        self.intern(vec![], true);
        self.start = self.close(vec![(self.machine.start(), DONE)]);
    }

    /// Whether it is time to [`Recogniser::forget`].
    pub(super) fn is_full(&self) -> bool {
        self.is_exhausted || self.words() > FULL
    }

    /// Whether the budget is spent, so that states since then are wrong.
    pub(super) fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    fn words(&self) -> usize {
        2 * self.items.len() + 8 * self.spans.len() + self.steps.len() + 8 * self.unions.len()
    }

    /// Before any byte.
    pub(super) fn start(&self) -> State {
        self.start
    }

    /// Whether the text may end here.
    pub(super) fn is_complete(&self, state: State) -> bool {
        self.spans[state as usize].is_done
    }

    pub(super) fn classes(&self) -> [u8; 256] {
        *self.machine.classes()
    }

    /// After one more byte, of the class `class`.
    pub(super) fn step(&mut self, state: State, class: u8) -> State {
        if let Some(&row) = self.rows.get(state as usize)
            && row != UNKNOWN
        {
            let next = self.steps[row as usize + usize::from(class)];
            if next != UNKNOWN {
                return next;
            }
        }
        self.compute(state, class)
    }

    #[cold]
    fn compute(&mut self, state: State, class: u8) -> State {
        let byte = self.machine.samples()[usize::from(class)];
        let matches = |&(position, _): &Item| match self.machine.at(position) {
            Element::Bytes(set) => self.machine.set(set).contains(byte),
            _ => false,
        };
        let moved = self.items_of(state).iter().filter(|item| matches(item)).map(|&(at, below)| (at + 1, below));
        let next = self.close(moved.collect());
        if self.is_exhausted {
            return DEAD;
        }
        if self.rows.len() <= state as usize {
            self.rows.resize(self.spans.len().max(state as usize + 1), UNKNOWN);
        }
        let row = &mut self.rows[state as usize];
        if *row == UNKNOWN {
            *row = self.steps.len() as u32;
            self.steps.resize(self.steps.len() + self.machine.samples().len(), UNKNOWN);
        }
        self.steps[*row as usize + usize::from(class)] = next;
        next
    }

    /// After all of `bytes`.
    pub(super) fn walk(&mut self, mut state: State, bytes: &[u8]) -> State {
        for &byte in bytes {
            if state == DEAD {
                break;
            }
            state = self.step(state, self.machine.classes()[usize::from(byte)]);
        }
        state
    }

    /// The references to tokens that a state waits for: a token, and whether it is all others.
    pub(super) fn tokens(&self, state: State) -> impl Iterator<Item = (Token, bool)> {
        self.items_of(state).iter().filter_map(|&(position, _)| match self.machine.at(position) {
            Element::Token(reference) => Some(self.machine.token(reference)),
            _ => None,
        })
    }

    /// After a token that references mean, `is_text` or not: all others are all other text.
    pub(super) fn refer(&mut self, state: State, token: Token, is_text: bool) -> State {
        let matches = |&(position, _): &Item| match self.machine.at(position) {
            Element::Token(reference) => match self.machine.token(reference) {
                (one, false) => one == token,
                (one, true) => one != token && is_text,
            },
            _ => false,
        };
        let moved = self.items_of(state).iter().filter(|item| matches(item)).map(|&(at, below)| (at + 1, below));
        self.close(moved.collect())
    }

    /// Both, where a token was legal in two ways.
    pub(super) fn either(&mut self, a: State, b: State) -> State {
        self.union(a, b, 0)
    }

    fn items_of(&self, set: State) -> &[Item] {
        let Span { start, end, .. } = self.spans[set as usize];
        &self.items[start as usize..end as usize]
    }

    /// The state of these stacks once all calls are made and all returns taken.
    fn close(&mut self, mut todo: Vec<Item>) -> State {
        let mut tops = vec![];
        let mut is_done = false;
        let mut seen = AHashSet::new();
        let mut calls = BTreeMap::new();
        // Stacks whose rule has begun: at its end they return.
        while let Some((position, below)) = todo.pop() {
            if !seen.insert((position, below)) || self.is_over(seen.len()) {
                continue;
            }
            match self.machine.at(position) {
                Element::Bytes(_) | Element::Token(_) => tops.push((position, below)),
                Element::End => {
                    is_done |= self.is_complete(below);
                    todo.extend_from_slice(self.items_of(below));
                }
                Element::Call(rule) => {
                    self.call(&mut calls, self.machine.component(rule), position + 1, below);
                    if self.machine.is_nullable(rule) {
                        todo.push((position + 1, below));
                    }
                }
            }
        }
        // Rules that begin here: each once, over all places that it was called from. That it may be empty was seen to
        // by the caller, so its end is no return. Callers have higher numbers than what they begin with.
        while let Some((component, Below { items, is_done })) = calls.pop_last() {
            let below = self.merge(items, is_done, 0);
            for i in 0..self.machine.members(component).len() {
                let rule = self.machine.members(component)[i];
                for j in 0..self.machine.alternatives(rule).len() {
                    let mut position = self.machine.alternatives(rule)[j];
                    loop {
                        match self.machine.at(position) {
                            Element::End => break,
                            Element::Bytes(_) | Element::Token(_) => {
                                tops.push((position, below));
                                break;
                            }
                            Element::Call(callee) => {
                                let to = self.machine.component(callee);
                                if to != component {
                                    self.call(&mut calls, to, position + 1, below);
                                }
                                if !self.machine.is_nullable(callee) {
                                    break;
                                }
                                position += 1;
                            }
                        }
                    }
                }
            }
        }
        self.merge(tops, is_done, 0)
    }

    /// Notes that the rules of `component` return to `position` over `below`, or to `below` if nothing is left there.
    fn call(&self, calls: &mut BTreeMap<u32, Below>, component: u32, position: Position, below: State) {
        let to = calls.entry(component).or_default();
        if self.machine.at(position) == Element::End {
            to.items.extend_from_slice(self.items_of(below));
            to.is_done |= self.is_complete(below);
        } else {
            to.items.push((position, below));
        }
    }

    /// The set of these stacks; tops may come more than once.
    fn merge(&mut self, mut items: Vec<Item>, is_done: bool, depth: usize) -> State {
        items.sort_unstable();
        items.dedup();
        let mut merged: Vec<Item> = Vec::with_capacity(items.len());
        for (position, below) in items {
            match merged.last().copied() {
                Some((last, other)) if last == position => {
                    let union = self.union(other, below, depth);
                    merged.last_mut().expect("there is one").1 = union;
                }
                _ => merged.push((position, below)),
            }
        }
        self.intern(merged, is_done)
    }

    fn union(&mut self, a: State, b: State, depth: usize) -> State {
        let key = (a.min(b), a.max(b));
        if a == b || key.0 == DEAD {
            return key.1;
        }
        if let Some(&known) = self.unions.get(&key) {
            return known;
        }
        if depth > DEEPEST || self.is_over(0) {
            self.is_exhausted = true;
            return DEAD;
        }
        let items = [self.items_of(a), self.items_of(b)].concat();
        let union = self.merge(items, self.is_complete(a) || self.is_complete(b), depth + 1);
        self.unions.insert(key, union);
        union
    }

    /// The number of a set whose items ascend.
    fn intern(&mut self, items: Vec<Item>, is_done: bool) -> State {
        let Self { items: pool, spans, ids, hasher, .. } = self;
        let of = |span: Span| (&pool[span.start as usize..span.end as usize], span.is_done);
        let hash = hasher.hash_one((&items[..], is_done));
        if let Some(&known) = ids.find(hash, |&id| of(spans[id as usize]) == (&items[..], is_done)) {
            return known;
        }
        let id = spans.len() as State;
        let start = pool.len() as u32;
        ids.insert_unique(hash, id, |&id| hasher.hash_one(of(spans[id as usize])));
        pool.extend(items);
        spans.push(Span { start, end: pool.len() as u32, is_done });
        id
    }

    /// Whether this and what is kept is too much; from then on nothing is right any more.
    fn is_over(&mut self, work: usize) -> bool {
        self.is_exhausted |= self.words() + 4 * work > EXHAUSTED;
        self.is_exhausted
    }
}
