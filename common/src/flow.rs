//! Connections and datagrams that the kernel forwards: keys and values of their maps, and what four
//! entries a flow consists of. A packet's destination is rewritten on its way in, its source on its
//! way out, so that what the stack routes, and firewalls see, is client and backend.
//!
//! ```text
//! client → frontend   in: client → backend    out: node → backend
//! backend → node      in: backend → client    out: frontend → client
//! ```

use crate::abi::Address;

/// An address as [`Address`] has it, in words: what each packet copies is copied by words.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ip(pub [u32; 4]);

impl Ip {
    /// From four bytes in network order.
    #[inline(always)]
    pub const fn v4(octets: [u8; 4]) -> Self {
        Self([0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes(octets)])
    }

    #[inline(always)]
    pub const fn v6(octets: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = octets;
        Self([
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
            u32::from_ne_bytes([i, j, k, l]),
            u32::from_ne_bytes([m, n, o, p]),
        ])
    }

    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.0[0] == 0 && self.0[1] == 0 && self.0[2] == 0xffff_u32.to_be()
    }

    /// False of what stands for an address that there is not.
    #[inline(always)]
    pub const fn is_specified(&self) -> bool {
        self.0[3] != 0 || !self.is_v4() && (self.0[0] | self.0[1] | self.0[2]) != 0
    }

    #[inline(always)]
    pub const fn address(&self) -> Address {
        let [a, b, c, d] = self.0[0].to_ne_bytes();
        let [e, f, g, h] = self.0[1].to_ne_bytes();
        let [i, j, k, l] = self.0[2].to_ne_bytes();
        let [m, n, o, p] = self.0[3].to_ne_bytes();
        Address([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
    }
}

impl From<Address> for Ip {
    fn from(address: Address) -> Self {
        Self::v6(address.0)
    }
}

/// An address with a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Endpoint {
    pub ip: Ip,
    /// In network byte order.
    pub port_be: u16,
    /// Always 0.
    pub reserved: u16,
}

impl Endpoint {
    #[inline(always)]
    pub const fn new(ip: Ip, port_be: u16) -> Self {
        Self { ip, port_be, reserved: 0 }
    }
}

/// The side of the stack on which a packet is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hook {
    In = 0,
    Out = 1,
}

/// Key of [`FLOWS`] and [`NEW_FLOWS`]: a packet as it comes to a hook.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    pub source: Ip,
    pub destination: Ip,
    /// In network byte order, as the other.
    pub source_port_be: u16,
    pub destination_port_be: u16,
    pub protocol: u8,
    /// A [`Hook`].
    pub hook: u8,
    /// Always 0.
    pub reserved: u16,
}

impl Tuple {
    #[inline(always)]
    pub const fn new(hook: Hook, protocol: u8, source: Endpoint, destination: Endpoint) -> Self {
        Self {
            source: source.ip,
            destination: destination.ip,
            source_port_be: source.port_be,
            destination_port_be: destination.port_be,
            protocol,
            hook: hook as u8,
            reserved: 0,
        }
    }

    #[inline(always)]
    pub const fn from(&self) -> Endpoint {
        Endpoint::new(self.source, self.source_port_be)
    }

    #[inline(always)]
    pub const fn to(&self) -> Endpoint {
        Endpoint::new(self.destination, self.destination_port_be)
    }

    /// Of an answer, at the same hook.
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port_be: self.destination_port_be,
            destination_port_be: self.source_port_be,
            ..*self
        }
    }
}

/// Value of [`FLOWS`] and [`NEW_FLOWS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The packet's destination on its way in, its source on its way out.
    pub to: Endpoint,
    /// The one of the flow's four endpoints that neither the key nor `to` is.
    pub with: Endpoint,
    /// The last packet by this entry, to the second or so; nanoseconds of the monotonic clock.
    pub seen: u64,
    /// The acknowledgement by which the client confirms a TCP flow, in the entry of the client's
    /// packets on their way in, as the next two. In that of the backend's packets on their way out
    /// the last one that the backend has sent, and [`RST`] as `client` when either side has. In
    /// that of the backend's packets on their way in the number of the last segment, if `backend`
    /// is [`ANSWERED`].
    pub acknowledgement: u32,
    /// [`FIN`] and [`RST`], as the client has sent them.
    pub client: u8,
    /// The same of the backend, and [`ANSWERED`].
    pub backend: u8,
    /// A [`Side`].
    pub side: u8,
    /// [`CLIENT`] or [`BACKEND`], for the one that ended its direction first.
    pub ended_first: u8,
}

