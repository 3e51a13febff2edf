//! Request paths: normalised once, so that what is matched, forwarded and logged is the same; refused where servers are
//! known to read the same path differently.

use std::borrow::Cow;

use crate::settings::Slashes;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadPath {
    NotAbsolute,
    Character,
    Backslash,
    Escape,
    Nul,
    EncodedSlash,
    DotParameter,
}

/// Resolves dot segments and escapes of characters that need none (RFC 3986 section 6.2.2), and merges slashes if told to.
/// A path that is in order already, nearly every one, is borrowed.
pub(crate) fn normalise(path: &str, slashes: Slashes) -> Result<Cow<'_, str>, BadPath> {
    if !path.starts_with('/') {
        return Err(BadPath::NotAbsolute);
    }
    if is_plain(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    resolve(&unescape(path)?, slashes).map(Cow::Owned)
}

/// Nothing in it could call for a change or a refusal.
fn is_plain(path: &[u8]) -> bool {
    let mut previous = 0;
    for byte in path {
        match byte {
            b'%' | b'\\' | ..=b' ' | 0x7f.. => return false,
            b'/' | b'.' if previous == b'/' => return false,
            _ => previous = *byte,
        }
    }
    true
}

fn unescape(path: &str) -> Result<String, BadPath> {
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find(|c: char| !c.is_ascii_graphic() || matches!(c, '%' | '\\')) {
        plain.push_str(&rest[..at]);
        let escape = match rest.as_bytes()[at] {
            b'%' => rest.get(at..at + 3).ok_or(BadPath::Escape)?,
            b'\\' => return Err(BadPath::Backslash),
            _ => return Err(BadPath::Character),
        };
        match decode(&escape[1..])? {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => plain.push(char::from(byte)),
            _ => plain.push_str(escape),
        }
        rest = &rest[at + 3..];
    }
    plain.push_str(rest);
    Ok(plain)
}

fn decode(digits: &str) -> Result<u8, BadPath> {
    let byte = u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
    match byte.ok_or(BadPath::Escape)? {
        0 => Err(BadPath::Nul),
        b'/' | b'\\' => Err(BadPath::EncodedSlash),
        byte => Ok(byte),
    }
}

fn resolve(path: &str, slashes: Slashes) -> Result<String, BadPath> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "" if !last && slashes == Slashes::Merge => {}
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ if segment.starts_with("..;") || segment.starts_with(".;") => {
                return Err(BadPath::DotParameter);
            }
            _ => kept.push(segment),
        }
    }
    Ok(format!("/{}", kept.join("/")))
}

// === impl BadPath ===

impl BadPath {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NotAbsolute => "the request target is not a path\n",
            Self::Character => "a character that must be percent-encoded in the path\n",
            Self::Backslash => "backslash in the path\n",
            Self::Escape => "malformed percent escape in the path\n",
            Self::Nul => "NUL in the path\n",
            Self::EncodedSlash => "encoded slash in the path\n",
            Self::DotParameter => "path parameter on a dot segment\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_once() {
        for (raw, normal) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/./b/.", "/a/b/"),
            ("/../../x", "/x"),
            ("/a/..", "/"),
            ("//", "/"),
            ("/a//b///", "/a/b/"),
            ("/a//../b", "/b"),
            ("/a/.hidden", "/a/.hidden"),
            ("/%61%7e%2D/b%20c%3f", "/a~-/b%20c%3f"),
            ("/%252e%252e/", "/%252e%252e/"),
            ("/a;v=1/b", "/a;v=1/b"),
        ] {
            assert_eq!(normalise(raw, Slashes::Merge).as_deref(), Ok(normal), "{raw}");
            let again = normalise(normal, Slashes::Merge);
            assert_eq!(again.as_deref(), Ok(normal), "{raw} once more");
        }
    }

    #[test]
    fn slashes_may_be_kept() {
        assert_eq!(normalise("/a//b/./", Slashes::Keep).as_deref(), Ok("/a//b/"));
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for (raw, why) in [
            ("*", BadPath::NotAbsolute),
            ("a", BadPath::NotAbsolute),
            ("/a%00", BadPath::Nul),
            ("/a\\b", BadPath::Backslash),
            ("/a/..%2fb", BadPath::EncodedSlash),
            ("/a/%5c", BadPath::EncodedSlash),
            ("/a/..;/b", BadPath::DotParameter),
            ("/a/.%2e;x/b", BadPath::DotParameter),
            ("/a%zz", BadPath::Escape),
            ("/a%+1", BadPath::Escape),
            ("/a%2", BadPath::Escape),
            ("/%é0", BadPath::Escape),
            ("/é", BadPath::Character),
            ("/a\u{7f}", BadPath::Character),
        ] {
            assert_eq!(normalise(raw, Slashes::Merge), Err(why), "{raw}");
        }
    }
}
