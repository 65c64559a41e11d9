//! Where answers are in conversations: in every public template, exactly what the model is to write.

use crate::chat::{CHATML, chat_vocabulary};
use crate::files::*;
use crate::templates::{control_texts, templates, vocabulary_of};
use foretoken::text::{ChatTemplate, Message, System, Tokenizer};
use foretoken::tree::Token;
use serde_json::Map;

/// Templates that change old turns in ways nobody can follow without an end token, and how often they may be refused.
const REFUSED: [(&str, usize); 6] = [
    ("command-r-plus-tools", 4),
    ("command-r7b-tools", 4),
    ("glm-4.6", 1),
    ("minimax-m2", 1),
    ("mistral-nemo", 1),
    ("nemotron-nano-v2", 3),
];

/// What answers are in full.
const EXACT: [(&str, [&[&str]; 4]); 6] = [
    ("smollm2", CHATML_ANSWERS),
    ("qwen2.5", CHATML_ANSWERS),
    (
        "llama-3.1",
        [
            &["Because.<|eot_id|>"],
            &["Yes, 2.<|eot_id|>", "No 3<|eot_id|>"],
            &["A1<|eot_id|>", "A2<|eot_id|>"],
            &["<think>\nT1\n</think>\n\nA1<|eot_id|>", "A2<|eot_id|>"],
        ],
    ),
    (
        "qwen3",
        [
            &["<think>\n\n</think>\n\nBecause.<|im_end|>"],
            &["Yes, 2.<|im_end|>", "<think>\n\n</think>\n\nNo 3<|im_end|>"],
            &["\nA1\n\n<|im_end|>", "A2 <|im_end|>"],
            &["\n\nA1<|im_end|>", "<think>\n\n</think>\n\nA2<|im_end|>"],
        ],
    ),
    (
        "phi-3-mini",
        [
            &["Because.<|end|>"],
            &["Yes, 2.<|end|>", "No 3<|end|>"],
            &["\nA1\n\n<|end|>", "A2 <|end|>"],
            &["<think>\nT1\n</think>\n\nA1<|end|>", "A2<|end|>"],
        ],
    ),
    // It knows no end token here.
    ("olmo-2", [&["Because."], &["Yes, 2.", "No 3"], &["\nA1\n\n", "A2 "], &["<think>\nT1\n</think>\n\nA1", "A2"]]),
];

const CHATML_ANSWERS: [&[&str]; 4] = [
    &["Because.<|im_end|>"],
    &["Yes, 2.<|im_end|>", "No 3<|im_end|>"],
    &["\nA1\n\n<|im_end|>", "A2 <|im_end|>"],
    &["<think>\nT1\n</think>\n\nA1<|im_end|>", "A2<|im_end|>"],
];

fn text(t: &Tokenizer, tokens: &[Token]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| t.piece(token)).copied().collect();
    String::from_utf8(bytes).unwrap()
}

fn turns(turns: &[(&str, &str)]) -> Vec<Message> {
    turns.iter().map(|(role, content)| Message::new(role, content)).collect()
}

