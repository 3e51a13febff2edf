//! WebSocket over HTTP/2 (RFC 8441): a stream that an extended CONNECT opens. It is made into the
//! request that HTTP/1 has for the same purpose, before anything looks at it, so that the edge
//! policy, routes, filters and the access log treat both alike, and backends get what they know.

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use hyper::ext::Protocol;

use crate::http::headers;

pub(crate) const PROTOCOL: HeaderValue = HeaderValue::from_static("websocket");

const ACCEPT: HeaderName = header::SEC_WEBSOCKET_ACCEPT;
const KEY: HeaderName = header::SEC_WEBSOCKET_KEY;

/// Digits of base64, and those that the last one of 16 bytes can be.
const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const LAST: &[u8] = b"AQgw";

/// Marks a request that came as an extended CONNECT: any success that answers it opens the tunnel.
#[derive(Clone, Copy)]
pub(crate) struct ExtendedConnect;

/// Makes an extended CONNECT for a WebSocket an upgrade. Every other CONNECT stays one, and is
/// refused.
pub(crate) fn into_upgrade(parts: &mut Parts) {
    let is_websocket = |protocol: &Protocol| protocol.as_str().as_bytes() == PROTOCOL.as_bytes();
    let is_asked_for = parts.method == Method::CONNECT
        && parts.version == Version::HTTP_2
        && parts.extensions.get().is_some_and(is_websocket);
    if !is_asked_for {
        return;
    }
    parts.method = Method::GET;
    headers::announce_upgrade(&mut parts.headers, &PROTOCOL);
    // "The server does not use the Sec-WebSocket-Key": ours is for the backend.
    parts.headers.insert(KEY, nonce());
    parts.extensions.insert(ExtendedConnect);
}

pub(crate) fn is_extended_connect(parts: &Parts) -> bool {
    parts.extensions.get::<ExtendedConnect>().is_some()
}

/// Makes the head by which a backend switches one that opens the client's tunnel: "a 2XX" without
/// the fields of the other handshake. `None` if the backend switches to something else.
pub(crate) fn accepted(parts: &mut http::response::Parts) -> Option<()> {
    let protocol = parts.headers.get(header::UPGRADE)?;
    protocol.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes()).then_some(())?;
    parts.status = StatusCode::OK;
    for name in [ACCEPT, header::CONTENT_LENGTH] {
        parts.headers.remove(name);
    }
    Some(())
}

/// "A nonce consisting of a randomly selected 16-byte value that has been base64-encoded" (RFC 6455
/// section 4.1).
fn nonce() -> HeaderValue {
    let digit = |digits: &[u8]| digits[fastrand::usize(..digits.len())];
    let mut key = [b'='; 24];
    key[..21].fill_with(|| digit(BASE64));
    key[21] = digit(LAST);
    HeaderValue::from_bytes(&key).unwrap_or(PROTOCOL)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(method: Method, version: Version, protocol: Option<&'static str>) -> Parts {
        let request = Request::builder().method(method).version(version).uri("https://any.test/chat");
        let mut parts = request.body(()).unwrap().into_parts().0;
        if let Some(protocol) = protocol {
            parts.extensions.insert(Protocol::from_static(protocol));
        }
        parts
    }

    #[test]
    fn only_a_websocket_over_http_2_becomes_an_upgrade() {
        for (method, version, protocol, is_upgrade) in [
            (Method::CONNECT, Version::HTTP_2, Some("websocket"), true),
            (Method::CONNECT, Version::HTTP_2, Some("WebSocket"), false),
            (Method::CONNECT, Version::HTTP_2, Some("connect-udp"), false),
            (Method::CONNECT, Version::HTTP_2, None, false),
            (Method::CONNECT, Version::HTTP_11, Some("websocket"), false),
            (Method::GET, Version::HTTP_2, Some("websocket"), false),
        ] {
            let mut parts = parts(method.clone(), version, protocol);
            into_upgrade(&mut parts);
            assert_eq!(is_extended_connect(&parts), is_upgrade, "{method} {version:?} {protocol:?}");
            assert_eq!(headers::upgrade(&parts.headers).is_some(), is_upgrade);
            assert_eq!(parts.method, if is_upgrade { Method::GET } else { method });
        }
    }

    #[test]
    fn nonces_are_sixteen_bytes_in_base64() {
        let (one, other) = (nonce(), nonce());
        assert_ne!(one, other);
        let key = one.to_str().unwrap();
        assert!(key.len() == 24 && key.ends_with("=="), "{key}");
        assert!(LAST.contains(&key.as_bytes()[21]), "the last digit has no bits to spare: {key}");
    }
}
