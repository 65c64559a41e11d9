//! Broken model files: each gives one line of error, or loads what is there, within a time and a memory limit.
//!
//! These tests stop where a file is open; `tests/mutations.rs` goes on to the logits and `tests/model_load.rs` lists what a
//! model can get wrong.

mod common;

use common::{
    gguf_writer::{Tensor, Value, Writer, tiny_llama},
    limits::{self, Counting, MEGABYTE, Step, alone},
    scratch,
};
use foretoken::gguf::Gguf;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What is tried on every file.
const STEPS: &[(&str, Step)] = &[("open", open)];

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Opens the file and reads all of it through every accessor.
fn open(path: &Path) -> anyhow::Result<()> {
    let model = Gguf::open(path)?;
    let mut tensors = 0;
    for t in model.tensors() {
        let found = model.tensor(t.name).expect("a listed tensor is found by name");
        assert_eq!(found.bytes.as_ptr(), t.bytes.as_ptr());
        assert!(t.rows() * t.cols() > 0 && !t.bytes.is_empty());
        std::hint::black_box(t.bytes.iter().fold(0u8, |a, b| a ^ b));
        tensors += 1;
    }
    assert_eq!(tensors, model.tensor_count());
    let meta = model.meta();
    for (key, shown) in meta.iter() {
        assert!(meta.contains(key) && !shown.contains(['\n', '\x1b']));
        let typed = [
            meta.str(key).is_ok(),
            meta.uint(key).is_ok(),
            meta.float(key).is_ok(),
            meta.bool(key).is_ok(),
            meta.strings(key).map(|all| all.map(|s| s.map(str::len).sum::<usize>())).is_ok(),
            meta.ints(key).is_ok(),
            meta.floats(key).is_ok(),
        ];
        assert!(typed.iter().filter(|&&ok| ok).count() <= 1, "{key:?} has two types");
    }
    Ok(())
}

fn attempt(path: &Path, most_bytes: usize, what: &dyn Fn() -> String) -> Result<(), String> {
    limits::attempt(STEPS, path, most_bytes, what)
}

/// Replaces the file at `path`. A new file each time: rewriting one makes some file systems wait for the disk.
fn replace(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).unwrap();
}

fn tensor_file(t: Tensor) -> Vec<u8> {
    Writer { tensors: vec![t], ..Writer::default() }.bytes()
}

fn f32s(name: &str, dims: &[u64]) -> Tensor {
    Tensor::new(name, dims, 0, vec![0; 64])
}

fn key_file(key: &[u8]) -> Vec<u8> {
    Writer { keys: vec![(key.into(), Value::U8(1))], ..Writer::default() }.bytes()
}

fn value_file(value: Value) -> Vec<u8> {
    Writer::default().key("k", value).bytes()
}

fn version_file(version: u32) -> Vec<u8> {
    Writer { version, ..Writer::default() }.bytes()
}

/// A small file with values of every kind and tensors of several types and ranks.
fn everything() -> Writer {
    Writer::default()
        .key("numbers.u8", Value::U8(1))
        .key("numbers.u16", Value::U16(2))
        .key("numbers.u32", Value::U32(3))
        .key("numbers.u64", Value::U64(4))
        .key("numbers.i32", Value::I32(-5))
        .key("numbers.i64", Value::I64(-6))
        .key("numbers.f32", Value::F32(0.5))
        .key("numbers.f64", Value::F64(0.25))
        .key("flag", Value::Bool(true))
        .key("text", Value::Str("text".into()))
        .key("strings", Value::Strs(["a", "", "bc"].map(String::from).into()))
        .key("ints", Value::I32s(vec![1, -1]))
        .key("floats", Value::F32s(vec![1.0, -1.0]))
        .key("bools", array(7, 2, &[0, 1]))
        .key("nested", nested(3))
        .key("split.count", Value::U16(1))
        .key("split.tensors.count", Value::I32(3))
        .aligned(16)
        .tensor("a.weight", &[32, 2], 2, vec![1; 36])
        .tensor("b.weight", &[2, 2, 2, 1], 0, vec![2; 32])
        .tensor("c.bias", &[3], 1, vec![3; 6])
}

