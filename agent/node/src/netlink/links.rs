//! The interfaces of this thread's network namespace that the stack routes over, each with the
//! address that the node has there.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkLayerType, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::Connection;
use crate::netlink::addresses::{Addresses, LOOPBACK, LocalAddress};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutedLink {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// The node's addresses, as hosts behind the interface see it.
    pub(crate) v4: Option<IpAddr>,
    pub(crate) v6: Option<IpAddr>,
}

/// Interfaces with frames of Ethernet, without loopback and those that only pass frames on to a
/// bridge or a bond, which is listed instead.
///
/// # Errors
/// When the kernel does not list them.
pub(crate) fn routed_links() -> io::Result<Vec<RoutedLink>> {
    let mut links = BTreeMap::new();
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    connection.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
        if let RouteNetlinkMessage::NewLink(message) = message {
            links.extend(routed(&message));
        }
    })?;
    let addresses = Addresses::open()?.list()?;
    Ok(links.into_iter().map(|(index, name)| with_addresses(name, index, &addresses)).collect())
}

fn routed(link: &LinkMessage) -> Option<(u32, String)> {
    let is_part = link.attributes.iter().any(|it| matches!(it, LinkAttribute::Controller(_)));
    let is_routed = link.header.link_layer_type == LinkLayerType::Ether && !is_part;
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    });
    (is_routed && link.header.index != LOOPBACK).then_some((link.header.index, name?))
}

/// An interface without an address of its own, as some networks of pods have it, is seen by the
/// first one of the node.
fn with_addresses(name: String, index: u32, addresses: &[LocalAddress]) -> RoutedLink {
    let usable = |address: &&LocalAddress| {
        !address.ours && address.interface != LOOPBACK && is_global(&address.address)
    };
    let best = |is_family: fn(&IpAddr) -> bool| {
        let of_family = addresses.iter().filter(usable).filter(move |it| is_family(&it.address));
        let whole = |address: &LocalAddress| match address.address {
            IpAddr::V4(_) => address.prefix == 32,
            IpAddr::V6(_) => address.prefix == 128,
        };
        let rank = |address: &&LocalAddress| (address.interface != index, whole(address), address.interface);
        of_family.min_by_key(rank).map(|address| address.address)
    };
    RoutedLink { name, index, v4: best(IpAddr::is_ipv4), v6: best(IpAddr::is_ipv6) }
}

fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(address: &str, interface: u32, prefix: u8) -> LocalAddress {
        LocalAddress { address: address.parse().unwrap(), ours: false, interface, prefix }
    }

    #[test]
    fn an_interface_without_addresses_is_seen_by_the_nodes() {
        let addresses = [
            local("127.0.0.1", 1, 8),
            local("192.0.2.9", 2, 32),
            local("192.0.2.1", 2, 24),
            local("10.0.0.1", 3, 24),
            local("fe80::1", 4, 64),
            LocalAddress { ours: true, ..local("198.51.100.1", 1, 32) },
        ];
        let seen = |index| with_addresses("it".into(), index, &addresses).v4.unwrap().to_string();
        assert_eq!(seen(2), "192.0.2.1", "others may have taken the whole address there for a while");
        assert_eq!(seen(3), "10.0.0.1");
        assert_eq!(seen(4), "192.0.2.1");
        assert_eq!(with_addresses("it".into(), 4, &addresses).v6, None);
    }
}
