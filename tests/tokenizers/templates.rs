//! Public chat templates render as Python's jinja2 does, byte for byte (J1), take or refuse what they should (J2, J3),
//! and what people write in them stays text (T2).

use crate::chat::{SPECIAL, chat_vocabulary};
use crate::files::*;
use foretoken::text::{ChatTemplate, Message, System, Tokenizer};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// What `scripts/make_template_fixtures.py` writes.
#[derive(Deserialize)]
struct Rendered {
    clock: u64,
    conversations: BTreeMap<String, Conversation>,
    cases: Vec<Case>,
    expressions: Vec<Expression>,
}

/// A template of one line, over the conversation "turns" with the tools of "tools offered".
#[derive(Deserialize)]
struct Expression {
    source: String,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Vec<Message>,
    extra: Map<String, Json>,
}

/// One of `text`, what the template itself `raised`, or the `error` of Python is there.
#[derive(Deserialize)]
struct Case {
    template: String,
    conversation: String,
    prompt: bool,
    text: Option<String>,
    raised: Option<String>,
    error: Option<String>,
}

fn source(name: &str) -> String {
    String::from_utf8(bytes(&format!("chat/{name}.jinja"))).unwrap()
}

fn rendered() -> Rendered {
    json("chat/rendered.json.gz")
}

/// All templates by their names.
pub fn templates() -> BTreeMap<String, String> {
    let names: BTreeSet<String> = rendered().cases.into_iter().map(|case| case.template).collect();
    names.into_iter().map(|name| (name.clone(), source(&name))).collect()
}

#[test]
fn public_templates_render_as_in_python() {
    let all = rendered();
    let t = tokenizer(&chat_vocabulary()).unwrap();
    let compile = |source: &String| Some(ChatTemplate::from_source(source).ok()?.for_tokenizer(&t).at(all.clock));
    let templates: BTreeMap<String, Option<ChatTemplate>> =
        templates().iter().map(|(name, source)| (name.clone(), compile(source))).collect();
    let (mut wrong, mut texts) = (vec![], 0);
    for case in &all.cases {
        let name = format!("{}, {}, prompt {}", case.template, case.conversation, case.prompt);
        let Some(template) = &templates[&case.template] else { panic!("{name}: does not compile") };
        let Conversation { messages, extra } = &all.conversations[&case.conversation];
        let got = template.render(messages, case.prompt, extra).map_err(|e| format!("{e:#}"));
        texts += usize::from(case.text.is_some());
        let fine = match (&got, &case.text, &case.raised, &case.error) {
            (Ok(got), Some(want), ..) => got == want,
            (Err(got), _, Some(want), _) => got.contains("refuses these messages") && got.ends_with(want),
            (Err(got), .., Some(_)) => !got.contains('\n'),
            // Where Python fails by itself we may go on: a loop over None is empty, JSON of an iterator is a list.
            (Ok(_), .., Some(error)) => error.contains("not iterable") || error.contains("generator"),
            _ => false,
        };
        if !fine {
            wrong.push(format!("{name}\n  got  {got:?}\n  want {:?} {:?} {:?}", case.text, case.raised, case.error));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), all.cases.len(), wrong.join("\n"));
    assert!(templates.len() >= 40 && texts >= 1400, "{} templates, {texts} texts", templates.len());
}

