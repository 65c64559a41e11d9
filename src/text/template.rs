//! Chat templates: messages to a prompt, as Python's jinja2 does for the model's makers.
//!
//! A template is a program that mixes its own control tokens (`<|im_start|>`) with what people wrote. People's text
//! must never become a control token, yet must get the ids it would get as plain text. So before rendering, texts of
//! control tokens inside messages are put between two *marks*, noncharacters that occur nowhere else, and so are ends
//! of messages that could be part of one; after rendering the marks are taken out, and the tokenizer is told where
//! they were: no control token begins, ends or lies there. Templates that trim, split or search messages see
//! everything else unchanged.

use super::{Tokenizer, python};
use crate::{gguf::Metadata, tree::Token};
use anyhow::{Context, Result, anyhow, bail, ensure};
use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::Serde};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::ops::Range;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned() }
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

const KEY: &str = "tokenizer.chat_template";
const NAME: &str = "chat template";

/// Steps a template may take; some hundred for each message are usual. Handling text costs by its length, so that
/// what a template can make of a message is bounded too.
fn fuel(messages: &[Message], extra: &str) -> u64 {
    let text = messages.iter().map(|m| m.role.len() + m.content.len()).sum::<usize>() + extra.len();
    100_000 + 2_000 * messages.len() as u64 + 8 * text as u64
}

/// The longest template that is compiled, in bytes: several times what is found in the wild.
const LONGEST: usize = 65_535;

/// Runs the template engine on a stack that its recursion cannot exhaust: it descends once for every operator of a
/// chain like `1+1+1+..`, and as deep as a template nests values. The pages are not touched unless needed.
fn with_deep_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| bail!("chat template: the engine failed"))
    })
}

impl ChatTemplate {
    /// The template of a file, if it has one that is not empty; of named ones (`tokenizer.chat_template.NAME`) only
    /// `default` is taken for it.
    pub fn from_gguf(meta: &Metadata) -> Result<Option<Self>> {
        match Self::load(meta, KEY)? {
            None => Self::load(meta, &format!("{KEY}.default")),
            found => Ok(found),
        }
    }

    /// The template that a file lists under `name`, e.g. `tool_use`.
    pub fn named(meta: &Metadata, name: &str) -> Result<Option<Self>> {
        Self::load(meta, &format!("{KEY}.{name}"))
    }

    fn load(meta: &Metadata, key: &str) -> Result<Option<Self>> {
        let Some(source) = meta.str(key)?.filter(|source| !source.trim().is_empty()) else { return Ok(None) };
        let mut template = Self::from_source(source).with_context(|| key.to_owned())?;
        let text = |name: &str| -> Result<String> {
            let id = meta.uint(&format!("tokenizer.ggml.{name}_token_id"))?;
            let tokens = meta.strings("tokenizer.ggml.tokens")?;
            let text = id.zip(tokens).and_then(|(id, mut tokens)| tokens.nth(usize::try_from(id).ok()?));
            Ok(text.unwrap_or_default().to_owned())
        };
        (template.bos, template.eos) = (text("bos")?, text("eos")?);
        Ok(Some(template))
    }

    /// Compiles a template. `bos_token` and `eos_token` are empty in it until [`ChatTemplate::for_tokenizer`].
    pub fn from_source(source: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(explain)?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", |value: Value, kwargs| python::tojson(&value, kwargs));
        environment.add_function("strftime_now", |format: &str| python::strftime_now(format));
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Refusal))
        });
        let source = without_generation(source);
        ensure!(source.len() <= LONGEST, "chat template of {} bytes, at most {LONGEST} are supported", source.len());
        with_deep_stack(|| environment.add_template_owned(NAME, source).map_err(explain))?;
        Ok(Self { environment, bos: String::new(), eos: String::new() })
    }

    /// The template with the special texts of `tokenizer`.
    pub fn for_tokenizer(mut self, tokenizer: &Tokenizer) -> Self {
        let text = |token: Option<Token>| token.map(|t| tokenizer.text(t).to_owned()).unwrap_or_default();
        (self.bos, self.eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        self
    }

    /// The prompt as text. `extra` are further variables (`tools`, `enable_thinking`); unknown ones do no harm.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
    ) -> Result<String> {
        let mut context = Map::new();
        context.insert("bos_token".into(), self.bos.clone().into());
        context.insert("eos_token".into(), self.eos.clone().into());
        context.insert("tools".into(), Json::Null);
        context.insert("documents".into(), Json::Null);
        context.extend(extra.clone());
        context.insert("messages".into(), serde_json::to_value(messages)?);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel(messages, &serde_json::to_string(extra)?)));
        with_deep_stack(move || {
            let template = environment.get_template(NAME).map_err(explain)?;
            template.render(Serde(context)).map_err(explain)
        })
    }

    /// The prompt as token ids: the template's own control tokens parsed, none made of what `messages` and `extra`
    /// say, and exactly one BOS at the front where the model wants one.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
    ) -> Result<Vec<Token>> {
        let marks = Marks::unused_in(messages, extra)?;
        let messages: Vec<Message> = messages
            .iter()
            .map(|m| Message {
                role: marks.mark(tokenizer, &m.role),
                content: marks.mark_borders(tokenizer, &marks.mark(tokenizer, &m.content)),
            })
            .collect();
        let extra = extra.iter().map(|(k, v)| (k.clone(), marks.mark_json(tokenizer, v))).collect();
        let rendered = self.render(&messages, add_generation_prompt, &extra)?;
        let (prompt, plain) = marks.take_out(tokenizer, &rendered);
        Ok(tokenizer.with_bos(tokenizer.encode_marked(&prompt, &plain)?))
    }
}

/// Three characters that no message has.
struct Marks {
    open: char,
    close: char,
    border: char,
}

