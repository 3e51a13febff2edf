//! WebSocket to backends of HTTP/2 (RFC 8441): the handshake of HTTP/1 made into an extended
//! CONNECT, and the success that answers it into the switch of protocols that HTTP/1 has for the
//! same purpose. So nothing above has to know which of them the backend speaks.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use h2::ext::Protocol;
use http::header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, response};

const WEBSOCKET: &str = "websocket";
/// "The string "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"" (RFC 6455 section 4.2.2).
const SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The key of a client's handshake, which the backend does not get.
#[derive(Clone)]
pub(super) struct Handshake(HeaderValue);

// === impl Handshake ===

impl Handshake {
    /// Makes a handshake an extended CONNECT. A request for another protocol, or that is no
    /// handshake, stays what it is without. Only here is the key seen, and so judged.
    pub(super) fn begin(parts: &mut Parts, protocol: &HeaderValue) {
        if parts.method != Method::GET || !protocol.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()) {
            return;
        }
        // "Implementations using this extended CONNECT to bootstrap WebSockets do not do the
        // processing of the Sec-WebSocket-Key and Sec-WebSocket-Accept header fields."
        let mut keys = parts.headers.get_all(SEC_WEBSOCKET_KEY).iter();
        if keys.next().is_none_or(|key| !is_nonce(key.as_bytes())) || keys.next().is_some() {
            return;
        }
        let Some(key) = parts.headers.remove(SEC_WEBSOCKET_KEY) else { return };
        // Of the GET: the tunnel's bytes are the content of a CONNECT over HTTP/2, and backends
        // take more than was announced for a fault of the connection that all share.
        parts.headers.remove(CONTENT_LENGTH);
        parts.method = Method::CONNECT;
        parts.extensions.insert(Protocol::from_static(WEBSOCKET));
        parts.extensions.insert(Self(key));
    }

    /// `None` for a request that asks for no tunnel.
    pub(super) fn of(parts: &Parts) -> Option<Self> {
        // Others need no look at their extensions.
        if parts.method == Method::CONNECT { parts.extensions.get().cloned() } else { None }
    }

    /// Makes the head that opens the tunnel the one by which a backend of HTTP/1 switches.
    pub(super) fn complete(&self, parts: &mut response::Parts) {
        parts.status = StatusCode::SWITCHING_PROTOCOLS;
        parts.headers.remove(CONTENT_LENGTH);
        parts.headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
        if let Ok(accept) = HeaderValue::from_str(&self.accept()) {
            parts.headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        }
    }

    fn accept(&self) -> String {
        STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[self.0.as_bytes(), SUFFIX].concat()))
    }
}

/// "A base64-encoded value that, when decoded, is 16 bytes in length" (RFC 6455 section 4.2.1). The
/// RFC's own example has bits to spare that are not zero.
fn is_nonce(key: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    key.len() == 24 && key.strip_suffix(b"==").is_some_and(|digits| digits.iter().all(is_digit))
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};

    use super::*;

    #[test]
    fn handshakes_become_extended_connects() {
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        for (method, protocol, keys, is_handshake) in [
            (Method::GET, "websocket", &[KEY][..], true),
            (Method::GET, "WebSocket", &["AQIDBAUGBwgJCgsMDQ4PEC=="], true),
            (Method::GET, "websocket", &[], false),
            (Method::GET, "websocket", &[""], false),
            (Method::GET, "websocket", &["dGhlIHNhbXBsZSBub25jZQ"], false),
            (Method::GET, "websocket", &["dGhlIHNhbXBsZSBub25jZQ=a"], false),
            (Method::GET, "websocket", &["dGhlIHNhbXBsZSBub25j*Q=="], false),
            (Method::GET, "websocket", &[KEY, KEY], false),
            (Method::GET, "websocket, other", &[KEY], false),
            (Method::GET, "other", &[KEY], false),
            (Method::POST, "websocket", &[KEY], false),
        ] {
            let mut request = Request::builder().method(method.clone()).header(CONTENT_LENGTH, "0");
            for key in keys {
                request = request.header(SEC_WEBSOCKET_KEY, *key);
            }
            let mut parts = request.body(()).unwrap().into_parts().0;
            Handshake::begin(&mut parts, &HeaderValue::from_static(protocol));
            assert_eq!(Handshake::of(&parts).is_some(), is_handshake, "{method} {protocol} {keys:?}");
            assert_eq!(parts.method == Method::CONNECT, is_handshake);
            let left = parts.headers.get_all(SEC_WEBSOCKET_KEY).iter().count();
            assert_eq!(left, if is_handshake { 0 } else { keys.len() });
            assert_eq!(parts.headers.contains_key(CONTENT_LENGTH), !is_handshake);
        }
    }

    /// The example of RFC 6455 section 1.3.
    #[test]
    fn clients_see_that_the_handshake_was_theirs() {
        let handshake = Handshake(HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        let mut parts = Response::new(()).into_parts().0;
        handshake.complete(&mut parts);
        assert_eq!(parts.headers[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!((parts.status.as_u16(), &parts.headers[UPGRADE]), (101, &"websocket".parse().unwrap()));
    }
}
