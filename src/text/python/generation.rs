//! `{% generation %}` marks the model's part for training and means nothing here.

/// The source with a tag in its place that does as little: it opens a scope of its own, and white space is trimmed as
/// around any tag.
pub(in crate::text) fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let (kept, len) = match tag.as_bytes().get(1) {
            Some(b'#') => (None, until(tag, "#}", false)),
            Some(b'{') => (None, until(tag, "}}", true)),
            Some(b'%') => {
                let len = until(tag, "%}", true);
                match word(&tag[..len]) {
                    "raw" => (None, end_of_raw(tag, len)),
                    "generation" => (Some(tag[..len].replacen("generation", "with", 1)), len),
                    "endgeneration" => (Some(tag[..len].replacen("endgeneration", "endwith", 1)), len),
                    _ => (None, len),
                }
            }
            _ => (None, 1),
        };
        match kept {
            Some(other) => out.push_str(&other),
            None => out.push_str(&tag[..len]),
        }
        rest = &tag[len..];
    }
    out.push_str(rest);
    out
}

/// The first word of a tag.
fn word(tag: &str) -> &str {
    let inside = tag.trim_start_matches(['{', '%', '-', '+']).trim_start();
    let end = inside.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inside.len());
    &inside[..end]
}

/// Length of `text` up to and with `end`, which does not count within quotes if they matter.
fn until(text: &str, end: &str, quotes: bool) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut quote) = (2, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, c @ (b'"' | b'\'')) if quotes => quote = Some(c),
            (None, _) if bytes[at..].starts_with(end.as_bytes()) => return at + end.len(),
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// Length of `text`, which starts with a tag `raw` of length `from`, to the end of the tag `endraw`.
fn end_of_raw(text: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(start) = text[at..].find("{%") {
        let tag = &text[at + start..];
        let len = until(tag, "%}", false);
        if word(&tag[..len]) == "endraw" {
            return at + start + len;
        }
        at += start + 2;
    }
    text.len()
}
