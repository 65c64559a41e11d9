//! Real models: looked for in the folder `FORETOKEN_MODELS` and in `models/` of this repository.

use foretoken::gguf::Gguf;
use std::path::{Path, PathBuf};

/// The path of a model, or `None` after saying why not.
pub fn find(file: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let folders = std::env::var_os("FORETOKEN_MODELS").map(PathBuf::from).into_iter().chain([own]);
    let found = folders.map(|folder| folder.join(file)).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: {file} is neither in FORETOKEN_MODELS nor in models/");
    }
    found
}

/// The model, opened.
pub fn open(file: &str) -> Option<Gguf> {
    find(file).map(|path| Gguf::open(&path).unwrap())
}
