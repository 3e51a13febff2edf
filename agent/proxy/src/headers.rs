//! Header fields on their way through: hop-by-hop fields go, the client's address comes, filters do what they say.

use std::fmt::Write;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use portcullis_model::HeaderEdit;

use crate::connection::Client;
use crate::settings::Settings;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HTTP2_SETTINGS,
];

/// Removes what concerns one connection only (RFC 9110 section 7.6.1), with whatever `Connection` names, except fields
/// that a client could thereby take away from the backend's decisions.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// The protocol that a request wants to switch to; HTTP/2 is offered by ALPN and prior knowledge only.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = named_by_connection(headers).contains(&header::UPGRADE);
    headers.get(header::UPGRADE).filter(|it| wanted && !it.as_bytes().eq_ignore_ascii_case(b"h2c")).cloned()
}

/// Tells the backend who the client is.
pub(crate) fn forwarded(headers: &mut HeaderMap, client: &Client, host: &str, settings: &Settings) {
    let mut address = client.peer.ip().to_canonical().to_string();
    if settings.trusted_hops > 0
        && let Some(before) = headers.get(X_FORWARDED_FOR).and_then(|value| value.to_str().ok())
    {
        address = format!("{before}, {address}");
    } else {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(client.scheme()));
        insert(headers, X_FORWARDED_HOST, host);
    }
    if settings.forwarded {
        insert(headers, header::FORWARDED, &forwarded_element(client, host));
    }
    insert(headers, X_FORWARDED_FOR, &address);
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

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
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
    let names = values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    names.filter(|name| !is_protected(name)).collect()
}

fn is_protected(name: &HeaderName) -> bool {
    *name == header::HOST
        || *name == header::AUTHORIZATION
        || *name == header::COOKIE
        || *name == header::CONTENT_LENGTH
        || name.as_str().starts_with("x-forwarded-")
        || *name == header::FORWARDED
}
