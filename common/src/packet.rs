//! Ethernet, one VLAN tag, IPv4 and IPv6, TCP and UDP: as far as the destination port and no
//! further.

use crate::abi::{Address, FrontendKey, TCP, UDP};
use crate::reset::{ACK, SYN};

/// A frame whose bytes can be looked at. In the kernel each look is a bounds check the verifier
/// sees.
pub trait Frame {
    /// `N` bytes at `offset`, if the frame is that long. `N` is at least 2: the compiler turns a
    /// one-byte check into a form that proves nothing to the verifier.
    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]>;
}

impl Frame for [u8] {
    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.get(offset..)?.first_chunk()
    }
}

/// The destination of a frame, as its headers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    NotIp,
    Malformed,
    Ip(Network),
}

/// The IP header: the address, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub destination: Address,
    pub payload: Payload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// TCP or UDP whose header starts at `offset`.
    Transport {
        protocol: u8,
        offset: usize,
    },
    Icmp,
    /// A fragment other than the first.
    Fragment,
    /// An IPv6 extension header.
    Extension,
    Other,
}

const ETHERNET: usize = 14;
const VLAN: usize = 4;
pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
pub(crate) const IPV4: usize = 20;
pub(crate) const IPV6: usize = 40;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// The low 13 bits of the flags word (RFC 791, section 3.1).
pub(crate) const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The link and network headers. Nothing about ports yet: most frames are not for a VIP, and end
/// here.
#[inline(always)]
pub fn parse(frame: &(impl Frame + ?Sized)) -> Headers {
    let Some((ethertype, offset)) = link(frame) else { return Headers::NotIp };
    let network = match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, offset),
        ETHERTYPE_IPV6 => ipv6(frame, offset),
        _ => return Headers::NotIp,
    };
    network.map_or(Headers::Malformed, Headers::Ip)
}

/// The destination port (host order) of the TCP or UDP header at `offset`.
#[inline(always)]
pub fn destination_port(frame: &(impl Frame + ?Sized), offset: usize) -> Option<u16> {
    let [_, _, high, low] = *frame.at::<4>(offset)?;
    Some(u16::from_be_bytes([high, low]))
}

/// Returns `true` if the TCP header at `offset` begins a connection.
#[inline(always)]
pub fn begins_connection(frame: &(impl Frame + ?Sized), offset: usize) -> bool {
    frame.at::<14>(offset).is_some_and(|header| header[13] & (SYN | ACK) == SYN)
}

impl Network {
    /// The address that the packet comes from, which most have no need of.
    #[inline(always)]
    pub fn source(&self, frame: &(impl Frame + ?Sized)) -> Option<Address> {
        let (ethertype, offset) = link(frame)?;
        // The destination does not tell: one of IPv6 may be IPv4-mapped.
        if ethertype == ETHERTYPE_IPV4 {
            Some(Address::v4(*frame.at::<4>(offset + 12)?))
        } else {
            Some(Address::v6(*frame.at::<16>(offset + 8)?))
        }
    }

    /// The key of the frontend this packet wants, `port` in host order.
    #[inline(always)]
    pub fn frontend(&self, protocol: u8, port: u16) -> FrontendKey {
        FrontendKey::new(protocol, self.destination, port)
    }
}

/// The EtherType and where the network header starts.
#[inline(always)]
pub(crate) fn link(frame: &(impl Frame + ?Sized)) -> Option<(u16, usize)> {
    match ethertype(frame, ETHERNET - 2)? {
        ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => {
            Some((ethertype(frame, ETHERNET + VLAN - 2)?, ETHERNET + VLAN))
        }
        untagged => Some((untagged, ETHERNET)),
    }
}

#[inline(always)]
fn ethertype(frame: &(impl Frame + ?Sized), offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.at::<2>(offset)?))
}

#[inline(always)]
fn ipv4(frame: &(impl Frame + ?Sized), offset: usize) -> Option<Network> {
    let header = frame.at::<IPV4>(offset)?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < IPV4 {
        return None;
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_OFFSET;
    let payload = if fragment != 0 { Payload::Fragment } else { payload(header[9], ICMP, offset + length) };
    let destination = Address::v4([header[16], header[17], header[18], header[19]]);
    Some(Network { destination, payload })
}

#[inline(always)]
fn ipv6(frame: &(impl Frame + ?Sized), offset: usize) -> Option<Network> {
    let header = frame.at::<IPV6>(offset)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let destination = Address(*header.last_chunk()?);
    let payload =
        if is_extension(header[6]) { Payload::Extension } else { payload(header[6], ICMPV6, offset + IPV6) };
    Some(Network { destination, payload })
}

#[inline(always)]
fn payload(protocol: u8, icmp: u8, offset: usize) -> Payload {
    match protocol {
        TCP | UDP => Payload::Transport { protocol, offset },
        p if p == icmp => Payload::Icmp,
        _ => Payload::Other,
    }
}

/// The registry of IPv6 extension header types, without ESP, which hides what follows.
#[inline(always)]
const fn is_extension(next_header: u8) -> bool {
    matches!(next_header, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)
}
