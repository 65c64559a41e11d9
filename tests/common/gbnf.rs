//! GBNF the slow way: its own reader, and a matcher that tries everything. For judging the real one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

enum Node {
    /// Ranges of characters, and whether they are those meant or all others.
    Class(Vec<(u32, u32)>, bool),
    Sequence(Vec<usize>),
    Choice(Vec<usize>),
    Repeat(usize, usize, usize),
    Rule(String),
}

/// A grammar; no token references.
pub struct Naive {
    nodes: Vec<Node>,
    rules: HashMap<String, usize>,
}

/// What a text is to a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It matches; perhaps more may follow.
    Complete,
    /// More must follow.
    Prefix,
    Illegal,
}

impl Naive {
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut reader = Reader { chars, at: 0, naive: Self { nodes: vec![], rules: HashMap::new() } };
        reader.blank(true);
        while reader.at < reader.chars.len() {
            let name = reader.name();
            reader.blank(false);
            assert!("::=".chars().all(|c| reader.eat(c)), "at {}", reader.at);
            reader.blank(true);
            let body = reader.choice(false);
            reader.naive.rules.insert(name, body);
            reader.blank(true);
        }
        reader.naive
    }

    /// Judges bytes, which may end inside a character.
    pub fn judge(&self, bytes: &[u8]) -> Verdict {
        let (text, partial) = match std::str::from_utf8(bytes) {
            Ok(text) => (text, &[][..]),
            Err(e) if e.error_len().is_some() => return Verdict::Illegal,
            Err(e) => (std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap(), &bytes[e.valid_up_to()..]),
        };
        let next = if partial.is_empty() { Some((0, u32::MAX)) } else { beginnings().get(partial).copied() };
        let Some(next) = next else { return Verdict::Illegal };
        let input = text.chars().map(|c| c as u32).collect();
        let run = Run {
            naive: self,
            input,
            next,
            goes_on: Cell::new(false),
            known: RefCell::default(),
            seen: RefCell::default(),
            is_news: Cell::new(true),
        };
        let mut ends = BTreeSet::new();
        // Where a rule begins with itself, what it matches is what it is known to match, until nothing new comes of it.
        while run.is_news.replace(false) {
            run.seen.borrow_mut().clear();
            ends = run.ends(self.rules["root"], 0);
        }
        if partial.is_empty() && ends.contains(&run.input.len()) {
            Verdict::Complete
        } else if run.goes_on.get() {
            Verdict::Prefix
        } else {
            Verdict::Illegal
        }
    }
}

/// Proper beginnings of characters in UTF-8, with the characters that begin so.
fn beginnings() -> &'static HashMap<Vec<u8>, (u32, u32)> {
    static ALL: OnceLock<HashMap<Vec<u8>, (u32, u32)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = HashMap::new();
        for c in (0x80..=0x10FFFF).filter_map(char::from_u32) {
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            for end in 1..bytes.len() {
                all.entry(bytes[..end].to_vec()).or_insert((c as u32, 0)).1 = c as u32;
            }
        }
        all
    })
}

struct Run<'a> {
    naive: &'a Naive,
    input: Vec<u32>,
    /// What the next character after the input can be.
    next: (u32, u32),
    /// Whether some class wanted that character and could have it.
    goes_on: Cell<bool>,
    /// Per node and start: where it may end, as far as known.
    known: RefCell<HashMap<(usize, usize), BTreeSet<usize>>>,
    /// What was looked at in this round.
    seen: RefCell<BTreeSet<(usize, usize)>>,
    is_news: Cell<bool>,
}

impl Run<'_> {
    fn ends(&self, node: usize, start: usize) -> BTreeSet<usize> {
        let known = || self.known.borrow().get(&(node, start)).cloned().unwrap_or_default();
        if !self.seen.borrow_mut().insert((node, start)) {
            return known();
        }
        let ends = self.find(&self.naive.nodes[node], start);
        if ends != known() {
            self.is_news.set(true);
            self.known.borrow_mut().insert((node, start), ends.clone());
        }
        ends
    }

    fn find(&self, node: &Node, start: usize) -> BTreeSet<usize> {
        match node {
            Node::Class(ranges, negated) => {
                let within = |c: u32| ranges.iter().any(|&(a, b)| (a..=b).contains(&c)) != *negated;
                match self.input.get(start) {
                    Some(&c) => within(c).then_some(start + 1).into_iter().collect(),
                    None => {
                        let (low, high) = self.next;
                        let some = if high == u32::MAX { true } else { (low..=high).any(within) };
                        self.goes_on.set(self.goes_on.get() || some);
                        BTreeSet::new()
                    }
                }
            }
            Node::Sequence(parts) => parts.iter().fold(BTreeSet::from([start]), |ends, &part| self.after(part, &ends)),
            Node::Choice(parts) => parts.iter().flat_map(|&part| self.ends(part, start)).collect(),
            Node::Rule(name) => self.ends(self.naive.rules[name], start),
            Node::Repeat(part, least, most) => {
                let (mut ends, mut all) = (BTreeSet::from([start]), BTreeSet::new());
                for n in 0.. {
                    if n >= *least {
                        all.extend(&ends);
                    }
                    if n == *most {
                        break;
                    }
                    let next = self.after(*part, &ends);
                    if next.is_empty() || n >= *least && next.is_subset(&all) && n > 50 {
                        break;
                    }
                    ends = next;
                }
                all
            }
        }
    }

    fn after(&self, part: usize, starts: &BTreeSet<usize>) -> BTreeSet<usize> {
        starts.iter().flat_map(|&start| self.ends(part, start)).collect()
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    naive: Naive,
}

