//! A packet as its translation needs it: from where to where, and at which offsets that is written.
//! ICMP errors are read as far as the packet that they quote.

use crate::abi::{TCP, UDP};
use crate::flow::{Endpoint, Hook, Ip, Tuple};
use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT_OFFSET, Frame, IPV4, IPV6, link};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Of an ICMP error: that of an answer to the packet that it quotes. Ports are 0 in later
    /// fragments.
    pub tuple: Tuple,
    pub kind: Kind,
    /// Offset of the IP header.
    pub network: usize,
    /// Offset of what follows it.
    pub transport: usize,
    /// The destination of an ICMP error.
    pub addressee: Ip,
    /// The sender of an ICMP error.
    pub sender: Ip,
    /// Offsets of the quoted packet in an ICMP error.
    pub quoted_network: usize,
    pub quoted_transport: usize,
    /// Of a TCP header: flags, and what it acknowledges.
    pub flags: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// Of a fragment, the first one included.
    pub identification: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Udp,
    /// A part of a datagram behind its ports.
    LaterFragment,
    IcmpError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// There may be more of it than could be looked at.
    Short,
    /// Nothing that is forwarded.
    Other,
}

pub const TCP_FIN: u8 = 1;
pub const TCP_SYN: u8 = 2;
pub const TCP_RST: u8 = 4;
pub const TCP_ACK: u8 = 16;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
/// "More fragments" (RFC 791, section 3.1).
const MORE_FRAGMENTS: u16 = 0x2000;
/// The same of IPv6, and the offset (RFC 8200, section 4.5).
const MORE_FRAGMENTS_V6: u16 = 1;
const OFFSET_V6: u16 = 0xfff8;
const FRAGMENT_HEADER: usize = 8;
const ICMP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;

impl Packet {
    #[inline(always)]
    pub fn read(frame: &(impl Frame + ?Sized), hook: Hook) -> Result<Self, Unread> {
        let (ethertype, offset) = link(frame).ok_or(Unread::Short)?;
        let network = match ethertype {
            ETHERTYPE_IPV4 => ipv4(frame, offset)?,
            ETHERTYPE_IPV6 => ipv6(frame, offset)?,
            _ => return Err(Unread::Other),
        };
        let Network { source, destination, protocol, transport, part } = network;
        let mut packet = Self {
            tuple: Tuple::new(hook, protocol, Endpoint::new(source, 0), Endpoint::new(destination, 0)),
            kind: Kind::Udp,
            network: offset,
            transport,
            addressee: destination,
            sender: source,
            quoted_network: 0,
            quoted_transport: 0,
            flags: 0,
            sequence: 0,
            acknowledgement: 0,
            identification: None,
        };
        match part {
            Part::Whole => {}
            Part::First(identification) => packet.identification = Some(identification),
            Part::Later(identification) => {
                packet.identification = Some(identification);
                packet.kind = Kind::LaterFragment;
                return if protocol == TCP || protocol == UDP { Ok(packet) } else { Err(Unread::Other) };
            }
        }
        match protocol {
            TCP => {
                let header = frame.at::<TCP_HEADER>(transport).ok_or(Unread::Short)?;
                let [s1, s2, d1, d2, a, b, c, d, e, f, g, h, _, flags, ..] = *header;
                packet.tuple.source_port_be = u16::from_ne_bytes([s1, s2]);
                packet.tuple.destination_port_be = u16::from_ne_bytes([d1, d2]);
                packet.sequence = u32::from_be_bytes([a, b, c, d]);
                packet.acknowledgement = u32::from_be_bytes([e, f, g, h]);
                packet.flags = flags;
                packet.kind = Kind::Tcp;
                Ok(packet)
            }
            UDP => {
                let [s1, s2, d1, d2] = *frame.at::<4>(transport).ok_or(Unread::Short)?;
                packet.tuple.source_port_be = u16::from_ne_bytes([s1, s2]);
                packet.tuple.destination_port_be = u16::from_ne_bytes([d1, d2]);
                Ok(packet)
            }
            ICMP | ICMPV6 if part == Part::Whole => packet.quoting(frame, hook, protocol),
            _ => Err(Unread::Other),
        }
    }

