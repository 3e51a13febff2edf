//! Short texts of clients and of proxies in front: headers of PROXY protocol, lists of addresses,
//! and places in traces.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue};
use portcullis_model::{ProxyHeader, TrustedProxies};

use super::Refused;
use crate::client::proxy_header::{client, length};
use crate::core::head::KnownFields;
use crate::http::{headers, sender};
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

/// The client of a request that came from the peer; `None` if what is listed for it is no address.
pub fn listed_client(fields: &HeaderMap, proxies: &TrustedProxies, peer: IpAddr) -> Option<IpAddr> {
    sender::client(fields, proxies, peer)
}

/// The fields of a request from the peer, as a backend gets them: with what we say of the client,
/// and proxies in front that are believed.
pub fn forwarded(fields: &HeaderMap, proxies: &TrustedProxies, peer: IpAddr) -> HeaderMap {
    let mut fields = fields.clone();
    let address = HeaderValue::from_str(&peer.to_string());
    let address = address.unwrap_or_else(|_| HeaderValue::from_static(""));
    let host = HeaderValue::from_static("own.example");
    let client =
        headers::Forwarded { peer, address: &address, scheme: "https", host: &host, request_id: None };
    let found = KnownFields::of(&fields);
    headers::forwarded(&mut fields, found, &client, proxies);
    fields
}
