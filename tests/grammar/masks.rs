//! Masks against trying every token.

use crate::common::gbnf::{Naive, Verdict};
use crate::common::gguf_writer::Rng;
use crate::common::models;
use crate::words::{Words, samples};
use foretoken::gguf::Gguf;
use foretoken::grammar::{Constraint, Mask, Spec};
use foretoken::sample::{History, SampleParams, Sampler};
use foretoken::text::Tokenizer;
use foretoken::tree::Token;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A token of the mask that is not an end, if there is one.
fn draw(rng: &mut Rng, words: &Words, mask: &Mask) -> Option<Token> {
    let ends = words.tokenizer.end_tokens();
    let all: Vec<Token> =
        (0..words.tokenizer.vocab_size() as Token).filter(|&t| mask.contains(t) && !ends.contains(&t)).collect();
    (!all.is_empty()).then(|| all[rng.below(all.len())])
}

/// What may follow by trying: every `step`-th token.
fn check(words: &Words, naive: &Naive, mask: &Mask, tokens: &[Token], step: usize, what: &str) -> usize {
    let text = words.text(tokens);
    let is_complete = naive.judge(&text) == Verdict::Complete;
    let mut allowed = 0;
    for token in (tokens.len() % step..words.tokenizer.vocab_size()).step_by(step) {
        let token = token as Token;
        let piece = words.tokenizer.piece(token);
        let want = if words.tokenizer.end_tokens().contains(&token) {
            is_complete
        } else if words.tokenizer.is_control(token) || piece.is_empty() {
            false
        } else {
            naive.judge(&[&text[..], piece].concat()) != Verdict::Illegal
        };
        let shown = String::from_utf8_lossy(&text);
        assert_eq!(
            mask.contains(token),
            want,
            "{what}: token {token} {:?} after {shown:?}",
            String::from_utf8_lossy(piece)
        );
        allowed += usize::from(want);
    }
    assert!(!mask.contains(words.tokenizer.vocab_size() as Token));
    for &end in words.tokenizer.end_tokens() {
        assert_eq!(mask.contains(end), is_complete, "{what}: the end after {:?}", String::from_utf8_lossy(&text));
    }
    allowed
}

#[test]
fn masks_are_what_trying_finds() {
    for (name, step) in [("llama-spm", 7), ("gpt-2", 41)] {
        let words = Words::real(name);
        let mut rng = Rng(3);
        for (sample, grammar) in samples() {
            let naive = Naive::new(&grammar);
            let mut constraint = words.gbnf(&grammar);
            let mut allowed = 0;
            for path in 0..4 {
                let mut tokens = vec![];
                for at in 0..6 {
                    let mask = constraint.mask(&tokens, &[]).unwrap();
                    let step = if path == 0 && at < 2 && name == "llama-spm" { 1 } else { step };
                    allowed += check(&words, &naive, &mask, &tokens, step, &format!("{name} {sample}"));
                    let Some(token) = draw(&mut rng, &words, &mask) else { break };
                    tokens.push(token);
                }
            }
            assert!(allowed > 20, "{name} {sample}: {allowed}");
        }
    }
}

/// Answers depend on the tokens alone: any node of any tree in any order, committed or not.
#[test]
fn answers_do_not_depend_on_what_was_asked_before() {
    let words = Words::real("llama-spm");
    let mut rng = Rng(4);
    let json = samples().into_iter().find(|(name, _)| name == "json").unwrap().1;
    let schema = r#"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}}}"#;
    for spec in [Spec::Gbnf(json), Spec::JsonSchema(schema.into()), Spec::Regex("(a|b[0-9]+c)* [^x]*".into())] {
        let mut constraint = words.constraint(&spec).unwrap();
        // A tree of paths with their masks.
        let mut paths: Vec<(Vec<Token>, Arc<Mask>)> = vec![(vec![], constraint.mask(&[], &[]).unwrap())];
        for _ in 0..60 {
            let (path, mask) = paths[rng.below(paths.len())].clone();
            let Some(token) = draw(&mut rng, &words, &mask) else { continue };
            let path = [&path[..], &[token]].concat();
            let mut fresh = words.constraint(&spec).unwrap();
            paths.push((path.clone(), fresh.mask(&path, &[]).unwrap()));
        }
        for _ in 0..300 {
            let (path, want) = &paths[rng.below(paths.len())];
            let (committed, rest) = path.split_at(rng.below(path.len() + 1));
            let text = String::from_utf8_lossy(&words.text(path)).into_owned();
            if rng.below(3) == 0 {
                let token = rng.below(words.tokenizer.vocab_size()) as Token;
                assert_eq!(
                    constraint.allows(committed, rest, token).unwrap(),
                    want.contains(token),
                    "{spec:?} {text:?}"
                );
                // What is not legal is an error and changes nothing.
                if !want.contains(token) {
                    assert!(constraint.mask(path, &[token]).is_err(), "{spec:?} {text:?} {token}");
                }
            }
            assert_eq!(constraint.mask(committed, rest).unwrap(), *want, "{spec:?} {text:?}");
        }
    }
}

