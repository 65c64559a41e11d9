//! From flags on chat templates to what a command knows of its model's language.

use super::input;
use super::load::Language;
use crate::cli::TemplateArgs;
use crate::text::ChatTemplate;
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

/// What was asked for.
pub struct Choice {
    /// The template to use instead of the model's own.
    template: Option<ChatTemplate>,
    variables: Map<String, Value>,
    time: Option<u64>,
}

/// Reads what `args` name, before anything that takes long.
pub fn choice(args: &TemplateArgs) -> Result<Choice> {
    let template = args.chat_template.as_ref().map(|path| {
        let name = path.display().to_string();
        let text = input::utf8(&name, std::fs::read(path).with_context(|| name.clone())?)?;
        let source = input::without_mark(&text);
        ensure!(!source.trim().is_empty(), "{name}: found nothing, supported a chat template");
        ChatTemplate::from_source(source).context(name)
    });
    let variables = args.template_arg.iter().cloned().collect();
    Ok(Choice { template: template.transpose()?, variables, time: args.template_time })
}

impl Choice {
    /// Makes it part of `language`.
    pub fn install(self, language: &mut Language) {
        if let Some(template) = self.template {
            language.template = Ok(Some(template.for_tokenizer(&language.tokenizer)));
        }
        if let (Ok(template), Some(time)) = (&mut language.template, self.time) {
            *template = template.take().map(|template| template.at(time));
        }
        language.variables = self.variables;
    }
}
