//! Heads of requests that every reader takes for the same, as spans of the bytes that they came in.
//! A head that is not certainly such is for the HTTP library, which knows what to refuse.

use std::mem::MaybeUninit;

use http::{Method, Version};

use crate::core::head::spans::{Extent, Extents, MOST_FIELDS, Spans};
use crate::core::head::{FieldName, Fields, Head, KnownField};

/// The head of a request of HTTP/1.1, or HTTP/1.0.
pub(crate) struct RequestHead<'b> {
    method: Method,
    version: Version,
    path: &'b str,
    query: Option<&'b str>,
    pub fields: Spans<'b>,
    pub body: RequestBody,
    /// No other request is to follow it.
    pub is_last: bool,
    /// The client has use for trailers of the response (RFC 9110 section 10.1.4).
    pub takes_trailers: bool,
}

/// The end of a request's body, as its head declares it (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// None at all, or so many bytes.
    Bytes(u64),
    Chunked,
}

pub(crate) enum Reading<'b> {
    /// A whole head, and its length in bytes.
    Head(RequestHead<'b>, usize),
    /// There is more to come, and no doubt so far.
    Partial,
    /// For the library.
    Uncertain(Doubt),
}

/// The part of a connection that is for the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The request, which is one to the library's parser.
    Request,
    /// All from here on: the request may switch protocols, or is none.
    Connection,
}

/// Reads the head at the beginning of the bytes.
pub(crate) fn read(bytes: &mut [u8]) -> Reading<'_> {
    // An empty line before a request is none of its head (RFC 9112 section 2.2).
    if !bytes.first().is_none_or(u8::is_ascii_uppercase) {
        return Reading::Uncertain(Doubt::Connection);
    }
    let mut headers = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    let size = match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) => return Reading::Partial,
        Err(_) => return Reading::Uncertain(Doubt::Connection),
    };
    let doubt = doubt(&request);
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Reading::Uncertain(doubt);
    };
    let version = if minor == 1 { Version::HTTP_11 } else { Version::HTTP_10 };
    let is_plain = target.starts_with('/') && target.bytes().all(|byte| TARGET[usize::from(byte)]);
    let method = plain_method(method).filter(|_| is_plain);
    let target = Extent::of(bytes, target.as_bytes());
    let places = Extents::of(bytes, request.headers).filter(|places| places.are_lines_of(&bytes[..size]));
    let (Some(method), Some(target), Some(places)) = (method, target, places) else {
        return Reading::Uncertain(doubt);
    };
    match RequestHead::of(bytes, (method, version), target, &places) {
        Some(head) => Reading::Head(head, size),
        None => Reading::Uncertain(doubt),
    }
}

fn doubt(request: &httparse::Request<'_, '_>) -> Doubt {
    let upgrades = request.headers.iter().any(|field| field.name.eq_ignore_ascii_case("upgrade"));
    if upgrades || request.method == Some("CONNECT") { Doubt::Connection } else { Doubt::Request }
}

/// Methods that are served here; others are rare, or refused.
fn plain_method(method: &str) -> Option<Method> {
    Some(match method {
        "GET" => Method::GET,
        "HEAD" => Method::HEAD,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "DELETE" => Method::DELETE,
        "PATCH" => Method::PATCH,
        "OPTIONS" => Method::OPTIONS,
        _ => return None,
    })
}

/// Bytes of a target that RFC 3986 has in paths and queries.
static TARGET: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let other = b"-._~!$&'()*+,;=:@/?%";
        let mut at = 0;
        while at < other.len() {
            allowed[other[at] as usize] = true;
            at += 1;
        }
        if (byte as u8).is_ascii_alphanumeric() {
            allowed[byte] = true;
        }
        byte += 1;
    }
    allowed
};