/// S7: where nothing is legal, that is an error, and the end is legal only where the text is complete.
#[test]
fn no_token_is_an_error() {
    let words = Words::of(&["a", "b", "ab"]);
    let [a, b, ab] = [3, 4, 5];
    let end = words.end();
    let mut constraint = words.gbnf("root ::= \"a\" [xyz] | \"b\" \"b\"?");
    let mask = constraint.mask(&[], &[]).unwrap();
    assert_eq!((mask.len(), mask.contains(a), mask.contains(b), mask.contains(ab)), (2, true, true, false));
    let error = constraint.mask(&[a], &[]).unwrap_err().to_string();
    assert_eq!(error, "grammar: no token of the vocabulary is legal after \"a\"");
    assert!(!constraint.allows(&[a], &[], end).unwrap());
    let mask = constraint.mask(&[b], &[]).unwrap();
    assert_eq!((mask.len(), mask.contains(b), mask.contains(end)), (2, true, true));
    let mask = constraint.mask(&[b, b], &[]).unwrap();
    assert_eq!((mask.len(), mask.contains(end)), (1, true), "nothing but the end");
    let error = constraint.mask(&[b, a], &[]).unwrap_err().to_string();
    assert_eq!(error, "grammar: token 3 (\"a\") is not legal after \"b\"");
}

fn median(times: &mut [Duration]) -> [Duration; 3] {
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 95 / 100], times[times.len() - 1]]
}

/// A mask over 152 thousand tokens costs less than a millisecond in the median. The bound is generous, as other tests
/// run at the same time.
#[test]
fn masks_are_quick() {
    let Some(gguf) = models::open("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf") else { return };
    let started = Instant::now();
    let words = Words::new(Tokenizer::from_gguf(gguf_meta(&gguf)).unwrap());
    println!("tokenizer and lexicon: {:?}", started.elapsed());
    let people: Vec<String> = (0..40)
        .map(|i| format!(r#"{{"id": {i}, "name": "Person number {i}", "tags": ["a", "b é", "日本"], "score": {i}.5, "in": {{"deep": [[null, true]]}}}}"#))
        .collect();
    let text = format!("{{\"people\": [\n  {}\n]}}", people.join(",\n  "));
    let tokens = words.tokenizer.encode(&text, false).unwrap();
    let json = samples().into_iter().find(|(name, _)| name == "json").unwrap().1;
    for (name, spec) in [("json.gbnf", Spec::Gbnf(json)), ("JSON schema {}", Spec::JsonSchema("{}".into()))] {
        let started = Instant::now();
        let mut constraint: Constraint = words.constraint(&spec).unwrap();
        println!("{name}: made in {:?}", started.elapsed());
        let mut times = vec![];
        for n in 0..=tokens.len() {
            let started = Instant::now();
            let mask = constraint.mask(&tokens[..n], &[]).unwrap();
            times.push(started.elapsed());
            assert!(n == tokens.len() || mask.contains(tokens[n]), "{name}: {n}");
        }
        let first: Vec<_> = times.iter().take(12).collect();
        println!("{name}: first masks {first:?}");
        let [half, most, all] = median(&mut times);
        println!("{name}: {} masks: median {half:?}, p95 {most:?}, max {all:?}", tokens.len() + 1);
        assert!(half < Duration::from_millis(1), "{name}: median {half:?}");
    }
}

/// What a constraint adds to a pick from 152 thousand logits: printed, for comparing with the time of a token.
#[test]
fn picks_cost_little_more() {
    let Some(gguf) = models::open("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf") else { return };
    let words = Words::new(Tokenizer::from_gguf(gguf_meta(&gguf)).unwrap());
    let n = words.tokenizer.vocab_size();
    let mut rng = Rng(8);
    let row: Vec<f32> = (0..n).map(|_| 2.0 * rng.normal()).collect();
    let json = samples().into_iter().find(|(name, _)| name == "json").unwrap().1;
    let text = r#"{"people": [{"name": "Ann", "age": 31, "tags": ["one", "two"]}, {"name": "Bob", "age": 32}]}"#;
    let tokens = words.tokenizer.encode(text, false).unwrap();
    for temp in [0.0, 0.8] {
        let medians = [false, true].map(|constrained| {
            let params = SampleParams { temp, ..Default::default() };
            let mut sampler = Sampler::new(params, 1, n, |_| vec![]).unwrap();
            sampler.constrain(constrained.then(|| words.gbnf(&json)));
            let mut times = vec![];
            for at in (0..4).flat_map(|_| 0..tokens.len()) {
                let history = History { committed: &tokens[..at], path: &[], start: 0 };
                let started = Instant::now();
                sampler.pick(&row, history, at as u64).unwrap();
                times.push(started.elapsed());
            }
            median(&mut times)
        });
        println!("pick at {temp}: median, p95, max {:?}; with json.gbnf {:?}", medians[0], medians[1]);
        let bound = Duration::from_millis(2);
        assert!(medians[1][0] < medians[0][0] + bound, "{medians:?}");
    }
}

fn gguf_meta(gguf: &Gguf) -> &foretoken::gguf::Metadata {
    gguf.meta()
}
