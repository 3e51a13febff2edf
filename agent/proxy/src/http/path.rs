//! Request paths: normalised once, so that the same path is matched, forwarded and logged; refused
//! where servers are known to read the same path differently.

use std::borrow::Cow;

use crate::core::reason::Reason;

/// Resolves dot segments and escapes of characters that need none (RFC 3986 section 6.2.2), and
/// merges slashes, as most backends read them: a rule cannot be evaded by an empty segment. A path
/// that is in order already, nearly every one, is borrowed.
///
/// # Errors
/// The reason why the path is refused, with 400.
pub fn normalise(path: &str) -> Result<Cow<'_, str>, Reason> {
    if !path.starts_with('/') {
        return Err(Reason::PathNotAbsolute);
    }
    if is_plain(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    resolve(&unescape(path)?).map(Cow::Owned)
}

/// The normal form of a path that a rule made of a request's. Segments that would lead upwards are
/// no matter of taste here: the rule's owner meant what precedes them to stay.
///
/// # Errors
/// The reason why it is no path.
pub(crate) fn normalise_made(path: &str) -> Result<Cow<'_, str>, Reason> {
    if !path.starts_with('/') {
        return Err(Reason::PathNotAbsolute);
    }
    if path.contains(['?', '#']) {
        return Err(Reason::PathCharacter);
    }
    if is_plain(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let plain = unescape(path)?;
    if plain.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(Reason::PathDotParameter);
    }
    resolve(&plain).map(Cow::Owned)
}

/// True if nothing in it could call for a change or a refusal.
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

fn unescape(path: &str) -> Result<String, Reason> {
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find(|c: char| !c.is_ascii_graphic() || matches!(c, '%' | '\\')) {
        plain.push_str(&rest[..at]);
        let escape = match rest.as_bytes()[at] {
            b'%' => rest.get(at..at + 3).ok_or(Reason::PathEscape)?,
            b'\\' => return Err(Reason::PathBackslash),
            _ => return Err(Reason::PathCharacter),
        };
        let digits = Some(&escape[1..]).filter(|digits| !digits.starts_with('+'));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or(Reason::PathEscape)? {
            0 => return Err(Reason::PathNul),
            b'/' | b'\\' => return Err(Reason::PathEncodedSlash),
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => plain.push(char::from(byte)),
            _ => plain.push_str(escape),
        }
        rest = &rest[at + 3..];
    }
    plain.push_str(rest);
    Ok(plain)
}

fn resolve(path: &str) -> Result<String, Reason> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "" if !last => {}
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ if segment.starts_with("..;") || segment.starts_with(".;") => {
                return Err(Reason::PathDotParameter);
            }
            _ => kept.push(segment),
        }
    }
    Ok(format!("/{}", kept.join("/")))
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
            assert_eq!(normalise(raw).as_deref(), Ok(normal), "{raw}");
            let again = normalise(normal);
            assert_eq!(again.as_deref(), Ok(normal), "{raw} once more");
        }
    }

    #[test]
    fn made_paths_stay_below_what_they_were_made_of() {
        for (made, normal) in [
            ("/a/b", Some("/a/b")),
            ("//a//b", Some("/a/b")),
            ("/%61", Some("/a")),
            ("/a/...", Some("/a/...")),
            ("/.a/b..", Some("/.a/b..")),
            ("", None),
            ("a", None),
            ("/..", None),
            ("/a/../b", None),
            ("/a/%2e%2E/b", None),
            ("/a/.", None),
            ("/a/..;x", None),
            ("/a?b", None),
            ("/a#b", None),
            ("/a%2fb", None),
            ("/a%2", None),
            ("/a\\b", None),
            ("/a b", None),
        ] {
            assert_eq!(normalise_made(made).ok().as_deref(), normal, "{made}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for (raw, why) in [
            ("*", Reason::PathNotAbsolute),
            ("a", Reason::PathNotAbsolute),
            ("/a%00", Reason::PathNul),
            ("/a\\b", Reason::PathBackslash),
            ("/a/..%2fb", Reason::PathEncodedSlash),
            ("/a/%5c", Reason::PathEncodedSlash),
            ("/a/..;/b", Reason::PathDotParameter),
            ("/a/.%2e;x/b", Reason::PathDotParameter),
            ("/a%zz", Reason::PathEscape),
            ("/a%+1", Reason::PathEscape),
            ("/a%2", Reason::PathEscape),
            ("/%é0", Reason::PathEscape),
            ("/é", Reason::PathCharacter),
            ("/a\u{7f}", Reason::PathCharacter),
        ] {
            assert_eq!(normalise(raw), Err(why), "{raw}");
        }
    }
}
