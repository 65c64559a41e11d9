//! Corpora from files: what they become, what is kept of them, what is refused, and how long a large one takes.

mod common;

use common::{cli, models, zoo};
use foretoken::gguf::Gguf;
use foretoken::sample::{SampleParams, Sampler};
use foretoken::spec::corpus::{Corpus, Making};
use foretoken::spec::lookup::Lookup;
use foretoken::spec::round::Setting;
use foretoken::spec::{Accept, Budget, Nodes, Round, Tell};
use foretoken::text::Tokenizer;
use foretoken::tree::Token;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// An empty folder for a test.
fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("corpus-{test}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf(zoo::open("llama").meta()).unwrap()
}

/// Opens a corpus, with what was said meanwhile: notes as they are, warnings in capitals.
fn open(files: &[PathBuf], tokenizer: &Tokenizer, cache: Option<&Path>) -> (anyhow::Result<Corpus>, Vec<String>) {
    let said = RefCell::new(vec![]);
    let tell = |what| match what {
        Tell::Progress(_, done, total) => assert!(done <= total),
        Tell::Note(line) => said.borrow_mut().push(line),
        Tell::Warning(line) => said.borrow_mut().push(line.to_uppercase()),
    };
    let corpus = Corpus::open(files, &Making { tokenizer, cache, admit: &|_| Ok(()), tell: &tell });
    (corpus, said.into_inner())
}

/// The best guesses after `context`.
fn guesses(corpus: Corpus, context: &[Token], budget: usize) -> Vec<Token> {
    let mut lookup = Lookup::new(2, 63, 1).with_corpus(corpus);
    lookup.read(context);
    draft(&mut lookup, context, budget)
}

fn draft(lookup: &mut Lookup, context: &[Token], budget: usize) -> Vec<Token> {
    let params = SampleParams { temp: 0.0, ..Default::default() };
    let mut sampler = Sampler::new(params, 0, 1, |_| vec![]).unwrap();
    let mut fixed = Budget::new(Nodes::Fixed(budget), 1);
    let setting = Setting { context, start: 0, room: budget + 1, ordinal: 0, accept: Accept::Exact, drafters: 1 };
    let mut round = Round::new(setting, &mut sampler, &mut fixed);
    assert!(round.turn(0));
    lookup.guess(&mut round);
    round.finish().tree().tokens()[1..].to_vec()
}

const TEXT: &str = "The quick brown fox jumps over the lazy dog.\nZürich costs 12 € a day.\n";

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_index_is_made_once() {
    let (folder, tokenizer) = (folder("once"), tokenizer());
    let (cache, text) = (folder.join("a/b"), folder.join("text.txt"));
    fs::write(&text, TEXT).unwrap();
    let ids = tokenizer.encode(TEXT, false).unwrap();
    let check = |corpus: anyhow::Result<Corpus>| {
        let corpus = corpus.unwrap();
        assert_eq!(corpus.tokens(), ids.len());
        assert_eq!(guesses(corpus, &ids[..5], 63), ids[5..].iter().copied().take(63).collect::<Vec<_>>());
    };
    let files = [text.clone()];
    let (corpus, said) = open(&files, &tokenizer, Some(&cache));
    check(corpus);
    assert!(said.len() == 1 && said[0].contains(&format!("{} tokens indexed in ", ids.len())), "{said:?}");
    let kept = names(&cache);
    assert!(kept.len() == 1 && said[0].ends_with(&kept[0]), "{kept:?} {said:?}");
    let (corpus, said) = open(&files, &tokenizer, Some(&cache));
    assert_eq!(corpus.as_ref().unwrap().memory(), 0, "it is mapped");
    check(corpus);
    assert_eq!(said, [""; 0]);

    // A damaged index is made anew.
    let index = cache.join(&kept[0]);
    let whole = fs::read(&index).unwrap();
    let other = [&whole[..32], &[0; 32], &whole[64..]].concat();
    for bad in [&whole[..whole.len() - 4], &whole[..5], &[], &other[..], TEXT.as_bytes()] {
        fs::write(&index, bad).unwrap();
        let (corpus, said) = open(&files, &tokenizer, Some(&cache));
        check(corpus);
        assert!(said.len() == 2 && said[0].contains("made anew") && said[0].contains(&kept[0]), "{said:?}");
        assert!(fs::read(&index).unwrap() == whole && names(&cache) == kept);
    }

    // Other files, another order, another tokenizer, ids for a text: other indexes.
    let more = folder.join("more.txt");
    fs::write(&more, "More of it.").unwrap();
    for files in [[text.clone(), more.clone()], [more.clone(), text.clone()]] {
        open(&files, &tokenizer, Some(&cache)).0.unwrap();
    }
    let other = Tokenizer::from_gguf(Gguf::from_bytes(cli::long_winded().bytes()).unwrap().meta()).unwrap();
    open(&files, &other, Some(&cache)).0.unwrap();
    assert_eq!(names(&cache).len(), 4);
}