pub const FIN: u8 = 1;
pub const RST: u8 = 2;
pub const ANSWERED: u8 = 4;

/// The sender of an entry's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Side {
    Client = 0,
    Backend = 1,
}

pub const CLIENT: u8 = 1;
pub const BACKEND: u8 = 2;

/// The four endpoints of what is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub client: Endpoint,
    pub frontend: Endpoint,
    pub backend: Endpoint,
    pub node: Endpoint,
    pub protocol: u8,
}

/// The entries of a flow: whose packets, on which side of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub side: Side,
    pub hook: Hook,
}

/// From the client to the frontend.
pub const CLIENT_IN: Part = Part { side: Side::Client, hook: Hook::In };
/// From the client to the backend.
pub const CLIENT_OUT: Part = Part { side: Side::Client, hook: Hook::Out };
/// From the backend to the node.
pub const BACKEND_IN: Part = Part { side: Side::Backend, hook: Hook::In };
/// From the backend to the client.
pub const BACKEND_OUT: Part = Part { side: Side::Backend, hook: Hook::Out };

impl Flow {
    #[inline(always)]
    pub const fn key(&self, part: Part) -> Tuple {
        let (source, destination) = match (part.side, part.hook) {
            (Side::Client, Hook::In) => (self.client, self.frontend),
            (Side::Client, Hook::Out) => (self.client, self.backend),
            (Side::Backend, Hook::In) => (self.backend, self.node),
            (Side::Backend, Hook::Out) => (self.backend, self.client),
        };
        Tuple::new(part.hook, self.protocol, source, destination)
    }

    #[inline(always)]
    pub const fn translation(&self, part: Part, now: u64) -> Translation {
        let (to, with) = match (part.side, part.hook) {
            (Side::Client, Hook::In) => (self.backend, self.node),
            (Side::Client, Hook::Out) => (self.node, self.frontend),
            (Side::Backend, Hook::In) => (self.client, self.frontend),
            (Side::Backend, Hook::Out) => (self.frontend, self.node),
        };
        let side = part.side as u8;
        Translation { to, with, seen: now, acknowledgement: 0, client: 0, backend: 0, side, ended_first: 0 }
    }

    /// Of the client's packets on their way in.
    #[inline(always)]
    pub const fn of_client_in(key: &Tuple, to: Endpoint, with: Endpoint) -> Self {
        Self { client: key.from(), frontend: key.to(), backend: to, node: with, protocol: key.protocol }
    }

    /// Of any of its entries.
    pub const fn of(key: &Tuple, entry: &Translation) -> Self {
        let is_clients = entry.side == Side::Client as u8;
        match (is_clients, key.hook == Hook::In as u8) {
            (true, true) => Self::of_client_in(key, entry.to, entry.with),
            (true, false) => Self::of_client_out(key, entry.to, entry.with),
            (false, true) => Self::of_backend_in(key, entry.to, entry.with),
            (false, false) => Self::of_backend_out(key, entry.to, entry.with),
        }
    }

    /// Of the client's packets on their way out.
    const fn of_client_out(key: &Tuple, to: Endpoint, with: Endpoint) -> Self {
        Self { client: key.from(), frontend: with, backend: key.to(), node: to, protocol: key.protocol }
    }

    /// Of the backend's packets on their way in.
    #[inline(always)]
    pub const fn of_backend_in(key: &Tuple, to: Endpoint, with: Endpoint) -> Self {
        Self { client: to, frontend: with, backend: key.from(), node: key.to(), protocol: key.protocol }
    }

