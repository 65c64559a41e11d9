//! The emulated driver: `cuda/*.cu` and `cuda/emulated/*` compiled by the system's C++ compiler into a libcuda.so.1, once for
//! all test binaries.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// Arithmetic as it is written; alignment as a device wants it; undefined shifts and indices trap.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-DEMULATED",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fsanitize=alignment,bounds,shift",
    "-fsanitize-undefined-trap-on-error",
];

/// The folder the library is in, for `LD_LIBRARY_PATH`.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(build)
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == ending));
    files.sort();
    files
}

/// Builds into a folder named by what it is made of, so that it is made anew when that changes.
fn build() -> PathBuf {
    let cuda = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let sources = [files(&cuda, "cu"), files(&cuda.join("emulated"), "cpp")].concat();
    let headers = [files(&cuda, "cuh"), files(&cuda.join("emulated"), "h")].concat();
    let mut hash = DefaultHasher::new();
    FLAGS.hash(&mut hash);
    sources.iter().chain(&headers).for_each(|file| std::fs::read(file).unwrap().hash(&mut hash));
    let name = format!("emulated-{:016x}", hash.finish());
    let done = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if done.join("libcuda.so.1").exists() {
        return done;
    }
    let folder = done.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&folder).unwrap();
    let object = |source: &Path| folder.join(source.file_name().unwrap()).with_extension("o");
    let left = Mutex::new(sources.clone());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some(source) = { left.lock().unwrap().pop() } {
                    let mut command = compiler();
                    command.args(FLAGS).arg("-I").arg(&cuda).args(["-x", "c++", "-c"]).arg(&source);
                    run(command.arg("-o").arg(object(&source)));
                }
            });
        }
    });
    let mut link = compiler();
    link.args(["-shared", "-o"]).arg(folder.join("libcuda.so.1")).args(sources.iter().map(|source| object(source)));
    run(&mut link);
    // Another test may have been faster: its library is as good.
    if std::fs::rename(&folder, &done).is_err() {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    done
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var("CXX").unwrap_or("c++".into()));
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") && is_x86_feature_detected!("fma") {
        // The same results as the library's functions, much faster.
        command.args(["-mf16c", "-mfma"]);
    }
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}
