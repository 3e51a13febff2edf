//! The decisions of both programs. The packet guard: parse → look up → act. Only the destination
//! decides, so replies, forwarded traffic and everything that is not addressed to a VIP are left to
//! the kernel. The steering program: a group of sockets, a refusal, or neither.

use crate::abi::{Address, FrontendKey, TCP, UDP, VIP_EXCLUSIVE, group_and_clients};
use crate::packet::{self, Frame, Headers, Network, Payload};
use crate::reason::Reason;

/// The maps that decide.
pub trait Tables {
    /// [`crate::abi::VIPS`]: is the address a VIP, and is it exclusive?
    fn vip(&self, address: &Address) -> Option<u32>;
    /// [`crate::abi::FRONTENDS`]: the value of a frontend, exact match.
    fn frontend(&self, key: &FrontendKey) -> Option<u32>;
    /// [`crate::abi::CLIENTS`]: does the list deny the address?
    fn denies(&self, list: u32, client: &Address) -> bool;
}

/// The treatment of a frame, as the reason for it.
#[inline(always)]
pub fn verdict(frame: &(impl Frame + ?Sized), tables: &impl Tables) -> Reason {
    let network = match packet::parse(frame) {
        Headers::NotIp => return Reason::PassedNotIp,
        Headers::Malformed => return Reason::PassedMalformed,
        Headers::Ip(network) => network,
    };
    match tables.vip(&network.destination) {
        None => Reason::PassedNotVip,
        Some(flags) => to_vip(frame, tables, &network, flags),
    }
}

/// The steering program's treatment of a new connection or a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// To a socket of this listener group.
    Group(u32),
    /// The kernel looks for an ordinary socket.
    Untouched,
    /// No socket gets it. A program that listens on every address of the node must not be reached
    /// at an address that is the Gateways' alone, and nothing by a client that is denied.
    Refused(Reason),
}

/// The treatment of what a client, whose address few need, sends to this address and port.
#[inline(always)]
pub fn steering(tables: &impl Tables, key: &FrontendKey, client: impl FnOnce() -> Address) -> Steering {
    let Some(value) = frontend_value(tables, key) else {
        return match tables.vip(&key.address) {
            Some(VIP_EXCLUSIVE) => Steering::Refused(Reason::RefusedNoListener),
            _ => Steering::Untouched,
        };
    };
    let (group, clients) = group_and_clients(value);
    if clients != 0 && tables.denies(clients, &client()) {
        return Steering::Refused(Reason::RefusedDeniedClient);
    }
    // A reply leaves from the port its socket is bound to, so UDP listeners bind their own.
    if key.protocol == TCP { Steering::Group(group) } else { Steering::Untouched }
}

/// The value of a frontend; the exact address goes before the wildcard of its family.
#[inline(always)]
pub fn frontend_value(tables: &impl Tables, key: &FrontendKey) -> Option<u32> {
    match tables.frontend(key) {
        None => tables.frontend(&key.wildcard()),
        found => found,
    }
}

#[inline(always)]
fn to_vip(frame: &(impl Frame + ?Sized), tables: &impl Tables, network: &Network, flags: u32) -> Reason {
    let (protocol, offset) = match network.payload {
        Payload::Icmp => return Reason::PassedIcmp,
        Payload::Fragment => return Reason::PassedFragment,
        Payload::Extension => return Reason::PassedExtension,
        Payload::Other => return Reason::PassedOtherProtocol,
        Payload::Transport { protocol, offset } => (protocol, offset),
    };
    let Some(port) = packet::destination_port(frame, offset) else { return Reason::PassedMalformed };
    let value = match frontend_value(tables, &network.frontend(protocol, port)) {
        Some(value) => value,
        None if flags == VIP_EXCLUSIVE => return Reason::DroppedNoListener,
        None => return Reason::PassedSharedAddress,
    };
    let (_, clients) = group_and_clients(value);
    // Connections that are open when their client is denied go on.
    if clients != 0
        && (protocol == UDP || packet::begins_connection(frame, offset))
        && network.source(frame).is_some_and(|client| tables.denies(clients, &client))
    {
        return Reason::DroppedDeniedClient;
    }
    Reason::PassedListener
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{VIP_SHARED, frontend_value};

    const EXCLUSIVE: Address = Address::v4([10, 50, 0, 1]);
    const SHARED: Address = Address::v4([192, 0, 2, 1]);
    const GROUP: u32 = 3;
    const LIST: u32 = 5;
    const CLIENT: Address = Address::v4([198, 51, 100, 1]);
    const STRANGER: Address = Address::v4([198, 51, 100, 2]);

    /// TCP 443 and UDP 53 on each VIP, TCP 8080 on every address.
    struct World;

    impl Tables for World {
        fn vip(&self, address: &Address) -> Option<u32> {
            match *address {
                EXCLUSIVE => Some(VIP_EXCLUSIVE),
                SHARED => Some(VIP_SHARED),
                _ => None,
            }
        }

        fn frontend(&self, key: &FrontendKey) -> Option<u32> {
            let is_vip = self.vip(&key.address).is_some();
            let is_there = match (key.protocol, key.port()) {
                (TCP, 443) | (UDP, 53) => is_vip,
                (TCP, 8080) => key.address == key.address.wildcard(),
                (TCP | UDP, 9000) => key.address == EXCLUSIVE,
                _ => false,
            };
            is_there.then_some(frontend_value(GROUP, if key.port() == 9000 { LIST } else { 0 }))
        }

        fn denies(&self, list: u32, client: &Address) -> bool {
            list == LIST && *client == STRANGER
        }
    }

    #[test]
    fn what_has_no_listener_is_refused_at_exclusive_addresses_only() {
        let own = Address::v4([192, 0, 2, 9]);
        let cases = [
            (TCP, EXCLUSIVE, 443, Steering::Group(GROUP)),
            (TCP, EXCLUSIVE, 8080, Steering::Group(GROUP)),
            (TCP, EXCLUSIVE, 22, Steering::Refused(Reason::RefusedNoListener)),
            (UDP, EXCLUSIVE, 53, Steering::Untouched),
            (UDP, EXCLUSIVE, 443, Steering::Refused(Reason::RefusedNoListener)),
            (TCP, SHARED, 443, Steering::Group(GROUP)),
            (TCP, SHARED, 22, Steering::Untouched),
            (UDP, SHARED, 443, Steering::Untouched),
            (TCP, own, 8080, Steering::Group(GROUP)),
            (TCP, own, 22, Steering::Untouched),
            (UDP, own, 8080, Steering::Untouched),
        ];
        for (protocol, address, port, expected) in cases {
            let key = FrontendKey::new(protocol, address, port);
            assert_eq!(steering(&World, &key, || STRANGER), expected, "{key:?}");
        }
    }

    #[test]
    fn denied_clients_are_refused_where_a_list_says_so() {
        let refused = Steering::Refused(Reason::RefusedDeniedClient);
        let tcp = FrontendKey::new(TCP, EXCLUSIVE, 9000);
        let udp = FrontendKey::new(UDP, EXCLUSIVE, 9000);
        assert_eq!(steering(&World, &tcp, || CLIENT), Steering::Group(GROUP));
        assert_eq!(steering(&World, &tcp, || STRANGER), refused);
        assert_eq!(steering(&World, &udp, || CLIENT), Steering::Untouched);
        assert_eq!(steering(&World, &udp, || STRANGER), refused);
    }
}