    /// With the packet that an ICMP error quotes. What is no error has none.
    #[inline(always)]
    fn quoting(mut self, frame: &(impl Frame + ?Sized), hook: Hook, protocol: u8) -> Result<Self, Unread> {
        let [kind, _] = *frame.at::<2>(self.transport).ok_or(Unread::Short)?;
        let offset = self.transport + ICMP_HEADER;
        let quoted = match (self.sender.is_v4(), protocol, kind) {
            // Unreachable, time exceeded, parameter problem (RFC 792).
            (true, ICMP, 3 | 11 | 12) => ipv4(frame, offset)?,
            // Unreachable, too big, time exceeded, parameter problem (RFC 4443).
            (false, ICMPV6, 1..=4) => ipv6(frame, offset)?,
            _ => return Err(Unread::Other),
        };
        if !matches!(quoted.protocol, TCP | UDP) || matches!(quoted.part, Part::Later(_)) {
            return Err(Unread::Other);
        }
        let [s1, s2, d1, d2] = *frame.at::<4>(quoted.transport).ok_or(Unread::Short)?;
        let from = Endpoint::new(quoted.source, u16::from_ne_bytes([s1, s2]));
        let to = Endpoint::new(quoted.destination, u16::from_ne_bytes([d1, d2]));
        self.tuple = Tuple::new(hook, quoted.protocol, to, from);
        self.kind = Kind::IcmpError;
        self.quoted_network = offset;
        self.quoted_transport = quoted.transport;
        Ok(self)
    }

    /// True of what begins a flow, if it belongs to none.
    #[inline(always)]
    pub const fn begins(&self) -> bool {
        match self.kind {
            Kind::Tcp => self.flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN) == TCP_SYN,
            Kind::Udp => true,
            Kind::LaterFragment | Kind::IcmpError => false,
        }
    }
}

/// An IP header.
struct Network {
    source: Ip,
    destination: Ip,
    protocol: u8,
    /// Offset of what follows.
    transport: usize,
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// With the identification of the datagram.
    First(u32),
    Later(u32),
}

#[inline(always)]
fn ipv4(frame: &(impl Frame + ?Sized), offset: usize) -> Result<Network, Unread> {
    let header = frame.at::<IPV4>(offset).ok_or(Unread::Short)?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < IPV4 {
        return Err(Unread::Other);
    }
    let word = u16::from_be_bytes([header[6], header[7]]);
    let identification = u32::from(u16::from_be_bytes([header[4], header[5]]));
    let part = match (word & FRAGMENT_OFFSET, word & MORE_FRAGMENTS) {
        (0, 0) => Part::Whole,
        (0, _) => Part::First(identification),
        _ => Part::Later(identification),
    };
    Ok(Network {
        source: Ip::v4([header[12], header[13], header[14], header[15]]),
        destination: Ip::v4([header[16], header[17], header[18], header[19]]),
        protocol: header[9],
        transport: offset + length,
        part,
    })
}

/// Of extension headers only that of fragments: others are left to user space.
/// IPv4-mapped addresses (RFC 4291 section 2.5.5.2) are for sockets: in a packet, one would be
/// taken for the IPv4 address.
#[inline(always)]
fn ipv6(frame: &(impl Frame + ?Sized), offset: usize) -> Result<Network, Unread> {
    let header = frame.at::<IPV6>(offset).ok_or(Unread::Short)?;
    if header[0] >> 4 != 6 {
        return Err(Unread::Other);
    }
    let source = Ip::v6(*header[8..].first_chunk().ok_or(Unread::Other)?);
    let destination = Ip::v6(*header.last_chunk().ok_or(Unread::Other)?);
    if source.is_v4() || destination.is_v4() {
        return Err(Unread::Other);
    }
    let (mut protocol, mut transport, mut part) = (header[6], offset + IPV6, Part::Whole);
    if protocol == FRAGMENT {
        let [next, _, high, low, a, b, c, d] =
            *frame.at::<FRAGMENT_HEADER>(transport).ok_or(Unread::Short)?;
        let word = u16::from_be_bytes([high, low]);
        let identification = u32::from_be_bytes([a, b, c, d]);
        part = match (word & OFFSET_V6, word & MORE_FRAGMENTS_V6) {
            (0, 0) => Part::Whole,
            (0, _) => Part::First(identification),
            _ => Part::Later(identification),
        };
        protocol = next;
        transport += FRAGMENT_HEADER;
    }
    Ok(Network { source, destination, protocol, transport, part })
}