impl Marks {
    fn unused_in(messages: &[Message], extra: &Map<String, Json>) -> Result<Self> {
        let extra = serde_json::to_string(extra)?;
        let texts = messages.iter().flat_map(|m| [m.role.as_str(), m.content.as_str()]).chain([extra.as_str()]);
        let mut used = [false; 32];
        for c in texts.flat_map(str::chars) {
            if let Some(i) = (c as u32).checked_sub(0xFDD0).filter(|&i| i < 32) {
                used[i as usize] = true;
            }
        }
        let mut free = ('\u{FDD0}'..='\u{FDEF}').zip(used).filter(|&(_, used)| !used).map(|(c, _)| c);
        match (free.next(), free.next(), free.next()) {
            (Some(open), Some(close), Some(border)) => Ok(Self { open, close, border }),
            _ => {
                bail!("the messages hold the Unicode noncharacters U+FDD0 to U+FDEF, at most 29 of which are supported")
            }
        }
    }

    fn is_mark(&self, c: char) -> bool {
        [self.open, self.close, self.border].contains(&c)
    }

    /// Puts the texts of control tokens between marks.
    fn mark(&self, tokenizer: &Tokenizer, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let mut at = 0;
        for found in tokenizer.find_control_texts(text) {
            out.push_str(&text[at..found.start]);
            out.push(self.open);
            out.push_str(&text[found.clone()]);
            out.push(self.close);
            at = found.end;
        }
        out.push_str(&text[at..]);
        out
    }

    /// Marks the ends of `text` where, with text of the template's around it, it could be part of a control token:
    /// `<|im_` before `end|>`, `im_end` in `<|` `|>`. The ends as they are and those left after trimming.
    fn mark_borders(&self, tokenizer: &Tokenizer, text: &str) -> String {
        let mut borders: Vec<usize> = Vec::new();
        let start = text.len() - text.trim_start().len();
        for (start, part) in [(0, text), (start, text.trim())].into_iter().filter(|(_, part)| !part.is_empty()) {
            let part_bytes = part.as_bytes();
            let same_start = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
            let same_end = |a: &[u8], b: &[u8]| a.ends_with(b) || b.ends_with(a);
            let continues = |t: &str| (1..t.len()).any(|n| same_start(part_bytes, &t.as_bytes()[n..]));
            let begins = |t: &str| (1..t.len()).any(|n| same_end(part_bytes, &t.as_bytes()[..n]));
            if tokenizer.control_texts().any(continues) {
                borders.push(start);
            }
            if tokenizer.control_texts().any(begins) {
                borders.push(start + part.len());
            }
        }
        borders.sort_unstable();
        borders.dedup();
        let mut out = text.to_owned();
        borders.iter().rev().for_each(|&at| out.insert(at, self.border));
        out
    }

    fn mark_json(&self, tokenizer: &Tokenizer, json: &Json) -> Json {
        match json {
            Json::String(s) => self.mark(tokenizer, s).into(),
            Json::Array(items) => items.iter().map(|item| self.mark_json(tokenizer, item)).collect(),
            Json::Object(map) => {
                let marked = map.iter().map(|(k, v)| (self.mark(tokenizer, k), self.mark_json(tokenizer, v)));
                Json::Object(marked.collect())
            }
            other => other.clone(),
        }
    }

    /// The text without marks, and what of it is plain: where an opening mark stood, the control text after it (the
    /// template may have lost the closing one); where any other stood, an empty range that no control token crosses.
    fn take_out(&self, tokenizer: &Tokenizer, marked: &str) -> (String, Vec<Range<usize>>) {
        let mut text = String::with_capacity(marked.len());
        let mut plain: Vec<Range<usize>> = Vec::new();
        let mut rest = marked;
        while let Some((at, mark)) = rest.char_indices().find(|&(_, c)| self.is_mark(c)) {
            text.push_str(&rest[..at]);
            rest = &rest[at + mark.len_utf8()..];
            let until = rest.find(|c| self.is_mark(c)).unwrap_or(rest.len());
            let found = match mark == self.open {
                true => tokenizer.find_control_texts(&rest[..until]).into_iter().next().filter(|r| r.start == 0),
                false => None,
            };
            let range = text.len()..text.len() + found.map_or(0, |r| r.end);
            match plain.last() {
                Some(last) if range.is_empty() && range.start <= last.end => {}
                _ => plain.push(range),
            }
        }
        text.push_str(rest);
        (text, plain)
    }
}

/// Marks an error as the template's own.
#[derive(Debug)]
struct Refusal;

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Refusal {}

fn explain(error: Error) -> anyhow::Error {
    use std::error::Error as _;
    let detail = error.detail().unwrap_or_default();
    if error.source().is_some_and(|s| s.is::<Refusal>()) {
        return anyhow!("the chat template refuses these messages: {detail}");
    }
    let line = error.line().map(|n| format!(" in line {n}")).unwrap_or_default();
    let kind = error.kind();
    match detail {
        "" => anyhow!("chat template{line}: {kind}"),
        _ => anyhow!("chat template{line}: {kind}: {detail}"),
    }
}

/// `{% generation %}` marks the model's part for training and means nothing here; a tag that does nothing takes its
/// place, so that white space is trimmed as around any tag.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start + 2..start + len]);
        let word = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(before);
        match word {
            "generation" => out.push_str(&format!("{{%{}%}}", tag.replace(word, "if true"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", tag.replace(word, "endif"))),
            _ => {
                // Only past the opening, so that a string with "%}" in a tag cannot hide the next one.
                out.push_str("{%");
                rest = &rest[start + 2..];
                continue;
            }
        }
        rest = &rest[start + len + 2..];
    }
    out.push_str(rest);
    out
}
