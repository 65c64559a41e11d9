//! Reads GBNF, llama.cpp's notation for grammars.
//!
//! ```text
//! root  ::= "[" item ("," item)* "]"     # comment
//! item  ::= [a-z_] [^\n"]{0,9} | . | <[42]> | !<think>
//! ```
//!
//! A rule ends with its line, but lines may break after `::=` and `|` and within parentheses. Characters are Unicode
//! code points; escapes are `\n \r \t \\ \" \[ \] \-`, `\xXX`, `\uXXXX` and `\UXXXXXXXX`. `* + ? {n} {n,} {,n} {n,m}`
//! repeat the item before them (a whole literal or group). A rule defined twice means its last definition.
//!
//! What llama.cpp accepts means the same here, but for what it takes to mean something no one can have meant, which is
//! refused (a class without characters, `{3,2}`) or, for upper bounds above 2000, which it drops, kept.
//!
//! Nothing here recurses, and every copy that a repetition makes counts against a budget.

use super::class::{ByteSet, CharSet};
use super::rules::{Rule, RuleId, Rules, Symbol, TokenName, TokenRef};
use super::source::Source;
use anyhow::{Error, Result};
use std::collections::HashMap;

/// Symbols in all rules together: what a repetition or a text may make at most.
const MOST_SYMBOLS: usize = 1 << 18;

/// Reads a grammar. Errors begin with `line:column:` and name the rule.
pub(super) fn parse(text: &str) -> Result<Rules> {
    let mut parser = Parser {
        source: Source::new(text),
        ids: HashMap::new(),
        classes: HashMap::new(),
        rules: Rules::of(text),
        symbols: 0,
    };
    parser.source.skip(true);
    while parser.source.peek().is_some() {
        parser.rule()?;
    }
    parser.finish()
}

struct Parser<'a> {
    source: Source<'a>,
    /// Rules that have names.
    ids: HashMap<&'a str, RuleId>,
    classes: HashMap<CharSet, Symbol>,
    rules: Rules,
    symbols: usize,
}

/// Alternatives being read: those of a named rule or of a group.
#[derive(Default)]
struct Open {
    /// Where the group begins.
    at: usize,
    done: Vec<Vec<Symbol>>,
    body: Vec<Symbol>,
    /// Where the item begins in `body` that a repetition would repeat.
    last: Option<usize>,
}

impl<'a> Parser<'a> {
    /// `name ::= alternatives`, and what is blank after it.
    fn rule(&mut self) -> Result<()> {
        let at = self.source.at();
        let name = self.source.take_while(is_word);
        if name.is_empty() {
            return Err(self.source.error(
                at,
                format_args!("found {}, supported the name of a rule (letters, digits, '-')", self.source.found()),
            ));
        }
        let id = self.id(name, at);
        self.rules.all[id as usize].at = at;
        self.source.skip(false);
        if !self.source.take("::=") {
            return Err(self.error(
                id,
                self.source.at(),
                format_args!("found {}, supported '::='", self.source.found()),
            ));
        }
        self.source.skip(true);
        let alternatives = self.alternatives(id)?;
        let rule = &mut self.rules.all[id as usize];
        rule.alternatives = alternatives;
        rule.is_defined = true;
        let at = self.source.at();
        match self.source.peek() {
            None | Some('\r' | '\n') => self.source.skip(true),
            Some(_) => {
                let found = self.source.found();
                return Err(self.error(
                    id,
                    at,
                    format_args!("found {found}, supported an item, '|' or the end of the line"),
                ));
            }
        }
        Ok(())
    }

