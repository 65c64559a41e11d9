//! Escapes in arguments, where a shell has no short way to write a newline.

/// `text` with `\n \r \t \\ \' \"` and `\xHH` as in C. Any other backslash stays as it is.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let (byte, used) = match (first, tail) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [same @ (b'\\' | b'\'' | b'"'), ..]) => (*same, 2),
            (b'\\', [b'x', high, low, ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |c: u8| char::from(c).to_digit(16).unwrap_or(0) as u8;
                (digit(*high) << 4 | digit(*low), 4)
            }
            _ => (*first, 1),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes_are_those_of_c() {
        for (text, want) in [
            (&br"a\nb"[..], &b"a\nb"[..]),
            (br"\r\t\\n\'\x22", b"\r\t\\n'\""),
            (br"\x41\xc3\xA9\x00", b"A\xC3\xA9\0"),
            (br"\q\x4\xZZ\", br"\q\x4\xZZ\"),
            (b"", b""),
        ] {
            assert_eq!(unescape(text), want, "{}", text.escape_ascii());
        }
    }
}
