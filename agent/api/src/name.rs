//! Names as an API server checks them.

/// Names that an API server accepts for most kinds: RFC 1123 subdomains.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label_text)
}

/// RFC 1123 labels, as namespaces are named.
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_label_text(name)
}

fn is_label_text(label: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
}

/// `team` or `example.com/team`: names of labels, annotations and finalizers.
pub(crate) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Empty, or letters, digits, `-`, `_` and `.` with a letter or digit at both ends.
pub(crate) fn is_label_value(value: &str) -> bool {
    let is_end = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && is_end(bytes.first())
        && is_end(bytes.last())
}

/// Keys of ConfigMaps and Secrets.
pub(crate) fn is_config_key(key: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !key.is_empty() && key.len() <= 253 && key.bytes().all(allowed) && !matches!(key, "." | "..")
}

/// Keys that may be told of wherever they are written: where a blank behind a colon is missing, or
/// quotes are around too much, a password is part of a key.
pub fn is_plain_key(key: &str) -> bool {
    const LONGEST: usize = 40;
    let is_word = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    matches!(key, "ca.crt" | "tls.crt" | "tls.key") || is_word && (1..=LONGEST).contains(&key.len())
}

/// Names of ports, as IANA registers them.
pub(crate) fn is_port_name(name: &str) -> bool {
    name.len() <= 15
        && is_label_text(name)
        && !name.contains("--")
        && name.bytes().any(|b| b.is_ascii_lowercase())
}
