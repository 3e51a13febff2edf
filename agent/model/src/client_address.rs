//! The address of a client, where it is not that of the peer: proxies in front of a port say whose
//! connection it is, in the header that PROXY protocol begins it with.

use std::net::IpAddr;
use std::sync::Arc;

use crate::AddressRange;

/// The way in which a port learns the addresses of its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAddress {
    /// They are its peers.
    #[default]
    OfPeer,
    /// From the headers of these proxies.
    OfProxies(Arc<ProxyProtocol>),
    /// Listeners of the port say different things. No connection can be for either.
    Disputed,
}

/// The peers of which headers of PROXY protocol are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProtocol {
    /// A proxy has to be in a range of each level.
    pub levels: Vec<Vec<AddressRange>>,
    pub others: OtherPeers,
}

/// The treatment of peers that are no proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherPeers {
    /// They are clients themselves.
    Accept,
    Refuse,
}

/// A peer, by what it has to send first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A header, without which nothing that it sends is taken.
    Proxy,
    /// Anything.
    Client,
    /// Nothing.
    Refused,
}

// === impl ProxyProtocol ===

impl ProxyProtocol {
    /// The address is one of IPv4 or IPv6, not one mapped into the other.
    pub fn peer(&self, address: &IpAddr) -> Peer {
        let is_in = |ranges: &Vec<AddressRange>| ranges.iter().any(|range| range.contains(address));
        match self.others {
            _ if self.levels.iter().all(is_in) => Peer::Proxy,
            OtherPeers::Accept => Peer::Client,
            OtherPeers::Refuse => Peer::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(levels: &[&[&str]], others: OtherPeers) -> ProxyProtocol {
        let ranges = |texts: &&[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        ProxyProtocol { levels: levels.iter().map(ranges).collect(), others }
    }

    #[test]
    fn a_proxy_is_one_on_every_level() {
        let levels: &[&[&str]] = &[&["10.0.0.0/8", "fd00::/8"], &["10.1.0.0/16", "fd00::1"]];
        for (address, accepted) in [
            ("10.1.0.1", Peer::Proxy),
            ("10.2.0.1", Peer::Client),
            ("fd00::1", Peer::Proxy),
            ("fd00::2", Peer::Client),
            ("192.0.2.1", Peer::Client),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(proxies(levels, OtherPeers::Accept).peer(&address), accepted, "{address}");
            let refused = if accepted == Peer::Proxy { Peer::Proxy } else { Peer::Refused };
            assert_eq!(proxies(levels, OtherPeers::Refuse).peer(&address), refused, "{address}");
        }
    }
}
