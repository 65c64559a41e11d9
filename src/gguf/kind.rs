//! Names what was given instead of a GGUF file, from its first bytes.

/// Why `bytes` do not start like a little-endian GGUF file of a version that is read here; `None` when they do.
pub(super) fn refusal(bytes: &[u8]) -> Option<String> {
    Some(match bytes {
        [] => "the file is empty (0 bytes)".into(),
        [b'G', b'G', b'U', b'F', rest @ ..] => return rest.first_chunk().and_then(|v| version_refusal(*v)),
        b if b"GGUF".starts_with(b) => format!("the file ends after {} bytes (download incomplete?)", b.len()),
        [b'F', b'U', b'G', b'G', ..] => "byte-swapped magic: big-endian GGUF is not supported".into(),
        _ => format!("not a GGUF file: {}", describe(bytes)),
    })
}

fn version_refusal(version: [u8; 4]) -> Option<String> {
    match (u32::from_le_bytes(version), u32::from_be_bytes(version)) {
        (2 | 3, _) => None,
        (_, swapped @ 1..=3) => Some(format!("big-endian GGUF (version {swapped}) is not supported")),
        (1, _) => Some("GGUF version 1 is not supported, versions 2 and 3 are: convert the model anew".into()),
        (n, _) => Some(format!("GGUF version {n} is not supported, versions 2 and 3 are")),
    }
}

/// Signatures of what is mistaken for a model most often.
const KNOWN: &[(&[u8], &str)] = &[
    (b"ggjt", "GGJT, a format older than GGUF (convert the model anew)"),
    (b"tjgg", "GGJT, a format older than GGUF (convert the model anew)"),
    (b"ggml", "GGML, a format older than GGUF (convert the model anew)"),
    (b"lmgg", "GGML, a format older than GGUF (convert the model anew)"),
    (b"ggmf", "GGMF, a format older than GGUF (convert the model anew)"),
    (b"fmgg", "GGMF, a format older than GGUF (convert the model anew)"),
    (b"ggla", "GGLA, a format older than GGUF (convert the adapter anew)"),
    (b"algg", "GGLA, a format older than GGUF (convert the adapter anew)"),
    (b"version https://git-lfs", "a git-lfs pointer (the model itself was not fetched)"),
    (b"<!", "an HTML page (a failed download?)"),
    (b"<h", "an HTML page (a failed download?)"),
    (b"<?", "an XML page (a failed download?)"),
    (b"{", "JSON text"),
    (b"pk\x03\x04", "a zip archive (PyTorch checkpoint?)"),
    (b"\x80\x02", "a Python pickle (PyTorch checkpoint?)"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"\x89hdf", "an HDF5 file"),
];

fn describe(bytes: &[u8]) -> String {
    if let Some(size) = bytes.first_chunk().map(|b| u64::from_le_bytes(*b))
        && (2..100_000_000).contains(&size)
        && bytes.get(8) == Some(&b'{')
    {
        return "it is a safetensors file".into();
    }
    let head = bytes[..bytes.len().min(64)].to_ascii_lowercase();
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).trim_ascii_start();
    match KNOWN.iter().find(|(sign, _)| head.starts_with(sign) || text.starts_with(sign)) {
        Some((_, name)) => format!("it is {name}"),
        None => {
            let hex: Vec<String> = bytes.iter().take(4).map(|b| format!("{b:02x}")).collect();
            format!("it starts with bytes {}", hex.join(" "))
        }
    }
}
