//! The edge policy: what must hold for a request before it is routed. HTTP libraries let some
//! ambiguous requests through; a gateway must not, because the next hop may read them differently
//! (request smuggling, path confusion). Host and path are normalised here, once: the same form is
//! matched, forwarded and logged. Nothing here depends on the parser that a head comes from.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::{Method, Version, header};
use portcullis_model::{Limits, ListenerLimits, field_size};

use crate::core::head::{FieldName, Fields, Head, KnownField, KnownFields, is_padded};
use crate::core::reason::Reason;
use crate::http::path;

/// HTTP/2 may send a cookie in crumbs, each of which costs the sender a byte or two
/// (CVE-2026-49975).
const CRUMBS: usize = 64;

/// Host and path as routing sees them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target<'r> {
    /// Lower case, without port and trailing dot.
    pub host: Cow<'r, str>,
    /// Absolute and normal.
    pub path: Cow<'r, str>,
    /// The known fields among those of the request.
    pub fields: KnownFields,
}

/// Checks a request and normalises its target.
pub(crate) fn admit<'r>(head: &'r impl Head, limits: &Limits) -> Result<Target<'r>, Reason> {
    check_method(head.method())?;
    if head.path().len() + head.query().map_or(0, str::len) > limits.target_bytes as usize {
        return Err(Reason::TargetTooLong);
    }
    let fields = check_fields(head.version(), head.fields(), limits)?;
    // It MUST start with "/" (RFC 9113 section 8.3.1).
    if head.version() == Version::HTTP_2 && !head.says_path() {
        return Err(Reason::Malformed);
    }
    let host = host(head)?;
    // A question to the server as a whole (RFC 9110 section 9.3.7), which is not on any route.
    if *head.method() == Method::OPTIONS && head.path() == "*" {
        return Err(Reason::Options);
    }
    Ok(Target { host, path: path::normalise(head.path())?, fields })
}

/// Refuses the methods for which no route is asked.
///
/// # Errors
/// The reason that the client is told.
pub fn check_method(method: &Method) -> Result<(), Reason> {
    match *method {
        Method::CONNECT | Method::TRACE => Err(Reason::Method),
        _ => Ok(()),
    }
}

/// Checks the size of a request that was let in by the limits of its listener.
pub(crate) fn check_size(head: &impl Head, limits: &ListenerLimits) -> Result<(), Reason> {
    let over = |size: usize, limit: Option<u32>| limit.is_some_and(|limit| size > limit as usize);
    if over(head.path().len() + head.query().map_or(0, str::len), limits.target_bytes) {
        return Err(Reason::TargetTooLong);
    }
    if limits.header_fields.is_none() && limits.header_bytes.is_none() {
        return Ok(());
    }
    let sizes = head.fields().iter().map(|(name, value)| field_size(name.as_bytes().len(), value.len()));
    let (count, bytes) = sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size));
    if over(count, limits.header_fields) || over(bytes, limits.header_bytes) {
        return Err(Reason::FieldsTooLarge);
    }
    Ok(())
}

/// Size, and the fields that determine how the message is read. Lengths were checked by
/// [`crate::client::framing`] or by the HTTP/2 library, which lets a repeated one pass.
fn check_fields(version: Version, fields: &impl Fields, limits: &Limits) -> Result<KnownFields, Reason> {
    let mut found = KnownFields::default();
    let (mut count, mut bytes) = (0, 0);
    let (mut hosts, mut cookies, mut codings, mut lengths) = (0, 0, 0, 0);
    let (mut removes_end_to_end, mut padded) = (false, false);
    for (name, value) in fields.iter() {
        count += 1;
        bytes += field_size(name.as_bytes().len(), value.len());
        padded |= version == Version::HTTP_2 && is_padded(value);
        let Some(known) = name.known() else { continue };
        found.insert(known);
        match known {
            KnownField::Host => hosts += 1,
            KnownField::Cookie => cookies += 1,
            KnownField::ContentLength => lengths += 1,
            // A client must not make us take away what the backend decides by.
            KnownField::Connection => {
                let mut options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                removes_end_to_end |= options.any(is_end_to_end);
            }
            KnownField::TransferEncoding if value.eq_ignore_ascii_case(b"chunked") => codings += 1,
            KnownField::TransferEncoding => codings += 2,
            _ => {}
        }
    }
    if bytes > limits.header_bytes as usize || count > limits.header_fields as usize {
        return Err(Reason::FieldsTooLarge);
    }
    // A backend of HTTP/1 reads another value than routes and policies do, and one of HTTP/2 may
    // close the connection that all clients share.
    if padded {
        return Err(Reason::Malformed);
    }
    if removes_end_to_end {
        return Err(Reason::ConnectionOption);
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
    Ok(found)
}

/// Fields that no `Connection` option may take away from the backend.
fn is_end_to_end(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 7] =
        [b"host", b"authorization", b"cdn-loop", b"cookie", b"forwarded", b"x-real-ip", b"x-request-id"];
    const PREFIXES: [&[u8]; 2] = [b"content-", b"x-forwarded-"];
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
        || PREFIXES
            .iter()
            .any(|prefix| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)))
}

