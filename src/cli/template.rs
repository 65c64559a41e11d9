//! What can be typed about chat templates.

use clap::Args;
use serde_json::Value;
use std::path::PathBuf;

/// How messages become a prompt.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Chat template")]
pub struct TemplateArgs {
    /// File with a chat template (Jinja) to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Variable the template sees, e.g. enable_thinking=false; the value is JSON, or else text (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable, allow_hyphen_values = true)]
    pub template_arg: Vec<(String, Value)>,
    /// The time the template sees, in seconds since 1970, UTC [default: now]
    #[arg(long, value_name = "SECONDS")]
    pub template_time: Option<u64>,
}

fn variable(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("supported: NAME=VALUE")?;
    let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if !is_name {
        return Err(format!("'{name}' is not the name of a variable"));
    }
    if ["messages", "add_generation_prompt"].contains(&name) {
        return Err(format!("{name} is not for flags to say"));
    }
    Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_json_if_they_can_be() {
        for (text, want) in [
            ("a=1", json!(1)),
            ("a=false", json!(false)),
            ("a=null", json!(null)),
            ("a={\"k\": [1]}", json!({"k": [1]})),
            ("a=\"quoted\"", json!("quoted")),
            ("a=high", json!("high")),
            ("a=26 Jul 2024", json!("26 Jul 2024")),
            ("a=b=c", json!("b=c")),
            ("a=", json!("")),
            ("a={", json!("{")),
        ] {
            assert_eq!(variable(text).unwrap(), ("a".to_owned(), want), "{text}");
        }
        for text in ["a", "=1", "1a=1", "a b=1", "messages=[]", "add_generation_prompt=false"] {
            assert!(variable(text).is_err(), "{text}");
        }
    }
}
