//! The differences between IPv4 and IPv6 in rules, and keys of frontends in sets.

use std::net::IpAddr;

use portcullis_common::abi;
use portcullis_model::{FrontendKey, L4Protocol};

use super::Family;

/// nft's numbers of the types `inet_proto` and `inet_service`, as the end of a concatenation.
const PROTOCOL_AND_PORT: u32 = 12 << 6 | 13;

/// The place of addresses in a packet, and nft's number for their type.
#[derive(Clone, Copy)]
pub(crate) struct Addressing {
    pub(crate) family: Family,
    pub(crate) shown_as: u32,
    pub(crate) length: u32,
    /// In the network header.
    pub(crate) source: u32,
    pub(crate) destination: u32,
}

pub(crate) const IPV4: Addressing =
    Addressing { family: Family::Ipv4, shown_as: 7, length: 4, source: 12, destination: 16 };
pub(crate) const IPV6: Addressing =
    Addressing { family: Family::Ipv6, shown_as: 8, length: 16, source: 8, destination: 24 };

impl Addressing {
    pub(crate) fn has(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self.family == Family::Ipv4)
    }

    /// nft's number for the type of [`endpoint`].
    pub(crate) fn endpoints_shown_as(self) -> u32 {
        self.shown_as << 12 | PROTOCOL_AND_PORT
    }
}

pub(crate) fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Address, protocol and port, each padded to four bytes.
pub(crate) fn endpoint(frontend: &FrontendKey) -> Vec<u8> {
    let protocol = match frontend.protocol {
        L4Protocol::Tcp => abi::TCP,
        L4Protocol::Udp => abi::UDP,
    };
    let [high, low] = frontend.port.to_be_bytes();
    [octets(&frontend.address), vec![protocol, 0, 0, 0], vec![high, low, 0, 0]].concat()
}
