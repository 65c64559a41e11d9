//! What files say about their tokenizer, rightly or wrongly (T8).

use crate::common::gguf_writer::{Value, Writer};
use crate::common::models;
use crate::files::*;
use foretoken::text::Tokenizer;

#[test]
fn bad_metadata_is_an_error_that_names_the_key() {
    let spm = || sentence_pieces(&[("a", NORMAL, 0.0)]);
    let bpe = || byte_level(Some("gpt-2"), &["a b"], &[]);
    let text = |s: &str| Value::Str(s.into());
    let cases: Vec<(Writer, &str)> = vec![
        (spm().without("tokenizer.ggml.model"), "tokenizer.ggml.model is missing"),
        (spm().set("tokenizer.ggml.model", text("bert")), "\"bert\" is not supported (supported: gpt2, llama)"),
        (spm().set("tokenizer.ggml.model", Value::U32(1)), "tokenizer.ggml.model"),
        (spm().without("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"),
        (spm().set("tokenizer.ggml.tokens", Value::Strs(vec![])), "tokenizer.ggml.tokens is empty"),
        (spm().without("tokenizer.ggml.scores"), "tokenizer.ggml.scores is missing"),
        (spm().set("tokenizer.ggml.scores", Value::F32s(vec![0.0; 3])), "3 entries for 260 tokens"),
        (spm().set("tokenizer.ggml.scores", Value::F32s(vec![f32::NAN; 260])), "tokenizer.ggml.scores[0] is NaN"),
        (spm().set("tokenizer.ggml.token_type", Value::I32s(vec![1; 2])), "2 entries for 260 tokens"),
        (spm().set("tokenizer.ggml.token_type", Value::I32s(vec![9; 260])), "tokenizer.ggml.token_type[0] is 9"),
        (spm().set("tokenizer.ggml.bos_token_id", text("1")), "tokenizer.ggml.bos_token_id"),
        (bpe().without("tokenizer.ggml.merges"), "tokenizer.ggml.merges is missing"),
        (bpe().set("tokenizer.ggml.merges", Value::Bool(true)), "tokenizer.ggml.merges"),
        (bpe().set("tokenizer.ggml.token_type", Value::I32s(vec![3; 257])), "no token for plain text"),
    ];
    for (file, want) in cases {
        let error = format!("{:#}", tokenizer(&file).err().unwrap_or_else(|| panic!("accepted: {want}")));
        assert!(error.contains(want) && !error.contains('\n'), "{error:?} for {want:?}");
    }
}

#[test]
fn bad_merges_and_ids_are_ignored() {
    let merges = ["a b", "nospace", "", " ", "x unknown", "c d", "é", "é é", "ab <s>", "a b"].map(str::to_owned);
    let file = byte_level(Some("gpt-2"), &["a b"], &["<s>", "c", "abcd"])
        .set("tokenizer.ggml.merges", Value::Strs(merges.to_vec()))
        .set("tokenizer.ggml.eos_token_id", Value::U32(4_000_000_000));
    let t = tokenizer(&file).unwrap();
    assert_eq!(t.encode("abd", false).unwrap(), [256, 100]);
    assert_eq!(t.eos(), None);
    assert!(t.warnings()[0].contains("eos_token_id is 4000000000"), "{:?}", t.warnings());
    assert_eq!(t.piece(4_000_000_000), b"");
    assert!(!t.is_control(4_000_000_000));
}

#[test]
fn an_unknown_pre_tokeniser_is_said_loudly_and_served_by_the_default() {
    let text = "I'm 12345 $$$";
    let default = tokenizer(&byte_level(Some("default"), &["1 2", "12 3"], &[])).unwrap();
    assert!(default.warnings().is_empty());
    for (pre, want) in [(None, "tokenizer.ggml.pre is missing"), (Some("brand-new"), "\"brand-new\" is not known")] {
        let t = tokenizer(&byte_level(pre, &["1 2", "12 3"], &[])).unwrap();
        assert!(t.warnings().len() == 1 && t.warnings()[0].contains(want), "{:?}", t.warnings());
        assert_eq!(t.encode(text, true).unwrap(), default.encode(text, true).unwrap());
    }
}

#[test]
fn every_pre_tokeniser_of_the_list_is_known() {
    let list = "default gpt-2 llama-bpe llama3 qwen2 smollm deepseek-llm deepseek-coder falcon starcoder refact command-r \
                mpt tekken gpt-4o";
    for pre in list.split_whitespace() {
        let t = tokenizer(&byte_level(Some(pre), &[], &["<s>"]).key("tokenizer.ggml.bos_token_id", Value::U32(256)))
            .unwrap();
        assert!(t.warnings().is_empty(), "{pre}: {:?}", t.warnings());
        assert_eq!(t.add_bos(), matches!(pre, "llama-bpe" | "llama3" | "tekken"), "{pre}");
    }
}

#[test]
fn end_tokens_are_the_named_and_the_marked() {
    let special = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "<|im_start|>", "<|return|>", "<|call|>"];
    let ends = |special: &[&str], named: Option<u32>| {
        let file = byte_level(Some("gpt-2"), &["a b"], special);
        let file = match named {
            Some(id) => file
                .key("tokenizer.ggml.eos_token_id", Value::U32(id))
                .key("tokenizer.ggml.eot_token_id", Value::U32(256)),
            None => file,
        };
        tokenizer(&file).unwrap().end_tokens().to_vec()
    };
    assert_eq!(ends(&special[..5], None), [257, 258, 259, 260]);
    assert_eq!(ends(&special[..1], Some(65)), [65, 256, 257]);
    assert_eq!(ends(&special, None), [257, 258, 259, 262, 263], "<|end|> is no end beside <|return|> and <|call|>");
    // As user-defined tokens they count; as normal ones they are text. </s> is HTML then.
    for (kind, want) in [(USER, vec![259]), (NORMAL, vec![]), (CONTROL, vec![259, 260])] {
        let file = sentence_pieces(&[("<end_of_turn>", kind, 0.0), ("</s>", kind, 0.0)]);
        let got = tokenizer(&file.set("tokenizer.ggml.eos_token_id", Value::U32(5))).unwrap().end_tokens().to_vec();
        let got: Vec<_> = got.into_iter().filter(|&t| t >= 259).collect();
        assert_eq!(got, want, "{kind}");
    }
}

