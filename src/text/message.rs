//! One turn of a conversation, as people and programs write them.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Json")]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
    /// What else a template may look for, e.g. `tool_calls` or `name`. A `content` among it (`null`, a list of parts)
    /// stands in for the text.
    pub more: Map<String, Json>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned(), more: Map::new() }
    }

    /// Whether the content is a text.
    pub fn is_text(&self) -> bool {
        !self.more.contains_key("content")
    }

    /// The object that templates see.
    pub(super) fn to_json(&self) -> Json {
        let mut map = Map::new();
        map.insert("role".into(), self.role.as_str().into());
        map.insert("content".into(), self.content.as_str().into());
        map.extend(self.more.clone());
        Json::Object(map)
    }
}

/// From an object with `role` and `content`, which is a text, a list of parts or, beside `tool_calls`, `null` or left
/// out. An error names the field.
impl TryFrom<Json> for Message {
    type Error = anyhow::Error;

    fn try_from(json: Json) -> Result<Self> {
        let Json::Object(mut more) = json else { bail!("found {}, supported an object", kind(&json)) };
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let wanted = |value: &Json, what: &str| format!("found {}, supported {what}", kind(value));
        let role = more.remove("role").unwrap_or_default();
        let role = text(&role).with_context(|| wanted(&role, "a string")).context("role")?;
        let content = more.remove("content").unwrap_or_default();
        let content = match content {
            Json::String(text) => text,
            Json::Null if more.get("tool_calls").is_some_and(|calls| !calls.is_null()) => {
                more.insert("content".into(), Json::Null);
                String::new()
            }
            Json::Array(_) => {
                more.insert("content".into(), content);
                String::new()
            }
            other => bail!("content: {}", wanted(&other, "a string or a list of parts")),
        };
        Ok(Self { role, content, more })
    }
}

/// What kind of value this is, for messages on what was found.
pub fn kind(value: &Json) -> String {
    match value {
        Json::Null => "null".into(),
        Json::Bool(_) | Json::Number(_) => value.to_string(),
        Json::String(_) => "a string".into(),
        Json::Array(_) => "an array".into(),
        Json::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_read_and_written() {
        for (json, content, text) in [
            (json!({"role": "user", "content": "c"}), "c", true),
            (json!({"role": "user", "content": "", "name": "Ann"}), "", true),
            (json!({"role": "tool", "content": [{"type": "text", "text": "c"}]}), "", false),
            (json!({"role": "assistant", "content": null, "tool_calls": [1]}), "", false),
        ] {
            let message = Message::try_from(json.clone()).unwrap();
            assert_eq!((message.content.as_str(), message.is_text()), (content, text), "{json}");
            assert_eq!(message.to_json(), json);
        }
        let left_out = Message::try_from(json!({"role": "assistant", "tool_calls": []})).unwrap();
        assert_eq!(left_out.to_json(), json!({"role": "assistant", "content": null, "tool_calls": []}));
    }

    #[test]
    fn what_is_no_message_is_named() {
        for (json, want) in [
            (json!("hi"), "found a string, supported an object"),
            (json!({"content": "c"}), "role: found null, supported a string"),
            (json!({"role": 7, "content": "c"}), "role: found 7, supported a string"),
            (json!({"role": "user"}), "content: found null, supported a string or a list"),
            (json!({"role": "user", "content": 1.5}), "content: found 1.5, supported a string or a list"),
            (json!({"role": "user", "content": null, "tool_calls": null}), "content: found null"),
        ] {
            let error = format!("{:#}", Message::try_from(json.clone()).unwrap_err());
            assert!(error.starts_with(want), "{json}: {error}");
        }
    }
}
