//! Header fields on their way through: hop-by-hop fields go, the client's address comes, filters
//! apply. Nothing here depends on the parser that the fields come from.

use std::net::IpAddr;

use http::Version;
use http::header::{self, HeaderName, HeaderValue};
use portcullis_model::{HeaderEdit, TrustedProxies};

use crate::core::head::{FieldName, Fields, FieldsMut, KnownField, KnownFields};
use crate::core::origin::is_alike;
use crate::http::request_id::{self, X_REQUEST_ID};
use crate::http::sender::{self, X_FORWARDED_FOR};

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

const HOP_BY_HOP: KnownFields = KnownFields::all_of(&[
    KnownField::Connection,
    KnownField::TransferEncoding,
    KnownField::Te,
    KnownField::Upgrade,
    KnownField::Expect,
    KnownField::KeepAlive,
    KnownField::ProxyConnection,
    KnownField::Http2Settings,
]);
/// Statements of clients about themselves, unless it is proxies that are believed.
const CLAIMS: KnownFields = KnownFields::all_of(&[KnownField::Claim]).with(NEVER_PASSED);
/// `Forwarded` (RFC 7239) passes proxies that do not know it, and so do fields about clients'
/// certificates: backends may only believe them if they have them from us.
const NEVER_PASSED: KnownFields =
    KnownFields::all_of(&[KnownField::DisguisedClaim, KnownField::Forwarded, KnownField::ClientIdentity]);

/// The sender of a request, and the way it came.
pub(crate) struct Forwarded<'r> {
    /// The address that the client connected from, also as fields show it.
    pub peer: IpAddr,
    pub address: &'r HeaderValue,
    pub scheme: &'static str,
    /// The host that the client asked for, with port.
    pub host: &'r HeaderValue,
    /// The id that the request has in the access log. `None`: it has none yet.
    pub request_id: Option<&'r HeaderValue>,
}

/// The agent in `Via`, with "the protocol version … of the received message" (RFC 9110 section
/// 7.6.3).
pub(crate) struct Via {
    http10: HeaderValue,
    http11: HeaderValue,
    http2: HeaderValue,
}

// === impl Via ===

impl Via {
    /// `None` if the name cannot be in a field.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let element = |version| HeaderValue::from_str(&format!("{version} {name}")).ok();
        Some(Self { http10: element("1.0")?, http11: element("1.1")?, http2: element("2")? })
    }

    pub(crate) fn received_by(&self, version: Version) -> &HeaderValue {
        match version {
            Version::HTTP_2 => &self.http2,
            Version::HTTP_10 => &self.http10,
            _ => &self.http11,
        }
    }
}

/// Removes what concerns one connection only (RFC 9110 section 7.6.1), with whatever `Connection`
/// names. Most messages have nothing of it. `found` is what there is of known fields.
pub(crate) fn remove_hop_by_hop(fields: &mut impl FieldsMut, found: KnownFields) {
    if found.has(KnownField::Connection) {
        for name in named_by_connection(fields) {
            fields.remove(&name);
        }
    }
    // Transfer-Encoding overrides Content-Length, which "MUST" go "prior to forwarding" (RFC 9112
    // section 6.3). Requests that have both do not come this far.
    if found.has(KnownField::TransferEncoding) {
        fields.remove(&header::CONTENT_LENGTH);
    }
    remove_all(fields, found, HOP_BY_HOP);
}

fn remove_all(fields: &mut impl FieldsMut, found: KnownFields, removed: KnownFields) {
    if found.has_any(removed) {
        fields.remove_if(|name| name.known().is_some_and(|known| removed.has(known)));
    }
}

/// The names of fields that a filter removes or determines.
pub(crate) fn edited(edit: &HeaderEdit) -> impl Iterator<Item = HeaderName> {
    let written = edit.set.iter().chain(&edit.add).map(|(name, _)| name);
    edit.remove.iter().chain(written).map(copy_name)
}

