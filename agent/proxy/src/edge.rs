//! The edge policy: what must hold for a request before it is routed. HTTP libraries let some ambiguous requests through;
//! a gateway must not, because the next hop may read them differently (request smuggling, path confusion). Host and path
//! are normalised here, once: the same form is matched, forwarded and logged.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Version, header};

use crate::settings::{Limits, Settings};
use crate::{headers, path};

/// HTTP/2 may send a cookie in crumbs, each of which costs the sender a byte or two (CVE-2026-49975).
const CRUMBS: usize = 64;

const TOO_LARGE: Rejection =
    reject(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many or too long header fields\n");

/// Host and path as routing sees them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target<'r> {
    /// Lower case, without port and trailing dot.
    pub host: Cow<'r, str>,
    /// Absolute and normal.
    pub path: Cow<'r, str>,
}

/// Why a request is refused at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub status: StatusCode,
    pub reason: &'static str,
}

/// Checks a request and normalises its target.
pub(crate) fn admit<'r>(parts: &'r Parts, settings: &Settings) -> Result<Target<'r>, Rejection> {
    check_method(&parts.method)?;
    check_size(parts, &settings.limits)?;
    check_fields(parts)?;
    let path = path::normalise(parts.uri.path(), settings.slashes).map_err(|it| bad(it.reason()))?;
    Ok(Target { host: host(parts)?, path })
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

fn check_size(parts: &Parts, limits: &Limits) -> Result<(), Rejection> {
    if parts.uri.path().len() + parts.uri.query().map_or(0, str::len) > limits.uri {
        return Err(reject(StatusCode::URI_TOO_LONG, "the request target is too long\n"));
    }
    let bytes: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > limits.header_bytes || parts.headers.len() > limits.headers {
        return Err(TOO_LARGE);
    }
    Ok(())
}

/// Fields that say how the message is to be read. Lengths were checked by [`crate::wire`] or by the HTTP/2 library.
fn check_fields(parts: &Parts) -> Result<(), Rejection> {
    let (mut hosts, mut cookies, mut codings) = (0, 0, 0);
    for (name, value) in &parts.headers {
        match *name {
            header::HOST => hosts += 1,
            header::COOKIE => cookies += 1,
            header::CONNECTION => check_connection(value)?,
            header::TRANSFER_ENCODING if value.as_bytes().eq_ignore_ascii_case(b"chunked") => codings += 1,
            header::TRANSFER_ENCODING => codings += 2,
            _ => {}
        }
    }
    if hosts > 1 {
        return Err(bad("more than one Host\n"));
    }
    if cookies > CRUMBS {
        return Err(TOO_LARGE);
    }
    if codings > 1 {
        return Err(reject(StatusCode::NOT_IMPLEMENTED, "only the chunked transfer encoding is supported\n"));
    }
    Ok(())
}

/// A client must not make us take away what the backend decides by.
fn check_connection(value: &HeaderValue) -> Result<(), Rejection> {
    let mut options = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    if options.any(headers::is_end_to_end) {
        return Err(bad("Connection names a field that is not for one connection only\n"));
    }
    Ok(())
}

// --- host ---

/// The authority of the target wins over `Host` (RFC 9112 section 3.2.2); one of them must name the host.
fn host(parts: &Parts) -> Result<Cow<'_, str>, Rejection> {
    let field = parts.headers.get(header::HOST);
    if let Some(authority) = parts.uri.authority() {
        let differs =
            |host: &HeaderValue| !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
        if parts.version == Version::HTTP_2 && field.is_some_and(differs) {
            return Err(bad("Host is not the authority\n"));
        }
        if field.is_none() && parts.version == Version::HTTP_11 {
            return Err(bad("no Host\n"));
        }
        return bare_host(authority.as_str());
    }
    match field {
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

#[cfg(test)]
mod tests {
    use super::*;

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
