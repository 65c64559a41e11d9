//! `chat`, run as people run it: on a terminal and in pipes.

#[path = "../common/mod.rs"]
mod common;

mod context;
mod pipes;
mod prompt_cache;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod terminal;

use common::cli::{self, save, stderr};
use common::gguf_writer::{Value, Writer};
use common::scratch;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Roles must alternate, or the template refuses. The system message comes first.
const STRICT: &str = "{% for m in messages %}\
    {% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('late system') }}{% endif %}\
    {% elif loop.previtem is defined and loop.previtem.role == m.role %}{{ raise_exception('roles must alternate') }}{% endif %}\
    <|start|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|start|>a {% if enable_thinking is defined %}{{ enable_thinking }} {% endif %}{% endif %}";

/// Says `H` for ever.
const FOR_EVER: [&str; 2] = ["-l", "72+1000"];
/// Says nothing.
const SILENT: [&str; 2] = ["-l", "318+1000"];

fn with_template(model: Writer, template: &str) -> Writer {
    model.key("tokenizer.chat_template", Value::Str(template.into()))
}

/// A model of 512 positions that insists on roles.
fn strict() -> Writer {
    with_template(cli::tiny(), STRICT)
}

/// `chat -m MODEL` and more, on one thread, because tests run side by side.
fn args<S: AsRef<OsStr>>(model: &Path, more: &[S]) -> Vec<OsString> {
    let start = ["chat".as_ref(), "-m".as_ref(), model.as_os_str(), "-t".as_ref(), "1".as_ref()];
    start.into_iter().chain(more.iter().map(AsRef::as_ref)).map(OsStr::to_owned).collect()
}

/// Messages and answers as `/save` wrote them.
fn saved(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let field = |said: &serde_json::Value, name: &str| said[name].as_str().unwrap().to_owned();
    json["messages"].as_array().unwrap().iter().map(|said| (field(said, "role"), field(said, "content"))).collect()
}

/// The text of every turn, after a check that they are turns.
fn turns(path: &Path) -> Vec<(String, String)> {
    let said = saved(path);
    said.chunks(2)
        .map(|turn| match turn {
            [(user, message), (assistant, answer)] if user == "user" && assistant == "assistant" => {
                (message.clone(), answer.clone())
            }
            other => panic!("not a turn: {other:?}"),
        })
        .collect()
}
