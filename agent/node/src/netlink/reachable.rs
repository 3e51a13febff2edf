//! The addresses of this network namespace: those at which clients reach it, for an operator to be
//! told where a Gateway is served on all of them, and all that are no Gateway's, for none of them
//! to be a tenant's backend.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::address::{AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::Connection;
use super::addresses::local_address;

/// The global addresses of this thread's network namespace, IPv4 first, without those that agents
/// added; where there are none, those of loopback.
///
/// # Errors
/// When the kernel does not list them.
pub fn reachable_addresses() -> io::Result<Vec<IpAddr>> {
    messages().map(|messages| reachable(&messages))
}

/// All addresses of this thread's network namespace, in order, without those that agents added, and
/// those that every network namespace may have (loopback, link-local).
///
/// # Errors
/// When the kernel does not list them.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let messages = messages()?;
    let local = messages.iter().filter_map(local_address).filter(|local| !local.ours);
    let addresses: BTreeSet<_> = local.map(|local| local.address).filter(|it| !is_everywhere(it)).collect();
    Ok(addresses.into_iter().collect())
}

fn is_everywhere(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

fn messages() -> io::Result<Vec<AddressMessage>> {
    let mut connection: Connection<RouteNetlinkMessage> = Connection::open(NETLINK_ROUTE)?;
    let mut messages = Vec::new();
    connection.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| {
        if let RouteNetlinkMessage::NewAddress(message) = message {
            messages.push(message);
        }
    })?;
    Ok(messages)
}

fn reachable(messages: &[AddressMessage]) -> Vec<IpAddr> {
    let of_scope = |scope: AddressScope| {
        let messages =
            messages.iter().filter(|message| message.header.scope == scope && !is_passing(message));
        let local = messages.filter_map(local_address).filter(|local| !local.ours);
        let mut addresses: Vec<_> = local.map(|local| local.address).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses
    };
    let global = of_scope(AddressScope::Universe);
    if global.is_empty() { of_scope(AddressScope::Host) } else { global }
}

/// The kernel does not use it yet, or will take it away. Of IPv6, "secondary" means temporary.
fn is_passing(message: &AddressMessage) -> bool {
    let mut passing = AddressHeaderFlags::Deprecated | AddressHeaderFlags::Tentative;
    if message.header.family == AddressFamily::Inet6 {
        passing |= AddressHeaderFlags::Secondary;
    }
    message.header.flags.intersects(passing)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressAttribute;

    use super::*;

    fn message(address: &str, scope: AddressScope, flags: AddressHeaderFlags) -> AddressMessage {
        let address: IpAddr = address.parse().unwrap();
        let mut message = AddressMessage::default();
        message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        (message.header.scope, message.header.flags) = (scope, flags);
        message.attributes = vec![AddressAttribute::Address(address)];
        message
    }

    #[test]
    fn clients_are_given_lasting_addresses_that_lead_here() {
        use AddressHeaderFlags as Flags;
        let none = Flags::empty();
        let loopback =
            [message("::1", AddressScope::Host, none), message("127.0.0.1", AddressScope::Host, none)];
        assert_eq!(
            reachable(&loopback),
            ["127.0.0.1", "::1"].map(|address| address.parse::<IpAddr>().unwrap())
        );
        let mut all = loopback.to_vec();
        all.extend([
            message("fe80::1", AddressScope::Link, none),
            message("2001:db8::1", AddressScope::Universe, none),
            message("2001:db8::2", AddressScope::Universe, Flags::Secondary),
            message("2001:db8::3", AddressScope::Universe, Flags::Deprecated),
            message("2001:db8::4", AddressScope::Universe, Flags::Tentative),
            message("192.0.2.1", AddressScope::Universe, none),
            message("192.0.2.2", AddressScope::Universe, Flags::Secondary),
        ]);
        let expected = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
        assert_eq!(reachable(&all), expected.map(|address| address.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn there_is_always_one() {
        assert!(!reachable_addresses().unwrap().is_empty());
    }
}
