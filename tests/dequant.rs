//! Every format's reference dequantiser gives the bits of the `gguf` Python package, on random blocks with finite
//! scales and on edge blocks. The fixtures come from `scripts/make_dequant_fixtures.py`.

use foretoken::quant::{self, FORMATS, Format};
use std::{collections::BTreeSet, fs, panic, path::PathBuf};

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dequant").join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; scripts/make_dequant_fixtures.py makes it", path.display()))
}

fn fixtures(format: &Format) -> (Vec<u8>, Vec<u32>) {
    let weights = fixture(&format!("{}.f32", format.name));
    let (weights, []) = weights.as_chunks() else { panic!("{}.f32 is cut", format.name) };
    (fixture(&format!("{}.blocks", format.name)), weights.iter().map(|w| u32::from_le_bytes(*w)).collect())
}

#[test]
fn table_is_the_reference_packages() {
    let listed = String::from_utf8(fixture("formats.txt")).unwrap();
    let listed: BTreeSet<&str> = listed.lines().filter(|line| !line.starts_with('#')).collect();
    let ours: Vec<String> =
        FORMATS.iter().map(|f| format!("{} {} {} {}", f.name, f.ggml_id, f.block, f.bytes)).collect();
    assert_eq!(ours.len(), listed.len());
    assert_eq!(ours.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed);
    for f in FORMATS {
        assert_eq!(quant::format(f.ggml_id).unwrap().name, f.name);
        assert!(quant::supported().split(", ").any(|name| name == f.name));
    }
    for unknown in [4, 5, 9, 15, 16, 38, 40, u32::MAX] {
        assert!(quant::format(unknown).is_none());
    }
}

#[test]
fn bits_are_the_reference_packages() {
    for f in FORMATS {
        let (blocks, expected) = fixtures(f);
        // Not a test of zeros, nor of one block.
        assert!(blocks.len() / f.bytes >= 11, "{}: too few blocks", f.name);
        let whole = expected.chunks(f.block).filter(|w| w.iter().any(|w| w << 1 != 0)).count();
        assert!(whole * 10 >= blocks.len() / f.bytes * 8, "{}: too many blocks of zeros", f.name);
        let distinct = expected.iter().collect::<BTreeSet<_>>().len();
        assert!(distinct >= 100, "{}: only {distinct} distinct weights", f.name);

        let mut out = vec![f32::from_bits(0xdead_beef); expected.len()];
        (f.dequant)(&blocks, &mut out);
        for (i, (w, e)) in out.iter().zip(&expected).enumerate() {
            let (block, at) = (i / f.block, i % f.block);
            assert_eq!(w.to_bits(), *e, "{} block {block} weight {at}: {w:e}, not {:e}", f.name, f32::from_bits(*e));
        }
    }
}

#[test]
fn wrong_lengths_panic() {
    for f in FORMATS {
        let refuses = |bytes: usize, weights: usize| {
            panic::catch_unwind(|| (f.dequant)(&vec![0; bytes], &mut vec![0.0; weights])).is_err()
        };
        assert!(!refuses(0, 0) && !refuses(2 * f.bytes, 2 * f.block), "{} refuses whole blocks", f.name);
        assert!(refuses(2 * f.bytes, f.block) && refuses(f.bytes, 2 * f.block), "{} takes too few", f.name);
        assert!(refuses(f.bytes + 1, f.block), "{} takes a cut block", f.name);
        assert!(f.block == 1 || refuses(f.bytes, f.block - 1), "{} takes a cut row", f.name);
    }
}
