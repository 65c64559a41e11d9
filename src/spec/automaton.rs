//! A suffix automaton over a growing text: every substring of the text is a path from its root.
//!
//! Substrings that end at the same places share a state. A state's link leads to the longest suffix of its strings that
//! ends at more places, so the links from the whole text's state are the suffixes of the text that occurred before,
//! longest first: what a lookup asks for needs no search. Appending a token takes constant time on average, and there are
//! at most two states and three edges per token (Blumer et al. 1985).

use crate::tree::Token;
use ahash::AHashMap;

/// Index of a state.
pub type StateId = u32;

/// Stands for no edge.
const NONE: u32 = u32::MAX;

/// Links that one appended token counts along. Texts that need more repeat one short phrase all over; there the counts
/// of the phrase's shorter suffixes fall behind, and the time per token stays bounded.
const COUNTED: usize = 64;

/// Substrings that end at the same places, each a suffix of the longest one.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Length of the longest.
    pub len: u32,
    /// Places they end at.
    pub count: u32,
    /// The latest of them.
    pub recent: u32,
    /// Different tokens that follow.
    pub fan: u32,
    link: StateId,
    /// First of a list of edges.
    edges: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    token: Token,
    to: StateId,
    next: u32,
}

/// The automaton.
#[derive(Debug)]
pub struct Automaton {
    classes: Vec<Class>,
    edges: Vec<Edge>,
    /// Where the edge of a state and a token is.
    index: AHashMap<(StateId, Token), u32>,
    /// State of the whole text.
    last: StateId,
    /// Classes of strings no longer than this need no counts.
    uncounted: u32,
}

impl Automaton {
    /// Of the empty text. Counts are kept of strings longer than `uncounted`.
    pub fn new(uncounted: usize) -> Self {
        let root = Class { len: 0, count: 0, recent: 0, fan: 0, link: 0, edges: NONE };
        let uncounted = u32::try_from(uncounted).unwrap_or(u32::MAX);
        Self { classes: vec![root], edges: vec![], index: AHashMap::new(), last: 0, uncounted }
    }

    /// Length of the text.
    pub fn len(&self) -> usize {
        self.class(self.last).len as usize
    }

    /// The state of the whole text.
    pub fn last(&self) -> StateId {
        self.last
    }

    /// What is known of a state.
    pub fn class(&self, state: StateId) -> &Class {
        &self.classes[state as usize]
    }

    /// The state of the longest suffix that ends at more places; the root's is itself.
    pub fn link(&self, state: StateId) -> StateId {
        self.classes[state as usize].link
    }

    /// The tokens that follow a state's strings, and the states they lead to.
    pub fn followers(&self, state: StateId) -> impl Iterator<Item = (Token, StateId)> {
        let edge = |at: u32| self.edges.get(at as usize);
        let list = std::iter::successors(edge(self.classes[state as usize].edges), move |e| edge(e.next));
        list.map(|e| (e.token, e.to))
    }

    /// Where `token` leads from the string of length `len` of a state: the state and the length of its longest suffix,
    /// that token appended, that occurs.
    pub fn follow(&self, mut state: StateId, mut len: usize, token: Token) -> (StateId, usize) {
        loop {
            if let Some(&edge) = self.index.get(&(state, token)) {
                return (self.edges[edge as usize].to, len + 1);
            }
            if state == 0 {
                return (0, 0);
            }
            state = self.link(state);
            len = self.class(state).len as usize;
        }
    }

    /// Appends a token.
    pub fn push(&mut self, token: Token) {
        let len = self.class(self.last).len + 1;
        let new = self.add(Class { len, count: 1, recent: len, fan: 0, link: 0, edges: NONE });
        let mut state = self.last;
        self.last = new;
        let met = loop {
            match self.index.get(&(state, token)) {
                Some(&edge) => break Some(edge),
                None => self.connect(state, token, new),
            }
            if state == 0 {
                break None;
            }
            state = self.link(state);
        };
        if let Some(edge) = met {
            let target = self.edges[edge as usize].to;
            let fits = self.class(target).len == self.class(state).len + 1;
            let link = if fits { target } else { self.split(state, token, target) };
            self.classes[new as usize].link = link;
        }
        self.count(new);
    }

    /// Splits the strings that `state` leads to off from longer ones in `target`: now they end at one place more.
    fn split(&mut self, mut state: StateId, token: Token, target: StateId) -> StateId {
        let len = self.class(state).len + 1;
        let short = self.add(Class { len, fan: 0, edges: NONE, ..*self.class(target) });
        let followers: Vec<_> = self.followers(target).collect();
        followers.into_iter().rev().for_each(|(token, to)| self.connect(short, token, to));
        self.classes[target as usize].link = short;
        while let Some(&edge) = self.index.get(&(state, token)).filter(|&&e| self.edges[e as usize].to == target) {
            self.edges[edge as usize].to = short;
            if state == 0 {
                break;
            }
            state = self.link(state);
        }
        short
    }

    /// The text's suffixes end at one place more, its own.
    fn count(&mut self, new: StateId) {
        let mut state = self.link(new);
        for _ in 0..COUNTED {
            let recent = self.class(new).len;
            let class = &mut self.classes[state as usize];
            if class.len <= self.uncounted {
                break;
            }
            class.count += 1;
            class.recent = recent;
            state = class.link;
        }
    }

    fn add(&mut self, class: Class) -> StateId {
        self.classes.push(class);
        (self.classes.len() - 1) as StateId
    }

    fn connect(&mut self, from: StateId, token: Token, to: StateId) {
        let edge = self.edges.len() as u32;
        let class = &mut self.classes[from as usize];
        self.edges.push(Edge { token, to, next: class.edges });
        class.edges = edge;
        class.fan += 1;
        self.index.insert((from, token), edge);
    }
}
