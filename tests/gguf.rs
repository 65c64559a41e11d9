//! Right model files, and split ones: what is written is what is read.

mod common;

use common::{
    gguf_writer::{Tensor, Value, Writer, split, tiny_llama},
    scratch,
};
use foretoken::gguf::{Gguf, TensorView, type_name};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Block length and bytes of every element type of ggml that has tensors.
const TYPES: &[(u32, &str, usize, usize)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

#[test]
fn sizes_of_all_types() {
    for &(ty, name, block, size) in TYPES {
        assert_eq!(type_name(ty), name);
        let (dims, bytes) = ([3 * block as u64, 5], vec![7; 15 * size]);
        let file = Writer::default().tensor("t", &dims, ty, bytes.clone()).bytes();
        let model = Gguf::from_bytes(file.clone()).expect(name);
        let t = model.tensor("t").expect(name);
        assert_eq!((t.cols(), t.rows(), t.dims, t.bytes, t.ggml_type), (3 * block, 5, &dims[..], &bytes[..], ty));
        let cut = format!("{:#}", Gguf::from_bytes(file[..file.len() - 1].to_vec()).expect_err(name));
        assert!(cut.contains("\"t\"") && cut.contains("truncated"), "{cut}");
        assert!(TensorView::new("t", ty, &dims, &bytes).is_ok());
        assert!(TensorView::new("t", ty, &dims, &bytes[1..]).is_err());
        let odd = format!("{:#}", TensorView::new("t", ty, &[block as u64 + 1], &bytes).expect_err(name));
        assert_eq!(odd.contains("is no multiple of"), block > 1, "{odd}");
    }
    assert_eq!((type_name(99), type_name(31)), ("type 99".into(), "Q4_0_4_4".into()));
}

#[test]
fn values_of_all_types() {
    let strings: Vec<String> = ["", "a", "ключ", "🦙"].map(String::from).into();
    let file = Writer::default()
        .key("u8", Value::U8(255))
        .key("u16", Value::U16(65535))
        .key("u32", Value::U32(u32::MAX))
        .key("u64", Value::U64(u64::MAX))
        .key("i32", Value::I32(-7))
        .key("i64", Value::I64(1 << 40))
        .key("f32", Value::F32(0.1))
        .key("f64", Value::F64(0.1))
        .key("bool", Value::Bool(true))
        .key("str", Value::Str("a\n\x1b[31m".into()))
        .key("gpt-oss.Strings", Value::Strs(strings.clone()))
        .key("ints", Value::I32s(vec![-1, 0, 1 << 30]))
        .key("floats", Value::F32s(vec![0.5, -1e30]))
        .key("bools", Value::Raw(9, [&7u32.to_le_bytes()[..], &3u64.to_le_bytes(), &[1, 0, 1]].concat()))
        .bytes();
    let model = Gguf::from_bytes(file).unwrap();
    let meta = model.meta();
    for (key, want) in [("u8", 255), ("u16", 65535), ("u32", u64::from(u32::MAX)), ("u64", u64::MAX), ("i64", 1 << 40)]
    {
        assert_eq!(meta.uint(key).unwrap(), Some(want), "{key}");
    }
    assert_eq!((meta.float("f32").unwrap(), meta.float("f64").unwrap()), (Some(0.1), Some(0.1)));
    assert_eq!((meta.bool("bool").unwrap(), meta.str("str").unwrap()), (Some(true), Some("a\n\x1b[31m")));
    let read = meta.strings("gpt-oss.Strings").unwrap().unwrap();
    assert_eq!((read.len(), read.clone().collect::<Vec<_>>()), (4, strings.iter().map(String::as_str).collect()));
    assert_eq!(meta.ints("ints").unwrap(), Some(vec![-1, 0, 1 << 30]));
    assert_eq!(meta.ints("bools").unwrap(), Some(vec![1, 0, 1]));
    assert_eq!(meta.floats("floats").unwrap(), Some(vec![0.5, -1e30]));
    assert!(meta.is_array("ints") && !meta.is_array("u8") && !meta.is_array("absent"));
    assert_eq!((meta.str("absent").unwrap(), meta.ints("absent").unwrap()), (None, None));

    let wrong = |r: anyhow::Result<()>| format!("{:#}", r.expect_err("a wrong type"));
    for (error, says) in [
        (wrong(meta.uint("i32").map(drop)), "\"i32\" is -7 (i32), an unsigned integer is wanted"),
        (wrong(meta.uint("str").map(drop)), "\"str\" is \"a\\n\\u{1b}[31m\" (string), an unsigned integer"),
        (wrong(meta.str("u8").map(drop)), "\"u8\" is 255 (u8), a string is wanted"),
        (wrong(meta.float("u8").map(drop)), "a float is wanted"),
        (wrong(meta.bool("u8").map(drop)), "a bool is wanted"),
        (wrong(meta.uint("ints").map(drop)), "3 x i32 [-1, 0, 1073741824] (array of i32)"),
        (wrong(meta.strings("ints").map(drop)), "an array of strings is wanted"),
        (wrong(meta.ints("floats").map(drop)), "an array of integers"),
        (wrong(meta.floats("ints").map(drop)), "an array of floats is wanted"),
        (wrong(meta.ints("u8").map(drop)), "an array of integers"),
    ] {
        assert!(error.contains(says), "{error}");
    }
    let shown: Vec<(&str, String)> = meta.iter().collect();
    assert_eq!(shown.len(), 14);
    assert_eq!(shown[10], ("gpt-oss.Strings", "4 x string [\"\", \"a\", \"ключ\", \"🦙\"]".into()));
}

/// G6: the declared alignment is used wherever the metadata happens to end.
#[test]
fn alignment_is_honoured_at_every_residue() {
    for alignment in [8, 16, 32, 64, 256, 4096] {
        for pad in 0..=alignment.min(64) {
            let mut w = Writer::default().key("pad", Value::Str("x".repeat(pad as usize))).aligned(alignment);
            for c in 1..=3u8 {
                w = w.tensor(&format!("t{c}"), &[16], 24, vec![c; 16]);
            }
            let model = Gguf::from_bytes(w.bytes()).unwrap();
            for c in 1..=3u8 {
                assert_eq!(model.tensor(&format!("t{c}")).unwrap().bytes, [c; 16], "{alignment} {pad}");
            }
        }
    }
    // Offsets of the default alignment under a larger declared one.
    let mut w = Writer::default().tensor("a", &[16], 24, vec![1; 16]).tensor("b", &[16], 24, vec![2; 16]);
    w = w.key("general.alignment", Value::U32(64));
    let e = format!("{:#}", Gguf::from_bytes(w.bytes()).unwrap_err());
    assert!(e.contains("\"b\": its offset 32 is no multiple of the alignment 64"), "{e}");
}

type Contents = (Vec<(String, String)>, Vec<(String, Vec<u64>, u32, Vec<u8>)>);

/// Everything a model holds, splitting aside, tensors by name.
fn contents(model: &Gguf) -> Contents {
    let keys = model.meta().iter().filter(|(k, _)| !k.starts_with("split."));
    let tensor = |t: TensorView<'_>| (t.name.to_owned(), t.dims.to_vec(), t.ggml_type, t.bytes.to_vec());
    let mut tensors: Vec<_> = model.tensors().map(tensor).collect();
    tensors.sort();
    (keys.map(|(k, v)| (k.to_owned(), v)).collect(), tensors)
}

#[test]
fn version_2_equals_version_3() {
    let w = tiny_llama(5, "Q4_1");
    let [two, three] = [2, 3].map(|v| Gguf::from_bytes(Writer { version: v, ..w.clone() }.bytes()).unwrap());
    assert_eq!((two.version(), three.version()), (2, 3));
    assert_eq!(contents(&two), contents(&three));
    assert_eq!(contents(&two).1.len(), w.tensors.len());
}

/// G18: a file of a vocabulary alone is a model file; what needs weights says so elsewhere.
#[test]
fn vocabulary_alone_opens() {
    let w = common::gguf_writer::vocabulary(Writer::default());
    let model = Gguf::from_bytes(w.bytes()).unwrap();
    assert_eq!((model.tensor_count(), model.tensors().count()), (0, 0));
    assert_eq!(model.meta().strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 320);
}

/// G19: checking everything costs no time worth mentioning.
#[test]
fn large_vocabulary_opens_fast() {
    let path = scratch("gguf_large").join("large.gguf");
    let words = |n: usize, gap: &str| (0..n).map(|i| format!("wo{gap}rd{i}")).collect();
    let w = Writer::default()
        .key("tokenizer.ggml.tokens", Value::Strs(words(150_000, "")))
        .key("tokenizer.ggml.scores", Value::F32s(vec![0.5; 150_000]))
        .key("tokenizer.ggml.token_type", Value::I32s(vec![1; 150_000]))
        .key("tokenizer.ggml.merges", Value::Strs(words(280_000, " ")));
    fs::write(&path, w.bytes()).unwrap();
    let open = |_| {
        let start = Instant::now();
        let model = Gguf::open(&path).unwrap();
        let took = start.elapsed();
        assert_eq!(model.meta().strings("tokenizer.ggml.merges").unwrap().unwrap().last(), Some("wo rd279999"));
        took
    };
    let best: Duration = (0..5).map(open).min().unwrap();
    println!("150,000 tokens and 280,000 merges open in {best:?}");
    assert!(best < Duration::from_millis(100), "{best:?}");
}

fn shard_path(dir: &Path, name: &str, no: usize, count: usize) -> PathBuf {
    dir.join(format!("{name}-{no:05}-of-{count:05}.gguf"))
}

/// G12: writes a tiny model in three shards and gives the model too.
fn three_shards(name: &str) -> (PathBuf, Gguf) {
    let dir = scratch(name);
    let w = tiny_llama(6, "Q4_0");
    for (i, shard) in split(&w, 3).iter().enumerate() {
        fs::write(shard_path(&dir, "m", i + 1, 3), shard.bytes()).unwrap();
    }
    (dir, Gguf::from_bytes(w.bytes()).unwrap())
}

fn error(path: &Path) -> String {
    format!("{:#}", Gguf::open(path).expect_err("a broken split"))
}

#[test]
fn any_shard_stands_for_the_model() {
    let (dir, whole) = three_shards("gguf_shards");
    let up = PathBuf::from_iter(std::env::current_dir().unwrap().components().skip(1).map(|_| ".."));
    for no in 1..=3 {
        let absolute = shard_path(&dir, "m", no, 3);
        let relative = up.join(absolute.strip_prefix("/").expect("an absolute path"));
        for path in [absolute, relative] {
            let model = Gguf::open(&path).unwrap();
            assert_eq!(contents(&model), contents(&whole));
            assert_eq!(model.path(), path);
            let bytes: u64 = (1..=3).map(|no| fs::metadata(shard_path(&dir, "m", no, 3)).unwrap().len()).sum();
            assert_eq!((model.shard_count(), model.file_bytes()), (3, bytes));
        }
    }
}

#[test]
fn broken_splits_are_named() {
    let (dir, whole) = three_shards("gguf_broken_shards");
    let [one, two, three] = [1, 2, 3].map(|no| shard_path(&dir, "m", no, 3));
    let aside = dir.join("aside");

    fs::rename(&two, &aside).unwrap();
    for path in [&one, &three] {
        assert!(error(path).contains("m-00002-of-00003.gguf is missing"), "{}", error(path));
    }
    fs::rename(&three, &two).unwrap();
    fs::rename(&aside, &three).unwrap();
    for path in [&one, &two, &three] {
        assert!(error(path).contains("renamed or mixed up?"), "{}", error(path));
    }
    fs::rename(&two, &aside).unwrap();
    fs::rename(&three, &two).unwrap();

    fs::write(&three, b"<html>").unwrap();
    assert!(error(&one).contains("m-00003-of-00003.gguf: not a GGUF file"), "{}", error(&one));
    fs::rename(&aside, &three).unwrap();
    assert_eq!(contents(&Gguf::open(&one).unwrap()), contents(&whole));

    // Another name, another count in the name, and shards glued together under either kind of name.
    let plain = dir.join("plain.gguf");
    fs::copy(&two, &plain).unwrap();
    assert!(error(&plain).contains("this is shard 2 of 3, but its name does not end in -00002-of-00003.gguf"));
    let four = shard_path(&dir, "m", 2, 4);
    fs::copy(&two, &four).unwrap();
    assert!(error(&four).contains("this is shard 2 of 3"), "{}", error(&four));
    let glued = [&one, &two, &three].map(|p| fs::read(p).unwrap()).concat();
    for path in [&plain, &one] {
        fs::write(path, &glued).unwrap();
        assert!(error(path).contains("must stay separate files"), "{}", error(path));
    }
    assert!(format!("{:#}", Gguf::from_bytes(fs::read(&two).unwrap()).unwrap_err()).contains("shard 2 of 3"));
}

#[test]
fn shards_must_agree() {
    let dir = scratch("gguf_disagreeing_shards");
    let w = tiny_llama(7, "Q4_0");
    let write = |shards: &[Writer]| {
        for (i, shard) in shards.iter().enumerate() {
            fs::write(shard_path(&dir, "m", i + 1, shards.len()), shard.bytes()).unwrap();
        }
        error(&shard_path(&dir, "m", 1, shards.len()))
    };
    let good = split(&w, 2);
    let with = |no: usize, key: &str, value: Value| {
        let mut shards = good.clone();
        shards[no] = shards[no].clone().set(key, value);
        shards
    };
    let total = w.tensors.len() as i32;
    assert!(write(&with(1, "split.count", Value::U16(3))).contains("renamed or mixed up?"));
    assert!(write(&with(1, "split.tensors.count", Value::I32(total + 1))).contains("renamed or mixed up?"));
    assert!(write(&with(0, "split.no", Value::U16(2))).contains("split.no is 2, but split.count is 2"));
    assert!(write(&with(0, "split.no", Value::Str("0".into()))).contains("\"split.no\" is \"0\" (string)"));
    let mut missing = good.clone();
    missing[1].tensors.pop();
    assert!(write(&missing).contains(&format!("split.tensors.count says {total} tensors, {} found", total - 1)));
    let mut double = good.clone();
    double[1].tensors[0] = Tensor { name: good[0].tensors[0].name.clone(), ..double[1].tensors[0].clone() };
    assert!(write(&double).contains("\"token_embd.weight\" is there twice"));
}

#[test]
fn names_that_only_look_like_shards() {
    let dir = scratch("gguf_looks");
    let w = tiny_llama(8, "Q4_0");
    let whole = Gguf::from_bytes(w.bytes()).unwrap();
    for (path, file) in [
        (shard_path(&dir, "x", 1, 3), w.bytes()),
        (shard_path(&dir, "x", 1, 1), w.bytes()),
        (shard_path(&dir, "y", 1, 1), split(&w, 1)[0].bytes()),
        (dir.join("renamed.gguf"), split(&w, 1)[0].bytes()),
        (dir.join("модель без расширения"), w.bytes()),
    ] {
        fs::write(&path, file).unwrap();
        assert_eq!(contents(&Gguf::open(&path).unwrap()), contents(&whole), "{}", path.display());
    }
}

#[cfg(target_os = "linux")]
fn mapped_resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    1024 * (kib("RssFile:").unwrap_or(0) + kib("RssShmem:").unwrap_or(0))
}

