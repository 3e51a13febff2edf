//! Header fields on their way through: hop-by-hop fields go, the client's address comes, filters do what they say.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use portcullis_model::HeaderEdit;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

static HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::UPGRADE,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];
/// Who sent a request, and how.
pub(crate) struct Forwarded<'r> {
    /// The address that the client connected from.
    pub address: &'r HeaderValue,
    pub scheme: &'static str,
    /// The host that the client asked for, with port.
    pub host: &'r HeaderValue,
}

const CONNECTION: u8 = 1 << 0;
const TRANSFER_ENCODING: u8 = 1 << 1;

/// Removes what concerns one connection only (RFC 9110 section 7.6.1), with whatever `Connection` names. Most messages
/// have nothing of it: they cost one pass over their names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let place = |name| HOP_BY_HOP.iter().position(|known| known == name);
    let found = headers.keys().filter_map(place).fold(0, |found, at| found | 1 << at);
    if found & CONNECTION != 0 {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    // Transfer-Encoding overrides Content-Length, which "MUST" go "prior to forwarding" (RFC 9112 section 6.3). Requests that
    // have both do not come this far.
    if found & TRANSFER_ENCODING != 0 {
        headers.remove(header::CONTENT_LENGTH);
    }
    for (at, name) in HOP_BY_HOP.iter().enumerate() {
        if found & 1 << at != 0 {
            headers.remove(name);
        }
    }
}

/// Of requests, `TE: trailers` passes (gRPC insists on it), and expectations are met by us.
pub(crate) fn request_hop_by_hop(headers: &mut HeaderMap) {
    let trailers = headers.get(header::TE).is_some_and(wants_trailers);
    remove_hop_by_hop(headers);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

fn wants_trailers(te: &HeaderValue) -> bool {
    let mut codings = te.as_bytes().split(|byte| *byte == b',');
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// The protocol that a request wants to switch to; HTTP/2 is offered by ALPN and prior knowledge only.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(header::UPGRADE).filter(|it| !it.as_bytes().eq_ignore_ascii_case(b"h2c"))?;
    named_by_connection(headers).contains(&header::UPGRADE).then(|| protocol.clone())
}

/// Tells the backend who the client is. Unless proxies in front are trusted, what the client says
/// about it is dropped.
pub(crate) fn forwarded(headers: &mut HeaderMap, client: &Forwarded<'_>, trusted_hops: usize) {
    let chain = chain(headers, trusted_hops, client.address);
    remove_claims(headers, chain.is_some());
    if chain.is_none() || !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(client.scheme));
    }
    if chain.is_none() || !headers.contains_key(X_FORWARDED_HOST) {
        headers.insert(X_FORWARDED_HOST, client.host.clone());
    }
    headers.insert(X_FORWARDED_FOR, chain.unwrap_or_else(|| client.address.clone()));
}

/// What trusted proxies say of whom a request came from, each of the one before, and who came to us. What stands before that,
/// anybody may have written. `None` if they say nothing: then it came past them.
pub(crate) fn chain(headers: &HeaderMap, trusted_hops: usize, address: &HeaderValue) -> Option<HeaderValue> {
    if trusted_hops == 0 {
        return None;
    }
    let lines: Vec<_> = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
    let said = lines.join(&b',');
    let said = said.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|it| !it.is_empty());
    let mut chain: Vec<_> = said.take(trusted_hops).collect();
    if chain.is_empty() {
        return None;
    }
    chain.reverse();
    chain.push(address.as_bytes());
    HeaderValue::from_bytes(&chain.join(&b", "[..])).ok()
}

/// Removes what claims to come from a proxy and does not. `X_Forwarded_For` reads as `X-Forwarded-For` where header fields
/// become variables (CGI, WSGI); `Forwarded` (RFC 7239) passes proxies that do not know it.
fn remove_claims(headers: &mut HeaderMap, trusted: bool) {
    let is_claim = |name: &&HeaderName| {
        let bytes = name.as_str().as_bytes();
        match bytes.first() {
            Some(b'x') => (!trusted || bytes.contains(&b'_')) && looks_forwarded(bytes),
            Some(b'f') => bytes == b"forwarded",
            _ => false,
        }
    };
    while let Some(name) = headers.keys().find(is_claim).cloned() {
        headers.remove(name);
    }
}

fn looks_forwarded(name: &[u8]) -> bool {
    let start = b"x-forwarded-";
    name.len() > start.len() && name.iter().zip(start).all(|(a, b)| a == b || (*a == b'_' && *b == b'-'))
}

/// Applies a header filter; names and values were checked when it was compiled.
pub(crate) fn edit(headers: &mut HeaderMap, edit: &HeaderEdit) {
    for name in &edit.remove {
        headers.remove(&**name);
    }
    for (name, value) in &edit.set {
        if let Some((name, value)) = field(name, value) {
            headers.insert(name, value);
        }
    }
    for (name, value) in &edit.add {
        if let Some((name, value)) = field(name, value) {
            headers.append(name, value);
        }
    }
}

fn field(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

/// Fields that no `Connection` option may take away from the backend.
pub(crate) fn is_end_to_end(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [b"host", b"authorization", b"cookie", b"forwarded"];
    const PREFIXES: [&[u8]; 2] = [b"content-", b"x-forwarded-"];
    let begins = |prefix: &&[u8]| name.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name)) || PREFIXES.iter().any(begins)
}
