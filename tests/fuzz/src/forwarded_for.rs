//! Addresses that proxies in front list: the client is the one that the first of those lists that
//! are believed, and a backend, or the next gateway, reads of what we pass on that it is.
//!
//! The first line is the proxies, as their number or as ranges with commas; the second the peer;
//! and each further one a field.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use portcullis_model::TrustedProxies;
use portcullis_proxy::fuzzing::{forwarded, listed_client};

use crate::fields;

const LISTED: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Proxies with known addresses that are followed.
const MOST: usize = 16;

pub(crate) fn run(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let Some(proxies) = lines.next().and_then(proxies) else { return };
    let peer = lines.next().and_then(|line| std::str::from_utf8(line).ok()?.parse::<IpAddr>().ok());
    let Some(peer) = peer else { return };
    let fields = fields::collect(lines.filter_map(field));
    let listed = elements(&fields);
    let sent = forwarded(&fields, &proxies, peer);
    let chain = elements(&sent);
    let client = listed_client(&fields, &proxies, peer);

    // A backend gets the end of what was listed, and the peer behind it, in one field.
    let Some((last, believed)) = chain.split_last() else { unreachable!("the peer is not told") };
    assert_eq!(*last, peer.to_string().as_bytes());
    assert!(listed.ends_with(believed), "{} of {}", shown(&chain), shown(&listed));
    let alike = sent.keys().filter(|name| name.as_str().replace('_', "-") == LISTED.as_str());
    assert_eq!(alike.count(), 1, "{sent:?}");
    assert_eq!(sent.get_all(LISTED).iter().count(), 1, "{sent:?}");

    // No more is believed than may be, and all that may.
    let most = match proxies {
        TrustedProxies::Hops(hops) => hops,
        TrustedProxies::Ranges(_) => MOST,
    };
    assert!(believed.len() <= most, "{} of {most}", believed.len());
    let by = |distance: usize| match distance.checked_sub(1) {
        None => Some(peer.to_canonical()),
        Some(before) => believed.iter().rev().nth(before).and_then(|listed| address(listed)),
    };
    for distance in 0..believed.len() {
        assert!(proxies.believe(distance, by(distance)), "the proxy {distance} of {}", shown(&chain));
    }
    let goes_on =
        believed.len() < most.min(listed.len()) && proxies.believe(believed.len(), by(believed.len()));
    assert!(!goes_on, "{} of {}", shown(&chain), shown(&listed));

    // Who it is follows from that alone, here and at the next one that trusts one hop more.
    let first = believed.first().map_or(Some(peer), |first| address(first));
    assert_eq!(client, first, "of {}", shown(&chain));
    let next = TrustedProxies::Hops(chain.len());
    let there = listed_client(&sent, &next, IpAddr::from([192, 0, 2, 1]));
    assert_eq!(there, client.map(|client| client.to_canonical()), "at the next hop, of {}", shown(&chain));
    if believed.len() < listed.len() {
        let mut forged = HeaderMap::new();
        forged.append(LISTED, HeaderValue::from_static("203.0.113.6"));
        for value in fields.get_all(LISTED) {
            forged.append(LISTED, value.clone());
        }
        assert_eq!(listed_client(&forged, &proxies, peer), client, "with one more in front");
    }
}

fn proxies(line: &[u8]) -> Option<TrustedProxies> {
    let line = std::str::from_utf8(line).ok()?;
    match line.parse() {
        Ok(hops) => Some(TrustedProxies::Hops(hops)),
        Err(_) => {
            let ranges = line.split(',').map(|range| range.parse().ok());
            ranges.collect::<Option<Box<[_]>>>().map(TrustedProxies::Ranges)
        }
    }
}

/// A value of the field, or another field where a line begins with `@`.
fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let named = line.strip_prefix(b"@").and_then(fields::field);
    named.or_else(|| Some((LISTED, HeaderValue::from_bytes(line.trim_ascii()).ok()?)))
}

fn elements(fields: &HeaderMap) -> Vec<&[u8]> {
    let values = fields.get_all(LISTED).iter().map(HeaderValue::as_bytes);
    let elements = values.flat_map(|value| value.split(|byte| *byte == b','));
    elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty()).collect()
}

/// An address alone, in brackets, or with a port.
fn address(element: &[u8]) -> Option<IpAddr> {
    let element = std::str::from_utf8(element).ok()?;
    let inner = element.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match (inner, element.rsplit_once(':')) {
        (Some(inner), _) => inner.parse().ok()?,
        (None, Some((host, _))) if host.ends_with(']') || !host.contains(':') => {
            element.parse::<SocketAddr>().ok()?.ip()
        }
        (None, _) => element.parse().ok()?,
    };
    Some(IpAddr::to_canonical(&address))
}

fn shown(elements: &[&[u8]]) -> String {
    elements.join(&b", "[..]).escape_ascii().to_string()
}
