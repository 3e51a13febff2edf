//! The headers of a frame from the network, as the kernel programs read them, and as the RFCs have
//! them, read one after the other.

use portcullis_common::abi::{Address, TCP, UDP};
use portcullis_common::packet::{self, Headers, Network, Payload};

/// Extension headers that tell where the next one is (IANA, "IPv6 Extension Header Types").
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];

pub(crate) fn run(frame: &[u8]) {
    let parsed = packet::parse(frame);
    assert_eq!(parsed, read(frame));
    let Headers::Ip(network) = parsed else { return };
    assert_eq!(network.source(frame), source(frame));
    if let Payload::Transport { offset, .. } = network.payload {
        let header = frame.get(offset..).unwrap_or_default();
        let port = header.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]]));
        assert_eq!(packet::destination_port(frame, offset), port);
        // SYN without ACK (RFC 9293 section 3.5).
        let begins = header.get(13).is_some_and(|flags| flags & 0x02 != 0 && flags & 0x10 == 0);
        assert_eq!(packet::begins_connection(frame, offset), begins);
    }
}

fn read(frame: &[u8]) -> Headers {
    let (bytes, offset) = untagged(frame);
    network(bytes, offset)
}

/// From the EtherType on, which is at the offset, behind one tag of IEEE 802.1Q or 802.1ad.
fn untagged(frame: &[u8]) -> (&[u8], usize) {
    match frame.get(12..).unwrap_or_default() {
        [0x81, 0x00, _, _, rest @ ..] | [0x88, 0xa8, _, _, rest @ ..] => (rest, 12 + 4),
        rest => (rest, 12),
    }
}

fn source(frame: &[u8]) -> Option<Address> {
    match untagged(frame).0 {
        [0x08, 0x00, packet @ ..] => Some(Address::v4(packet.get(12..16)?.try_into().ok()?)),
        [_, _, packet @ ..] => Some(Address::v6(packet.get(8..24)?.try_into().ok()?)),
        _ => None,
    }
}

fn network(bytes: &[u8], offset: usize) -> Headers {
    let read = match bytes {
        [0x08, 0x00, packet @ ..] => ipv4(packet, offset + 2),
        [0x86, 0xdd, packet @ ..] => ipv6(packet, offset + 2),
        _ => return Headers::NotIp,
    };
    read.map_or(Headers::Malformed, Headers::Ip)
}

/// RFC 791 section 3.1.
fn ipv4(packet: &[u8], offset: usize) -> Option<Network> {
    let (header, _) = packet.split_at_checked(20)?;
    let words = usize::from(header[0] % 16);
    if header[0] / 16 != 4 || words < 5 {
        return None;
    }
    let is_first = header[6] % 32 == 0 && header[7] == 0;
    let payload = match header[9] {
        _ if !is_first => Payload::Fragment,
        protocol @ (TCP | UDP) => Payload::Transport { protocol, offset: offset + words * 4 },
        1 => Payload::Icmp,
        _ => Payload::Other,
    };
    Some(Network { destination: Address::v4(header[16..].try_into().ok()?), payload })
}

/// RFC 8200 section 3. An IPv4-mapped destination (RFC 4291 section 2.5.5.2) is the IPv4 address.
fn ipv6(packet: &[u8], offset: usize) -> Option<Network> {
    let (header, _) = packet.split_at_checked(40)?;
    if header[0] / 16 != 6 {
        return None;
    }
    let payload = match header[6] {
        protocol @ (TCP | UDP) => Payload::Transport { protocol, offset: offset + 40 },
        58 => Payload::Icmp,
        next if EXTENSIONS.contains(&next) => Payload::Extension,
        _ => Payload::Other,
    };
    Some(Network { destination: Address::v6(header[24..].try_into().ok()?), payload })
}