#[test]
fn every_template_tells_its_answers() {
    let thought = "<think>\nT1\n</think>\n\nA1";
    let conversations = [
        turns(&[("user", "Why?"), ("assistant", "Because.")]),
        turns(&[
            ("system", "Hm"),
            ("user", "Two?"),
            ("assistant", "Yes, 2."),
            ("user", "Three"),
            ("assistant", "No 3"),
        ]),
        turns(&[("user", "Q1"), ("assistant", "\nA1\n\n"), ("user", "Q2"), ("assistant", "A2 "), ("user", "Q3")]),
        turns(&[("user", "Q1"), ("assistant", thought), ("user", "Q2"), ("assistant", "A2")]),
    ];
    let (mut told, mut exact) = (0, 0);
    for (name, source) in templates() {
        let t = vocabulary_of(&control_texts(&source));
        let template = ChatTemplate::from_source(&source).unwrap().for_tokenizer(&t).at(0);
        let mut refused = 0;
        for (i, messages) in conversations.iter().enumerate() {
            let Ok(found) = template.conversation(&t, messages, &Map::new()) else {
                refused += 1;
                continue;
            };
            let whole = text(&t, &found.tokens);
            let answers: Vec<String> = found.answers.iter().map(|a| text(&t, &found.tokens[a.clone()])).collect();
            let what = format!("{name}: {answers:?} of {whole:?}");
            let written: Vec<&str> = messages.iter().filter(|m| m.role == "assistant").map(|m| &*m.content).collect();
            assert_eq!(answers.len(), written.len(), "{what}");
            let mut at = 0;
            for ((range, answer), written) in found.answers.iter().zip(&answers).zip(written) {
                let last_words = written.rsplit('\n').find(|line| !line.is_empty()).unwrap().trim();
                assert!(answer.contains(last_words), "{what}");
                assert!(!text(&t, &found.tokens[at..range.start]).contains(last_words), "{what}");
                let ends = |token: &Token| t.end_tokens().contains(token);
                assert!(!found.tokens[range.start..range.end - 1].iter().any(ends), "{what}: goes on after its end");
                assert!(messages.iter().all(|m| m.role == "assistant" || !answer.contains(&*m.content)), "{what}");
                at = range.end;
            }
            told += 1;
            if let Some((_, want)) = EXACT.iter().find(|(known, _)| *known == name) {
                assert_eq!(answers, want[i], "{what}");
                exact += 1;
            }
        }
        let may = REFUSED.iter().find(|(known, _)| *known == name).map_or(0, |&(_, count)| count);
        assert!(refused <= may, "{name} is refused {refused} times");
    }
    assert!(told >= 150 && exact == 4 * EXACT.len(), "{told} {exact}");
}

#[test]
fn conversations_that_cannot_be_told_apart_are_refused() {
    let t = tokenizer(&chat_vocabulary()).unwrap();
    let no_system =
        format!("{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{CHATML}");
    let no_end = "{% for m in messages %}{{ m.role + ': ' + m.content + '.\n' }}{% endfor %}\
                  {% if add_generation_prompt %}assistant: {% endif %}";
    let forgets = no_end.replace("m.content", "(m.content if loop.last or m.role == 'user' else 'x')");
    let question = [("system", "S"), ("user", "Q"), ("assistant", "A")];
    let twice = [question[1], question[2], question[1], question[2]];
    for (source, messages, want) in [
        (CHATML, &question[..], Ok((&["A<|im_end|>"][..], System::AsIs))),
        (CHATML, &question[..2], Ok((&[], System::AsIs))),
        (&no_system, &question, Ok((&["A<|im_end|>"], System::Folded))),
        (CHATML, &question[2..], Err("message 0 is an answer")),
        (CHATML, &[], Err("found no messages")),
        (
            "{{ messages | length }}: {{ messages[-1].content }}",
            &question,
            Err("message 2: the chat template changes what is before"),
        ),
        (no_end, &twice, Ok((&["A.\n", "A.\n"], System::AsIs))),
        (&forgets, &twice[..2], Ok((&["A.\n"], System::AsIs))),
        (&forgets, &twice, Err("message 1: the end of the answer is not to be found")),
    ] {
        let template = ChatTemplate::from_source(source).unwrap().for_tokenizer(&t);
        let got = template.conversation(&t, &turns(messages), &Map::new());
        match (got, want) {
            (Ok(got), Ok((answers, system))) => {
                let texts: Vec<String> = got.answers.iter().map(|a| text(&t, &got.tokens[a.clone()])).collect();
                assert_eq!((texts, got.system), (answers.iter().map(|a| a.to_string()).collect(), system), "{source}");
            }
            (Err(error), Err(want)) => assert!(format!("{error:#}").contains(want), "{source}: {error:#}"),
            (got, want) => panic!("{source}: {got:?}, not {want:?}"),
        }
    }
}