/// An array of one array of one array and so on, with an empty array of bytes inside.
fn nested(depth: usize) -> Value {
    let mut bytes = Vec::new();
    for _ in 1..depth {
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    Value::Raw(9, bytes)
}

fn array(of: u32, len: u64, rest: &[u8]) -> Value {
    Value::Raw(9, [&of.to_le_bytes()[..], &len.to_le_bytes(), rest].concat())
}

/// (row of the table of faults or what is wrong, file, what the error says; empty for a file that opens).
fn table() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let huge = 1u64 << 63;
    let text = |s: &str| s.as_bytes().to_vec();
    let mut rows = vec![
        ("control", tiny_llama(1, "Q8_0").bytes(), ""),
        ("control, no keys and tensors", Writer::default().bytes(), ""),
        ("control, a bit of everything", everything().bytes(), ""),
        ("G1 product wraps", tensor_file(f32s("t", &[(1 << 42) + 1, 1 << 22])), "\"t\": the size of F32"),
        ("G1 bytes wrap", tensor_file(f32s("t", &[(1 << 62) + 8])), "overflows"),
        ("G1 end wraps", tensor_file(Tensor::new("t", &[u64::MAX], 24, vec![0; 64])), "overflow"),
        ("G1 near 2^64, padding wraps", tensor_file(Tensor::new("t", &[u64::MAX - 200], 24, vec![0; 64])), "truncated"),
        ("G2 tensor count", Writer { tensor_count: Some(huge), ..Writer::default() }.bytes(), "the tensor count is"),
        ("G2 key count", Writer { key_count: Some(huge), ..Writer::default() }.bytes(), "the metadata key count is"),
        (
            "G2 key count / entry",
            Writer { key_count: Some(u64::MAX / 14), ..Writer::default() }.bytes(),
            "hold at most 0",
        ),
        ("G2 string length", value_file(Value::Raw(8, huge.to_le_bytes().into())), "\"k\": the string at offset"),
        ("G2 array of bytes", value_file(array(0, huge, &[])), "\"k\": the array length is"),
        ("G2 array of strings", value_file(array(8, u64::MAX / 8, &[0; 8])), "hold at most 1"),
        ("G2 array of arrays", value_file(array(9, huge, &[0; 24])), "hold at most 2"),
        ("G2 string in array", value_file(array(8, 2, &[255; 16])), "element 0 of 2"),
        ("G4 zero row", tensor_file(f32s("t", &[0, 4])), "\"t\": dimension 0 of [0, 4] is zero"),
        ("G4 zero rows", tensor_file(f32s("t", &[16, 0])), "\"t\": dimension 1 of [16, 0] is zero"),
        ("G4 no dimensions", tensor_file(f32s("t", &[])), "\"t\": it has 0 dimensions"),
        ("G4 five dimensions", tensor_file(f32s("t", &[1, 1, 1, 1, 1])), "\"t\": it has 5 dimensions"),
        ("G4 four dimensions", tensor_file(f32s("t", &[2, 2, 2, 2])), ""),
        (
            "G6 misaligned",
            tensor_file(Tensor { offset: Some(16), ..f32s("t", &[4]) }),
            "no multiple of the alignment 32",
        ),
        ("G7 empty key", key_file(b""), "metadata key 0 of 1: the key has 0 bytes"),
        ("G7 longest key", key_file(&[b'k'; 65535]), ""),
        ("G7 too long a key", key_file(&[b'k'; 65536]), "the key has 65536 bytes"),
        ("G7 key not UTF-8", key_file(b"ab\xffc"), "the key is not UTF-8 at offset 34"),
        ("G7 odd keys", key_file("gpt-oss.Ключ  a__b".as_bytes()), ""),
        (
            "key twice",
            Writer::default().key("k", Value::U8(1)).key("k", Value::U8(1)).bytes(),
            "key \"k\" is there twice",
        ),
        ("G10 offset wraps", tensor_file(Tensor { offset: Some(u64::MAX - 31), ..f32s("t", &[16]) }), "overflow"),
        (
            "G10 offset outside",
            tensor_file(Tensor { offset: Some(1 << 40), ..f32s("t", &[16]) }),
            "download incomplete?",
        ),
        (
            "G10 more declared",
            tensor_file(f32s("t", &[16, 3])),
            "\"t\": its bytes 96..288 need a file of 288 bytes, this one has 160",
        ),
        (
            "G13 swapped header",
            Writer { version: 3u32.swap_bytes(), ..Writer::default() }.bytes(),
            "big-endian GGUF (version 3)",
        ),
        ("G13 swapped magic", Writer { magic: *b"FUGG", ..Writer::default() }.bytes(), "big-endian GGUF"),
        ("G14 version 0", version_file(0), "version 0 is not supported, versions 2 and 3 are"),
        ("G14 version 1", version_file(1), "version 1 is not supported, versions 2 and 3 are"),
        ("G14 version 2", version_file(2), ""),
        ("G14 version 4", version_file(4), "version 4 is not supported"),
        ("G14 version 2^31", version_file(1 << 31), "version 2147483648 is not supported"),
        ("G14 empty", vec![], "the file is empty"),
        ("G14 one byte", text("G"), "ends after 1 bytes"),
        ("G14 magic only", text("GGUF"), "the version at offset 4 needs 4 bytes, 0 are left"),
        ("G14 GGML", text("GGML____________"), "it is GGML"),
        ("G14 GGJT as written", text("tjgg\x03\0\0\0"), "it is GGJT"),
        ("G14 GGJT", text("GGJT\x03\0\0\0"), "it is GGJT"),
        ("G14 HTML", text("\n<!DOCTYPE html><html>"), "it is an HTML page"),
        ("G14 safetensors", [&56u64.to_le_bytes()[..], b"{\"t\":{}}"].concat(), "it is a safetensors file"),
        ("G14 LFS pointer", text("version https://git-lfs.github.com/spec/v1\n"), "git-lfs pointer"),
        ("G14 zip", text("PK\x03\x04rest"), "zip archive"),
        ("G14 unknown", vec![0xde, 0xad, 0xbe, 0xef, 1], "starts with bytes de ad be ef"),
        ("bool of 2", value_file(Value::Raw(7, vec![2])), "\"k\": "),
        ("array with a bool of 2", value_file(array(7, 2, &[1, 2])), "element 1 of 2 is a bool of value 2"),
        ("value type", value_file(Value::Raw(13, vec![0; 8])), "\"k\": value type 13 is unknown"),
        ("element type", value_file(array(77, 0, &[])), "\"k\": value type 77 is unknown"),
        (
            "string not UTF-8",
            value_file(Value::Raw(8, [&1u64.to_le_bytes()[..], b"\xc3"].concat())),
            "the string is not UTF-8",
        ),
        ("deepest nesting", value_file(nested(64)), ""),
        ("too deep a nesting", value_file(nested(65)), "nested deeper than 64"),
        ("hopeless nesting", value_file(nested(100_000)), "nested deeper than 64"),
        (
            "row no multiple of the block",
            tensor_file(Tensor::new("t", &[48, 2], 2, vec![0; 54])),
            "row length 48 is no multiple of Q4_0's block of 32",
        ),
        ("empty name", tensor_file(f32s("", &[16])), "tensor 0 of 1: its name has 0 bytes"),
        ("longest name", tensor_file(f32s(&"n".repeat(64), &[16])), ""),
        ("too long a name", tensor_file(f32s(&"n".repeat(65), &[16])), "its name has 65 bytes"),
        ("name not UTF-8", tensor_file(Tensor { name: vec![0xff], ..f32s("", &[16]) }), "its name is not UTF-8"),
        (
            "tensor twice",
            Writer { tensors: vec![f32s("t", &[16]), f32s("t", &[16])], ..Writer::default() }.bytes(),
            "tensor \"t\" is there twice",
        ),
    ];
    for (what, value, says) in [
        ("alignment 0", Value::U32(0), "general.alignment is 0, a power of two of at least 8"),
        ("alignment 4", Value::U32(4), "general.alignment is 4"),
        ("alignment 24", Value::U32(24), "general.alignment is 24"),
        ("alignment 2^63", Value::U64(huge), ""),
        (
            "alignment is text",
            Value::Str("32".into()),
            "\"general.alignment\" is \"32\" (string), an unsigned integer is wanted",
        ),
        ("alignment is negative", Value::I32(-32), "\"general.alignment\" is -32 (i32)"),
    ] {
        rows.push((what, Writer::default().key("general.alignment", value).bytes(), says));
    }
    let far = Writer::default().key("general.alignment", Value::U64(huge));
    rows.push(("alignment beyond the file", Writer { tensors: vec![f32s("t", &[16])], ..far }.bytes(), "truncated"));
    for (id, says) in [
        (4, "\"t\": its type 4 (Q4_2) was removed"),
        (5, "\"t\": its type 5 (Q4_3) was removed"),
        (31, "\"t\": its type 31 (Q4_0_4_4) was removed"),
        (33, "\"t\": its type 33 (Q4_0_8_8) was removed"),
        (99, "\"t\": its type 99 is unknown; known are F32 F16 Q4_0"),
        (u32::MAX, "its type 4294967295 is unknown"),
    ] {
        rows.push(("G16 type", tensor_file(Tensor::new("t", &[256], id, vec![0; 1024])), says));
    }
    for id in (16..24).chain([29]) {
        rows.push(("G16 IQ type", tensor_file(Tensor::new("t", &[256], id, vec![0; 1024])), ""));
    }
    // G1: three tensors, each of a size that is possible, whose sum is not.
    let third = |name: &str, offset| Tensor { offset: Some(offset), ..Tensor::new(name, &[1 << 60], 28, vec![0; 64]) };
    let sums = Writer { tensors: vec![third("a", 0), third("b", 1 << 63), third("c", 0)], ..Writer::default() };
    rows.push(("G1 sum wraps", sums.bytes(), "\"a\": its bytes"));
    // Overlaps: the same place twice, and a start inside the neighbour.
    for offset in [0, 32] {
        let second = Tensor { offset: Some(offset), ..f32s("b", &[16]) };
        let both = Writer { tensors: vec![f32s("a", &[16]), second], ..Writer::default() };
        rows.push(("overlap", both.bytes(), "tensors \"a\" and \"b\" overlap"));
    }
    let good = tiny_llama(1, "Q4_0").bytes();
    for (what, cut) in [("G10 one byte short", good.len() - 1), ("G10 half", good.len() / 2), ("G10 in metadata", 1000)]
    {
        rows.push((what, good[..cut].to_vec(), "download incomplete?"));
    }
    rows
}