#[test]
fn a_cache_that_cannot_be_written_costs_a_warning() {
    let (folder, tokenizer) = (folder("unwritable"), tokenizer());
    let text = folder.join("text.txt");
    fs::write(&text, TEXT).unwrap();
    // A folder cannot be made below a file.
    for (cache, needle) in [(Some(&*text), "CANNOT MAKE THE FOLDER"), (None, "NEITHER XDG_CACHE_HOME NOR HOME")] {
        let (corpus, said) = open(std::slice::from_ref(&text), &tokenizer, cache);
        let corpus = corpus.unwrap();
        assert!(corpus.memory() > 0 && corpus.tokens() > 10);
        assert!(said.len() == 2 && said[0].contains(needle) && said[1].ends_with("kept in memory"), "{said:?}");
    }
}

#[test]
fn files_of_ids_are_documents() {
    let (folder, tokenizer) = (folder("ids"), tokenizer());
    let (ids, text) = (folder.join("x.tokens"), folder.join("x.txt"));
    let numbers = [5u32, 6, 7, 8, u32::MAX, 9, 10, 11];
    fs::write(&ids, numbers.map(u32::to_le_bytes).concat()).unwrap();
    fs::write(&text, TEXT).unwrap();
    let corpus = || open(&[ids.clone(), text.clone()], &tokenizer, Some(&folder)).0.unwrap();
    assert_eq!(corpus().tokens(), 7 + tokenizer.encode(TEXT, false).unwrap().len());
    assert_eq!(guesses(corpus(), &[5, 6], 9), [7, 8]);
    assert_eq!(guesses(corpus(), &[9, 10], 9), [11]);
    assert_eq!(guesses(corpus(), &[8, 9], 9), [0; 0]);
}

#[test]
fn what_is_no_corpus_is_refused() {
    let (folder, tokenizer) = (folder("refused"), tokenizer());
    let vocab = tokenizer.vocab_size() as u32;
    let long = [&b"line\n".repeat(200_000)[..], b"\xff\n", b"\xfe"].concat();
    let cases: [(&str, &[u8], &str); 8] = [
        ("empty.txt", b"", "is empty"),
        ("latin.txt", b"Z\xfcrich", "is not UTF-8 at byte 1, supported UTF-8 text, or ids in a file named *.tokens"),
        ("long.txt", &long, "is not UTF-8 at byte 1000000"),
        ("cut.txt", "€".as_bytes().split_last().unwrap().1, "is not UTF-8 at byte 0"),
        ("odd.tokens", &[1, 0, 0, 0, 2], "has 5 bytes, supported ids of 4 bytes each"),
        (
            "wide.tokens",
            &[[1, 0, 0, 0], vocab.to_le_bytes()].concat(),
            &format!("has id {vocab} at byte 4, supported below {vocab}"),
        ),
        ("borders.tokens", &[0xff; 12], "the corpus has no tokens"),
        ("empty.tokens", b"", "is empty"),
    ];
    for (name, bytes, needle) in cases {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        let error = format!("{:#}", open(std::slice::from_ref(&path), &tokenizer, None).0.unwrap_err());
        assert!(error.contains(needle), "{name}: {error}");
        assert!(error.lines().count() == 1 && (error.contains(name) || name == "borders.tokens"), "{name}: {error}");
    }
    for (path, needle) in [(folder.join("absent"), "cannot open"), (folder.clone(), "is a directory")] {
        let error = format!("{:#}", open(&[path], &tokenizer, None).0.unwrap_err());
        assert!(error.contains(needle), "{error}");
    }
    let text = folder.join("text.txt");
    fs::write(&text, TEXT).unwrap();
    let admit = |bytes| anyhow::bail!("{bytes} are too many");
    let making = Making { tokenizer: &tokenizer, cache: None, admit: &admit, tell: &|_| () };
    let error = Corpus::open(&[text], &making).unwrap_err().to_string();
    assert_eq!(error, format!("{} are too many", 2 * TEXT.len()));
}

