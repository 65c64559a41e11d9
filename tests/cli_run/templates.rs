//! Flags on chat templates, and which prompt comes of them (J1, J2, J5, J6, J9, J10).

use super::*;

/// Like Qwen's: a system message of its own, a switch for thinking, the time.
const TEMPLATE: &str = "{% if messages[0].role != 'system' %}<|start|>system You are Q.<|end|>{% endif %}\
    {% for m in messages %}<|start|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}<|start|>a \
    {% if enable_thinking is defined and not enable_thinking %}no thoughts {% endif %}{{ effort }}{{ strftime_now('%Y') }}";

/// Refuses system messages and turns that do not alternate.
const STRICT: &str = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('roles must alternate') }}{% endif %}<|start|>{{ m.content }}<|end|>{% endfor %}";

/// The prompt that `run -vv` shows, and stderr whole.
fn shown(model: &Path, more: &[&str]) -> (String, String) {
    let output = run(&args(model, &[&["-n", "0", "-vv"], more].concat()));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{more:?}: {text}");
    let prompt = text.lines().find_map(|line| line.strip_prefix("prompt: ")).unwrap();
    (prompt.trim_matches('"').to_owned(), text)
}

fn with(name: &str, template: &str) -> PathBuf {
    save(name, &tiny().key("tokenizer.chat_template", Value::Str(template.into())))
}

#[test]
fn a_template_is_told_what_flags_say() {
    let model = with("told", TEMPLATE);
    let hi = "<|start|>system You are Q.<|end|><|start|>user hi<|end|><|start|>a ";
    for (flags, want) in [
        ("", String::new()),
        ("--template-arg enable_thinking=false", format!("{hi}no thoughts 1970")),
        ("--template-arg enable_thinking=true", format!("{hi}1970")),
        ("--template-arg effort=high", format!("{hi}high1970")),
        ("--template-arg effort=1.5 --template-arg enable_thinking=false", format!("{hi}no thoughts 1.51970")),
        ("--template-arg unknown=[1]", format!("{hi}1970")),
        ("--template-time 1000000000", format!("{hi}2001")),
    ] {
        let time = if flags.contains("--template-time") { "" } else { "--template-time 0" };
        let (prompt, _) = shown(&model, &[&["-p", "hi"], &words(flags)[..], &words(time)].concat());
        assert!(flags.is_empty() || prompt == want, "{flags}: {prompt}");
    }
    // A system message of the template's own is seen, and can be emptied.
    let (prompt, _) = shown(&model, &["-p", "hi", "--system", "", "--template-time", "0"]);
    assert_eq!(prompt, "<|start|>system <|end|><|start|>user hi<|end|><|start|>a 1970");
    // The time is now unless said.
    assert!(shown(&model, &["-p", "hi"]).0.trim_start_matches(hi) > "2025");
    for flags in ["--template-arg x", "--template-arg =1", "--template-arg messages=[]", "--template-time -1"] {
        let output = run(&args(&model, &[&["-p", "hi"], &words(flags)[..]].concat()));
        assert_eq!(output.status.code(), Some(2), "{flags}");
    }
}

#[test]
fn another_template_takes_the_place_of_the_file_s() {
    let dir = scratch("run-templates");
    let file = |name: &str, text: &[u8]| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name).to_str().unwrap().to_owned()
    };
    let own = file("own.jinja", "\u{FEFF}<|start|>{{ messages[0].content }}|{{ bos_token }}".as_bytes());
    let broken = with("override", "{% for");
    for model in [&broken, &with("override-chat", TEMPLATE), &save("override-none", &tiny())] {
        let (prompt, text) = shown(model, &["-p", "hi", "--chat-template", &own]);
        assert!(prompt.starts_with("<|start|>hi|") && !text.contains("no chat template"), "{text}");
        assert_ne!(model == &broken, run(&args(model, &["-p", "hi", "-n", "0"])).status.success());
    }
    for (name, text, want) in [
        ("empty.jinja", &b" \n"[..], "found nothing"),
        ("broken.jinja", b"a\n{% for %}", "in line 2"),
        ("bytes.jinja", b"\xFF", "byte 0 (0xFF) is not UTF-8"),
    ] {
        let file = file(name, text);
        let output = run(&args(Path::new("not-looked-at.gguf"), &["-p", "hi", "--chat-template", &file]));
        refused(&output, 1, &[name, want], name);
    }
    refused(&run(&args(&broken, &["-p", "hi", "--chat-template", "none.jinja"])), 1, &["none.jinja"], "missing");
    assert_eq!(run(&args(&broken, &["-p", "hi", "--raw", "--chat-template", &own])).status.code(), Some(2));
}

#[test]
fn a_system_message_without_a_place_is_folded_and_said() {
    let strict = with("strict", STRICT);
    let (prompt, text) = shown(&strict, &["-p", "hi", "--system", "be"]);
    assert_eq!(prompt, r"<|start|>be\n\nhi<|end|>");
    assert!(text.contains("warning: the chat template takes no system message: it is put in front"), "{text}");
    let quiet = run(&args(&strict, &["-p", "hi", "--system", "be", "-n", "0", "-q"]));
    assert_eq!(stderr(&quiet), "");
    let (prompt, text) = shown(&strict, &["-p", "hi"]);
    assert_eq!((prompt.as_str(), text.contains("warning")), ("<|start|>hi<|end|>", false));
    let deaf = with("deaf", "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    let (prompt, text) = shown(&deaf, &["-p", "hi", "--system", "be"]);
    assert_eq!(prompt, "hi");
    assert!(text.contains("warning: the chat template leaves the system message out"), "{text}");
}

/// With a template or without, one prompt is one answer, and stdin is left alone.
#[test]
fn one_prompt_never_becomes_a_conversation() {
    for model in [with("one-shot", TEMPLATE), save("one-shot-base", &tiny())] {
        let child = Running::start(&args(&model, &["-p", "hi", "-n", "2", "-s", "1", "-q"]));
        let (status, ..) = child.end();
        assert_eq!(status, Some(0), "ended though its stdin was open");
    }
}
