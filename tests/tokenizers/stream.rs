//! Streams print what is certain and nothing else (T3, T11, S15).

use crate::files::*;
use foretoken::{
    text::{TextStream, Tokenizer},
    tree::Token,
};

/// One token a byte, and tokens "DEFG", "HIJ", "xDEFGHIJy", "\nUser", ":" and control tokens.
fn bytes() -> Tokenizer {
    let merges = ["D E", "F G", "DE FG", "H I", "HI J", "U s"];
    tokenizer(&byte_level(Some("gpt-2"), &merges, &["<|im_end|>", "<|tool|>"])).unwrap()
}

/// What each token gives, what the end gives, and whether it stopped.
fn stream(t: &Tokenizer, ids: &[Token], stops: &[&str], show: bool) -> (Vec<String>, String, bool) {
    let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
    let mut stream = TextStream::new(t, &stops, show);
    let given = ids.iter().map(|&id| stream.push(id)).collect();
    let stopped = stream.stopped();
    (given, stream.finish(), stopped)
}

#[test]
fn each_character_comes_with_its_last_byte() {
    let t = bytes();
    for text in ["🦙", "👨\u{200d}👩\u{200d}👧", "😀😁😂", "Привет, мир", "naïve 日本語", "a\u{301}"]
    {
        let ids: Vec<Token> = text.bytes().map(Token::from).collect();
        let (given, end, _) = stream(&t, &ids, &[], false);
        let mut at = 0;
        for c in text.chars() {
            let last = at + c.len_utf8() - 1;
            assert!(given[at..last].iter().all(String::is_empty), "{text}");
            assert_eq!(given[last], c.to_string());
            at = last + 1;
        }
        assert_eq!((end.as_str(), t.decode(&ids)), ("", text.to_owned()));
    }
}

#[test]
fn invalid_bytes_do_not_wait() {
    let t = bytes();
    let cases: &[(&[u8], &[&str], &str)] = &[
        (b"\xFFa", &["\u{fffd}", "a"], ""),
        (b"\xF0a", &["", "\u{fffd}a"], ""),
        (b"\xF0\x9F\x98a", &["", "", "", "\u{fffd}a"], ""),
        (b"\xE2\x82", &["", ""], "\u{fffd}"),
        (b"a\x80\x80", &["a", "\u{fffd}", "\u{fffd}"], ""),
        (b"\xF0\x9F\xF0\x9F\x98\x80", &["", "", "\u{fffd}", "", "", "😀"], ""),
    ];
    for (bytes, want, end) in cases {
        let ids: Vec<Token> = bytes.iter().map(|&b| b.into()).collect();
        let (given, rest, _) = stream(&t, &ids, &[], false);
        assert_eq!((given.as_slice(), rest.as_str()), (&want.map_strings()[..], *end), "{bytes:?}");
        assert_eq!(t.decode(&ids), String::from_utf8_lossy(bytes));
    }
}

trait Strings {
    fn map_strings(&self) -> Vec<String>;
}

impl Strings for &[&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(|s| s.to_string()).collect()
    }
}

#[test]
fn streams_add_up_to_the_decoded_whole() {
    let mut tokenizers: Vec<(String, Tokenizer)> = vec![("bytes".into(), bytes())];
    tokenizers.extend(["llama-spm", "gpt-2", "deepseek-llm"].map(|v| (v.to_owned(), vocabulary(v))));
    let mut rng = crate::common::gguf_writer::Rng(3);
    for (name, t) in &tokenizers {
        for round in 0..200 {
            let ids: Vec<Token> = (0..30).map(|_| rng.below(t.vocab_size()) as Token).collect();
            let (given, end, _) = stream(t, &ids, &[], false);
            assert_eq!(given.concat() + &end, t.decode(&ids), "{name} {round}");
            let raw: Vec<u8> = ids.iter().filter(|&&i| !t.is_control(i)).flat_map(|&i| t.piece(i).to_vec()).collect();
            assert_eq!(t.decode(&ids), String::from_utf8_lossy(&raw), "{name} {round}");
        }
    }
}

#[test]
fn nothing_of_a_stop_string_is_printed() {
    let t = bytes();
    let cases: &[(&str, &[&str], &str, bool)] = &[
        ("abcDEFGHIJklm", &["DEFGHIJ"], "abc", true),
        ("abcDEFGHxyz", &["DEFGHIJ"], "abcDEFGHxyz", false),
        ("abcDEF", &["DEFGHIJ"], "abcDEF", false),
        ("aaab", &["aab"], "a", true),
        ("hello\nUser: x", &["\nUser:"], "hello", true),
        ("hello\nUsed", &["\nUser:"], "hello\nUsed", false),
        ("abcd", &["cd", "bc"], "a", true),
        ("abcd", &["d", "bcd"], "a", true),
        ("abx", &["abc", "b"], "a", true),
        ("grüße 😀 ok", &["ß"], "grü", true),
        ("grüße 😀 ok", &["😀"], "grüße ", true),
        ("grüße 😁 ok", &["😀"], "grüße 😁 ok", false),
        ("abc", &["", "zz"], "abc", false),
        ("DEFG", &["D"], "", true),
    ];
    for (text, stops, want, stops_there) in cases {
        // As bytes, as merged tokens, and in every mixture of a few.
        let whole = t.encode(text, false).unwrap();
        let apart: Vec<Token> = text.bytes().map(Token::from).collect();
        for ids in [whole, apart] {
            let (given, end, stopped) = stream(&t, &ids, stops, false);
            assert_eq!((given.concat() + &end, stopped), (want.to_string(), *stops_there), "{text:?} {stops:?}");
        }
    }
}

#[test]
fn text_that_cannot_start_a_stop_string_is_not_held() {
    let t = bytes();
    let ids: Vec<Token> = "xD DEFx".bytes().map(Token::from).collect();
    let (given, end, _) = stream(&t, &ids, &["DEFG"], false);
    assert_eq!(given, ["x", "", "D ", "", "", "", "DEFx"]);
    assert_eq!(end, "");
    // Text before a stop string within one token comes out; so does what precedes its possible beginning.
    let t = tokenizer(&byte_level(Some("llama-bpe"), &["a b", "c d", "ab cd"], &[])).unwrap();
    let whole = t.find("abcd").unwrap();
    assert_eq!(stream(&t, &[whole], &["cd"], false), (vec!["ab".into()], String::new(), true));
    assert_eq!(stream(&t, &[whole], &["de"], false), (vec!["abc".into()], "d".into(), false));
}

#[test]
fn control_tokens_are_hidden_unless_asked_for() {
    let t = bytes();
    let (end, tool) = (t.find("<|im_end|>").unwrap(), t.find("<|tool|>").unwrap());
    assert!(t.is_control(end) && !t.is_control(65));
    assert_eq!(t.piece(end), b"<|im_end|>");
    let ids = [65, end, 66, tool];
    assert_eq!(stream(&t, &ids, &[], false).0.concat(), "AB");
    assert_eq!(stream(&t, &ids, &[], true).0.concat(), "A<|im_end|>B<|tool|>");
    assert_eq!(t.decode(&ids), "AB");
    assert_eq!(
        stream(&t, &ids, &["<|im_end|>"], false),
        (vec!["A".into(), "".into(), "".into(), "".into()], "".into(), true)
    );
    // Bytes of a character on both sides of a hidden token are one character.
    assert_eq!(t.decode(&[0xC3, end, 0xA9]), "é");
}