fn names_trailers(codings: &[u8]) -> bool {
    codings.split(|byte| *byte == b',').any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// A length in decimal digits, of which there are few enough for any number to fit.
fn announced(value: &[u8]) -> Option<RequestBody> {
    let is_number = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let number = || value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    is_number.then(|| RequestBody::Bytes(number()))
}

// === impl RequestHead ===

impl<'b> RequestHead<'b> {
    /// `None` if a field is in doubt, or asks for what is not done here.
    fn of(
        bytes: &'b mut [u8],
        (method, version): (Method, Version),
        target: Extent,
        places: &Extents,
    ) -> Option<Self> {
        let (fields, bytes) = places.spans(bytes)?;
        let target = std::str::from_utf8(bytes.get(target.range())?).ok()?;
        let (mut hosts, mut cookies) = (0, 0);
        let (mut says_close, mut says_keep_alive) = (false, version == Version::HTTP_11);
        let (mut body, mut takes_trailers) = (None, false);
        for (name, value) in fields.iter() {
            match name.known() {
                None
                | Some(
                    KnownField::Claim
                    | KnownField::CdnLoop
                    | KnownField::ClientIdentity
                    | KnownField::DisguisedClaim
                    | KnownField::Forwarded
                    | KnownField::KeepAlive
                    | KnownField::ProxyConnection
                    | KnownField::RequestId,
                ) => {}
                Some(KnownField::Te) => takes_trailers |= names_trailers(value),
                Some(KnownField::Host) => hosts += 1,
                Some(KnownField::Cookie) => cookies += 1,
                Some(KnownField::Connection) if value.eq_ignore_ascii_case(b"keep-alive") => {
                    says_keep_alive = true;
                }
                Some(KnownField::Connection) if value.eq_ignore_ascii_case(b"close") => says_close = true,
                Some(KnownField::ContentLength) if body.is_none() => body = Some(announced(value)?),
                Some(KnownField::TransferEncoding)
                    if body.is_none()
                        && version == Version::HTTP_11
                        && value.eq_ignore_ascii_case(b"chunked") =>
                {
                    body = Some(RequestBody::Chunked);
                }
                Some(
                    KnownField::Connection
                    | KnownField::ContentLength
                    | KnownField::Expect
                    | KnownField::Http2Settings
                    | KnownField::TransferEncoding
                    | KnownField::Upgrade,
                ) => return None,
            }
        }
        // Cookies in crumbs are put together elsewhere.
        if hosts != 1 || cookies > 1 {
            return None;
        }
        let (path, query) = match memchr::memchr(b'?', target.as_bytes()) {
            Some(at) => (target.get(..at)?, Some(target.get(at + 1..)?)),
            None => (target, None),
        };
        let body = body.unwrap_or(RequestBody::Bytes(0));
        let is_last = says_close || !says_keep_alive;
        Some(Self { method, version, path, query, fields, body, is_last, takes_trailers })
    }
}

impl<'b> Head for RequestHead<'b> {
    type Fields = Spans<'b>;

    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn authority(&self) -> Option<&str> {
        None
    }

    fn path(&self) -> &str {
        self.path
    }

    fn query(&self) -> Option<&str> {
        self.query
    }

    fn fields(&self) -> &Spans<'b> {
        &self.fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome for some bytes, and how many of them are not of the head.
    #[derive(Debug, PartialEq, Eq)]
    enum Read {
        Head { body: RequestBody, is_last: bool, behind: usize },
        Partial,
        Uncertain(Doubt),
    }

    fn read(text: &str) -> Read {
        let mut bytes = text.as_bytes().to_vec();
        let length = bytes.len();
        match super::read(&mut bytes) {
            Reading::Head(head, size) => {
                Read::Head { body: head.body, is_last: head.is_last, behind: length - size }
            }
            Reading::Partial => Read::Partial,
            Reading::Uncertain(doubt) => Read::Uncertain(doubt),
        }
    }

    fn certain(body: RequestBody) -> Read {
        Read::Head { body, is_last: false, behind: 0 }
    }

    #[test]
    fn what_every_reader_takes_for_the_same_is_certain() {
        let none = RequestBody::Bytes(0);
        for (text, expected) in [
            ("GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\n", certain(none)),
            ("GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nKeep-Alive: timeout=5\r\n\r\n", certain(none)),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n", certain(RequestBody::Bytes(12))),
            (
                "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n",
                certain(RequestBody::Chunked),
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\nGET",
                Read::Head { body: none, is_last: true, behind: 3 },
            ),
            ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", Read::Head { body: none, is_last: true, behind: 0 }),
            ("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", certain(none)),
            ("", Read::Partial),
            ("GET / HTTP/1.1\r\nHost: a\r\n", Read::Partial),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_unusual_is_for_the_library() {
        let get = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let requests = [
            "GET / HTTP/1.0\r\n\r\n".to_owned(),
            "PUT / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "GET / HTTP/1.1\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET / HTTP/1.1\nHost: a\r\n\r\n".to_owned(),
            get("Host: a\r\n"),
            get("Cookie: a\r\nCookie: b\r\n"),
            get("Connection: x-a\r\n"),
            get("Expect: 100-continue\r\n"),
            get("Content-Length: 1\r\nContent-Length: 1\r\n"),
            get("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
            get("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n"),
            get("Transfer-Encoding: gzip, chunked\r\n"),
            get("Content-Length: +1\r\n"),
            get("Content-Length: 1, 1\r\n"),
            get("Content-Length:\r\n"),
            get("Content-Length: 1000000000000000000\r\n"),
        ];
        for text in requests {
            assert_eq!(read(&text), Read::Uncertain(Doubt::Request), "{text:?}");
        }
        for text in [
            get("Upgrade: websocket\r\nConnection: upgrade\r\n"),
            "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n".to_owned(),
            "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n".to_owned(),
            "GET /\r\n".to_owned(),
        ] {
            assert_eq!(read(&text), Read::Uncertain(Doubt::Connection), "{text:?}");
        }
    }
}
