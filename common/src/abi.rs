//! Keys and values of the BPF maps: plain integers without padding, so that equal keys are equal
//! bytes.

use crate::client_hello::{Cursor, MOST_KEPT};
use crate::server_name::ReversedName;

/// An IP address as 16 bytes in network order; IPv4 in its IPv4-mapped form (RFC 4291, section
/// 2.5.5.2).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub [u8; 16]);

/// The IPv4-mapped prefix, `::ffff:0:0/96`.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Address {
    #[inline(always)]
    pub const fn v4(octets: [u8; 4]) -> Self {
        let [a, b, c, d] = octets;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    #[inline(always)]
    pub const fn v6(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// The unspecified address (`0.0.0.0` or `::`) of the same family: "every address of the node"
    /// in a frontend key.
    #[inline(always)]
    pub fn wildcard(&self) -> Self {
        if self.is_v4() { Self::v4([0; 4]) } else { Self([0; 16]) }
    }

    #[inline(always)]
    pub fn is_v4(&self) -> bool {
        self.0.first_chunk() == Some(&MAPPED)
    }
}

/// IP protocol numbers the datapath knows.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// Key of [`FRONTENDS`]: where traffic enters.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrontendKey {
    pub address: Address,
    /// In network byte order.
    pub port_be: u16,
    /// [`TCP`] or [`UDP`].
    pub protocol: u8,
    /// Always 0; keeps the key free of padding.
    pub reserved: u8,
}

impl FrontendKey {
    /// `port` is in host byte order.
    #[inline(always)]
    pub const fn new(protocol: u8, address: Address, port: u16) -> Self {
        Self { address, port_be: port.to_be(), protocol, reserved: 0 }
    }

    #[inline(always)]
    pub const fn port(&self) -> u16 {
        u16::from_be(self.port_be)
    }

    #[inline(always)]
    pub fn wildcard(&self) -> Self {
        Self { address: self.address.wildcard(), ..*self }
    }
}

/// Key of [`HELLOS`]: a TCP connection, as its client's packets have it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub source: Address,
    pub destination: Address,
    /// In network byte order, as the other.
    pub source_port_be: u16,
    pub destination_port_be: u16,
}

impl Flow {
    /// The key of the frontend to which it goes.
    #[inline(always)]
    pub const fn frontend(&self) -> FrontendKey {
        let port_be = self.destination_port_be;
        FrontendKey { address: self.destination, port_be, protocol: TCP, reserved: 0 }
    }
}

/// Value of [`HELLOS`]: a ClientHello whose name has not come yet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartialHello {
    /// Of the segment that goes on.
    pub sequence: u32,
    /// Of what is kept.
    pub length: u32,
    pub cursor: Cursor,
    pub bytes: [u64; MOST_KEPT / 8],
}

/// Data of a key of [`NAMES`]: a name as it is looked up among those of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameInTable {
    /// The value of [`NAME_TABLES`], in network byte order.
    pub table: [u8; 2],
    pub name: ReversedName,
}

impl NameInTable {
    /// The length in bits of a key with so many bytes of its name, or of its wildcard's suffix, and
    /// the byte behind.
    #[inline(always)]
    pub const fn prefix_of_name(length: usize) -> u32 {
        Self::ANY_NAME + 8 * (length as u32 + 1)
    }

    /// The same of the key that any name matches.
    pub const ANY_NAME: u32 = 16;
}

/// Data of a key of [`CLIENTS`]: an address as it is looked up in a list of those that may connect.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientInList {
    /// In network byte order.
    pub list: [u8; 4],
    pub address: Address,
}

impl ClientInList {
    /// The length in bits of a key with all of its address.
    pub const WHOLE: u32 = 32 + 128;
}

/// Value of [`CLIENTS`]: of all ranges of a list that have an address, the narrowest counts.
pub const PERMITTED: u32 = 1;
pub const DENIED: u32 = 0;

/// Value of [`LISTENERS`]: the terms on which connections for a listener are let in, which has the
/// value of [`NAMES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerTerms {
    /// Each has to have room; 0 for none.
    pub budgets: [u32; 3],
    /// List in [`CLIENTS`]; 0 if all may connect.
    pub clients: u32,
}

/// Value of [`BUDGETS`], in nanoseconds: of one connection, and of as many as may come at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    pub interval: u64,
    pub span: u64,
}

/// Value of [`BUCKETS`], which has the keys of [`BUDGETS`] and is the kernel's to write.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// By the kernel's monotonic clock; see [`crate::bucket`].
    pub full_at: u64,
    /// Connections that were let in, and those that were not.
    pub taken: u64,
    pub refused: u64,
}

/// Added to the number of a table of names: the budget of names that no listener has.
pub const UNKNOWN_NAMES: u32 = 1 << 31;

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4 = 0,
    V6 = 1,
}

/// Value of [`GROUPS`]: how many sockets of each family a listener group has in [`SOCKETS`], and
/// the key by which connections are spread over them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub v4: u32,
    pub v6: u32,
    /// Random, and secret: clients that knew it could send all connections to one core.
    pub key: [u32; 2],
}

