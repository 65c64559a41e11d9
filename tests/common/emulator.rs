//! A CUDA driver without a GPU: `cuda/` compiled as C++ over `cuda/emulated/`. What the environment asks of it is in
//! `cuda/emulated/libcuda.cpp`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// Set for a test that runs again with the driver in its way.
const WITHIN: &str = "FORETOKEN_EMULATED";

/// Arithmetic as it is written; misaligned reads, which a device does not forgive, and undefined shifts and indices trap.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-DEMULATED",
    "-fPIC",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fsanitize=alignment,bounds,shift",
    "-fsanitize-undefined-trap-on-error",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-Wno-unused-parameter",
    "-Wno-unused-function",
];

/// Instructions for what takes a call without them; the results are the same.
fn faster() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") && is_x86_feature_detected!("fma") {
        return &["-mf16c", "-mfma"];
    }
    &[]
}

/// The folder to look for libraries in, if there is a C++ compiler to make what is in there.
pub fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(build).as_deref()
}

/// A C++ compiler.
fn compiler() -> Option<String> {
    let named = std::env::var("CXX").ok();
    let known = ["c++", "g++", "clang++"].map(String::from);
    let works =
        |name: &String| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    named.into_iter().chain(known).find(works)
}

fn build() -> Option<PathBuf> {
    let Some(compiler) = compiler() else {
        println!("skipped: no C++ compiler to make the emulated driver with");
        return None;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
        files.sort();
        files
    };
    let mut hasher = DefaultHasher::new();
    (&compiler, FLAGS).hash(&mut hasher);
    for file in list(&root).iter().chain(&list(&root.join("emulated"))) {
        (file, std::fs::read(file).unwrap()).hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulated-{:016x}", hasher.finish()));
    if !folder.exists() {
        // Several processes may be at it: the first to finish gives it the name.
        let making = folder.with_extension(std::process::id().to_string());
        std::fs::create_dir_all(&making).unwrap();
        let is_source = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "cu");
        let sources: Vec<PathBuf> = list(&root).iter().filter(is_source).cloned().collect();
        let objects = compile(&compiler, &sources, &making);
        let driver = making.join("libcuda.so.1");
        let mut link = Command::new(&compiler);
        link.args(FLAGS).args(faster()).args(["-shared", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&driver).args(objects);
        run(link.arg(root.join("emulated/libcuda.cpp")));
        // The name that is looked for first.
        std::fs::copy(&driver, making.join("libcuda.so")).unwrap();
        if std::fs::rename(&making, &folder).is_err() {
            std::fs::remove_dir_all(&making).unwrap();
        }
    }
    Some(folder)
}

fn compile(compiler: &str, sources: &[PathBuf], to: &Path) -> Vec<PathBuf> {
    let object = |source: &PathBuf| to.join(source.file_name().unwrap()).with_extension("o");
    let next = Mutex::new(sources.iter());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(source) = next.lock().unwrap().next() else { break };
                    let mut command = Command::new(compiler);
                    run(command
                        .args(FLAGS)
                        .args(faster())
                        .args(["-x", "c++", "-c"])
                        .arg(source)
                        .arg("-o")
                        .arg(object(source)));
                }
            });
        }
    });
    sources.iter().map(object).collect()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Builds a library in place of the driver from one C source, in a folder of this name.
pub fn impostor(name: &str, source: &str) -> Option<PathBuf> {
    let compiler = compiler()?;
    let folder = super::scratch(name);
    let file = folder.join("impostor.cpp");
    std::fs::write(&file, source).unwrap();
    for library in ["libcuda.so", "libcuda.so.1"] {
        run(Command::new(&compiler).args(["-shared", "-fPIC", "-o"]).arg(folder.join(library)).arg(&file));
    }
    Some(folder)
}

/// Whether the body of test `name` is to run now: it has the emulated driver then, because the test was started again by
/// itself with that where libraries are looked for. `environment` is what the driver is told.
pub fn within(name: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var(WITHIN).is_ok_and(|within| within == name) {
        return true;
    }
    let Some(folder) = folder() else { return false };
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([name, "--exact", "--nocapture", "--test-threads", "1"]).env(WITHIN, name);
    again.env("LD_LIBRARY_PATH", folder).envs(environment.iter().copied());
    let output = again.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{name} on the emulated driver: {out}\n{err}");
    print!("{out}");
    false
}
