//! A TCP segment in a frame: the flow it is of, and where its payload lies. Goes through IPv6
//! extension headers, as [`crate::packet`] does not: few packets come this far.

use crate::abi::{Address, Flow, TCP};
use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT_OFFSET, Frame, IPV4, IPV6, link};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flow: Flow,
    pub form: Form,
    /// Offset of the IP header.
    pub network: usize,
    /// Of TCP.
    pub flags: u8,
    /// Of the first byte of the payload.
    pub sequence: u32,
    /// The payload: where it begins in the frame, and its length without the frame's padding. The
    /// frame need not have all of it.
    pub offset: usize,
    pub length: usize,
}

/// The headers before TCP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// IPv4 without options.
    V4,
    /// IPv6 without extension headers.
    V6,
    Other,
}

/// An IP packet that is no fragment.
struct Packet {
    form: Form,
    source: Address,
    destination: Address,
    protocol: u8,
    /// Offset of the transport header, and of the packet's end.
    transport: usize,
    end: usize,
}

const TCP_HEADER: usize = 20;
/// As many as are sent before TCP where there are any; more are left to user space.
const MOST_EXTENSIONS: usize = 3;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// Anything but the reserved bits of the word (RFC 8200, section 4.5): an offset, or more to come.
const IPV6_FRAGMENT: u16 = 0xfff9;
/// "More fragments" (RFC 791, section 3.1).
const MORE_FRAGMENTS: u16 = 0x2000;

impl Segment {
    /// `None` if the frame holds none, or only a part of it.
    #[inline(always)]
    pub fn read(frame: &(impl Frame + ?Sized)) -> Option<Self> {
        let (ethertype, network) = link(frame)?;
        let packet = match ethertype {
            ETHERTYPE_IPV4 => ipv4(frame, network)?,
            ETHERTYPE_IPV6 => ipv6(frame, network)?,
            _ => return None,
        };
        if packet.protocol != TCP {
            return None;
        }
        let header = frame.at::<TCP_HEADER>(packet.transport)?;
        let [s1, s2, d1, d2, a, b, c, d, ..] = *header;
        let offset = packet.transport + usize::from(header[12] >> 4) * 4;
        if offset < packet.transport + TCP_HEADER || offset > packet.end {
            return None;
        }
        Some(Self {
            flow: Flow {
                source: packet.source,
                destination: packet.destination,
                source_port_be: u16::from_ne_bytes([s1, s2]),
                destination_port_be: u16::from_ne_bytes([d1, d2]),
            },
            form: packet.form,
            network,
            flags: header[13],
            sequence: u32::from_be_bytes([a, b, c, d]),
            offset,
            length: packet.end - offset,
        })
    }
}

#[inline(always)]
fn ipv4(frame: &(impl Frame + ?Sized), offset: usize) -> Option<Packet> {
    let header = frame.at::<IPV4>(offset)?;
    let length = usize::from(header[0] & 0x0f) * 4;
    let fragment = u16::from_be_bytes([header[6], header[7]]) & (FRAGMENT_OFFSET | MORE_FRAGMENTS);
    if header[0] >> 4 != 4 || length < IPV4 || fragment != 0 {
        return None;
    }
    Some(Packet {
        form: if length == IPV4 { Form::V4 } else { Form::Other },
        source: Address::v4([header[12], header[13], header[14], header[15]]),
        destination: Address::v4([header[16], header[17], header[18], header[19]]),
        protocol: header[9],
        transport: offset + length,
        end: offset + usize::from(u16::from_be_bytes([header[2], header[3]])),
    })
}

#[inline(always)]
fn ipv6(frame: &(impl Frame + ?Sized), offset: usize) -> Option<Packet> {
    let header = frame.at::<IPV6>(offset)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let (mut protocol, mut transport) = (header[6], offset + IPV6);
    for _ in 0..MOST_EXTENSIONS {
        let [next, length] = match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | AUTHENTICATION | FRAGMENT => {
                *frame.at::<2>(transport)?
            }
            _ => break,
        };
        transport += match protocol {
            AUTHENTICATION => (usize::from(length) + 2) * 4,
            FRAGMENT => {
                let [_, _, high, low] = *frame.at::<4>(transport)?;
                if u16::from_be_bytes([high, low]) & IPV6_FRAGMENT != 0 {
                    return None;
                }
                8
            }
            _ => (usize::from(length) + 1) * 8,
        };
        protocol = next;
    }
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let (source, destination) = (Address(*header[8..].first_chunk()?), Address(*header.last_chunk()?));
    // IPv4-mapped addresses (RFC 4291 section 2.5.5.2) are for sockets.
    if source.is_v4() || destination.is_v4() {
        return None;
    }
    Some(Packet {
        form: if transport == offset + IPV6 { Form::V6 } else { Form::Other },
        source,
        destination,
        protocol,
        transport,
        end: offset + IPV6 + payload,
    })
}
