//! Pre-tokenisers: how a text is cut into words before byte-level BPE sees them, one row per scheme.
//!
//! A scheme is a sequence of patterns. Each cuts every piece the one before it left; what a pattern does not match
//! is a piece too. The `regex` crate has no look-ahead, which keeps it linear for any text; the one look-ahead these
//! schemes use, `\s+(?!\S)` ("whitespace up to, not including, the space that belongs to the next word"), is written
//! `\s+` as the last alternative and [`Scheme::cut`] gives the last character back.

use regex::Regex;
use std::ops::Range;

/// One row: the names files use in `tokenizer.ggml.pre`, and what they mean.
pub(super) struct Row {
    pub names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// Texts are brought to Unicode NFC first.
    pub nfc: bool,
    /// A whole word that is a token is that token, whatever the merges say.
    pub ignore_merges: bool,
    /// BOS unless the metadata says otherwise.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN35: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
/// Cased letters as DeepSeek lists them, after an optional space.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\xB5\xC0-\xD6\xD8-\xF6\xF8-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;

const PLAIN: Row = Row { names: &[], patterns: &[], nfc: false, ignore_merges: false, add_bos: false };

/// The first row serves files that name no scheme or one not listed here.
pub(super) const ROWS: &[Row] = &[
    Row { names: &["default"], patterns: &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN },
    Row {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        patterns: &[GPT2],
        ..PLAIN
    },
    Row { names: &["mpt", "olmo"], patterns: &[GPT2], nfc: true, ..PLAIN },
    Row {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        patterns: &[r"\p{N}", GPT2],
        ..PLAIN
    },
    Row { names: &["command-r"], patterns: &[r"\p{N}", GPT2], nfc: true, ..PLAIN },
    Row {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Row { names: &["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], patterns: &[LLAMA3], ..PLAIN },
    Row { names: &["qwen2", "deepseek-r1-qwen", "megrez"], patterns: &[QWEN2], nfc: true, ..PLAIN },
    Row { names: &["stablelm2", "hunyuan", "solar-open", "grok-2", "kormo"], patterns: &[QWEN2], ..PLAIN },
    Row { names: &["qwen35"], patterns: &[QWEN35], nfc: true, ..PLAIN },
    Row {
        names: &["deepseek-llm"],
        patterns: &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", DEEPSEEK_CJK, r"\p{N}+"],
        ..PLAIN
    },
    Row {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
        ..PLAIN
    },
    Row {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        patterns: &[r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", DEEPSEEK3],
        ..PLAIN
    },
    Row { names: &["falcon"], patterns: &[r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"], ..PLAIN },
    Row { names: &["tekken"], patterns: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN },
    Row { names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"], patterns: &[GPT4O], ..PLAIN },
];

/// A row's patterns, compiled.
pub(super) struct Scheme {
    patterns: Vec<(Regex, Tail)>,
}

/// What the last character of a whitespace match may be given back to.
#[derive(Clone, Copy, PartialEq)]
enum Tail {
    /// Matches stay as they are.
    Keep,
    /// Of whitespace before a word the last character joins the word.
    Spaces,
    /// As `Spaces`, but whitespace that ends a line is a match of its own.
    Lines,
}

impl Scheme {
    pub(super) fn new(row: &Row) -> Self {
        let compile = |p: &&str| {
            let tail = match () {
                () if !p.ends_with(r"|\s+") => Tail::Keep,
                () if p.contains(r"|\s*[\r\n]+|") => Tail::Lines,
                () => Tail::Spaces,
            };
            (Regex::new(p).expect("patterns are constants, all compiled by a test"), tail)
        };
        Self { patterns: row.patterns.iter().map(compile).collect() }
    }

    /// The pieces of `text`, in order; together they are the text.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let whole = 0..text.len();
        let mut pieces = vec![whole];
        let mut finer = Vec::new();
        for (regex, tail) in &self.patterns {
            for piece in pieces.drain(..) {
                cut(regex, *tail, &text[piece.clone()], piece.start, &mut finer);
            }
            std::mem::swap(&mut pieces, &mut finer);
        }
        pieces
    }
}

fn cut(regex: &Regex, tail: Tail, text: &str, base: usize, out: &mut Vec<Range<usize>>) {
    let mut at = 0;
    while at < text.len() {
        let Some(found) = regex.find_at(text, at).filter(|m| !m.is_empty()) else { break };
        let (start, mut end) = (found.start(), found.end());
        let last = found.as_str().chars().next_back().expect("not empty");
        let gives_back = match tail {
            Tail::Keep => false,
            Tail::Spaces => true,
            Tail::Lines => !matches!(last, '\r' | '\n'),
        };
        if gives_back
            && end < text.len()
            && end - start > last.len_utf8()
            && last.is_whitespace()
            && found.as_str().chars().all(char::is_whitespace)
        {
            end -= last.len_utf8();
        }
        if start > at {
            out.push(base + at..base + start);
        }
        out.push(base + start..base + end);
        at = end;
    }
    if at < text.len() {
        out.push(base + at..base + text.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let row = ROWS.iter().find(|r| r.names.contains(&name)).unwrap();
        Scheme::new(row).split(text).into_iter().map(|r| &text[r]).collect()
    }

    #[test]
    fn names_are_unique_and_patterns_compile() {
        let mut names: Vec<_> = ROWS.iter().flat_map(|r| r.names).collect();
        ROWS.iter().for_each(|row| drop(Scheme::new(row)));
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn schemes_cut_as_published() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("llama3", "3333333", &["333", "333", "3"]),
            ("qwen2", "33", &["3", "3"]),
            ("gpt-2", "a 3333333", &["a", " 3333333"]),
            ("smollm", "a 33", &["a", " ", "3", "3"]),
            ("falcon", "12345", &["123", "45"]),
            ("llama3", "I'M you're", &["I", "'M", " you", "'re"]),
            ("gpt-2", "I'M you're", &["I", "'", "M", " you", "'re"]),
            ("llama3", "a  \r\n\r\n b", &["a", "  \r\n\r\n", " b"]),
            ("gpt-2", "a  \n\n b", &["a", "  \n\n", " b"]),
            ("gpt-2", "a\t\tb  ", &["a", "\t", "\t", "b", "  "]),
            ("llama3", "a\t\tb  ", &["a", "\t", "\tb", "  "]),
            ("llama3", "(x):\n->", &["(x", "):\n", "->"]),
            ("tekken", "HelloWORLD fooBar", &["Hello", "WORLD", " foo", "Bar"]),
            ("gpt-4o", "It's ABC1234", &["It's", " ABC", "123", "4"]),
            ("deepseek-v3", "a+b 12345", &["a", "+b", " ", "123", "45"]),
        ];
        for (name, text, want) in cases {
            assert_eq!(words(name, text), *want, "{name}: {text:?}");
        }
    }
}