// --- host ---

/// The authority of the target wins over `Host` (RFC 9112 section 3.2.2); one of them must name the
/// host.
fn host(head: &impl Head) -> Result<Cow<'_, str>, Reason> {
    let field = head.fields().get(&header::HOST);
    if let Some(authority) = head.authority() {
        let differs = field.is_some_and(|host| !host.eq_ignore_ascii_case(authority.as_bytes()));
        return match (head.version(), field) {
            (Version::HTTP_2, _) if differs => Err(Reason::HostMismatch),
            (Version::HTTP_11, None) => Err(Reason::NoHost),
            _ => bare_host(authority),
        };
    }
    match field {
        Some(value) => bare_host(std::str::from_utf8(value).map_err(|_| Reason::BadHost)?),
        None if head.version() == Version::HTTP_10 => Ok(Cow::Borrowed("")),
        None => Err(Reason::NoHost),
    }
}

/// The host of an authority, as routing sees it.
///
/// # Errors
/// When it names none.
pub fn bare_host(authority: &str) -> Result<Cow<'_, str>, Reason> {
    let is_literal = authority.starts_with('[');
    let end = if is_literal {
        authority.find(']').map(|at| at + 1)
    } else {
        authority.bytes().position(|byte| !HOST_NAME[usize::from(byte)])
    };
    let (name, port) = authority.split_at_checked(end.unwrap_or(authority.len())).unwrap_or_default();
    let is_port = match port.strip_prefix(':') {
        Some(number) => {
            number.is_empty() || number.bytes().all(|b| b.is_ascii_digit()) && number.parse::<u16>().is_ok()
        }
        None => port.is_empty(),
    };
    let is_host = !is_literal || {
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
    };
    if !is_host || !is_port {
        return Err(Reason::BadHost);
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    // The empty name is that of a request without a host, and with one dot less it is another one.
    if name.is_empty() || name.ends_with('.') {
        return Err(Reason::BadHost);
    }
    Ok(if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

/// Bytes that a host name may have.
static HOST_NAME: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        allowed[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        byte += 1;
    }
    allowed
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::{PlainHead, get};

    fn verdict(head: &PlainHead) -> Result<(String, String), Reason> {
        admit(head, &Limits::default()).map(|target| (target.host.into_owned(), target.path.into_owned()))
    }

    fn passes(host: &str, path: &str) -> Result<(String, String), Reason> {
        Ok((host.to_owned(), path.to_owned()))
    }

    #[test]
    fn heads_of_any_parser_are_checked() {
        let host = ("Host", "Example.com:80");
        for (fields, expected) in [
            (&[host][..], passes("example.com", "/a")),
            (&[], Err(Reason::NoHost)),
            (&[host, host], Err(Reason::SeveralHosts)),
            (&[("Host", "a@b")], Err(Reason::BadHost)),
            (&[("Host", "a:+80")], Err(Reason::BadHost)),
            (&[("Host", "a:65536")], Err(Reason::BadHost)),
            (&[("Host", "A.:")], passes("a", "/a")),
            (&[("Host", "[::1]:80")], passes("[::1]", "/a")),
            (&[("Host", "[::1")], Err(Reason::BadHost)),
            (&[host, ("Content-Length", "1"), ("content-length", "1")], Err(Reason::SeveralLengths)),
            (&[host, ("Transfer-Encoding", "Chunked")], passes("example.com", "/a")),
            (&[host, ("Transfer-Encoding", "gzip, chunked")], Err(Reason::TransferCoding)),
            (&[host, ("Connection", "close, Keep-Alive")], passes("example.com", "/a")),
            (&[host, ("Connection", "close, Authorization")], Err(Reason::ConnectionOption)),
            (&[host, ("Connection", "x-forwarded-for")], Err(Reason::ConnectionOption)),
            (&[host, host, ("Connection", "cookie")], Err(Reason::ConnectionOption)),
        ] {
            assert_eq!(verdict(&get("/x/../a?b=c", fields)), expected, "{fields:?}");
        }
        assert_eq!(verdict(&get("/%00", &[host])), Err(Reason::PathNul));
        assert_eq!(verdict(&get("*", &[host])), Err(Reason::PathNotAbsolute));
        for (method, reason) in [
            (Method::TRACE, Reason::Method),
            (Method::CONNECT, Reason::Method),
            (Method::OPTIONS, Reason::Options),
        ] {
            assert_eq!(verdict(&PlainHead { method, ..get("*", &[host]) }), Err(reason));
        }
    }

    #[test]
    fn the_authority_of_the_target_wins() {
        let ask = |version, host: &str| {
            let authority = Some("a.com");
            verdict(&PlainHead { version, authority, ..get("/", &[("host", host)]) })
        };
        assert_eq!(ask(Version::HTTP_11, "b.com"), passes("a.com", "/"));
        assert_eq!(ask(Version::HTTP_2, "A.com"), passes("a.com", "/"));
        assert_eq!(ask(Version::HTTP_2, "b.com"), Err(Reason::HostMismatch));
        let without = |version, authority| verdict(&PlainHead { version, authority, ..get("/", &[]) });
        assert_eq!(without(Version::HTTP_2, Some("a.com")), passes("a.com", "/"));
        assert_eq!(without(Version::HTTP_11, Some("a.com")), Err(Reason::NoHost));
        assert_eq!(without(Version::HTTP_10, None), passes("", "/"));
    }

    #[test]
    fn values_over_http_2_begin_and_end_with_what_they_are() {
        for (value, is_padded) in
            [("b", false), ("", false), ("b c", false), (" b", true), ("b\t", true), (" ", true)]
        {
            let ask = |version| {
                verdict(&PlainHead { version, ..get("/", &[("host", "a.com"), ("x-a", value)]) }).err()
            };
            assert_eq!(ask(Version::HTTP_2), is_padded.then_some(Reason::Malformed), "{value:?}");
            assert_eq!(ask(Version::HTTP_11), None, "{value:?}");
        }
    }

    /// Of the HTTP library, which takes it for one with a path.
    #[test]
    fn a_target_without_a_path_is_none_of_http_2() {
        let ask = |version, target: &str| {
            let request = http::Request::get(target).version(version).header(header::HOST, "a.com");
            let (parts, ()) = request.body(()).unwrap().into_parts();
            admit(&parts, &Limits::default()).map(|target| target.path.into_owned())
        };
        assert_eq!(ask(Version::HTTP_2, "http://a.com?b"), Err(Reason::Malformed));
        assert_eq!(ask(Version::HTTP_2, "http://a.com/?b"), Ok("/".to_owned()));
        assert_eq!(ask(Version::HTTP_2, "http://a.com"), Ok("/".to_owned()));
        assert_eq!(ask(Version::HTTP_11, "http://a.com?b"), Ok("/".to_owned()));
    }

    #[test]
    fn sizes_are_limited() {
        let limits = Limits { target_bytes: 8, header_bytes: 30, header_fields: 2, ..Limits::default() };
        let ask = |path, fields: &[(&str, &str)]| admit(&get(path, fields), &limits).err();
        assert_eq!(ask("/123?5678", &[("host", "a.com")]), None);
        assert_eq!(ask("/123?56789", &[("host", "a.com")]), Some(Reason::TargetTooLong));
        assert_eq!(ask("/", &[("host", "a.com"), ("x", &"y".repeat(12))]), None);
        assert_eq!(ask("/", &[("host", "a.com"), ("x", &"y".repeat(13))]), Some(Reason::FieldsTooLarge));
        assert_eq!(ask("/", &[("host", "a"), ("x", ""), ("y", "")]), Some(Reason::FieldsTooLarge));
    }

    #[test]
    fn few_crumbs_make_a_cookie() {
        for (crumbs, expected) in [(CRUMBS, None), (CRUMBS + 1, Some(Reason::FieldsTooLarge))] {
            let mut fields = vec![("host", "a.com")];
            fields.resize(1 + crumbs, ("cookie", "a=b"));
            assert_eq!(verdict(&get("/", &fields)).err(), expected);
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
            (".", None),
            (".:80", None),
            ("example.com..", None),
            ("", None),
            ("[x]", None),
            ("[::1].", None),
            ("[::1", None),
            ("::1", None),
            ("a:80:80", None),
            ("a:", Some("a")),
            ("ä", None),
        ] {
            assert_eq!(bare_host(raw).ok().as_deref(), host, "{raw}");
        }
    }
}
