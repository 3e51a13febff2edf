//! Short texts of clients: headers of PROXY protocol, and places in traces.

use std::net::SocketAddr;

use http::{HeaderMap, HeaderValue};
use portcullis_model::ProxyHeader;

use super::Refused;
use crate::client::proxy_header::{client, length};
use crate::trace::context::{TRACEPARENT, TraceContext};
use crate::upstream::proxy_header::Ends;

/// The length of a header of PROXY protocol and its client, if it names one; `Ok(None)` if there is
/// more to come.
pub fn proxy_client(bytes: &[u8]) -> Result<Option<(usize, Option<SocketAddr>)>, Refused> {
    let Some(length) = length(bytes).map_err(|_| Refused)? else { return Ok(None) };
    let Some(header) = bytes.get(..length) else { return Ok(None) };
    client(header).map(|client| Some((length, client))).map_err(|_| Refused)
}

/// The headers, of both versions, that name this client to a backend.
pub fn proxy_headers(client: SocketAddr, local: SocketAddr) -> Vec<Vec<u8>> {
    let ends = Ends { client, local };
    [ProxyHeader::V1, ProxyHeader::V2].into_iter().filter_map(|version| ends.header(version).ok()).collect()
}

/// The `traceparent` that a backend gets for this one.
pub fn trace_context(value: &HeaderValue) -> Option<HeaderValue> {
    let fields = HeaderMap::from_iter([(TRACEPARENT, value.clone())]);
    TraceContext::given(&fields).map(TraceContext::to_value)
}