    /// Everything between `::=` and the end of the rule `owner`. Groups are kept on a stack.
    fn alternatives(&mut self, owner: RuleId) -> Result<Vec<Vec<Symbol>>> {
        let mut open = Open::default();
        let mut outer: Vec<Open> = vec![];
        loop {
            let at = self.source.at();
            match self.source.peek() {
                Some('(') => {
                    self.source.next();
                    self.source.skip(true);
                    outer.push(std::mem::replace(&mut open, Open { at, ..Open::default() }));
                    continue;
                }
                Some(')') if !outer.is_empty() => {
                    self.source.next();
                    let around = outer.pop().expect("not empty");
                    let group = std::mem::replace(&mut open, around);
                    let alternatives = group.close();
                    let call = Symbol::Call(self.made(owner, alternatives, at)?);
                    self.item(owner, &mut open, vec![call], at)?;
                }
                Some('|') => {
                    self.source.next();
                    self.source.skip(true);
                    let body = std::mem::take(&mut open.body);
                    open.done.push(body);
                    open.last = None;
                    continue;
                }
                Some('"') => {
                    let literal = self.literal(owner)?;
                    self.item(owner, &mut open, literal, at)?;
                }
                Some('[') => {
                    let set = self.class(owner)?;
                    let symbol = self.set(owner, set, at)?;
                    self.item(owner, &mut open, vec![symbol], at)?;
                }
                Some('.') => {
                    self.source.next();
                    let symbol = self.set(owner, CharSet::all(), at)?;
                    self.item(owner, &mut open, vec![symbol], at)?;
                }
                Some('<' | '!') => {
                    let symbol = self.token(owner)?;
                    self.item(owner, &mut open, vec![symbol], at)?;
                }
                Some('*' | '+' | '?' | '{') => self.repetition(owner, &mut open, !outer.is_empty())?,
                Some(c) if is_word(c) => {
                    let name = self.source.take_while(is_word);
                    let call = Symbol::Call(self.id(name, at));
                    self.item(owner, &mut open, vec![call], at)?;
                }
                _ if outer.is_empty() => return Ok(open.close()),
                _ => {
                    let found = self.source.found();
                    let what = format!("found {found}, supported an item, '|' or ')'");
                    // What is missing is easier to see from where the group begins.
                    let (at, what) = match self.source.peek() {
                        Some(_) => (at, what),
                        None => (open.at, "'(' is never closed".into()),
                    };
                    return Err(self.error(owner, at, what));
                }
            }
            self.source.skip(!outer.is_empty());
        }
    }

    /// Adds an item that a repetition may follow.
    fn item(&mut self, owner: RuleId, open: &mut Open, symbols: Vec<Symbol>, at: usize) -> Result<()> {
        self.count(owner, symbols.len(), at)?;
        open.last = Some(open.body.len());
        open.body.extend(symbols);
        Ok(())
    }

    fn literal(&mut self, owner: RuleId) -> Result<Vec<Symbol>> {
        let start = self.source.at();
        self.source.next();
        let mut bytes = vec![];
        while !self.source.take("\"") {
            let at = self.source.at();
            let code = self.character(owner, start)?;
            let Some(c) = char::from_u32(code) else {
                return Err(self.error(owner, at, format_args!("found U+{code:04X}, which is no character")));
            };
            let mut buffer = [0; 4];
            for &byte in c.encode_utf8(&mut buffer).as_bytes() {
                bytes.push(Symbol::Bytes(self.rules.bytes(ByteSet::one(byte))));
            }
        }
        Ok(bytes)
    }

    /// `[...]`.
    fn class(&mut self, owner: RuleId) -> Result<CharSet> {
        let start = self.source.at();
        self.source.next();
        let negated = self.source.take("^");
        let mut ranges = vec![];
        while !self.source.take("]") {
            let at = self.source.at();
            let low = self.character(owner, start)?;
            let mut high = low;
            if self.source.rest().starts_with('-') && !self.source.rest().starts_with("-]") {
                self.source.next();
                high = self.character(owner, start)?;
            }
            if low > high {
                return Err(self.error(
                    owner,
                    at,
                    format_args!("the range from U+{low:04X} to U+{high:04X} runs backwards"),
                ));
            }
            ranges.push((low, high));
        }
        let nothing = ranges.is_empty();
        let set = CharSet::new(ranges, negated);
        if nothing || set.is_empty() {
            return Err(self.error(owner, start, "no character is in this class"));
        }
        Ok(set)
    }

