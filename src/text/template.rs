//! Chat templates: messages to a prompt, as Python's jinja2 does for the model's makers.
//!
//! A template is a program that mixes its own control tokens (`<|im_start|>`) with what people wrote. People's text
//! must never become a control token, yet must get the ids it would get as plain text. So before rendering, texts of
//! control tokens inside messages are put between two *marks*, noncharacters that occur nowhere else, and so are ends
//! of messages that could be part of one; after rendering the marks are taken out, and the tokenizer is told where
//! they were: no control token begins, ends or lies there. Templates that trim, split or search messages see
//! everything else unchanged.

use super::{Message, Tokenizer, marks::Marks, python};
use crate::{gguf::Metadata, tree::Token};
use anyhow::{Context, Result, anyhow, bail, ensure};
use minijinja::{Environment, Error, syntax::SyntaxConfig, value::Serde};
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    hash: String,
    bos: String,
    eos: String,
    /// What takes its place when there are tools.
    tool_use: Option<Box<ChatTemplate>>,
}

const KEY: &str = "tokenizer.chat_template";
const NAME: &str = "chat template";

/// Steps a template may take; some hundred for each message are usual. Handling text costs by its length, so that
/// what a template can make of a message is bounded too.
fn fuel(messages: &Json, extra: &Map<String, Json>) -> Result<u64> {
    let text = serde_json::to_string(messages)?.len() + serde_json::to_string(extra)?.len();
    let count = messages.as_array().map_or(0, Vec::len);
    Ok(100_000 + 2_000 * count as u64 + 8 * text as u64)
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
    /// `default` is taken for it, and `tool_use` when there are tools.
    pub fn from_gguf(meta: &Metadata) -> Result<Option<Self>> {
        let found = match Self::load(meta, KEY)? {
            None => Self::named(meta, "default")?,
            found => found,
        };
        let Some(mut template) = found else { return Ok(None) };
        template.tool_use = Self::named(meta, "tool_use")?.map(Box::new);
        Ok(Some(template))
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
        python::install(&mut environment);
        let hash = Sha256::digest(source).iter().map(|byte| format!("{byte:02x}")).collect();
        let source = python::without_generation(source);
        ensure!(source.len() <= LONGEST, "chat template of {} bytes, at most {LONGEST} are supported", source.len());
        with_deep_stack(|| environment.add_template_owned(NAME, source).map_err(explain))?;
        Ok(Self { environment, hash, bos: String::new(), eos: String::new(), tool_use: None })
    }

    /// The template with the special texts of `tokenizer`.
    pub fn for_tokenizer(mut self, tokenizer: &Tokenizer) -> Self {
        let text = |token: Option<Token>| token.map(|t| tokenizer.text(t).to_owned()).unwrap_or_default();
        (self.bos, self.eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        self.tool_use = self.tool_use.map(|template| Box::new(template.for_tokenizer(tokenizer)));
        self
    }

    /// SHA-256 of its source, in lower-case hexadecimals.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The template with a clock that stands at `seconds` after the start of 1970, UTC.
    pub fn at(mut self, seconds: u64) -> Self {
        python::set_clock(&mut self.environment, seconds);
        self.tool_use = self.tool_use.map(|template| Box::new(template.at(seconds)));
        self
    }

    /// The prompt as text. `extra` are further variables (`tools`, `enable_thinking`); unknown ones do no harm.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
    ) -> Result<String> {
        if let Some(other) = self.tool_use.as_ref().filter(|_| extra.get("tools").is_some_and(|tools| !tools.is_null()))
        {
            return other.render(messages, add_generation_prompt, extra);
        }
        let messages: Json = messages.iter().map(Message::to_json).collect();
        let fuel = fuel(&messages, extra)?;
        let mut context = Map::new();
        context.insert("bos_token".into(), self.bos.clone().into());
        context.insert("eos_token".into(), self.eos.clone().into());
        context.insert("tools".into(), Json::Null);
        context.insert("documents".into(), Json::Null);
        context.extend(extra.clone());
        context.insert("messages".into(), messages);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
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
        Ok(self.encode_shown(tokenizer, messages, add_generation_prompt, extra)?.0)
    }

    /// The same, and the prompt as text.
    fn encode_shown(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
    ) -> Result<(Vec<Token>, String)> {
        let turns: Json = messages.iter().map(Message::to_json).collect();
        let marks = Marks::unused_in([serde_json::to_string(&turns)?.as_str(), &serde_json::to_string(extra)?])?;
        let messages: Vec<Message> = messages.iter().map(|m| marks.message(tokenizer, m)).collect();
        let rendered = self.render(&messages, add_generation_prompt, &marks.map(tokenizer, extra))?;
        let (prompt, plain) = marks.take_out(tokenizer, &rendered);
        Ok((tokenizer.with_bos(tokenizer.encode_marked(&prompt, &plain)?), prompt))
    }

    /// As [`ChatTemplate::encode`], ready for an answer, for templates that know no system message too: where one
    /// refuses the conversation and it starts with a system message before a user's, the conversation without it, its
    /// text and an empty line put in front of the user's, is encoded instead.
    pub fn prompt(&self, tokenizer: &Tokenizer, messages: &[Message], extra: &Map<String, Json>) -> Result<Prompt> {
        match self.encode_shown(tokenizer, messages, true, extra) {
            Ok((tokens, shown)) => {
                let left_out = self.leaves_out_system(messages, extra, &shown)?;
                Ok(Prompt { tokens, system: if left_out { System::LeftOut } else { System::AsIs } })
            }
            Err(error) if error.is::<Refused>() => {
                let Some(folded) = folded(messages) else { return Err(error) };
                Ok(Prompt { tokens: self.encode(tokenizer, &folded, true, extra)?, system: System::Folded })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the prompt is the same whatever the system message says.
    fn leaves_out_system(&self, messages: &[Message], extra: &Map<String, Json>, shown: &str) -> Result<bool> {
        let system = messages.first().filter(|m| m.role == SYSTEM).map_or("", |m| m.content.trim());
        if shown.contains(system) {
            return Ok(false);
        }
        let text = self.render(messages, true, extra)?;
        let mut other = messages.to_vec();
        other[0].content.push_str("another");
        Ok(self.render(&other, true, extra).is_ok_and(|other| other == text))
    }
}

const SYSTEM: &str = "system";

/// The conversation with its system message as part of the first user's.
pub(super) fn folded(messages: &[Message]) -> Option<Vec<Message>> {
    let [system, user, rest @ ..] = messages else { return None };
    if system.role != SYSTEM || user.role != "user" || !system.is_text() || !user.is_text() {
        return None;
    }
    let mut user = user.clone();
    if !system.content.is_empty() {
        user.content = format!("{}\n\n{}", system.content, user.content);
    }
    Some([&[user], rest].concat())
}

/// A prompt, ready for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// What became of the system message.
    pub system: System,
}

/// What a chat template made of a system message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// What it says there; or there was none.
    AsIs,
    /// It refuses them, so the text was put in front of the first user message.
    Folded,
    /// Nothing.
    LeftOut,
}

/// The template's own word that it does not take a conversation.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the chat template refuses these messages: {}", self.0)
    }
}

impl std::error::Error for Refused {}

fn explain(error: Error) -> anyhow::Error {
    use std::error::Error as _;
    let detail = error.detail().unwrap_or_default();
    if error.source().is_some_and(|s| s.is::<python::Raised>()) {
        return Refused(detail.to_owned()).into();
    }
    let line = error.line().map(|n| format!(" in line {n}")).unwrap_or_default();
    let kind = error.kind();
    match detail {
        "" => anyhow!("chat template{line}: {kind}"),
        _ => anyhow!("chat template{line}: {kind}: {detail}"),
    }
}
