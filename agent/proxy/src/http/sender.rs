//! The client that a request comes from: the peer of its connection, or the one that proxies in
//! front list in `X-Forwarded-For`, as far as those are believed. Any client can write what
//! precedes the address that the first of them has added. Nothing here depends on the parser that
//! the fields come from.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::{HeaderName, HeaderValue};
use portcullis_model::{Believer, ListedClients, TrustedProxies};

use crate::core::head::{Fields, joined};

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Proxies with known addresses that a request may have passed. A client whose own address is among
/// theirs can list as many as it likes, and each costs a look at all ranges.
const MOST_PROXIES: usize = 16;

/// The proxies that owners believe about a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Believed<'r> {
    of_gateway: &'r TrustedProxies,
    pub of_listener: &'r TrustedProxies,
}

/// The client that a request comes from, as each owner sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender<'r> {
    /// `None` if it cannot be told.
    Known { to_gateway: Option<IpAddr>, to_listener: Option<IpAddr> },
    /// Its proxies list it.
    Listed { peer: IpAddr, believed: Believed<'r> },
}

// === impl Believed ===

impl<'r> Believed<'r> {
    /// `started` are the proxies that the agent is started with.
    pub(crate) fn of(listed: Option<&'r ListedClients>, started: &'r TrustedProxies) -> Self {
        let Some(listed) = listed else { return Self { of_gateway: started, of_listener: started } };
        let by = |believer| listed.proxies(believer).unwrap_or(started);
        Self { of_gateway: by(Believer::Gateway), of_listener: by(Believer::Listener) }
    }

    pub(crate) fn by(self, believer: Believer) -> &'r TrustedProxies {
        match believer {
            Believer::Gateway => self.of_gateway,
            Believer::Listener => self.of_listener,
        }
    }
}

// === impl Sender ===

impl Sender<'_> {
    /// The same, independent of what becomes of the request's fields.
    pub(crate) fn resolved(self, fields: &impl Fields) -> Sender<'static> {
        let [to_gateway, to_listener] =
            [Believer::Gateway, Believer::Listener].map(|believer| self.address(believer, fields));
        Sender::Known { to_gateway, to_listener }
    }

    /// `None` if what is listed is no address.
    pub(crate) fn address(self, believer: Believer, fields: &impl Fields) -> Option<IpAddr> {
        match (self, believer) {
            (Self::Known { to_gateway, .. }, Believer::Gateway) => to_gateway,
            (Self::Known { to_listener, .. }, Believer::Listener) => to_listener,
            (Self::Listed { peer, believed }, believer) => client(fields, believed.by(believer), peer),
        }
    }
}

/// The client of a request that came from a peer; `None` if what is listed is no address.
pub(crate) fn client(fields: &impl Fields, proxies: &TrustedProxies, peer: IpAddr) -> Option<IpAddr> {
    if proxies.are_none() {
        return Some(peer);
    }
    match listed(&addresses(fields), proxies, peer).last() {
        Some(listed) => address(listed),
        // It came past them.
        None => Some(peer),
    }
}

/// The addresses that a request came from: as proxies list them that are believed, each the one
/// before it, then the one that connected to us, which is written as `address`. `None` if none is
/// listed by those: then the request came past them.
pub(crate) fn chain(
    fields: &impl Fields,
    proxies: &TrustedProxies,
    (peer, address): (IpAddr, &HeaderValue),
) -> Option<HeaderValue> {
    if proxies.are_none() {
        return None;
    }
    let addresses = addresses(fields);
    let mut chain: Vec<_> = listed(&addresses, proxies, peer).collect();
    if chain.is_empty() {
        return None;
    }
    chain.reverse();
    chain.push(address.as_bytes());
    HeaderValue::from_bytes(&chain.join(&b", "[..])).ok()
}

/// The address at the beginning of a chain; `None` if it is none.
pub(crate) fn first(chain: &HeaderValue) -> Option<IpAddr> {
    chain.as_bytes().split(|byte| *byte == b',').next().and_then(|first| address(first.trim_ascii()))
}

fn addresses(fields: &impl Fields) -> Cow<'_, [u8]> {
    joined(fields, &X_FORWARDED_FOR).unwrap_or_default()
}

/// The addresses that believed proxies list, that of the nearest proxy first, the client's last.
fn listed<'f>(addresses: &'f [u8], proxies: &TrustedProxies, peer: IpAddr) -> impl Iterator<Item = &'f [u8]> {
    let listed = addresses.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|it| !it.is_empty());
    let most = match proxies {
        TrustedProxies::Hops(hops) => *hops,
        TrustedProxies::Ranges(_) => MOST_PROXIES,
    };
    let mut by = Some(peer.to_canonical());
    listed.take(most).enumerate().map_while(move |(distance, listed)| {
        let is_believed = proxies.believe(distance, by);
        by = address(listed);
        is_believed.then_some(listed)
    })
}

