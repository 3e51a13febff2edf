//! The edge policy: what must hold for a request before it is routed. HTTP libraries let some ambiguous requests through;
//! a gateway must not, because the next hop may read them differently (request smuggling, path confusion). Host and path
//! are normalised here, once: the same form is matched, forwarded and logged.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderValue, Method, Version, header};
use portcullis_model::Limits;

use crate::core::reason::Reason;
use crate::http::headers;
use crate::http::path;

/// HTTP/2 may send a cookie in crumbs, each of which costs the sender a byte or two (CVE-2026-49975).
const CRUMBS: usize = 64;

/// Host and path as routing sees them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target<'r> {
    /// Lower case, without port and trailing dot.
    pub host: Cow<'r, str>,
    /// Absolute and normal.
    pub path: Cow<'r, str>,
}

/// Checks a request and normalises its target.
pub(crate) fn admit<'r>(parts: &'r Parts, limits: &Limits) -> Result<Target<'r>, Reason> {
    check_method(&parts.method)?;
    check_size(parts, limits)?;
    check_fields(parts)?;
    let host = host(parts)?;
    // A question to the server as a whole (RFC 9110 section 9.3.7), which is not on any route.
    if parts.method == Method::OPTIONS && parts.uri.path() == "*" {
        return Err(Reason::Options);
    }
    Ok(Target { host, path: path::normalise(parts.uri.path())? })
}

fn check_method(method: &Method) -> Result<(), Reason> {
    match *method {
        Method::CONNECT | Method::TRACE => Err(Reason::Method),
        _ => Ok(()),
    }
}

fn check_size(parts: &Parts, limits: &Limits) -> Result<(), Reason> {
    if parts.uri.path().len() + parts.uri.query().map_or(0, str::len) > limits.target_bytes as usize {
        return Err(Reason::TargetTooLong);
    }
    let bytes: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > limits.header_bytes as usize || parts.headers.len() > limits.header_fields as usize {
        return Err(Reason::FieldsTooLarge);
    }
    Ok(())
}

/// Fields that say how the message is to be read. Lengths were checked by [`crate::client::framing`] or by the HTTP/2 library, which lets
/// one pass that is said twice.
fn check_fields(parts: &Parts) -> Result<(), Reason> {
    let (mut hosts, mut cookies, mut codings, mut lengths) = (0, 0, 0, 0);
    for (name, value) in &parts.headers {
        match *name {
            header::HOST => hosts += 1,
            header::COOKIE => cookies += 1,
            header::CONTENT_LENGTH => lengths += 1,
            header::CONNECTION => check_connection(value)?,
            header::TRANSFER_ENCODING if value.as_bytes().eq_ignore_ascii_case(b"chunked") => codings += 1,
            header::TRANSFER_ENCODING => codings += 2,
            _ => {}
        }
    }
    if hosts > 1 {
        return Err(Reason::SeveralHosts);
    }
    if lengths > 1 {
        return Err(Reason::SeveralLengths);
    }
    if cookies > CRUMBS {
        return Err(Reason::FieldsTooLarge);
    }
    if codings > 1 {
        return Err(Reason::TransferCoding);
    }
    Ok(())
}

/// A client must not make us take away what the backend decides by.
fn check_connection(value: &HeaderValue) -> Result<(), Reason> {
    let mut options = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    if options.any(headers::is_end_to_end) {
        return Err(Reason::ConnectionOption);
    }
    Ok(())
}

// --- host ---

/// The authority of the target wins over `Host` (RFC 9112 section 3.2.2); one of them must name the host.
fn host(parts: &Parts) -> Result<Cow<'_, str>, Reason> {
    let field = parts.headers.get(header::HOST);
    if let Some(authority) = parts.uri.authority() {
        let differs =
            |host: &HeaderValue| !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
        if parts.version == Version::HTTP_2 && field.is_some_and(differs) {
            return Err(Reason::HostMismatch);
        }
        if field.is_none() && parts.version == Version::HTTP_11 {
            return Err(Reason::NoHost);
        }
        return bare_host(authority.as_str());
    }
    match field {
        Some(value) => bare_host(value.to_str().map_err(|_| Reason::BadHost)?),
        None if parts.version == Version::HTTP_10 => Ok(Cow::Borrowed("")),
        None => Err(Reason::NoHost),
    }
}

fn bare_host(authority: &str) -> Result<Cow<'_, str>, Reason> {
    let (name, port) = split_port(authority);
    if port.is_some_and(|port| port.parse::<u16>().is_err() && !port.is_empty()) || !is_host(name) {
        return Err(Reason::BadHost);
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
