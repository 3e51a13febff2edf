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