#[test]
fn table_of_faults() {
    let _turn = alone();
    let dir = scratch("bad_files_table");
    for (i, (what, bytes, says)) in table().into_iter().enumerate() {
        let path = dir.join(format!("{i}.gguf"));
        fs::write(&path, &bytes).unwrap();
        match attempt(&path, 10 * MEGABYTE, &|| what.into()) {
            Ok(()) => assert_eq!(says, "", "{what} opens"),
            Err(e) => assert!(!says.is_empty() && e.contains(says), "{what}: {e}\nwanted: {says}"),
        }
    }
}

#[test]
fn not_files() {
    let _turn = alone();
    let dir = scratch("bad_files_paths");
    let absent = dir.join("absent.gguf");
    let mut cases: Vec<(PathBuf, &str)> = vec![(dir.clone(), "is a directory"), (absent, "No such file")];
    if cfg!(target_os = "linux") {
        cases.push(("/dev/zero".into(), "not a regular file"));
    }
    for (path, says) in cases {
        let e = attempt(&path, MEGABYTE, &|| says.into()).expect_err(says);
        assert!(e.contains(says), "{e}");
    }
}

#[test]
fn cut_at_every_byte_of_the_header() {
    let _turn = alone();
    let path = scratch("bad_files_cut").join("cut.gguf");
    let (bytes, _, base) = tiny_llama(2, "Q4_0").layout();
    fs::write(&path, &bytes[..=base]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for len in (0..=base as u64).rev() {
        file.set_len(len).unwrap();
        let e = attempt(&path, 10 * MEGABYTE, &|| format!("a file of {len} bytes")).expect_err("a cut file");
        assert!(len == 0 || e.contains("incomplete"), "{len}: {e}");
    }
}

#[test]
fn every_number_of_the_header_spoilt() {
    let _turn = alone();
    let path = scratch("bad_files_numbers").join("number.gguf");
    let (good, fields, _) = tiny_llama(3, "Q4_0").layout();
    let left = good.len() as u64;
    let huge = [u64::MAX, 1 << 63, (1 << 63) - 1, u64::MAX / 8, u64::MAX / 14, 1 << 40, u64::from(u32::MAX), left];
    let mut tried = 0;
    for field in fields {
        let is_type = field.what.ends_with("type") || field.what == "version";
        let values: Vec<u64> = if is_type { (0..48).chain([99, u64::MAX]).collect() } else { huge.into() };
        for value in values {
            let mut bad = good.clone();
            bad[field.at..field.at + field.size].copy_from_slice(&value.to_le_bytes()[..field.size]);
            if bad == good {
                continue;
            }
            replace(&path, &bad);
            let what = || format!("{} at {} set to {value}", field.what, field.at);
            let result = attempt(&path, 10 * MEGABYTE, &what);
            assert!(is_type || result.is_err(), "{} opens", what());
            tried += 1;
        }
    }
    assert!(tried > 3000, "only {tried} files tried");
}
