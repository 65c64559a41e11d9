//! The loader of model files on arbitrary bytes: an error or a model, never a panic.
#![no_main]

use foretoken::gguf::Gguf;
use libfuzzer_sys::fuzz_target;
use std::hint::black_box;

fuzz_target!(|bytes: &[u8]| {
    let model = match Gguf::from_bytes(bytes.to_vec()) {
        Ok(model) => model,
        Err(e) => {
            assert!(!format!("{e:#}").contains('\n'));
            return;
        }
    };
    for t in model.tensors() {
        assert!(t.rows() * t.cols() > 0 && !t.type_name().is_empty());
        assert_eq!(model.tensor(t.name).map(|found| found.bytes.as_ptr()), Some(t.bytes.as_ptr()));
        black_box(t.bytes.iter().fold(0u8, |a, b| a ^ b));
        t.release();
    }
    let meta = model.meta();
    for (key, shown) in meta.iter() {
        assert!(meta.contains(key) && !shown.contains('\n'));
        let _ = black_box((meta.str(key), meta.uint(key), meta.float(key), meta.bool(key), meta.is_array(key)));
        let _ = black_box((meta.ints(key), meta.floats(key)));
        if let Ok(Some(all)) = meta.strings(key) {
            let count = all.len();
            assert_eq!(all.count(), count);
        }
    }
});