/// Releasing gives memory back, and loses nothing whether the bytes come from a file or not.
#[test]
fn release_keeps_the_bytes() {
    let path = scratch("gguf_release").join("m.gguf");
    let big: Vec<u8> = (0..32usize << 20).map(|i| ((i * 31) >> 3) as u8).collect();
    let file = Writer::default().tensor("big", &[big.len() as u64], 24, big.clone()).bytes();
    fs::write(&path, &file).unwrap();
    for model in [Gguf::open(&path).unwrap(), Gguf::from_bytes(file).unwrap()] {
        let t = model.tensor("big").unwrap();
        t.prefetch();
        assert!(t.bytes == big);
        #[cfg(target_os = "linux")]
        let before = mapped_resident_bytes();
        t.release();
        #[cfg(target_os = "linux")]
        if !model.path().as_os_str().is_empty() {
            let after = mapped_resident_bytes();
            assert!(after + (16 << 20) < before, "{before} bytes resident before, {after} after");
        }
        assert!(t.bytes == big);
    }
    // A view may be pointed elsewhere; what is not in the file is left alone.
    let model = Gguf::open(&path).unwrap();
    let mut t = model.tensor("big").unwrap();
    t.bytes = &big;
    t.release();
    assert!(big.iter().enumerate().all(|(i, &b)| b == ((i * 31) >> 3) as u8));
}

/// Whatever models there are at hand open, quickly, and every byte of them has one owner.
#[test]
fn real_models_open() {
    let Some(dir) = std::env::var_os("FORETOKEN_MODELS") else {
        println!("skipped: FORETOKEN_MODELS names no folder of models");
        return;
    };
    let files = fs::read_dir(&dir).expect("FORETOKEN_MODELS").map(|entry| entry.unwrap().path());
    for path in files.filter(|p| p.extension().is_some_and(|e| e == "gguf")) {
        let start = Instant::now();
        let model = Gguf::open(&path).unwrap();
        let took = start.elapsed();
        let tensors: usize = model.tensors().map(|t| t.bytes.len()).sum();
        let tokens = model.meta().strings("tokenizer.ggml.tokens").unwrap().map_or(0, |t| t.len());
        println!("{} opens in {took:?}: {} tensors, {tokens} tokens", path.display(), model.tensor_count());
        assert!(tensors as u64 <= model.file_bytes());
        assert!(took < Duration::from_millis(300), "{took:?}");
    }
}