/// Some proxies list the port, too.
fn address(listed: &[u8]) -> Option<IpAddr> {
    let listed = std::str::from_utf8(listed).ok()?;
    let bare = listed.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(listed);
    let with_port = || listed.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use portcullis_model::{GatewayView, View};

    use super::*;
    use crate::core::head::plain::PlainFields;

    fn ranges(texts: &[&str]) -> TrustedProxies {
        TrustedProxies::Ranges(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn the_client_is_the_one_that_the_first_trusted_proxy_lists() {
        let peer = "192.0.2.9".parse().unwrap();
        for (listed, hops, expected) in [
            ("10.0.0.1, 10.0.0.2", 0, Some("192.0.2.9")),
            ("10.0.0.1, 10.0.0.2", 1, Some("10.0.0.2")),
            ("10.0.0.1, 10.0.0.2", 2, Some("10.0.0.1")),
            ("10.0.0.2", 2, Some("10.0.0.2")),
            ("10.0.0.1:80", 1, Some("10.0.0.1")),
            ("::ffff:10.0.0.1", 1, Some("10.0.0.1")),
            ("[fd00::1]:80", 1, Some("fd00::1")),
            ("[fd00::1]", 1, Some("fd00::1")),
            ("10.0.0.1, unknown", 1, None),
            ("10.0.0.1, \u{e9}", 1, None),
            ("", 1, Some("192.0.2.9")),
            (" , ,", 1, Some("192.0.2.9")),
        ] {
            let fields = PlainFields::of(&[("x-forwarded-for", listed)]);
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(client(&fields, &TrustedProxies::Hops(hops), peer), expected, "{listed} {hops}");
        }
    }

    #[test]
    fn the_client_is_the_last_one_that_is_no_proxy() {
        let proxies = ranges(&["10.0.0.0/8", "fd00::/8", "192.0.2.7"]);
        for (peer, listed, expected, sent) in [
            ("10.0.0.1", "1.1.1.1, 198.51.100.1", Some("198.51.100.1"), Some("198.51.100.1, PEER")),
            ("::ffff:10.0.0.1", "198.51.100.1", Some("198.51.100.1"), Some("198.51.100.1, PEER")),
            (
                "10.0.0.1",
                "1.1.1.1, 198.51.100.1, fd00::1, 192.0.2.7:4711",
                Some("198.51.100.1"),
                Some("198.51.100.1, fd00::1, 192.0.2.7:4711, PEER"),
            ),
            // Nothing is believed of others, and nothing that others list.
            ("198.51.100.1", "10.0.0.1", Some("198.51.100.1"), None),
            ("198.51.100.1", "1.1.1.1, 10.0.0.1", Some("198.51.100.1"), None),
            ("10.0.0.1", "", Some("10.0.0.1"), None),
            // A proxy that asks for itself by way of another one.
            ("10.0.0.1", "10.0.0.2", Some("10.0.0.2"), Some("10.0.0.2, PEER")),
            ("10.0.0.1", "1.1.1.1, unknown, 10.0.0.2", None, Some("unknown, 10.0.0.2, PEER")),
        ] {
            let fields = PlainFields::of(&[("x-forwarded-for", listed)]);
            let peer = peer.parse().unwrap();
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(client(&fields, &proxies, peer), expected, "{peer} {listed}");
            let chain = chain(&fields, &proxies, (peer, &HeaderValue::from_static("PEER")));
            assert_eq!(chain, sent.map(HeaderValue::from_static), "{peer} {listed}");
        }
    }

    #[test]
    fn no_more_proxies_are_followed_than_a_request_passes() {
        let listed = ["10.0.0.1"; 4000].join(",");
        let fields = PlainFields::of(&[("x-forwarded-for", &listed)]);
        let (peer, address) = ("10.0.0.9".parse().unwrap(), HeaderValue::from_static("10.0.0.9"));
        let chain = chain(&fields, &ranges(&["10.0.0.0/8"]), (peer, &address)).unwrap();
        assert_eq!(chain.to_str().unwrap().matches("10.0.0.1").count(), MOST_PROXIES);
    }

    #[test]
    fn the_gateway_is_told_the_client_by_the_proxies_that_its_own_policies_believe() {
        let started = TrustedProxies::Hops(0);
        let fields = PlainFields::of(&[("x-forwarded-for", "1.1.1.1, 198.51.100.1")]);
        let peer = "10.0.0.1".parse().unwrap();
        let view = |proxies| View { proxies, clients: None };
        for (of_gateway, to_gateway) in [
            (GatewayView::AsStarted, "10.0.0.1"),
            (GatewayView::Shared, "1.1.1.1"),
            (GatewayView::Own(view(ranges(&["10.0.0.0/8"]))), "198.51.100.1"),
        ] {
            let listed = ListedClients { of_listener: view(TrustedProxies::Hops(2)), of_gateway };
            let sender = Sender::Listed { peer, believed: Believed::of(Some(&listed), &started) };
            for sender in [sender, sender.resolved(&fields)] {
                let addresses = [Believer::Gateway, Believer::Listener]
                    .map(|believer| sender.address(believer, &fields).unwrap().to_string());
                assert_eq!(addresses, [to_gateway, "1.1.1.1"]);
            }
        }
    }

    #[test]
    fn a_chain_begins_with_the_client() {
        for (chain, expected) in [
            ("192.0.2.1, 10.0.0.1", Some("192.0.2.1")),
            ("192.0.2.1:4711, 10.0.0.1", Some("192.0.2.1")),
            ("[2001:db8::1]:4711, 10.0.0.1", Some("2001:db8::1")),
            ("2001:db8::1, 10.0.0.1", Some("2001:db8::1")),
            ("unknown, 10.0.0.1", None),
        ] {
            let address = first(&HeaderValue::from_static(chain));
            assert_eq!(address.map(|address| address.to_string()).as_deref(), expected, "{chain}");
        }
    }
}