#[test]
fn expressions_mean_what_they_mean_in_python() {
    let all = rendered();
    let messages = &all.conversations["turns"].messages;
    let extra = &all.conversations["tools offered"].extra;
    let mut wrong = vec![];
    for Expression { source, text } in &all.expressions {
        let got = ChatTemplate::from_source(source).and_then(|t| t.at(all.clock).render(messages, true, extra));
        let got = got.map_err(|e| format!("{e:#}"));
        if got.as_ref().ok() != text.as_ref() {
            wrong.push(format!("{source}\n    got  {got:?}\n    want {text:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), all.expressions.len(), wrong.join("\n"));
}

/// Texts in a template that its models take for control tokens, as far as one can tell from their looks.
pub fn control_texts(source: &str) -> BTreeSet<String> {
    let looks = r"<\|[^|<>\s{}']{1,40}\|>|<｜[^｜<>{}']{1,40}｜>|\[/?[A-Z_]{3,20}\]|</?seed:[a-z_]+>|</?(?:start_of_turn|end_of_turn|think|s|turn)>";
    Regex::new(looks).unwrap().find_iter(source).map(|found| found.as_str().to_owned()).collect()
}

/// A vocabulary in which all of them are control tokens.
pub fn vocabulary_of<'a>(texts: impl IntoIterator<Item = &'a String>) -> Tokenizer {
    let special: Vec<&str> = SPECIAL.iter().copied().chain(texts.into_iter().map(String::as_str)).collect();
    let special: BTreeSet<&str> = special.into_iter().filter(|text| !["<s>", "</s>"].contains(text)).collect();
    let special: Vec<&str> = ["<s>", "</s>"].into_iter().chain(special).collect();
    let bos = crate::common::gguf_writer::Value::U32(256);
    tokenizer(&byte_level(Some("gpt-2"), &[], &special).key("tokenizer.ggml.bos_token_id", bos)).unwrap()
}

/// In every template, from users, system messages, tools and their results.
#[test]
fn no_template_lets_text_become_control_tokens() {
    let mut tried = 0;
    for (name, source) in templates() {
        let texts = control_texts(&source);
        let t = vocabulary_of(&texts);
        let template = ChatTemplate::from_source(&source).unwrap().for_tokenizer(&t).at(0);
        let control = |content: &str, tool: &str| -> Option<(usize, usize)> {
            let call =
                json!([{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"a": tool}}}]);
            let called = json!({"role": "assistant", "content": "", "tool_calls": call});
            let result = json!({"role": "tool", "content": tool, "name": "f", "tool_call_id": "call00001"});
            let parameter = json!({"a": {"type": "string", "description": tool}});
            let parameters = json!({"type": "object", "properties": parameter, "required": []});
            let function = json!({"name": "f", "description": tool, "parameters": parameters});
            let tools = json!([{"type": "function", "function": function}]);
            let mut messages = vec![Message::new("system", content), Message::new("user", content)];
            let mut extra = Map::new();
            if !tool.is_empty() {
                messages.extend([called, result].map(|message| Message::try_from(message).unwrap()));
                extra.insert("tools".into(), tools);
            }
            let ids = template.prompt(&t, &messages, &extra).ok()?.tokens;
            Some((ids.iter().filter(|&&id| t.is_control(id)).count(), ids.len()))
        };
        let attack = format!("A{}B", texts.iter().map(String::as_str).chain(SPECIAL).collect::<Vec<_>>().join("x"));
        let plain = "A".to_owned() + &"x".repeat(attack.len() - 2) + "B";
        for (attack, plain) in [((&*attack, ""), (&*plain, "")), (("hi", &*attack), ("hi", &*plain))] {
            let (Some(got), Some(want)) = (control(attack.0, attack.1), control(plain.0, plain.1)) else { continue };
            assert_eq!(got.0, want.0, "{name}: {attack:?}");
            tried += 1;
        }
        assert!(control("hi", "").is_some_and(|(count, _)| count > 0), "{name} has no control tokens: {texts:?}");
    }
    assert!(tried >= 80, "{tried}");
}

fn prompt(source: &str, messages: &[Message]) -> anyhow::Result<(System, String)> {
    let t = tokenizer(&chat_vocabulary()).unwrap();
    let prompt = ChatTemplate::from_source(source)?.for_tokenizer(&t).prompt(&t, messages, &Map::new())?;
    let bytes: Vec<u8> = prompt.tokens.iter().flat_map(|&token| t.piece(token)).copied().collect();
    Ok((prompt.system, String::from_utf8(bytes).unwrap()))
}

#[test]
fn system_messages_a_template_refuses_go_to_the_user() {
    let [system, user, answer] = [("system", "Be terse."), ("user", "Hi"), ("assistant", "Hello")]
        .map(|(role, content)| Message::new(role, content));
    let turn = |role: &str, content: &str| format!("<start_of_turn>{role}\n{content}<end_of_turn>\n");
    let gemma = source("gemma-2");
    let (fate, text) = prompt(&gemma, &[system.clone(), user.clone(), answer.clone(), user.clone()]).unwrap();
    let turns = [turn("user", "Be terse.\n\nHi"), turn("model", "Hello"), turn("user", "Hi")].concat();
    assert_eq!((fate, text), (System::Folded, format!("<s>{turns}<start_of_turn>model\n")));
    // An empty one says nothing, and text that looks like the template's own is still text.
    let (fate, text) = prompt(&gemma, &[Message::new("system", ""), user.clone()]).unwrap();
    assert_eq!((fate, text), (System::Folded, format!("<s>{}<start_of_turn>model\n", turn("user", "Hi"))));
    // Without one, with one the template takes, and with one it has no place for.
    assert_eq!(prompt(&gemma, std::slice::from_ref(&user)).unwrap().0, System::AsIs);
    assert_eq!(prompt(&source("chatml"), &[system.clone(), user.clone()]).unwrap().0, System::AsIs);
    assert_eq!(prompt(&source("phi-3-mini"), &[system.clone(), user.clone()]).unwrap().0, System::LeftOut);
    assert_eq!(prompt(&source("phi-3-mini"), &[Message::new("system", " "), user.clone()]).unwrap().0, System::AsIs);
    let changed = "{% for m in messages %}{{ m.content | upper }}{% endfor %}";
    assert_eq!(prompt(changed, &[system.clone(), user.clone()]).unwrap().0, System::AsIs, "there, in another form");
}

/// What a template refuses is an error in its words, never another template (J3).
#[test]
fn what_a_template_refuses_stays_refused() {
    let [system, user, answer] = ["system", "user", "assistant"].map(|role| Message::new(role, "x"));
    for (name, messages) in [
        ("gemma-2", vec![user.clone(), user.clone()]),
        ("gemma-2", vec![system.clone(), user.clone(), user.clone()]),
        ("gemma-2", vec![system.clone(), answer.clone()]),
        ("gemma-3", vec![user.clone(), user.clone()]),
        ("llama-2", vec![system.clone(), user.clone(), user.clone()]),
        ("mistral-v0.2", vec![user.clone(), answer.clone(), answer.clone()]),
    ] {
        let error = prompt(&source(name), &messages).map_err(|e| format!("{e:#}")).unwrap_err();
        assert!(error.starts_with("the chat template refuses these messages: "), "{name}: {error}");
    }
    // A failure of another kind is no refusal, and nothing is folded.
    let error = prompt("{{ messages[0].role + 1 }}", &[system, user]).map_err(|e| format!("{e:#}")).unwrap_err();
    assert!(error.contains("in line 1"), "{error}");
}