const _: () = assert!(size_of::<Address>() == 16 && align_of::<Address>() == 1);
const _: () = assert!(size_of::<FrontendKey>() == 20 && align_of::<FrontendKey>() == 2);
const _: () = assert!(size_of::<Group>() == 16);
const _: () = assert!(size_of::<Flow>() == 36 && align_of::<Flow>() == 2);
const _: () = assert!(size_of::<PartialHello>() == 296 && align_of::<PartialHello>() == 8);
const _: () = assert!(size_of::<ClientInList>() == 20 && align_of::<ClientInList>() == 1);
const _: () = assert!(size_of::<ListenerTerms>() == 16);
const _: () = assert!(size_of::<Budget>() == 16 && size_of::<Bucket>() == 24);
const _: () = assert!(size_of::<NameInTable>() == 256 && align_of::<NameInTable>() == 1);

/// Value of [`VIPS`]: nothing but Gateways lives on this address, so what no listener claims is
/// refused.
pub const VIP_EXCLUSIVE: u32 = 1;
/// Value of [`VIPS`]: the address is shared with the host or with others, so what no listener
/// claims passes.
pub const VIP_SHARED: u32 = 0;

/// Listener groups: the index into [`GROUPS`] that a frontend names. There is one for ports at
/// which clients speak first, and one for the others.
pub const MAX_GROUPS: u32 = 8;
/// The group of a frontend that is going: packets of open connections pass, new connections are
/// refused.
pub const NO_GROUP: u32 = 0xff;

/// Value of [`FRONTENDS`]: a listener group, and the list in [`CLIENTS`] of those that may connect,
/// 0 if all may.
#[inline(always)]
pub const fn frontend_value(group: u32, clients: u32) -> u32 {
    clients << 8 | group
}

/// Both parts of it.
#[inline(always)]
pub const fn group_and_clients(value: u32) -> (u32, u32) {
    (value & 0xff, value >> 8)
}

/// Sockets (one per core) of one family in one group.
pub const MAX_CORES: u32 = 256;
pub const MAX_FRONTENDS: u32 = 65_536;
pub const MAX_VIPS: u32 = 16_384;
/// Names of all ports.
pub const MAX_NAMES: u32 = 262_144;
/// Listeners with terms.
pub const MAX_LISTENERS: u32 = MAX_NAMES;
pub const MAX_BUDGETS: u32 = 65_536;
/// Ranges of all lists.
pub const MAX_CLIENTS: u32 = 262_144;
/// Lists have numbers from 1 on.
pub const LAST_LIST: u32 = (1 << 24) - 1;
/// ClientHellos of which a part has come.
pub const MAX_HELLOS: u32 = 8_192;

/// Index into [`SOCKETS`]. Groups are laid out one after the other, IPv4 before IPv6.
#[inline(always)]
pub const fn socket_index(group: u32, family: Family, core: u32) -> u32 {
    (group * 2 + family as u32) * MAX_CORES + core
}

/// Map names: as in the object, as the pin's file name, as `bpftool map` shows them.
pub const FRONTENDS: &str = "FRONTENDS";
pub const VIPS: &str = "VIPS";
pub const GROUPS: &str = "GROUPS";
pub const SOCKETS: &str = "SOCKETS";
pub const COUNTERS: &str = "COUNTERS";
pub const NAME_TABLES: &str = "NAME_TABLES";
pub const NAMES: &str = "NAMES";
pub const HELLOS: &str = "HELLOS";
pub const LISTENERS: &str = "LISTENERS";
pub const BUDGETS: &str = "BUDGETS";
pub const BUCKETS: &str = "BUCKETS";
pub const CLIENTS: &str = "CLIENTS";

/// Program names.
pub const STEER: &str = "steer";
pub const GUARD: &str = "guard";
pub const READ_NAMES: &str = "names";

/// Name of the load-time constant of type [`AcceptQueue`].
pub const ACCEPT_QUEUE: &str = "ACCEPT_QUEUE";

/// The places of two fields in the running kernel's `struct sock`, in bytes; 0 where they are not
/// known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptQueue {
    /// `sk_ack_backlog`: connections that wait to be accepted.
    pub waiting: u32,
    /// `sk_max_ack_backlog`: as many as may wait.
    pub room: u32,
}

/// Name of the load-time constant of type [`ConnectionFields`].
pub const CONNECTION_FIELDS: &str = "CONNECTION_FIELDS";

/// The places of the numbers by which a client shows that it gets what it is sent, in bytes; 0
/// where they are not known, or may not be read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFields {
    /// `tcp_request_sock.snt_isn`: the node's first number, of a connection that has only begun.
    pub first_sent: u32,
    /// `tcp_sock.snd_nxt` and `tcp_sock.rcv_nxt`.
    pub next_sent: u32,
    pub next_received: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_keep_the_family() {
        assert_eq!(Address::v4([10, 0, 0, 1]).wildcard(), Address::v4([0; 4]));
        assert_eq!(Address::v6([0x20; 16]).wildcard(), Address::v6([0; 16]));
    }

    #[test]
    fn socket_indices_of_groups_do_not_overlap() {
        assert_eq!(socket_index(0, Family::V4, MAX_CORES - 1) + 1, socket_index(0, Family::V6, 0));
        assert_eq!(socket_index(0, Family::V6, MAX_CORES - 1) + 1, socket_index(1, Family::V4, 0));
    }

    #[test]
    fn ports_are_stored_in_network_order() {
        let key = FrontendKey::new(TCP, Address::v4([10, 0, 0, 1]), 443);
        assert_eq!(key.port_be.to_ne_bytes(), [0x01, 0xbb]);
        assert_eq!(key.port(), 443);
    }
}