    /// A character of a literal or class that begins at `start`: as it is, or escaped.
    fn character(&mut self, owner: RuleId, start: usize) -> Result<u32> {
        let at = self.source.at();
        let Some(c) = self.source.next() else {
            return Err(self.error(owner, start, "it is never closed"));
        };
        if c != '\\' {
            return Ok(c as u32);
        }
        let digits = match self.source.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('n') => return Ok('\n' as u32),
            Some('r') => return Ok('\r' as u32),
            Some('t') => return Ok('\t' as u32),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => return Ok(c as u32),
            None => return Err(self.error(owner, start, "it is never closed")),
            Some(c) => {
                let what = format!(
                    "found the escape \\{c}, supported \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\xXX \\uXXXX \\UXXXXXXXX"
                );
                return Err(self.error(owner, at, what));
            }
        };
        let mut code = 0;
        for _ in 0..digits {
            let Some(digit) = self.source.peek().and_then(|c| c.to_digit(16)) else {
                let found = self.source.found();
                return Err(self.error(
                    owner,
                    at,
                    format_args!("found {found}, supported {digits} hexadecimal digits"),
                ));
            };
            self.source.next();
            code = code << 4 | digit;
        }
        if code > 0x10FFFF {
            return Err(self.error(owner, at, format_args!("found U+{code:X}, supported up to U+10FFFF")));
        }
        Ok(code)
    }

    /// `<[id]>`, `<text>`, or one of them after `!`.
    fn token(&mut self, owner: RuleId) -> Result<Symbol> {
        let at = self.source.at();
        let negated = self.source.take("!");
        let start = self.source.at();
        if !self.source.take("<") {
            let found = self.source.found();
            return Err(self.error(
                owner,
                start,
                format_args!("found {found} after '!', supported a token, as <[ID]> or <TEXT>"),
            ));
        }
        let name = if self.source.take("[") {
            let digits = self.source.take_while(|c| c.is_ascii_digit());
            let id = digits.parse().ok();
            match id {
                Some(id) if self.source.take("]>") => TokenName::Id(id),
                _ => return Err(self.error(owner, start, "found no token id, supported <[ID]>")),
            }
        } else {
            self.source.take_while(|c| c != '>' && c != '\n');
            if !self.source.take(">") {
                return Err(self.error(owner, start, "'<' is never closed"));
            }
            TokenName::Text(self.source.since(start).into())
        };
        let rule = self.rules.all[owner as usize].name;
        self.rules.tokens.push(TokenRef { name, negated, at, rule });
        Ok(Symbol::Token(self.rules.tokens.len() as u32 - 1))
    }

    /// `* + ? {n} {n,} {,n} {n,m}` on the last item of `open`.
    fn repetition(&mut self, owner: RuleId, open: &mut Open, nested: bool) -> Result<()> {
        let at = self.source.at();
        let (least, most) = match self.source.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => self.bounds(owner, nested, at)?,
        };
        let Some(start) = open.last else {
            return Err(self.error(owner, at, "there is nothing to repeat before it"));
        };
        if most.is_some_and(|most| most < least) {
            return Err(self.error(
                owner,
                at,
                format_args!("found {{{least},{}}}, which nothing satisfies", most.unwrap_or(0)),
            ));
        }
        let item = open.body.split_off(start);
        let copies = most.unwrap_or(least).max(1);
        // More than one symbol becomes a rule, so that counts within counts add up instead of multiplying.
        let item = match item[..] {
            [] => return Ok(()), // "" however often
            [symbol] => symbol,
            _ if copies == 1 && least == 1 && most.is_some() => {
                open.body.extend(item);
                return Ok(());
            }
            _ => Symbol::Call(self.made(owner, vec![item], at)?),
        };
        let extra = most.map_or(3, |most| 2 * (most - least).min(MOST_SYMBOLS));
        self.count(owner, least.saturating_add(extra), at)?;
        open.body.extend(std::iter::repeat_n(item, least));
        match most {
            None => {
                // loop ::= item loop | ""
                let id = self.made(owner, vec![], at)?;
                self.rules.all[id as usize].alternatives = vec![vec![item, Symbol::Call(id)], vec![]];
                open.body.push(Symbol::Call(id));
            }
            Some(most) => {
                // upTo(n) ::= item upTo(n - 1) | ""
                let mut up_to = None;
                for _ in least..most {
                    let body = [item].into_iter().chain(up_to.map(Symbol::Call)).collect();
                    up_to = Some(self.made(owner, vec![body, vec![]], at)?);
                }
                open.body.extend(up_to.map(Symbol::Call));
            }
        }
        Ok(())
    }

    /// What is between braces.
    fn bounds(&mut self, owner: RuleId, nested: bool, at: usize) -> Result<(usize, Option<usize>)> {
        let number = |parser: &mut Self| -> Result<Option<usize>> {
            parser.source.skip(nested);
            let start = parser.source.at();
            let digits = parser.source.take_while(|c| c.is_ascii_digit());
            parser.source.skip(nested);
            match digits.parse() {
                Ok(n) if n <= MOST_SYMBOLS => Ok(Some(n)),
                _ if digits.is_empty() => Ok(None),
                _ => Err(parser.error(
                    owner,
                    start,
                    format_args!("found {digits}, supported counts up to {MOST_SYMBOLS}"),
                )),
            }
        };
        let least = number(self)?;
        let bounds = if self.source.take(",") {
            let most = number(self)?;
            if least.is_none() && most.is_none() { None } else { Some((least.unwrap_or(0), most)) }
        } else {
            least.map(|n| (n, Some(n)))
        };
        match bounds {
            Some(bounds) if self.source.take("}") => Ok(bounds),
            _ => Err(self.error(owner, at, "found no count, supported {n} {n,} {,n} {n,m}")),
        }
    }

    /// A set of characters as one symbol: of bytes if all are of one byte, else a rule that spells them.
    fn set(&mut self, owner: RuleId, set: CharSet, at: usize) -> Result<Symbol> {
        if let Some(&symbol) = self.classes.get(&set) {
            return Ok(symbol);
        }
        let sequences = set.sequences();
        let rules = &mut self.rules;
        let spell = |bytes: &Vec<ByteSet>| bytes.iter().map(|&b| Symbol::Bytes(rules.bytes(b))).collect();
        let mut alternatives: Vec<Vec<Symbol>> = sequences.iter().map(spell).collect();
        let symbol = match &mut alternatives[..] {
            [only] if only.len() == 1 => only[0],
            _ => {
                self.count(owner, alternatives.iter().map(Vec::len).sum(), at)?;
                Symbol::Call(self.made(owner, alternatives, at)?)
            }
        };
        self.classes.insert(set, symbol);
        Ok(symbol)
    }

    /// A rule without a name of its own, made for `owner`.
    fn made(&mut self, owner: RuleId, alternatives: Vec<Vec<Symbol>>, at: usize) -> Result<RuleId> {
        self.count(owner, 1, at)?;
        let Rule { name, at, .. } = self.rules.all[owner as usize];
        self.rules.all.push(Rule { name, at, alternatives, is_defined: true });
        Ok(self.rules.all.len() as RuleId - 1)
    }

    /// The rule of this name, which perhaps is defined later.
    fn id(&mut self, name: &'a str, at: usize) -> RuleId {
        let rules = &mut self.rules;
        *self.ids.entry(name).or_insert_with(|| {
            rules.names.push(name.into());
            let name = rules.names.len() as u32 - 1;
            rules.all.push(Rule { name, at, alternatives: vec![], is_defined: false });
            rules.all.len() as RuleId - 1
        })
    }

    fn count(&mut self, owner: RuleId, symbols: usize, at: usize) -> Result<()> {
        self.symbols = self.symbols.saturating_add(symbols);
        if self.symbols > MOST_SYMBOLS {
            return Err(self.error(owner, at, format_args!("the grammar grows beyond {MOST_SYMBOLS} symbols here")));
        }
        Ok(())
    }

    /// Names that mean nothing, and the root.
    fn finish(mut self) -> Result<Rules> {
        if let Some(rule) = self.rules.all.iter().find(|rule| !rule.is_defined) {
            return Err(self.rules.error(rule, "it is used here but nowhere defined"));
        }
        match self.ids.get("root") {
            Some(&root) => self.rules.root = root,
            None => {
                return Err(self.source.error(
                    self.source.at(),
                    "rule 'root': it is what a text must match, but the grammar ends without it",
                ));
            }
        }
        Ok(self.rules)
    }

    fn error(&self, owner: RuleId, at: usize, what: impl std::fmt::Display) -> Error {
        let name = &self.rules.names[self.rules.all[owner as usize].name as usize];
        self.source.error(at, format_args!("rule '{name}': {what}"))
    }
}

impl Open {
    fn close(mut self) -> Vec<Vec<Symbol>> {
        self.done.push(self.body);
        self.done
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}
