//! Fields as targets write them: one a line, its name before a colon. Lines that are none are left
//! out.

use http::{HeaderMap, HeaderName, HeaderValue};

/// More of them only take time.
const MOST: usize = 64;

pub(crate) fn fields(bytes: &[u8]) -> HeaderMap {
    collect(bytes.split(|byte| *byte == b'\n').filter_map(field))
}

pub(crate) fn collect(fields: impl Iterator<Item = (HeaderName, HeaderValue)>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields.take(MOST) {
        map.append(name, value);
    }
    map
}

pub(crate) fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = HeaderName::from_bytes(&line[..colon]).ok()?;
    Some((name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?))
}
