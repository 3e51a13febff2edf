//! The node's addresses through rtnetlink (rtnetlink(7)): list, add to and remove from loopback.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::Connection;

/// Every network namespace has loopback as its first interface.
pub(crate) const LOOPBACK: u32 = 1;
/// The mark of addresses that Portcullis added. 0 to 3 are the kernel's own (linux/if_addr.h).
const PROTOCOL: AddressProtocol = AddressProtocol::Other(112);
/// The same for IPv4 before Linux 5.18, and what `ip address` shows. At most 15 characters,
/// beginning with the interface.
const LABEL: &str = "lo:portcullis";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalAddress {
    pub(crate) address: IpAddr,
    pub(crate) ours: bool,
    /// The index of its interface.
    pub(crate) interface: u32,
    /// The length of its network's prefix.
    pub(crate) prefix: u8,
}

impl LocalAddress {
    /// True if hosts of this address's network look for the other one among themselves.
    pub(crate) fn is_near(&self, other: &IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let different = u32::from(own) ^ u32::from(*other);
                self.interface != LOOPBACK && different.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

/// The addresses of this thread's network namespace.
pub(crate) struct Addresses(Connection<RouteNetlinkMessage>);

impl Addresses {
    pub(crate) fn open() -> io::Result<Self> {
        Connection::open(NETLINK_ROUTE).map(Self)
    }

    pub(crate) fn list(&mut self) -> io::Result<Vec<LocalAddress>> {
        let mut found = Vec::new();
        self.0.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| {
            if let RouteNetlinkMessage::NewAddress(message) = message {
                found.extend(local_address(&message));
            }
        })?;
        Ok(found)
    }

    /// The indices of the interfaces of type dummy, to which other programs give addresses of
    /// Services (kube-proxy with IPVS, DNS caches).
    pub(crate) fn dummies(&mut self) -> io::Result<BTreeSet<u32>> {
        let mut found = BTreeSet::new();
        self.0.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(message) = message
                && is_dummy(&message)
            {
                found.insert(message.header.index);
            }
        })?;
        Ok(found)
    }

    /// Adding what is there already is no error.
    pub(crate) fn add(&mut self, address: IpAddr) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewAddress(on_loopback(address));
        self.0.request(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(crate) fn remove(&mut self, address: IpAddr) -> io::Result<()> {
        self.0.request(RouteNetlinkMessage::DelAddress(on_loopback(address)), 0)
    }
}

/// A whole-address prefix with no life beyond this host: never a source address the kernel picks by
/// itself.
fn on_loopback(address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = LOOPBACK;
    message.header.scope = AddressScope::Host;
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
        AddressAttribute::Protocol(PROTOCOL),
    ];
    match address {
        IpAddr::V4(_) => {
            (message.header.family, message.header.prefix_len) = (AddressFamily::Inet, 32);
            message.attributes.push(AddressAttribute::Label(LABEL.to_owned()));
        }
        IpAddr::V6(_) => {
            (message.header.family, message.header.prefix_len) = (AddressFamily::Inet6, 128);
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
    }
    message
}

fn is_dummy(link: &LinkMessage) -> bool {
    let info = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => Some(info),
        _ => None,
    });
    info.flatten().any(|info| *info == LinkInfo::Kind(InfoKind::Dummy))
}

/// IPv6 has only `Address`; for IPv4 on a point-to-point link that is the peer, and `Local` is what
/// is local.
pub(super) fn local_address(message: &AddressMessage) -> Option<LocalAddress> {
    let (mut local, mut address, mut is_marked) = (None, None, false);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Protocol(protocol) => is_marked |= *protocol == PROTOCOL,
            AddressAttribute::Label(label) => is_marked |= label == LABEL,
            _ => {}
        }
    }
    let (interface, prefix) = (message.header.index, message.header.prefix_len);
    let ours = interface == LOOPBACK && is_marked;
    Some(LocalAddress { address: local.or(address)?, ours, interface, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_reaches_as_far_as_its_prefix() {
        let near = |interface, prefix, other: &str| {
            let address = "192.0.2.1".parse().unwrap();
            let local = LocalAddress { address, ours: false, interface, prefix };
            local.is_near(&other.parse().unwrap())
        };
        assert!(near(2, 24, "192.0.2.200") && near(2, 0, "203.0.113.1") && near(2, 32, "192.0.2.1"));
        assert!(!near(2, 24, "192.0.3.1") && !near(2, 32, "192.0.2.2") && !near(2, 0, "2001:db8::1"));
        assert!(!near(LOOPBACK, 24, "192.0.2.200"), "nobody asks there");
    }

    #[test]
    fn dummies_are_recognised() {
        let mut link = LinkMessage::default();
        assert!(!is_dummy(&link));
        for (kind, expected) in [(InfoKind::Bridge, false), (InfoKind::Dummy, true)] {
            link.attributes = vec![LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
            assert_eq!(is_dummy(&link), expected);
        }
        assert!(!Addresses::open().unwrap().dummies().unwrap().contains(&LOOPBACK));
    }
}