/// Of requests, `TE: trailers` passes (gRPC insists on it), and expectations are met by us. `found`
/// is what there is of known fields.
pub(crate) fn request_hop_by_hop(fields: &mut impl FieldsMut, found: KnownFields) {
    let te = if found.has(KnownField::Te) { fields.get(&header::TE) } else { None };
    let trailers = te.is_some_and(|te| {
        te.split(|byte| *byte == b',').any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    });
    remove_hop_by_hop(fields, found);
    if trailers {
        fields.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// The protocols that a request wants to switch to; none if one of them brings requests, which no
/// route and no policy would see in a tunnel. HTTP/2 is offered by ALPN and prior knowledge only.
pub(crate) fn upgrade(fields: &impl Fields) -> Option<HeaderValue> {
    let protocols = fields.get(&header::UPGRADE)?;
    let wanted = !protocols.split(|byte| *byte == b',').any(brings_requests)
        && named_by_connection(fields).contains(&header::UPGRADE);
    if wanted { fields.copy(&header::UPGRADE) } else { None }
}

/// HTTP by any of its names and versions (RFC 7540 section 3.1, RFC 9110 section 16.7), or in TLS
/// (RFC 2817).
fn brings_requests(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default().trim_ascii();
    ["h2c", "h2", "http", "tls"].iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
}

/// Asks for a switch to the protocol, or agrees to it.
pub(crate) fn announce_upgrade(fields: &mut impl FieldsMut, protocol: &HeaderValue) {
    fields.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(header::UPGRADE, protocol.clone());
}

/// The names that `Connection` lists.
pub(crate) fn named_by_connection(fields: &impl Fields) -> Vec<HeaderName> {
    let values = fields.get_all(&header::CONNECTION).filter(|value| value.is_ascii());
    let names = values.flat_map(|value| value.split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

/// Identifies the client and the request to the backend. Unless proxies in front are trusted, what
/// the client claims about itself is dropped. `found` is what there is of known fields.
pub(crate) fn forwarded(
    fields: &mut impl FieldsMut,
    found: KnownFields,
    client: &Forwarded<'_>,
    proxies: &TrustedProxies,
) {
    let chain = sender::chain(fields, proxies, (client.peer, client.address));
    let given = if chain.is_some() { request_id::given(fields) } else { None };
    disbelieve(fields, found, chain.as_ref());
    if given.is_none() {
        let id = client.request_id.map_or_else(request_id::make, HeaderValue::clone);
        fields.insert(X_REQUEST_ID, id);
    }
    if chain.is_none() || fields.get(&X_FORWARDED_PROTO).is_none() {
        fields.insert(X_FORWARDED_PROTO, HeaderValue::from_static(client.scheme));
    }
    if chain.is_none() || fields.get(&X_FORWARDED_HOST).is_none() {
        fields.insert(X_FORWARDED_HOST, client.host.clone());
    }
    fields.insert(X_FORWARDED_FOR, chain.unwrap_or_else(|| client.address.clone()));
}

/// The fields that [`forwarded`] gives every request, whatever it had.
pub(crate) fn given_to_all() -> [HeaderName; 4] {
    [X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST, X_REQUEST_ID]
}

/// True if rules see such a field of a client that is believed: those that backends get as they
/// came.
pub fn is_seen(name: &HeaderName) -> bool {
    KnownField::of(name.as_str().as_bytes()).is_none_or(|known| !NEVER_PASSED.has(known))
}

/// True for what is said of a client, which rules see only if it is believed.
pub fn is_claim(name: &HeaderName) -> bool {
    KnownField::of(name.as_str().as_bytes()) == Some(KnownField::Claim)
}

/// Drops what the client claims about itself. With a `chain` of addresses it is trusted proxies
/// that do. Returns what is left of known fields.
pub(crate) fn disbelieve(
    fields: &mut impl FieldsMut,
    found: KnownFields,
    chain: Option<&HeaderValue>,
) -> KnownFields {
    let dropped = if chain.is_none() { CLAIMS } else { NEVER_PASSED };
    remove_all(fields, found, dropped);
    found.without(dropped)
}

/// Applies a header filter of a request. What it removes or sets goes in all spellings that read
/// the same (see [`is_alike`]): a client could have its own field taken for the filter's. Known
/// fields stay, framing among them: a client's own spellings of these are gone already.
pub(crate) fn edit_request(fields: &mut impl FieldsMut, change: &HeaderEdit) {
    let names = || change.remove.iter().chain(change.set.iter().map(|(name, _)| name));
    if names().next().is_some() {
        let is_other = |there: &[u8], name: &str| is_alike(there, name) && there != name.as_bytes();
        fields.remove_if(|there| {
            names().any(|name| is_other(there.as_bytes(), name.as_str())) && there.known().is_none()
        });
    }
    edit(fields, change);
}

/// Applies a header filter, to fields of these very names.
pub(crate) fn edit(fields: &mut impl FieldsMut, edit: &HeaderEdit) {
    for name in &edit.remove {
        fields.remove(name);
    }
    for (name, value) in &edit.set {
        fields.insert(copy_name(name), copy_value(value));
    }
    for (name, value) in &edit.add {
        fields.append(copy_name(name), copy_value(value));
    }
}

/// A copy of a name of the configuration. A clone would count references in memory that all cores
/// share.
pub(crate) fn copy_name(name: &HeaderName) -> HeaderName {
    HeaderName::from_lowercase(name.as_str().as_bytes()).unwrap_or_else(|_| name.clone())
}

/// A copy of a value of the configuration, for the same reason.
pub(crate) fn copy_value(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    #[test]
    fn what_concerns_one_connection_stays_there() {
        let sent = [
            ("connection", "close, X-Hop, te"),
            ("x-hop", "1"),
            ("te", "gzip, Trailers"),
            ("keep-alive", "timeout=1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("upgrade", "websocket"),
            ("x-kept", "2"),
        ];
        let mut fields = PlainFields::of(&sent);
        assert_eq!(upgrade(&fields), None);
        let found = KnownFields::of(&fields);
        request_hop_by_hop(&mut fields, found);
        assert_eq!(fields, PlainFields::of(&[("x-kept", "2"), ("te", "trailers")]));
    }

    #[test]
    fn an_upgrade_is_named_by_connection() {
        for (connection, protocol, expected) in [
            ("Upgrade", "websocket", Some("websocket")),
            ("keep-alive, upgrade", "websocket", Some("websocket")),
            ("keep-alive", "websocket", None),
            ("upgrade", "smuggling, websocket", Some("smuggling, websocket")),
            ("upgrade", "H2C", None),
            ("upgrade", "websocket, h2c", None),
            ("upgrade", "h2c , websocket", None),
            ("upgrade", "HTTP/2.0", None),
            ("upgrade", "TLS/1.2, HTTP/1.1", None),
        ] {
            let fields = PlainFields::of(&[("connection", connection), ("upgrade", protocol)]);
            assert_eq!(upgrade(&fields), expected.map(HeaderValue::from_static));
        }
    }

    #[test]
    fn no_spelling_takes_the_place_of_what_a_filter_sets() {
        let sent = [
            ("x_who", "evil"),
            ("x-who", "evil"),
            ("x_gone", "evil"),
            ("x-whom", "kept"),
            ("x-gone", "evil"),
            ("x_added", "kept"),
            ("content-length", "3"),
        ];
        let field = |name, value| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let change = HeaderEdit {
            set: vec![field("x-who", "gateway"), field("x_own", "both"), field("x-own", "stay")],
            add: vec![field("x-added", "too")],
            remove: ["x-gone", "content_length"].map(HeaderName::from_static).to_vec(),
        };
        let mut fields = PlainFields::of(&sent);
        edit_request(&mut fields, &change);
        let values = |name: &'static str| {
            let name = HeaderName::from_static(name);
            fields.get_all(&name).map(|value| String::from_utf8_lossy(value).into_owned()).collect::<Vec<_>>()
        };
        for (name, expected) in [
            ("x-who", &["gateway"][..]),
            ("x_who", &[]),
            ("x-gone", &[]),
            ("x_gone", &[]),
            ("x-whom", &["kept"]),
            ("x_added", &["kept"]),
            ("x-added", &["too"]),
            ("content-length", &["3"]),
            ("x_own", &["both"]),
            ("x-own", &["stay"]),
        ] {
            assert_eq!(values(name), expected, "{name}");
        }
    }

    #[test]
    fn only_trusted_proxies_say_who_the_client_is() {
        let sent = [
            ("x-forwarded-for", "9.9.9.9, 1.1.1.1"),
            ("x_forwarded_for", "8.8.8.8"),
            ("forwarded", "for=8.8.8.8"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-port", "1"),
            ("x-real-ip", "9.9.9.9"),
            ("x_real_ip", "8.8.8.8"),
            ("x-request-id", "given"),
            ("client-cert", ":AAAA:"),
            ("x-forwarded-client_cert", "Subject=\"CN=root\""),
            ("ssl_client_verify", "SUCCESS"),
        ];
        let (address, host) = (HeaderValue::from_static("2.2.2.2"), HeaderValue::from_static("a.com"));
        let id = HeaderValue::from_static("made");
        let peer = "2.2.2.2".parse().unwrap();
        let client =
            Forwarded { peer, address: &address, scheme: "http", host: &host, request_id: Some(&id) };
        let mut fields = PlainFields::of(&sent);
        let found = KnownFields::of(&fields);
        forwarded(&mut fields, found, &client, &TrustedProxies::Hops(0));
        let own = [
            ("x-request-id", "made"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "a.com"),
            ("x-forwarded-for", "2.2.2.2"),
        ];
        assert_eq!(fields, PlainFields::of(&own));
        let mut fields = PlainFields::of(&sent);
        forwarded(&mut fields, found, &client, &TrustedProxies::Hops(1));
        let kept = [
            ("x-forwarded-proto", "https"),
            ("x-forwarded-port", "1"),
            ("x-real-ip", "9.9.9.9"),
            ("x-request-id", "given"),
            ("x-forwarded-host", "a.com"),
            ("x-forwarded-for", "1.1.1.1, 2.2.2.2"),
        ];
        assert_eq!(fields, PlainFields::of(&kept));
    }
}