    /// Of the backend's packets on their way out.
    #[inline(always)]
    pub const fn of_backend_out(key: &Tuple, to: Endpoint, with: Endpoint) -> Self {
        Self { client: key.to(), frontend: to, backend: key.from(), node: with, protocol: key.protocol }
    }
}

const SECOND: u64 = 1_000_000_000;

/// Time after which a flow that its client has not confirmed gives up its port to another.
pub const UNCONFIRMED: u64 = 30 * SECOND;
/// Time for the last packets of a connection that has ended, where no TIME_WAIT is in the way.
pub const REST: u64 = 2 * SECOND;
/// Time after which `seen` is written again: not for each packet, from each CPU.
pub const SEEN: u64 = SECOND;

impl Translation {
    /// True of a TCP connection that both sides have ended, or one has reset. Of the entry of the
    /// client's packets on their way in.
    #[inline(always)]
    pub const fn is_closing(&self) -> bool {
        is_closing(self.client, self.backend)
    }

    /// Time for what is still under way when both sides have ended: the backend's side waits a
    /// minute for it where it has ended first (RFC 9293, section 3.6.1; Linux takes 60 s), and
    /// would take another client's connection by the same port for the old one.
    #[inline(always)]
    pub const fn linger(&self) -> u64 {
        linger(self.client, self.backend, self.ended_first)
    }
}

#[inline(always)]
pub const fn is_closing(client: u8, backend: u8) -> bool {
    (client | backend) & RST != 0 || client & backend & FIN != 0
}

#[inline(always)]
pub const fn linger(client: u8, backend: u8, ended_first: u8) -> u64 {
    if (client | backend) & RST == 0 && ended_first == BACKEND { 60 * SECOND } else { REST }
}

/// Value of [`FORWARD_RULES`]: what becomes of new flows to a frontend.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The table of backends, and how many slots it has.
    pub table: u32,
    pub slots: u32,
    /// [`BY_CONNECTION`] or [`BY_ADDRESS`].
    pub affinity: u32,
}

/// Each connection, or client's socket, is given a backend by itself.
pub const BY_CONNECTION: u32 = 0;
/// All of a client's address have the same backend.
pub const BY_ADDRESS: u32 = 1;

/// Key of [`FORWARD_BACKENDS`]. The value is an [`Endpoint`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    pub table: u32,
    pub slot: u32,
}

/// Value of [`FORWARD_INTERFACES`]: the node's addresses as backends behind an interface see them;
/// unspecified where there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddresses {
    pub v4: Ip,
    pub v6: Ip,
}

/// The only value of [`FORWARD_SETTINGS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Random, and secret: clients that knew it could choose a backend.
    pub key: [u32; 2],
    /// The node's ports for flows, from the first to the last; in host byte order.
    pub first_port: u16,
    pub last_port: u16,
    /// [`OPEN`] or [`FULL`].
    pub room: u32,
}

pub const OPEN: u32 = 0;
/// No new flows: user space serves until there is room again.
pub const FULL: u32 = 1;

/// Key of [`FRAGMENTS`]: a datagram that comes in parts. The value is an [`Ip`], for all of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragments {
    pub source: Ip,
    pub destination: Ip,
    pub identification: u32,
    pub protocol: u8,
    /// A [`Hook`].
    pub hook: u8,
    /// The time at which it came, in periods of a coarse clock.
    pub period: u16,
}

const _: () = assert!(size_of::<Ip>() == 16 && align_of::<Ip>() == 4);
const _: () = assert!(size_of::<Endpoint>() == 20);
const _: () = assert!(size_of::<Tuple>() == 40);
const _: () = assert!(size_of::<Translation>() == 56);
const _: () = assert!(size_of::<Rule>() == 12 && size_of::<Slot>() == 8);
const _: () = assert!(size_of::<NodeAddresses>() == 32 && size_of::<Settings>() == 16);
const _: () = assert!(size_of::<Fragments>() == 40);

