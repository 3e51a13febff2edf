//! Heads of requests that every reader takes for the same, as spans of the bytes that they came in.
//! A head that is not certainly such is for the HTTP library, which knows what to refuse.

use std::mem::MaybeUninit;

use http::{Method, Version};

use crate::core::head::spans::{MOST_FIELDS, Place, Places, Spans};
use crate::core::head::{FieldName, Fields, Head, KnownField};

/// A request of HTTP/1.1 without a body.
pub(crate) struct RequestHead<'b> {
    method: Method,
    path: &'b str,
    query: Option<&'b str>,
    pub fields: Spans<'b>,
    /// No other request is to follow it.
    pub is_last: bool,
}

pub(crate) enum Reading<'b> {
    /// A whole head, and its length in bytes.
    Head(RequestHead<'b>, usize),
    /// There is more to come, and no doubt so far.
    Partial,
    /// For the library.
    Uncertain,
}

/// Reads the head at the beginning of the bytes.
pub(crate) fn read(bytes: &mut [u8]) -> Reading<'_> {
    // An empty line before a request is none of its head (RFC 9112 section 2.2).
    if !bytes.first().is_none_or(u8::is_ascii_uppercase) {
        return Reading::Uncertain;
    }
    let mut headers = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    let size = match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) => return Reading::Partial,
        Err(_) => return Reading::Uncertain,
    };
    let (Some(method), Some(target), Some(1)) = (request.method, request.path, request.version) else {
        return Reading::Uncertain;
    };
    let is_plain = target.starts_with('/')
        && target.bytes().all(|byte| TARGET[usize::from(byte)])
        && !has_bare_line_feed(&bytes[..size]);
    let method = plain_method(method).filter(|_| is_plain);
    let target = Place::of(bytes, target.as_bytes());
    let places = Places::of(bytes, request.headers);
    let (Some(method), Some(target), Some(places)) = (method, target, places) else {
        return Reading::Uncertain;
    };
    match RequestHead::of(bytes, method, target, &places) {
        Some(head) => Reading::Head(head, size),
        None => Reading::Uncertain,
    }
}

/// A line that ends in LF alone is one to some readers only.
fn has_bare_line_feed(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes).any(|at| !bytes[..at].ends_with(b"\r"))
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

// === impl RequestHead ===

impl<'b> RequestHead<'b> {
    /// `None` if a field is in doubt, or asks for what is not done here.
    fn of(bytes: &'b mut [u8], method: Method, target: Place, places: &Places) -> Option<Self> {
        let (fields, bytes) = places.spans(bytes)?;
        let target = std::str::from_utf8(bytes.get(target.range())?).ok()?;
        let (mut hosts, mut cookies, mut is_last) = (0, 0, false);
        for (name, value) in fields.iter() {
            match name.known() {
                None
                | Some(
                    KnownField::Claim
                    | KnownField::CdnLoop
                    | KnownField::ClientIdentity
                    | KnownField::DisguisedClaim
                    | KnownField::Forwarded
                    | KnownField::RequestId,
                ) => {}
                Some(KnownField::Host) => hosts += 1,
                Some(KnownField::Cookie) => cookies += 1,
                Some(KnownField::Connection) if value.eq_ignore_ascii_case(b"keep-alive") => {}
                Some(KnownField::Connection) if value.eq_ignore_ascii_case(b"close") => is_last = true,
                Some(
                    KnownField::Connection
                    | KnownField::ContentLength
                    | KnownField::Expect
                    | KnownField::Http2Settings
                    | KnownField::KeepAlive
                    | KnownField::ProxyConnection
                    | KnownField::Te
                    | KnownField::TransferEncoding
                    | KnownField::Upgrade,
                ) => return None,
            }
        }
        // Cookies in crumbs are put together elsewhere.
        if hosts != 1 || cookies > 1 {
            return None;
        }
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        Some(Self { method, path, query, fields, is_last })
    }

    /// Appends the request line that a backend gets; `target` takes the place of the one that came.
    pub(crate) fn write_line(&self, target: Option<&str>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_str().as_bytes());
        out.push(b' ');
        match target {
            Some(target) => out.extend_from_slice(target.as_bytes()),
            None => {
                out.extend_from_slice(self.path.as_bytes());
                if let Some(query) = self.query {
                    out.push(b'?');
                    out.extend_from_slice(query.as_bytes());
                }
            }
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
    }
}

impl<'b> Head for RequestHead<'b> {
    type Fields = Spans<'b>;

    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        Version::HTTP_11
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
