//! Header fields on their way through: hop-by-hop fields go, the client's address comes, filters do what they say.

use std::fmt::Write;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use portcullis_model::HeaderEdit;

use crate::clients::Client;
use crate::settings::Settings;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Removes what concerns one connection only (RFC 9110 section 7.6.1), with whatever `Connection` names. Most messages
/// have nothing of it: they cost one pass over their names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    let mut found = [const { None }; 8];
    let names = headers.keys().filter(|name| is_hop_by_hop(name));
    found.iter_mut().zip(names).for_each(|(slot, name)| *slot = Some(name.clone()));
    for name in found.into_iter().flatten() {
        headers.remove(name);
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

fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION | header::TE | header::TRANSFER_ENCODING | header::UPGRADE | header::EXPECT => {
            true
        }
        _ => [KEEP_ALIVE, PROXY_CONNECTION, HTTP2_SETTINGS].contains(name),
    }
}

/// The protocol that a request wants to switch to; HTTP/2 is offered by ALPN and prior knowledge only.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(header::UPGRADE).filter(|it| !it.as_bytes().eq_ignore_ascii_case(b"h2c"))?;
    named_by_connection(headers).contains(&header::UPGRADE).then(|| protocol.clone())
}

/// Tells the backend who the client is. Unless proxies in front are trusted, what the client says about it is dropped.
pub(crate) fn forwarded(headers: &mut HeaderMap, client: &Client, host: &HeaderValue, settings: &Settings) {
    remove_look_alikes(headers);
    let before = if settings.trusted_hops > 0 { headers.get(X_FORWARDED_FOR) } else { None };
    let chain = before.and_then(|before| joined(before, &client.address));
    if chain.is_none() {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(client.scheme()));
        headers.insert(X_FORWARDED_HOST, host.clone());
        headers.remove(header::FORWARDED);
    }
    headers.insert(X_FORWARDED_FOR, chain.unwrap_or_else(|| client.address.clone()));
    if settings.forwarded {
        append_forwarded(headers, client, host);
    }
}

fn joined(before: &HeaderValue, address: &HeaderValue) -> Option<HeaderValue> {
    HeaderValue::from_bytes(&[before.as_bytes(), b", ", address.as_bytes()].concat()).ok()
}

/// `X_Forwarded_For` reads as `X-Forwarded-For` where header fields become variables (CGI, WSGI).
fn remove_look_alikes(headers: &mut HeaderMap) {
    let is_look_alike = |name: &&HeaderName| {
        let bytes = name.as_str().as_bytes();
        bytes.starts_with(b"x") && bytes.contains(&b'_') && looks_forwarded(bytes)
    };
    while let Some(name) = headers.keys().find(is_look_alike).cloned() {
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

fn append_forwarded(headers: &mut HeaderMap, client: &Client, host: &HeaderValue) {
    let element = forwarded_element(client, host.to_str().unwrap_or_default());
    if let Ok(element) = HeaderValue::from_str(&element) {
        headers.append(header::FORWARDED, element);
    }
}

/// One element as RFC 7239 section 4 spells it; IPv6 addresses are quoted.
fn forwarded_element(client: &Client, host: &str) -> String {
    let mut element = String::with_capacity(64);
    let _ = match client.peer.ip().to_canonical() {
        std::net::IpAddr::V4(address) => write!(element, "for={address}"),
        std::net::IpAddr::V6(address) => write!(element, "for=\"[{address}]\""),
    };
    let _ = write!(element, ";host=\"{host}\";proto={}", client.scheme());
    element
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

/// Fields that no `Connection` option may take away from the backend.
pub(crate) fn is_end_to_end(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] =
        [b"host", b"authorization", b"cookie", b"content-length", b"content-type", b"forwarded"];
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
        || name.get(..12).is_some_and(|start| start.eq_ignore_ascii_case(b"x-forwarded-"))
}