/// Map names. Rules and settings are written by the agent, flows by the programs. Agents of other
/// versions go on with these maps by their names and sizes: what changes the meaning of an entry
/// changes a name.
pub const FORWARD_RULES: &str = "FORWARD_RULES";
pub const FORWARD_BACKENDS: &str = "FORWARD_BACKENDS";
pub const FORWARD_INTERFACES: &str = "FORWARD_INTERFACES";
pub const FORWARD_SETTINGS: &str = "FORWARD_SETTINGS";
/// Entries of flows that the client has confirmed.
pub const FLOWS: &str = "FLOWS";
/// Entries of flows that it has not: the oldest make room.
pub const NEW_FLOWS: &str = "NEW_FLOWS";
pub const FRAGMENTS: &str = "FRAGMENTS";

/// All of them.
pub const FORWARD_MAPS: [&str; 7] =
    [FORWARD_RULES, FORWARD_BACKENDS, FORWARD_INTERFACES, FORWARD_SETTINGS, FLOWS, NEW_FLOWS, FRAGMENTS];

pub const MAX_RULES: u32 = 8_192;
pub const MAX_SLOTS: u32 = 2_097_152;
pub const MAX_INTERFACES: u32 = 1_024;
/// Four for each flow.
pub const MAX_FLOWS: u32 = 1_048_576;
pub const MAX_NEW_FLOWS: u32 = 131_072;
pub const MAX_FRAGMENTS: u32 = 4_096;

/// Program names.
pub const FORWARD_IN: &str = "forward_in";
pub const FORWARD_OUT: &str = "forward_out";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::TCP;

    const PARTS: [Part; 4] = [CLIENT_IN, CLIENT_OUT, BACKEND_IN, BACKEND_OUT];

    fn flow() -> Flow {
        let endpoint = |host, port: u16| Endpoint::new(Ip::v4([10, 0, 0, host]), port.to_be());
        Flow {
            client: endpoint(1, 40_000),
            frontend: endpoint(2, 80),
            backend: endpoint(3, 8080),
            node: endpoint(4, 61_000),
            protocol: TCP,
        }
    }

    #[test]
    fn addresses_keep_their_bytes() {
        for address in [Address::v4([10, 0, 0, 1]), Address::v6([7; 16])] {
            let ip = Ip::from(address);
            assert_eq!(ip.address(), address);
            assert_eq!(ip.is_v4(), address.is_v4());
            assert!(ip.is_specified());
        }
        assert_eq!(Ip::v4([10, 0, 0, 1]), Ip::from(Address::v4([10, 0, 0, 1])));
        for none in [Ip::v4([0; 4]), Ip::v6([0; 16])] {
            assert!(!none.is_specified());
        }
    }

    #[test]
    fn a_flow_is_found_by_any_of_its_entries() {
        let flow = flow();
        for part in PARTS {
            assert_eq!(Flow::of(&flow.key(part), &flow.translation(part, 0)), flow);
        }
    }

    #[test]
    fn what_goes_in_as_one_entry_has_it_comes_out_by_the_other() {
        let flow = flow();
        for side in [Side::Client, Side::Backend] {
            let key = flow.key(Part { side, hook: Hook::In });
            let routed =
                Tuple::new(Hook::Out, TCP, key.from(), flow.translation(Part { side, hook: Hook::In }, 0).to);
            assert_eq!(routed, flow.key(Part { side, hook: Hook::Out }));
        }
        for (at, part) in PARTS.iter().enumerate() {
            assert!(PARTS[..at].iter().all(|other| flow.key(*other) != flow.key(*part)));
        }
    }

    #[test]
    fn ports_rest_where_the_backend_ended_first() {
        let mut entry = flow().translation(CLIENT_IN, 0);
        assert!(!entry.is_closing());
        entry.backend = FIN | ANSWERED;
        entry.ended_first = BACKEND;
        assert!(!entry.is_closing(), "the client may go on sending");
        entry.client = FIN;
        assert!(entry.is_closing());
        assert_eq!(entry.linger(), 60 * SECOND);
        entry.client |= RST;
        assert_eq!(entry.linger(), 2 * SECOND);
    }
}
