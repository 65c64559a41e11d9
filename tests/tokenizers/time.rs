//! Long runs of anything take linear time and no stack (T6, T7).

use crate::common::gguf_writer::Rng;
use crate::common::models;
use crate::files::*;
use crate::ids::best_of;
use foretoken::text::Tokenizer;

fn long_texts() -> Vec<(&'static str, String)> {
    let mut rng = Rng(7);
    let mut pick =
        |alphabet: &[u8], n: usize| -> String { (0..n).map(|_| alphabet[rng.below(alphabet.len())] as char).collect() };
    let letters = pick(b"abcdefghijklmnopqrstuvwxyz", 100_000);
    let mixed = pick(b"aA1 .\n\t'_<|>", 100_000);
    let json: String = (0..1000).map(|i| format!("{{\"k{i}\":[{i},{{\"b\":null}}]}},")).collect();
    vec![
        ("letters", letters),
        ("mixed", mixed),
        ("json", json),
        ("a", "a".repeat(100_000)),
        ("A", "A".repeat(100_000)),
        ("dots", ".".repeat(100_000)),
        ("spaces", " ".repeat(100_000)),
        ("spaces, then a word", " ".repeat(100_000) + "a"),
        ("newlines", "\n".repeat(100_000)),
        ("blank lines", " \r\n".repeat(33_000)),
        ("nulls", "\0".repeat(100_000)),
        ("digits", "1".repeat(100_000)),
        ("underscores", "_".repeat(50_000)),
        ("us", "us".repeat(50_000)),
        ("Aa", "Aa".repeat(50_000)),
        ("one ideograph", "语".repeat(50_000)),
        ("ideographs", (0..50_000).map(|i| char::from_u32(0x4E00 + i * 37 % 0x5000).unwrap()).collect()),
        ("combining marks", "a".to_owned() + &"\u{301}".repeat(50_000)),
        ("emoji", "👨\u{200d}".repeat(25_000)),
        ("half markers", "<|im_".repeat(20_000)),
        ("markers", "<|im_end|><s></s>".repeat(6_000)),
    ]
}

#[test]
fn long_runs_take_linear_time() {
    let texts = long_texts();
    let mut tokenizers: Vec<(String, Tokenizer)> = VOCABULARIES.iter().map(|&v| (v.into(), vocabulary(v))).collect();
    for file in [SMOLLM2, GEMMA3, QWEN05] {
        tokenizers.extend(models::open(file).map(|g| (file.into(), Tokenizer::from_gguf(g.meta()).unwrap())));
    }
    for pre in ["llama-bpe", "tekken", "gpt-4o", "deepseek-v3", "qwen35", "command-r", "default"] {
        tokenizers.push((pre.into(), tokenizer(&byte_level(Some(pre), &["a a", "aa aa", "Ġ Ġ"], &["<s>"])).unwrap()));
    }
    let mut worst = (0.0, String::new());
    for (name, tokenizer) in &tokenizers {
        for (what, text) in &texts {
            let mut tokens = 0;
            let run = |tokens: &mut usize| *tokens = tokenizer.encode(text, true).unwrap().len();
            let mut seconds = best_of(1, || run(&mut tokens));
            if seconds > 0.5 {
                seconds = best_of(3, || run(&mut tokens));
            }
            assert!(tokens > 0 && seconds < 1.0, "{name}, {what}: {tokens} tokens in {seconds} s");
            if seconds > worst.0 {
                worst = (seconds, format!("{name}, {what}"));
            }
        }
    }
    println!("slowest: {:.0} ms for {}", worst.0 * 1e3, worst.1);
}

#[test]
fn equal_ranks_take_the_leftmost() {
    let bpe = tokenizer(&byte_level(Some("gpt-2"), &["a a"], &[])).unwrap();
    assert_eq!(bpe.encode("aaaaa", false).unwrap(), [256, 256, 97]);
    let spm = [("a", NORMAL, -3.0), ("aa", NORMAL, -1.0), ("▁", NORMAL, -9.0)];
    assert_eq!(tokenizer(&sentence_pieces(&spm)).unwrap().encode("aaaaa", false).unwrap(), [261, 260, 260, 259]);
}
