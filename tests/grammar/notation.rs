//! What GBNF means, and what is refused.

use crate::common::gbnf::{Naive, Verdict};
use crate::common::gguf_writer::Rng;
use crate::words::{Words, samples};
use foretoken::grammar::{Constraint, Spec};
use foretoken::tree::Token;
use std::time::{Duration, Instant};

/// What a constraint says of tokens.
fn judge(words: &Words, constraint: &mut Constraint, tokens: &[Token]) -> Verdict {
    let legal = (0..tokens.len()).all(|i| constraint.allows(&tokens[..i], &[], tokens[i]).unwrap());
    if !legal {
        Verdict::Illegal
    } else if constraint.allows(tokens, &[], words.end()).unwrap() {
        Verdict::Complete
    } else {
        Verdict::Prefix
    }
}

/// Grammar, texts that match, texts that more must follow, texts that are wrong.
type Row = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

const TABLE: &[Row] = &[
    (r#"root ::= "ab""#, &["ab"], &["", "a"], &["b", "abc", "A"]),
    (r#"root ::= "a" | "bc" | """#, &["", "a", "bc"], &["b"], &["ab", "c"]),
    // Repetition applies to a whole literal, and to what blanks part it from.
    (r#"root ::= "ab"* "c""#, &["c", "ababc"], &["", "a", "abab"], &["ac", "abbc", "cc"]),
    (r#"root ::= "ab" + | "x" {2}"#, &["ab", "abab", "xx"], &["", "a", "x", "aba"], &["ax", "xxx"]),
    (r#"root ::= [a-c]{2}"#, &["ab"], &["", "c"], &["abc", "d"]),
    (r#"root ::= [a-c]{2,}"#, &["ab", "abcabc"], &["", "c"], &["d", "abx"]),
    (r#"root ::= [a-c]{,2}"#, &["", "a", "ab"], &[], &["abc", "d"]),
    (r#"root ::= [a-c]{1,3} "x""#, &["ax", "abcx"], &["", "a", "abc"], &["x", "abca"]),
    (r#"root ::= "x" [a-c]{0} "y""#, &["xy"], &["", "x"], &["xa"]),
    (r#"root ::= ("a" | "bb"){0,2} "c"?"#, &["", "a", "abb", "bba", "c", "bbc"], &["b", "ab"], &["aaa", "bab", "cc"]),
    ("root ::= [ab]{ 1 , 2 }\n", &["a", "ab"], &[""], &["abb"]),
    // Classes.
    (r"root ::= [^a-y\n]", &["z", "ß", "€", "😀", " "], &[""], &["a", "\n", "zz"]),
    (r#"root ::= [a\-c] [-x] [x-] [\]\[\\^]"#, &["--x]", "ax-[", "cxx\\", "a-x^"], &["", "a-"], &["b", "ab", "a-y"]),
    (r"root ::= [\x41-\x43] [\u00e4\U0001F600] [\t\r\n]", &["Aä\t", "B😀\n"], &["", "C"], &["D", "Aa", "Aä "]),
    ("root ::= [ぁ-ゟ]+ \"。\"", &["ひらがな。"], &["", "ひ"], &["ヒ", "ひa", "ひ。。"]),
    ("root ::= . .", &["ab", "😀\n", "\0é"], &["", "€"], &["abc"]),
    (r#"root ::= "\x41\u00e9\U0001F600\"\\\[\]\n""#, &["Aé😀\"\\[]\n"], &["Aé", ""], &["B", "Ae"]),
    (r#"root ::= "\x80""#, &["\u{80}"], &[""], &["a"]),
    ("root ::= [\\u0000-\\uFFFF]", &["\u{D7FF}", "\u{E000}", "a"], &[""], &["😀"]),
    // Lines and comments.
    (
        "# first\n\n  # second\nroot ::= # third\n  a | # fourth\n\n b\r\na ::= \"a\" # fifth\r\n\r\nb ::= (\n \"b\" # x\n\n \"c\"\n)*",
        &["a", "", "bc", "bcbc"],
        &["b"],
        &["ab", "cb"],
    ),
    ("root ::= \"a#b\" [#] # c", &["a#b#"], &["a#"], &["a b"]),
    ("root ::= a-1 B2\na-1 ::= \"x\"\nB2 ::= \"y\"", &["xy"], &["x"], &["y"]),
    ("root ::= \"a\"\nroot ::= \"b\"", &["b"], &[""], &["a"]),
    ("root ::= (\"a\" | (\"b\" | (\"c\" \"d\")+)? \"e\")", &["a", "e", "be", "cdcde"], &["cd", "b"], &["ae", "ce"]),
    ("root ::= () \"x\" (|\"y\")", &["x", "xy"], &[""], &["y"]),
    // Repetition of what may be empty, at will (S9).
    (r#"root ::= ("a"*)*"#, &["", "a", "aaa"], &[], &["b", "ab"]),
    (r#"root ::= ("")*"#, &[""], &[], &["a"]),
    (r#"root ::= ""* ""+ """#, &[""], &[], &["a"]),
    (r#"root ::= (("a"?)*)*"#, &["", "a", "aa"], &[], &["b"]),
    (r#"root ::= (("a"?)+ ("b"*){2,3})+ "c""#, &["c", "abbac", "bc"], &["", "a", "ba"], &["cc", "d"]),
    ("root ::= a\na ::= \"a\" (\"\" | \"b\")*", &["a", "abb"], &[""], &["b", "aa"]),
    (
        "root ::= ws \"x\"\nws ::= (sp | nl)*\nsp ::= \" \"*\nnl ::= \"\\n\"",
        &["x", " \n  \nx"],
        &["", " "],
        &["y", "xx"],
    ),
    ("root ::= ((((\"a\"{0,3}){0,3}){0,3}){0,3})", &["", "aaaaaaaaa"], &[], &["b"]),
    // A rule that begins with itself and nothing follows only repeats itself.
    ("root ::= root | \"x\"", &["x"], &[""], &["xx", "y"]),
    ("root ::= b root | \"x\"\nb ::= \"y\" | \"\"", &["x", "yyx"], &["", "yy"], &["xy"]),
    ("root ::= a | \"x\"\na ::= root | \"y\"", &["x", "y"], &[""], &["xy"]),
    // Recursion to the right and in the middle, ambiguity, and rules that have no end.
    (r#"root ::= "(" root ")" | "[" root "]" | """#, &["", "([])"], &["(", "([", "([]"], &[")", "(]", "()("]),
    (
        "root ::= e\ne ::= t (\"+\" e)?\nt ::= \"a\" | \"(\" e \")\"",
        &["a", "a+a", "(a+(a))+a"],
        &["(", "a+"],
        &["+", "aa"],
    ),
    (r#"root ::= "a" root "b" | "a" root "c" | "a""#, &["a", "aab", "aaabc"], &["", "aaab"], &["b", "ab", "aabb"]),
    (r#"root ::= ("a" | "a")* ("a" | "aa")* "b""#, &["b", "aaab"], &["aaaa"], &["ba"]),
    (r#"root ::= "a" root"#, &[], &["", "a", "aaa"], &["b"]),
    (
        "root ::= s\ns ::= \"\" | \"a\" | \"b\" | \"a\" s \"a\" | \"b\" s \"b\"",
        &["abba", "aba", "a"],
        &["ab", "abb"],
        &["abc"],
    ),
];

#[test]
fn grammars_mean_what_they_say() {
    for name in ["gpt-2", "llama-spm"] {
        let words = Words::real(name);
        let mut rng = Rng(1);
        for (grammar, complete, prefixes, illegal) in TABLE {
            let mut constraint = words.gbnf(grammar);
            let naive = Naive::new(grammar);
            let wanted = [(Verdict::Complete, complete), (Verdict::Prefix, prefixes), (Verdict::Illegal, illegal)];
            for (want, text) in wanted.iter().flat_map(|(want, texts)| texts.iter().map(move |text| (*want, *text))) {
                assert_eq!(naive.judge(text.as_bytes()), want, "the oracle: {grammar:?} {text:?}");
                let got = judge(&words, &mut constraint, &words.spell(text.as_bytes()));
                assert_eq!(got, want, "{name}: {grammar:?} {text:?}");
                // Any other spelling is as good.
                let tokens = words.tokenizer.encode(text, false).unwrap();
                if words.text(&tokens) == text.as_bytes() {
                    assert_eq!(
                        judge(&words, &mut constraint, &tokens),
                        want,
                        "{name}: {grammar:?} {text:?} {tokens:?}"
                    );
                }
                for _ in 0..20 {
                    let mut bytes = text.as_bytes().to_vec();
                    for _ in 0..=rng.below(2) {
                        let at = rng.below(bytes.len() + 1);
                        match rng.below(3) {
                            0 => bytes.truncate(at),
                            1 => bytes.insert(at, b"abcxy()+ \n\xC3\xE2\x80\xF0\x9F"[rng.below(15)]),
                            _ => bytes = [&bytes[at..], &bytes[..at]].concat(),
                        }
                    }
                    let want = naive.judge(&bytes);
                    let got = judge(&words, &mut constraint, &words.spell(&bytes));
                    assert_eq!(got, want, "{name}: {grammar:?} {:?}", String::from_utf8_lossy(&bytes));
                }
            }
        }
    }
}

/// Random grammars without left recursion against the oracle.
#[test]
fn random_grammars_agree_with_the_oracle() {
    let words = Words::real("gpt-2");
    let mut rng = Rng(2);
    let (mut tried, mut legal) = (0, 0);
    for _ in 0..1500 {
        let mut grammar = String::new();
        for (i, rule) in ["root", "p", "q"].iter().enumerate() {
            grammar += &format!("{rule} ::= {}\n", random_body(&mut rng, i, 3));
        }
        let spec = Spec::Gbnf(grammar.clone());
        let Ok(mut constraint) = words.constraint(&spec) else { continue };
        let naive = Naive::new(&grammar);
        tried += 1;
        for _ in 0..30 {
            let text: Vec<u8> = (0..rng.below(7)).map(|_| b"abc"[rng.below(3)]).collect();
            let want = naive.judge(&text);
            legal += usize::from(want != Verdict::Illegal);
            let got = judge(&words, &mut constraint, &words.spell(&text));
            assert_eq!(got, want, "{grammar} {:?}", String::from_utf8_lossy(&text));
        }
    }
    assert!(tried > 500 && legal > 5000, "{tried} grammars, {legal} legal texts");
}

fn random_body(rng: &mut Rng, rule: usize, depth: usize) -> String {
    let alternatives: Vec<String> = (0..1 + rng.below(3))
        .map(|_| {
            let items = (0..rng.below(4)).map(|i| {
                let item = match rng.below(if depth > 0 { 7 } else { 5 }) {
                    0 => "\"a\"".into(),
                    1 => "\"bc\"".into(),
                    2 => "[a-b]".into(),
                    3 => "\"\"".into(),
                    // Calls of later rules anywhere, of any rule where something comes first.
                    4 if i > 0 => ["root", "p", "q"][rng.below(3)].into(),
                    4 => ["p", "q", "\"c\""][rule.min(2)].into(),
                    _ => format!("({})", random_body(rng, rule, depth - 1)),
                };
                let times = ["", "", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}"][rng.below(10)];
                format!("{item}{times}")
            });
            items.collect::<Vec<_>>().join(" ")
        })
        .collect();
    alternatives.join(" | ")
}

#[test]
fn samples_are_read_and_begin() {
    let words = Words::real("gpt-2");
    let samples = samples();
    assert_eq!(samples.len(), 8);
    for (name, grammar) in &samples {
        let mut constraint = words.gbnf(grammar);
        assert!(constraint.mask(&[], &[]).is_ok(), "{name}");
        assert_eq!(Naive::new(grammar).judge(b""), Verdict::Prefix, "{name}");
    }
}

/// Wrong grammars and what is said of them.
const WRONG: &[(&str, &str)] = &[
    ("", "1:1: rule 'root': it is what a text must match"),
    ("# only a comment\n", "2:1: rule 'root'"),
    ("rot ::= \"a\"\n", "2:1: rule 'root'"),
    ("root ::= \"a\" b\n", "1:14: rule 'b': it is used here but nowhere defined"),
    ("root ::= \"a\"\n  | b", "2:3: found '|', supported the name of a rule"),
    ("root ::= \"a\" |\n  b", "2:3: rule 'b': it is used here but nowhere defined"),
    ("root \"a\"", "1:6: rule 'root': found '\"', supported '::='"),
    ("root := \"a\"", "1:6: rule 'root': found ':', supported '::='"),
    ("root ::= \"a\nb", "1:10: rule 'root': it is never closed"),
    ("root ::= \"a", "1:10: rule 'root': it is never closed"),
    ("root ::= \"a\\", "1:10: rule 'root': it is never closed"),
    ("root ::= [a-", "1:10: rule 'root': it is never closed"),
    ("root ::= \"ä\" [", "1:14: rule 'root': it is never closed"),
    ("root ::= [z-a]", "1:11: rule 'root': the range from U+007A to U+0061 runs backwards"),
    ("root ::= []", "1:10: rule 'root': no character is in this class"),
    ("root ::= [^]", "1:10: rule 'root': no character is in this class"),
    ("root ::= [^\\x00-\\U0010FFFF]", "1:10: rule 'root': no character is in this class"),
    ("root ::= [\\uD800-\\uDFFF]", "1:10: rule 'root': no character is in this class"),
    ("root ::= \"\\uD800\"", "1:11: rule 'root': found U+D800, which is no character"),
    ("root ::= \"\\U00110000\"", "1:11: rule 'root': found U+110000, supported up to"),
    ("root ::= \"a\\q\"", "1:12: rule 'root': found the escape \\q, supported \\n"),
    ("root ::= \"\\x4g\"", "1:11: rule 'root': found 'g', supported 2 hexadecimal digits"),
    ("root ::= \"\\u12\"", "1:11: rule 'root': found '\"', supported 4 hexadecimal digits"),
    ("root ::= (\"a\" \"b\"\n", "1:10: rule 'root': '(' is never closed"),
    ("root ::= (\"a\" \"b\"\nx ::= \"c\"", "2:3: rule 'root': found ':', supported an item, '|' or ')'"),
    ("root ::= \"a\")", "1:13: rule 'root': found ')', supported an item, '|' or the end of the line"),
    ("root ::= \"a\" ; \"b\"", "1:14: rule 'root': found ';'"),
    ("root ::= a_b", "1:11: rule 'root': found '_'"),
    ("root ::= *", "1:10: rule 'root': there is nothing to repeat before it"),
    ("root ::= \"a\" | + \"b\"", "1:16: rule 'root': there is nothing to repeat"),
    ("root ::= (? \"b\")", "1:11: rule 'root': there is nothing to repeat"),
    ("root ::= \"a\"{", "1:13: rule 'root': found no count, supported {n} {n,} {,n} {n,m}"),
    ("root ::= \"a\"{}", "1:13: rule 'root': found no count"),
    ("root ::= \"a\"{,}", "1:13: rule 'root': found no count"),
    ("root ::= \"a\"{1;2}", "1:13: rule 'root': found no count"),
    ("root ::= \"a\"{1,2", "1:13: rule 'root': found no count"),
    ("root ::= \"a\"{-1}", "1:13: rule 'root': found no count"),
    ("root ::= \"a\"{3,2}", "1:13: rule 'root': found {3,2}, which nothing satisfies"),
    ("root ::= \"a\"{1000000}", "1:14: rule 'root': found 1000000, supported counts up to 262144"),
    ("root ::= \"a\"{99999999999999999999999}", "1:14: rule 'root': found 99999999999999999999999, supported"),
    ("root ::= \"a\"{262144}\nx ::= \"b\"{262144}", "1:13: rule 'root': the grammar grows beyond 262144 symbols"),
    ("root ::= x\nx ::= \"a\"{0,200000}", "2:10: rule 'x': the grammar grows beyond"),
    // Left recursion (S8): plain, through others, behind what may be empty, in a repetition.
    ("root ::= root \"a\" | \"b\"", "1:1: rule 'root': it can begin with itself; left recursion"),
    ("root ::= x\nx ::= y \"a\" | \"b\"\ny ::= x \"c\"", "2:1: rule 'x': it can begin with itself, through 'y'"),
    ("root ::= ws e\nws ::= \" \"*\ne ::= ws e \"x\" | \"y\"", "3:1: rule 'e': it can begin with itself;"),
    ("root ::= n root \"z\" | \"x\"\nn ::= (\"y\" | m)*\nm ::= \"\"", "1:1: rule 'root': it can begin with itself;"),
    ("root ::= \"a\"\nunused ::= (unused | \"b\")* \"c\"", "2:1: rule 'unused': it can begin with itself"),
    ("root ::= (\"x\" | root)*", "1:1: rule 'root': it can begin with itself"),
    // Tokens.
    ("root ::= <[]>", "1:10: rule 'root': found no token id, supported <[ID]>"),
    ("root ::= <[5>", "1:10: rule 'root': found no token id"),
    ("root ::= <[99999999999]>", "1:10: rule 'root': found no token id"),
    ("root ::= <[123456]>", "1:10: rule 'root': found token 123456, the vocabulary has 50257"),
    ("root ::= <think", "1:10: rule 'root': '<' is never closed"),
    ("root ::= \"a\" !x", "1:15: rule 'root': found 'x' after '!', supported a token"),
    ("root ::= \"a\"\n  <no such token>", "2:3: found '<', supported the name of a rule"),
    ("root ::= (\"a\"\n  <no such token>)", "2:3: rule 'root': <no such token> is 5 tokens of this model"),
    ("root ::= <[50256]>", "1:10: rule 'root': token 50256 ends the text"),
    ("\0", "1:1: found '\\0'"),
];

#[test]
fn wrong_grammars_are_refused_where_they_are_wrong() {
    let words = Words::real("gpt-2");
    for (grammar, want) in WRONG {
        let error = words.error(&Spec::Gbnf((*grammar).into()));
        assert!(error.starts_with(want), "{grammar:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{grammar:?}: {error}");
    }
}

/// Grammars that are large or twisted in one way: each is accepted and works, or is refused, soon.
#[test]
fn nothing_hangs_or_overflows() {
    let words = Words::real("gpt-2");
    let n = 50_000;
    let chain = |n: usize| (0..n).map(|i| format!("a{i} ::= a{} | \"x\"\n", i + 1)).collect::<String>();
    let table = [
        ("groups", format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n)), "a", Verdict::Complete),
        ("groups left open", format!("root ::= {}", "(".repeat(n)), "", Verdict::Illegal),
        (
            "groups in stars",
            format!("root ::= {}\"a\"{}", "(".repeat(n / 2), ")*".repeat(n / 2)),
            "aa",
            Verdict::Complete,
        ),
        ("chain", format!("root ::= a0\n{}a{n} ::= \"y\"", chain(n)), "y", Verdict::Complete),
        ("loop of rules", format!("root ::= a0\n{}a{n} ::= a0 \"z\"", chain(n)), "", Verdict::Illegal),
        ("loop of tails", format!("root ::= a0\n{}a{n} ::= a0", chain(n)), "x", Verdict::Complete),
        ("long literal", format!("root ::= \"{}\"", "a".repeat(n)), "aaa", Verdict::Prefix),
        ("alternatives", format!("root ::= {}\"b\"", "\"a\" | ".repeat(n)), "b", Verdict::Complete),
        ("exact count", format!("root ::= \"a\"{{{n}}}"), "aaa", Verdict::Prefix),
        ("upper count", format!("root ::= \"a\"{{0,{n}}}"), "aaa", Verdict::Complete),
        ("counts in counts", "root ::= (((\"a\"{9000}){9000}){9000}){9000}".into(), "aaa", Verdict::Prefix),
        ("empty counts in counts", "root ::= (((\"a\"?){300}){300}){300} \"b\"".into(), "aaab", Verdict::Complete),
        ("optional counts in counts", "root ::= ((\"a\"{0,500}){0,500}){0,500} \"b\"".into(), "aab", Verdict::Complete),
        ("optionals", format!("root ::= (\"a\"?){{{n}}} \"b\""), "b", Verdict::Complete),
        ("comments", format!("root ::= \"a\" {}", "# x\n".repeat(n)), "a", Verdict::Complete),
        (
            "classes",
            format!("root ::= [{}]", (0..n).filter_map(|i| char::from_u32(0x4e00 + 2 * i as u32)).collect::<String>()),
            "一",
            Verdict::Complete,
        ),
    ];
    for (name, grammar, text, want) in table {
        let started = Instant::now();
        let got = match words.constraint(&Spec::Gbnf(grammar)) {
            Ok(mut constraint) => {
                let verdict = judge(&words, &mut constraint, &words.spell(text.as_bytes()));
                if verdict != Verdict::Illegal {
                    constraint.mask(&words.spell(text.as_bytes()), &[]).unwrap();
                }
                verdict
            }
            Err(error) => {
                assert!(error.to_string().len() < 300, "{name}: {error}");
                Verdict::Illegal
            }
        };
        assert_eq!(got, want, "{name}");
        println!("{name}: {:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(20), "{name}: {:?}", started.elapsed());
    }
}

/// Texts that nest deeply or are long, and grammars with as many readings as there are numbers: an answer or an error.
#[test]
fn long_texts_are_followed() {
    let words = Words::real("gpt-2");
    let table = [
        ("nested", r#"root ::= "(" root ")" | """#, b"(".repeat(20_000)),
        ("right", r#"root ::= "a" root | "b""#, b"a".repeat(20_000)),
        ("loop", r#"root ::= [^"]* "\"""#, b"x".repeat(20_000)),
        ("doubling", r#"root ::= "a" root "b" | "a" root "c" | "a""#, b"a".repeat(3000)),
        ("guessing", r#"root ::= "a" root "b" | "a" root | """#, b"a".repeat(300)),
        ("two stars", r#"root ::= ("a" | "aa")* ("a" | "aaa")* "b""#, b"a".repeat(3000)),
        ("counted", r#"root ::= ("a"{1,90}){1,90} "b""#, b"a".repeat(3000)),
        ("middle", "root ::= s\ns ::= \"\" | \"a\" s \"a\" | \"b\" s \"b\" | \"a\" s \"b\"", b"ab".repeat(100)),
    ];
    for (name, grammar, text) in table {
        let started = Instant::now();
        let mut constraint = words.gbnf(grammar);
        let tokens = words.spell(&text);
        let half = tokens.len() / 2;
        for (committed, path) in [(&tokens[..half], &tokens[half..]), (&tokens[..], &[][..])] {
            assert!(!constraint.mask(committed, path).unwrap().is_empty(), "{name}");
        }
        println!("{name}: {:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(30), "{name}: {:?}", started.elapsed());
    }
}

/// What is known of a grammar's states is forgotten when it is too much, and answers stay the same; more than that at
/// once is an error, and no harm.
#[test]
fn memory_is_bounded() {
    let words = Words::real("gpt-2");
    let mut constraint = words.gbnf(r#"root ::= "(" root ")" | "a""#);
    let open = words.spell(b"(")[0];
    let close = words.spell(b")")[0];
    let deep = vec![open; 600_000];
    let mut most = vec![open; 4_000_000];
    for _ in 0..2 {
        assert!(constraint.allows(&deep, &[], words.spell(b"a")[0]).unwrap());
        assert!(!constraint.allows(&deep, &[], close).unwrap());
        let inner = [words.spell(b"a"), vec![close; 600_000]].concat();
        assert!(!constraint.allows(&deep, &inner, close).unwrap());
        assert!(constraint.allows(&deep, &inner, words.end()).unwrap());
        let error = constraint.mask(&most, &[]).unwrap_err().to_string();
        assert_eq!(error, "grammar: it is too deep or too ambiguous to go on");
        most.pop();
    }
}

/// Samples with pieces cut out, doubled and swapped: a grammar or an error, never a panic or a long wait.
#[test]
fn broken_grammars_break_nothing() {
    let words = Words::real("llama-spm");
    let mut rng = Rng(6);
    let (mut fine, mut wrong) = (0, 0);
    for (name, text) in samples() {
        let chars: Vec<char> = text.chars().collect();
        for _ in 0..60 {
            let mut broken = chars.clone();
            for _ in 0..=rng.below(3) {
                let start = rng.below(broken.len());
                let piece: Vec<char> = broken[start..(start + rng.below(30)).min(broken.len())].to_vec();
                match rng.below(4) {
                    0 => drop(broken.drain(start..start + piece.len())),
                    1 => broken.insert(
                        start,
                        ['(', ')', '"', '[', ']', '*', '{', '}', '|', '\n', '\\', '<', '!', 'é'][rng.below(14)],
                    ),
                    2 => drop(broken.splice(start..start, piece)),
                    _ => {
                        let at = rng.below(broken.len());
                        broken.splice(at..at, piece);
                    }
                }
            }
            let broken: String = broken.into_iter().collect();
            let started = Instant::now();
            match words.constraint(&Spec::Gbnf(broken.clone())) {
                Ok(mut constraint) => {
                    constraint.mask(&[], &[]).unwrap();
                    fine += 1;
                }
                Err(error) => {
                    let error = error.to_string();
                    let place: Vec<_> = error.splitn(3, ':').map(str::trim).collect();
                    let (line, column): (usize, usize) = (place[0].parse().unwrap(), place[1].parse().unwrap());
                    let lines: Vec<_> = broken.split('\n').collect();
                    assert!(
                        line <= lines.len() && column <= lines[line - 1].chars().count() + 1,
                        "{name}: {error}\n{broken}"
                    );
                    wrong += 1;
                }
            }
            assert!(started.elapsed() < Duration::from_secs(5), "{name}: {:?}\n{broken}", started.elapsed());
        }
    }
    assert!(fine > 50 && wrong > 200, "{fine} grammars, {wrong} errors");
}

#[test]
fn tokens_are_named() {
    // gpt-2: 31373 is "hello", 995 is " world".
    let words = Words::real("gpt-2");
    let (hello, world, end) = (31373, 995, words.end());
    assert_eq!((words.text(&[hello]), words.text(&[world])), (b"hello".to_vec(), b" world".to_vec()));
    let spelled = words.spell(b"hello");
    for (grammar, complete, prefixes, illegal) in [
        (
            "root ::= <[31373]> \"!\"",
            vec![vec![hello, 0]],
            vec![vec![], vec![hello]],
            vec![spelled.clone(), vec![world]],
        ),
        (
            "root ::= <[31373]>+",
            vec![vec![hello], vec![hello, hello]],
            vec![vec![]],
            vec![vec![hello, world], vec![hello, 0]],
        ),
        (
            "root ::= !<[31373]>* <[31373]>",
            vec![vec![hello], vec![world, 0, hello]],
            vec![vec![], spelled.clone()],
            vec![vec![end], vec![hello, hello]],
        ),
        // A token may be legal as itself and as text.
        (
            "root ::= <[31373]> \"a\" | \"hello\" \"b\"",
            vec![vec![hello, 64], vec![hello, 65]],
            vec![vec![hello]],
            vec![vec![hello, 66], [&spelled[..], &[64]].concat()],
        ),
        (
            "root ::= \"x\" <[31373]> | \"xhello\" \"y\"",
            vec![vec![87, hello], vec![87, hello, 88]],
            vec![vec![87]],
            vec![vec![hello]],
        ),
    ] {
        let mut constraint = words.gbnf(grammar);
        let wanted = [(Verdict::Complete, complete), (Verdict::Prefix, prefixes), (Verdict::Illegal, illegal)];
        for (want, tokens) in wanted.iter().flat_map(|(want, all)| all.iter().map(move |tokens| (*want, tokens))) {
            assert_eq!(judge(&words, &mut constraint, tokens), want, "{grammar} {tokens:?}");
            if want != Verdict::Illegal {
                let mask = constraint.mask(tokens, &[]).unwrap();
                for token in 0..words.tokenizer.vocab_size() as Token {
                    let allowed = constraint.allows(tokens, &[], token).unwrap();
                    assert_eq!(mask.contains(token), allowed, "{grammar} {tokens:?} {token}");
                }
            }
        }
    }
    // By their texts, control tokens too.
    let words = Words::real("phi-3");
    let assistant = words.tokenizer.find("<|assistant|>").unwrap();
    let mut constraint = words.gbnf("root ::= <|assistant|> !<|assistant|> | \"b\"");
    assert!(words.tokenizer.is_control(assistant));
    let mask = constraint.mask(&[], &[]).unwrap();
    assert!(mask.contains(assistant) && !mask.contains(assistant + 1));
    let mask = constraint.mask(&[assistant], &[]).unwrap();
    let text = (0..words.tokenizer.vocab_size() as Token).filter(|&t| {
        !words.tokenizer.is_control(t)
            && !words.tokenizer.end_tokens().contains(&t)
            && !words.tokenizer.piece(t).is_empty()
    });
    assert_eq!(mask.len(), text.count(), "all text and nothing else");
}