#[test]
fn real_models_end_where_their_makers_say() {
    for (file, ends) in [
        (SMOLLM2, vec!["<|endoftext|>", "<|im_end|>"]),
        (GEMMA3, vec!["<eos>", "<end_of_turn>"]),
        (QWEN05, vec!["<|endoftext|>", "<|im_end|>"]),
    ] {
        let Some(gguf) = models::open(file) else { continue };
        let t = Tokenizer::from_gguf(gguf.meta()).unwrap();
        for text in ends {
            assert!(t.end_tokens().contains(&t.find(text).unwrap()), "{file}: {text}");
        }
        assert!(t.end_tokens().iter().all(|&e| t.is_control(e)), "{file}");
    }
}

#[test]
fn no_text_merges_into_a_control_token() {
    // Every piece on the way to "<s>" is a token, and "<s>" has the best score of all.
    let pieces =
        [("<", NORMAL, -1.0), ("s>", NORMAL, -1.0), ("s", NORMAL, -2.0), (">", NORMAL, -2.0), ("▁", NORMAL, -3.0)];
    let spm = tokenizer(&sentence_pieces(&pieces)).unwrap();
    assert_eq!(spm.encode("<s>", false).unwrap(), [263, 259, 260]);
    assert_eq!(spm.encode("<0x41>", false).unwrap().len(), 7, "byte names are text");
    let bpe = tokenizer(
        &byte_level(Some("llama-bpe"), &["a b"], &["abc"])
            .set("tokenizer.ggml.merges", Value::Strs(vec!["a b".into(), "ab c".into()])),
    )
    .unwrap();
    assert_eq!(bpe.encode("abc", false).unwrap(), [256, 99]);
    assert_eq!(bpe.encode("abc", true).unwrap(), [257]);
}