/// The most memory this process has had, in bytes.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).map_or(0, |kb: usize| kb << 10)
}

/// Words of a made-up language, some of them common, in lines; a part of the lines come again.
fn babble(bytes: usize) -> String {
    let mut seed = 1u64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % below
    };
    let syllables =
        ["re", "st", "on", "al", "in", "de", "ty", "mo", "lu", "cha", "ver", "sion", "pre", "ku", "th", "ing"];
    let words: Vec<String> = (0..20_000).map(|_| (0..1 + next(4)).map(|_| syllables[next(16)]).collect()).collect();
    let mut lines: Vec<std::ops::Range<usize>> = vec![];
    let mut text = String::with_capacity(bytes + 1000);
    while text.len() < bytes {
        let start = text.len();
        if next(4) == 0 && !lines.is_empty() {
            let line = lines[next(lines.len())].clone();
            text.extend_from_within(line);
            continue;
        }
        for _ in 0..4 + next(20) {
            // Word number n about as often as 1/n.
            let word = (words.len() as f64).powf(next(1 << 20) as f64 / (1 << 20) as f64) as usize;
            text += &words[word - 1];
            text.push([' ', ' ', ' ', ' ', ' ', ',', '.', '\t'][next(8)]);
        }
        text.push('\n');
        lines.push(start..text.len());
    }
    text
}

#[test]
fn a_large_corpus_is_indexed_in_time() {
    if std::env::var_os("FORETOKEN_SLOW_TESTS").is_none() {
        println!("skipped: 100 MB of text take minutes, FORETOKEN_SLOW_TESTS is not set");
        return;
    }
    let Some(gguf) = models::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let tokenizer = Tokenizer::from_gguf(gguf.meta()).unwrap();
    let folder = folder("large");
    let path = folder.join("babble.txt");
    let text = babble(100 << 20);
    fs::write(&path, &text).unwrap();
    let sample = tokenizer.encode(&text[50 << 20..][..40_000], false).unwrap();
    drop(text);
    let files = [path];

    let before = peak();
    let started = Instant::now();
    let (corpus, said) = open(&files, &tokenizer, Some(&folder));
    let (built, more) = (started.elapsed(), peak().saturating_sub(before));
    println!(
        "{said:?}\nbuilt in {:.1} s, {} MB more at its peak than {} MB",
        built.as_secs_f64(),
        more >> 20,
        before >> 20
    );
    drop(corpus);
    let started = Instant::now();
    let mut corpus = open(&files, &tokenizer, Some(&folder)).0.unwrap();
    println!("opened in {:.2} s, {} tokens", started.elapsed().as_secs_f64(), corpus.tokens());
    assert!(more < 2_000_000_000, "{more}");

    let microseconds = |name: &str, times: Vec<f64>| {
        let mut times = times;
        times.sort_by(f64::total_cmp);
        let at = |share: usize| times[times.len() * share / 100] * 1e6;
        println!("{name}: {:.1} us at the median, {:.1} at 95 %, {:.1} at 99 %", at(50), at(95), at(99));
        at(50)
    };
    for pass in ["cold", "warm"] {
        let mut times = vec![];
        for end in (64..sample.len()).step_by(7) {
            let started = Instant::now();
            corpus.begin(&sample[..end], 3);
            times.push(started.elapsed().as_secs_f64());
        }
        let median = microseconds(&format!("search, {pass}"), times);
        assert!(pass == "cold" || median < 200.0);
    }
    let mut lookup = Lookup::new(3, 63, 2).with_corpus(corpus);
    lookup.read(&sample[..8000]);
    let mut times = vec![];
    for end in 8000..sample.len() {
        let started = Instant::now();
        lookup.read(&sample[end..][..1]);
        draft(&mut lookup, &sample[..end + 1], 16);
        times.push(started.elapsed().as_secs_f64());
    }
    microseconds("a round of 16 guesses", times);
    fs::remove_dir_all(&folder).unwrap();
}
