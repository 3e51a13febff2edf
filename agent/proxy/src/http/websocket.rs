//! WebSocket over HTTP/2 (RFC 8441): a stream that an extended CONNECT opens. It is made into the
//! request that HTTP/1 has for the same purpose, before anything looks at it, so that the edge
//! policy, routes, filters and the access log treat both alike, and backends get what they know.

use std::sync::{Arc, Mutex, PoisonError};

use h2::ext::Protocol;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use tokio::sync::oneshot;

use crate::core::head::content_length;
use crate::http::client_stream::OpenStream;
use crate::http::headers;

pub(crate) const PROTOCOL: HeaderValue = HeaderValue::from_static("websocket");

const ACCEPT: HeaderName = header::SEC_WEBSOCKET_ACCEPT;
const KEY: HeaderName = header::SEC_WEBSOCKET_KEY;

/// Digits of base64, and those that the last one of 16 bytes can be.
const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const LAST: &[u8] = b"AQgw";

/// Marks a request that came as an extended CONNECT: any success that answers it opens the tunnel.
#[derive(Clone)]
pub(crate) struct ExtendedConnect(Arc<Mutex<Option<oneshot::Receiver<OpenStream>>>>);

/// The client's end of a tunnel that may open.
pub(crate) struct Opening(oneshot::Sender<OpenStream>);

/// Makes an extended CONNECT for a WebSocket an upgrade. Every other CONNECT stays one, and is
/// refused, and so is one that announces a body.
pub(crate) fn into_upgrade(parts: &mut Parts) -> Option<Opening> {
    let is_websocket = |protocol: &Protocol| protocol.as_str().as_bytes() == PROTOCOL.as_bytes();
    // Bytes of the tunnel would pass for the body that is announced.
    let has_body =
        parts.headers.contains_key(header::CONTENT_LENGTH) && content_length(&parts.headers) != Some(0);
    let is_asked_for = parts.method == Method::CONNECT
        && parts.version == Version::HTTP_2
        && !has_body
        && parts.extensions.get().is_some_and(is_websocket);
    if !is_asked_for {
        return None;
    }
    parts.method = Method::GET;
    headers::announce_upgrade(&mut parts.headers, &PROTOCOL);
    // "The server does not use the Sec-WebSocket-Key": ours is for the backend.
    parts.headers.insert(KEY, nonce());
    let (opening, stream) = oneshot::channel();
    parts.extensions.insert(ExtendedConnect(Arc::new(Mutex::new(Some(stream)))));
    Some(Opening(opening))
}

pub(crate) fn is_extended_connect(parts: &Parts) -> bool {
    parts.extensions.get::<ExtendedConnect>().is_some()
}

/// The client's stream, once the tunnel is open. It can be had once.
pub(crate) fn client_stream(parts: &mut Parts) -> Option<oneshot::Receiver<OpenStream>> {
    let ExtendedConnect(stream) = parts.extensions.get()?;
    stream.lock().unwrap_or_else(PoisonError::into_inner).take()
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

// === impl Opening ===

impl Opening {
    /// Hands over the client's stream: it has its answer.
    pub(crate) fn open(self, stream: OpenStream) {
        // If the tunnel is gone, the stream is reset.
        let _ = self.0.send(stream);
    }
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
            assert_eq!(into_upgrade(&mut parts).is_some(), is_upgrade);
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