impl Reader {
    fn peek(&self) -> char {
        self.chars.get(self.at).copied().unwrap_or('\0')
    }

    fn eat(&mut self, c: char) -> bool {
        let is = self.at < self.chars.len() && self.peek() == c;
        self.at += usize::from(is);
        is
    }

    fn blank(&mut self, lines: bool) {
        while self.at < self.chars.len() {
            match self.peek() {
                '#' => {
                    while self.at < self.chars.len() && self.peek() != '\n' {
                        self.at += 1;
                    }
                }
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                _ => break,
            }
        }
    }

    fn name(&mut self) -> String {
        let start = self.at;
        while self.peek().is_ascii_alphanumeric() || self.peek() == '-' {
            self.at += 1;
        }
        assert!(self.at > start, "a name at {start}");
        self.chars[start..self.at].iter().collect()
    }

    fn add(&mut self, node: Node) -> usize {
        self.naive.nodes.push(node);
        self.naive.nodes.len() - 1
    }

    fn choice(&mut self, nested: bool) -> usize {
        let mut parts = vec![self.sequence(nested)];
        while self.eat('|') {
            self.blank(true);
            parts.push(self.sequence(nested));
        }
        self.add(Node::Choice(parts))
    }

    fn sequence(&mut self, nested: bool) -> usize {
        let mut parts: Vec<usize> = vec![];
        loop {
            match self.peek() {
                '"' => {
                    self.at += 1;
                    let mut letters = vec![];
                    while !self.eat('"') {
                        let c = self.letter();
                        letters.push(self.add(Node::Class(vec![(c, c)], false)));
                    }
                    let literal = self.add(Node::Sequence(letters));
                    parts.push(literal);
                }
                '[' => {
                    self.at += 1;
                    let negated = self.eat('^');
                    let mut ranges = vec![];
                    while !self.eat(']') {
                        let low = self.letter();
                        let is_range = self.peek() == '-' && self.chars[self.at + 1] != ']';
                        self.at += usize::from(is_range);
                        ranges.push((low, if is_range { self.letter() } else { low }));
                    }
                    parts.push(self.add(Node::Class(ranges, negated)));
                }
                '.' => {
                    self.at += 1;
                    parts.push(self.add(Node::Class(vec![], true)));
                }
                '(' => {
                    self.at += 1;
                    self.blank(true);
                    let group = self.choice(true);
                    assert!(self.eat(')'), "a ) at {}", self.at);
                    parts.push(group);
                }
                '*' | '+' | '?' | '{' => {
                    let (least, most) = self.times();
                    let part = parts.pop().unwrap();
                    parts.push(self.add(Node::Repeat(part, least, most)));
                }
                c if c.is_ascii_alphanumeric() || c == '-' => {
                    let name = self.name();
                    parts.push(self.add(Node::Rule(name)));
                }
                _ => return self.add(Node::Sequence(parts)),
            }
            self.blank(nested);
        }
    }

    fn times(&mut self) -> (usize, usize) {
        let c = self.peek();
        self.at += 1;
        match c {
            '*' => (0, usize::MAX),
            '+' => (1, usize::MAX),
            '?' => (0, 1),
            _ => {
                let start = self.at;
                while !self.eat('}') {
                    self.at += 1;
                }
                let inside: String = self.chars[start..self.at - 1].iter().collect();
                let number =
                    |text: &str, none| if text.trim().is_empty() { none } else { text.trim().parse().unwrap() };
                match inside.split_once(',') {
                    Some((least, most)) => (number(least, 0), number(most, usize::MAX)),
                    None => (number(&inside, 0), number(&inside, 0)),
                }
            }
        }
    }

    fn letter(&mut self) -> u32 {
        let c = self.peek();
        self.at += 1;
        if c != '\\' {
            return c as u32;
        }
        let c = self.peek();
        self.at += 1;
        let digits = match c {
            'n' => return 10,
            'r' => return 13,
            't' => return 9,
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return other as u32,
        };
        let hex: String = self.chars[self.at..self.at + digits].iter().collect();
        self.at += digits;
        u32::from_str_radix(&hex, 16).unwrap()
    }
}
