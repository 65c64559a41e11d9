//! JSON schemas, regular expressions and Lark grammars: llguidance behind the same question.

use crate::words::Words;
use foretoken::grammar::{Constraint, Spec};
use std::time::{Duration, Instant};

/// How much of `text` is legal, and whether the end may follow it.
fn follow(words: &Words, constraint: &mut Constraint, text: &str) -> (usize, bool) {
    let tokens = words.spell(text.as_bytes());
    let legal = |&i: &usize| constraint.allows(&tokens[..i], &[], tokens[i]).unwrap();
    let legal = (0..tokens.len()).take_while(legal).count();
    let ends = constraint.allows(&tokens[..legal], &[], words.end()).unwrap();
    (legal, ends)
}

#[test]
fn texts_are_judged() {
    let person = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"], "additionalProperties": false}"#;
    let lark = "start: \"a\" item+ \"z\"\nitem: /[0-9]/ | \"(\" item \")\"\n";
    // Spec, complete texts, texts to go on with, and texts with the byte that is wrong.
    type Row<'a> = (Spec, &'a [&'a str], &'a [&'a str], &'a [(&'a str, usize)]);
    let table: [Row; 6] = [
        (
            Spec::JsonSchema(person.into()),
            &[r#"{"name": "Ann", "age": 7}"#, "{\n  \"name\":\"\",\n  \"age\":150\n}", r#"{ "name": "日本", "age": 10}"#],
            &["", "{", r#"{"name": "Ann""#, r#"{"name": "Ann", "age": 7"#],
            &[(r#"{"age": 1}"#, 2), (r#"{"name": "Annie"}"#, 14), (r#"{"name": "A", "age": 151}"#, 23), (r#"{"name": "A", "age": 7}  "#, 23), ("{   ", 2)],
        ),
        (Spec::JsonSchema(r#"{"enum": ["red", 7, null]}"#.into()), &["\"red\"", "7", "null"], &["\"", "n"], &[("8", 0), ("\"rad", 2)]),
        (Spec::JsonSchema("true".into()), &["[]", "{}", "\"x\"", "{\"a\": [1, {}]}"], &["[", ""], &[("x", 0), ("[1 }", 3)]),
        (
            Spec::JsonSchema(r##"{"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}}"##.into()),
            &["[]", "[[], [[]]]"],
            &["[[]"],
            &[("[1", 1), ("[[],[],", 6)],
        ),
        (Spec::Regex("(ab)+[^x/]{2}/|é".into()), &["abab12/", "é"], &["", "ab1"], &[("a1", 1), ("ab1x", 3), ("abab12/a", 7)]),
        (Spec::Lark(lark.into()), &["a1z", "a((2))3z"], &["a", "a(1"], &[("z", 0), ("az", 1), ("a()", 2)]),
    ];
    for name in ["gpt-2", "llama-spm"] {
        let words = Words::real(name);
        for (spec, complete, prefixes, wrong) in &table {
            spec.check().unwrap_or_else(|e| panic!("{spec:?}: {e:#}"));
            let mut constraint = words.constraint(spec).unwrap();
            for text in *complete {
                assert_eq!(follow(&words, &mut constraint, text), (text.len(), true), "{name}: {spec:?} {text:?}");
            }
            for text in *prefixes {
                assert_eq!(follow(&words, &mut constraint, text), (text.len(), false), "{name}: {spec:?} {text:?}");
            }
            for (text, at) in *wrong {
                assert_eq!(follow(&words, &mut constraint, text).0, *at, "{name}: {spec:?} {text:?}");
            }
            let mask = constraint.mask(&[], &[]).unwrap();
            for token in 0..words.tokenizer.vocab_size() as u32 {
                let is_text = !words.tokenizer.is_control(token) && !words.tokenizer.piece(token).is_empty();
                assert!(is_text || !mask.contains(token), "{name}: {spec:?} {token}");
            }
        }
    }
}

/// What is huge works or is refused, soon.
#[test]
fn nothing_hangs() {
    let words = Words::real("gpt-2");
    let deep = |n| format!("{}{{}}{}", r#"{"items": "#.repeat(n), "}".repeat(n));
    for spec in [
        Spec::Regex("(a{1000}){1000}b".into()),
        Spec::Regex("((a?){300}){3000}b".into()),
        Spec::Regex("(".repeat(50_000)),
        Spec::Regex(format!("{}a{}", "(".repeat(5000), ")*".repeat(5000))),
        Spec::Lark(format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000))),
        Spec::Lark("start: start \"a\" | \"a\"".into()),
        Spec::JsonSchema(r##"{"$ref": "#"}"##.into()),
        Spec::JsonSchema(deep(100)),
        Spec::JsonSchema(deep(50_000)),
        Spec::JsonSchema(r#"{"type": "string", "maxLength": 1000000000}"#.into()),
        Spec::JsonSchema(r#"{"type": "array", "minItems": 1000000000}"#.into()),
    ] {
        let started = Instant::now();
        let what = format!("{spec:?}").chars().take(60).collect::<String>();
        let outcome = match spec.check().and_then(|()| words.constraint(&spec)) {
            Ok(mut constraint) => constraint.mask(&[], &[]).map(|mask| format!("{} tokens", mask.len())),
            Err(error) => Err(error),
        };
        let outcome = outcome.unwrap_or_else(|e| format!("{e:#}"));
        println!("{what}: {:?}: {}", started.elapsed(), outcome.chars().take(90).collect::<String>());
        assert!(started.elapsed() < Duration::from_secs(20), "{what}: {:?}", started.elapsed());
        assert!(outcome.lines().count() == 1 && outcome.len() < 1000, "{what}: {}", outcome.len());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let words = Words::real("gpt-2");
    for (spec, needle) in [
        (Spec::JsonSchema("{".into()), "not JSON: EOF"),
        (Spec::JsonSchema("3".into()), ""),
        (Spec::JsonSchema(r#"{"type": "objekt"}"#.into()), "objekt"),
        (Spec::JsonSchema(r##"{"$ref": "#/nowhere"}"##.into()), "nowhere"),
        (Spec::JsonSchema(r#"{"$ref": "https://example.com/other.json"}"#.into()), "example.com"),
        (Spec::JsonSchema("false".into()), ""),
        (Spec::JsonSchema(r#"{"type": "integer", "minimum": 3, "maximum": 2}"#.into()), "minimum"),
        (Spec::Regex("a(b".into()), ""),
        (Spec::Regex(r"(a)\1".into()), ""),
        (Spec::Lark("start: foo".into()), "foo"),
        (Spec::Lark("strat: \"a\"".into()), "start"),
        (Spec::Lark(String::new()), ""),
    ] {
        let error = spec.check().err().map_or("none".into(), |e| format!("{e:#}"));
        assert!(error != "none" && error.contains(needle), "{spec:?}: {error}");
        assert!(!error.contains("backtrace") && !error.contains("panic"), "{spec:?}: {error}");
        assert_ne!(words.error(&spec), "none", "{spec:?}");
    }
}
