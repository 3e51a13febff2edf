//! The edge policy: what must hold for a request before it is routed. HTTP libraries let some ambiguous requests through;
//! a gateway must not, because the next hop may read them differently (request smuggling, path confusion). Host and path
//! are normalised here, once: the same form is matched, forwarded and logged.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Version, header};

use crate::settings::Limits;

/// Host and path as routing sees them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target<'r> {
    /// Lower case, without port and trailing dot.
    pub host: Cow<'r, str>,
    /// Absolute, without dot segments.
    pub path: Cow<'r, str>,
}

/// Why a request is refused at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub status: StatusCode,
    pub reason: &'static str,
}

/// Checks a request and normalises its target.
pub(crate) fn admit<'r>(parts: &'r Parts, limits: &Limits) -> Result<Target<'r>, Rejection> {
    check_method(&parts.method)?;
    check_headers(parts)?;
    check_size(parts, limits)?;
    Ok(Target { host: host(parts)?, path: path(parts.uri.path())? })
}

const fn reject(status: StatusCode, reason: &'static str) -> Rejection {
    Rejection { status, reason }
}

const fn bad(reason: &'static str) -> Rejection {
    reject(StatusCode::BAD_REQUEST, reason)
}

fn check_method(method: &Method) -> Result<(), Rejection> {
    match *method {
        Method::CONNECT | Method::TRACE => {
            Err(reject(StatusCode::METHOD_NOT_ALLOWED, "this method is not allowed here\n"))
        }
        _ => Ok(()),
    }
}

fn check_headers(parts: &Parts) -> Result<(), Rejection> {
    let headers = &parts.headers;
    let encodings = headers.get_all(header::TRANSFER_ENCODING);
    if encodings.iter().count() > 1
        || encodings.iter().any(|it| !it.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(reject(StatusCode::NOT_IMPLEMENTED, "only the chunked transfer encoding is supported\n"));
    }
    if headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH) {
        return Err(bad("both Content-Length and Transfer-Encoding\n"));
    }
    if headers.get_all(header::CONTENT_LENGTH).iter().count() > 1 {
        return Err(bad("more than one Content-Length\n"));
    }
    if connection_names(headers, header::HOST.as_str()) {
        return Err(bad("Connection must not name Host\n"));
    }
    Ok(())
}

fn connection_names(headers: &HeaderMap, name: &str) -> bool {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case(name))
}

fn check_size(parts: &Parts, limits: &Limits) -> Result<(), Rejection> {
    if parts.uri.path().len() + parts.uri.query().map_or(0, str::len) > limits.uri {
        return Err(reject(StatusCode::URI_TOO_LONG, "the request target is too long\n"));
    }
    let bytes: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > limits.header_bytes || parts.headers.len() > limits.headers {
        return Err(reject(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "too many or too long header fields\n",
        ));
    }
    Ok(())
}

// --- host ---

/// The authority of the target wins over `Host` (RFC 9112 section 3.2.2); one of them must name the host.
fn host(parts: &Parts) -> Result<Cow<'_, str>, Rejection> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(bad("more than one Host\n"));
    }
    if let Some(authority) = parts.uri.authority() {
        return bare_host(authority.as_str());
    }
    match first {
        Some(value) => bare_host(value.to_str().map_err(|_| bad("Host is not a host name\n"))?),
        None if parts.version == Version::HTTP_10 => Ok(Cow::Borrowed("")),
        None => Err(bad("no Host\n")),
    }
}

fn bare_host(authority: &str) -> Result<Cow<'_, str>, Rejection> {
    let (name, port) = split_port(authority);
    if port.is_some_and(|port| port.parse::<u16>().is_err() && !port.is_empty()) || !is_host(name) {
        return Err(bad("Host is not a host name\n"));
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    Ok(if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (authority, None),
    }
}

fn is_host(name: &str) -> bool {
    match name.strip_prefix('[') {
        Some(literal) => literal.strip_suffix(']').is_some_and(|it| it.parse::<std::net::Ipv6Addr>().is_ok()),
        None => {
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        }
    }
}

// --- path ---

/// Resolves dot segments (also percent-encoded ones); refuses what servers are known to read in different ways: encoded
/// slashes, backslashes and NUL, and path parameters on dot segments.
fn path(path: &str) -> Result<Cow<'_, str>, Rejection> {
    if !path.starts_with('/') {
        return Err(bad("the request target is not a path\n"));
    }
    let bytes = path.as_bytes();
    let mut suspicious = bytes.windows(2).any(|pair| pair == b"/.");
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\\' => return Err(bad("backslash in the path\n")),
            b'%' => suspicious |= check_escape(bytes.get(at + 1..at + 3))?,
            _ => {}
        }
    }
    if suspicious { without_dot_segments(path) } else { Ok(Cow::Borrowed(path)) }
}

/// Whether the escape stands for a dot.
fn check_escape(digits: Option<&[u8]>) -> Result<bool, Rejection> {
    let hex = digits.and_then(|digits| std::str::from_utf8(digits).ok()).filter(|it| !it.starts_with('+'));
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        None => Err(bad("malformed percent escape in the path\n")),
        Some(0) => Err(bad("NUL in the path\n")),
        Some(b'/' | b'\\') => Err(bad("encoded slash in the path\n")),
        Some(byte) => Ok(byte == b'.'),
    }
}

fn without_dot_segments(path: &str) -> Result<Cow<'_, str>, Rejection> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let dots = segment.replace("%2e", ".").replace("%2E", ".");
        let last = segments.peek().is_none();
        match dots.as_str() {
            "." if last => kept.push(""),
            "." => {}
            ".." => {
                kept.pop();
                if last {
                    kept.push("");
                }
            }
            _ if dots.starts_with("..;") || dots.starts_with(".;") => {
                return Err(bad("path parameter on a dot segment\n"));
            }
            _ => kept.push(segment),
        }
    }
    Ok(Cow::Owned(format!("/{}", kept.join("/"))))
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
            ("/a//b", "/a//b"),
            ("/a/.hidden", "/a/.hidden"),
            ("/a%20b", "/a%20b"),
            ("/a;v=1/b", "/a;v=1/b"),
        ] {
            assert_eq!(path(raw).as_deref(), Ok(normal), "{raw}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for raw in ["/a%00", "/a\\b", "/a/..%2fb", "/a/%5c", "/a/..;/b", "/a%zz", "/a%2", "*", "a"] {
            assert!(path(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn hosts_lose_port_case_and_final_dot() {
        for (raw, host) in [
            ("Example.COM:8443", Some("example.com")),
            ("example.com.", Some("example.com")),
            ("[::1]:80", Some("[::1]")),
            ("a@b", None),
            ("a/x", None),
            ("a:b", None),
            ("", None),
            ("[x]", None),
        ] {
            assert_eq!(bare_host(raw).ok().as_deref(), host, "{raw}");
        }
    }
}
