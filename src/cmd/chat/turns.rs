//! A conversation: messages and answers in turns, so that roles alternate whatever happens.

use crate::text::Message;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// A message and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What the user said.
    pub message: String,
    /// What the model said, perhaps cut short.
    pub answer: String,
}

/// The system message and all turns. The model sees those that are not forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// What the model is to be.
    pub system: Option<String>,
    all: Vec<Turn>,
    /// The oldest, for which the context has no room any more.
    forgotten: usize,
}

/// As it is saved.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    #[serde(default)]
    system: Option<String>,
    messages: Vec<Said>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    role: String,
    content: String,
}

impl Turns {
    /// No turns.
    pub fn new(system: Option<String>) -> Self {
        Self { system, ..Self::default() }
    }

    /// All turns.
    pub fn all(&self) -> &[Turn] {
        &self.all
    }

    /// How many turns can still be forgotten.
    pub fn remembered(&self) -> usize {
        self.all.len() - self.forgotten
    }

    /// Forgets the oldest `n` that are remembered.
    pub fn forget(&mut self, n: usize) {
        self.forgotten += n.min(self.remembered());
    }

    /// Adds the newest.
    pub fn push(&mut self, turn: Turn) {
        self.all.push(turn);
    }

    /// Takes back the newest.
    pub fn pop(&mut self) -> Option<Turn> {
        let turn = self.all.pop();
        self.forgotten = self.forgotten.min(self.all.len());
        turn
    }

    /// Takes back all.
    pub fn clear(&mut self) {
        self.all.clear();
        self.forgotten = 0;
    }

    /// What a template is given when `message` is to be answered and the oldest `skip` of what is remembered are left out.
    pub fn messages(&self, skip: usize, message: &str) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let turns = self.all[self.forgotten..].iter().skip(skip);
        let turns = turns.flat_map(|t| [Message::new("user", &t.message), Message::new("assistant", &t.answer)]);
        system.chain(turns).chain([Message::new("user", message)]).collect()
    }

    /// The conversation as JSON, what is forgotten included.
    pub fn to_json(&self) -> Result<String> {
        let said = |role: &str, content: &str| Said { role: role.into(), content: content.into() };
        let turns = self.all.iter().flat_map(|t| [said("user", &t.message), said("assistant", &t.answer)]);
        let saved = Saved { system: self.system.clone(), messages: turns.collect() };
        Ok(serde_json::to_string_pretty(&saved)? + "\n")
    }

    /// Reads what [`Turns::to_json`] wrote, or a program; a system message may also be the first of the messages.
    pub fn from_json(text: &str) -> Result<Self> {
        let Saved { mut system, mut messages } = serde_json::from_str(text)?;
        if messages.first().is_some_and(|first| first.role == "system") {
            ensure!(system.is_none(), "found two system messages");
            system = Some(messages.remove(0).content);
        }
        let mut turns = Self::new(system);
        let mut said = messages.into_iter().enumerate();
        while let Some((at, user)) = said.next() {
            let wanted = |at: usize, found: &Said, role: &str| {
                if found.role == role {
                    return Ok(());
                }
                bail!("message {at}: found role '{}', supported {role} here", found.role)
            };
            wanted(at, &user, "user")?;
            let (at, assistant) = said.next().with_context(|| format!("message {at} has no answer"))?;
            wanted(at, &assistant, "assistant")?;
            turns.push(Turn { message: user.content, answer: assistant.content });
        }
        Ok(turns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(n: usize) -> Turns {
        let mut turns = Turns::new(Some("be".into()));
        (0..n).for_each(|i| turns.push(Turn { message: format!("m{i}"), answer: format!("a\n{i}\0\u{1F999}") }));
        turns
    }

    #[test]
    fn roles_alternate_whatever_is_forgotten() {
        let roles =
            |t: &Turns, skip| t.messages(skip, "x").iter().map(|m| m.role.clone()).collect::<Vec<_>>().join(" ");
        let mut some = turns(3);
        assert_eq!(roles(&some, 0), "system user assistant user assistant user assistant user");
        assert_eq!(roles(&some, 2), "system user assistant user");
        some.forget(1);
        assert_eq!((some.remembered(), some.messages(0, "x")[1].content.as_str()), (2, "m1"));
        some.forget(9);
        assert_eq!((roles(&some, 0), some.remembered()), ("system user".into(), 0));
        assert_eq!(some.pop().unwrap().message, "m2");
        assert_eq!((some.remembered(), some.all().len()), (0, 2));
        some.push(turns(1).pop().unwrap());
        assert_eq!(roles(&some, 0), "system user assistant user");
        some.clear();
        assert!(some.pop().is_none() && some.system.is_some());
    }

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        for some in [turns(0), turns(2), Turns::new(None)] {
            assert_eq!(Turns::from_json(&some.to_json().unwrap()).unwrap(), some);
        }
        let first = r#"{"messages": [{"role": "system", "content": "s"}]}"#;
        assert_eq!(Turns::from_json(first).unwrap(), Turns::new(Some("s".into())));
        let said = |roles: &[&str]| {
            let said: Vec<_> = roles.iter().map(|r| format!(r#"{{"role": "{r}", "content": ""}}"#)).collect();
            format!(r#"{{"messages": [{}]}}"#, said.join(","))
        };
        for (text, needle) in [
            ("", "EOF"),
            ("[]", "invalid length"),
            (r#"{"messages": 1}"#, "invalid type"),
            (r#"{"messages": [], "x": 1}"#, "unknown field `x`"),
            (&said(&["user"]), "message 0 has no answer"),
            (&said(&["assistant"]), "message 0: found role 'assistant', supported user"),
            (&said(&["user", "assistant", "user", "user"]), "message 3: found role 'user', supported assistant"),
            (&said(&["user", "system"]), "message 1: found role 'system'"),
        ] {
            let error = Turns::from_json(text).unwrap_err().to_string();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
