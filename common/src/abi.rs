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
const _: () = assert!(size_of::<NameInTable>() == 256 && align_of::<NameInTable>() == 1);

/// Value of [`VIPS`]: nothing but Gateways lives on this address, so what no listener claims is
/// refused.
pub const VIP_EXCLUSIVE: u32 = 1;
/// Value of [`VIPS`]: the address is shared with the host or with others, so what no listener
/// claims passes.
pub const VIP_SHARED: u32 = 0;

/// Listener groups: the index into [`GROUPS`] that a frontend names. All ports of all Gateways
/// share group 0 today.
pub const MAX_GROUPS: u32 = 8;
/// The group of a frontend that is going: packets of open connections pass, new connections are
/// refused.
pub const NO_GROUP: u32 = u32::MAX;
/// Sockets (one per core) of one family in one group.
pub const MAX_CORES: u32 = 256;
pub const MAX_FRONTENDS: u32 = 65_536;
pub const MAX_VIPS: u32 = 16_384;
/// Names of all ports.
pub const MAX_NAMES: u32 = 262_144;
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
