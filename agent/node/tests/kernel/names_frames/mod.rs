//! The frames of a TCP client. Checksums stay 0: the program does not look at them.

use std::net::{Ipv4Addr, Ipv6Addr};

/// As in an address with a port.
pub(crate) const VIPS: [&str; 2] = ["10.0.0.1", "[2001:db8::1]"];
pub(crate) const KNOWN: u16 = 443;
pub(crate) const OTHERS: u16 = 8443;
pub(crate) const UNREAD: u16 = 80;

const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The headers before TCP's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    V4,
    V4Options,
    V4Vlan,
    V6,
    V6Extensions,
    V6Vlan,
}

pub(crate) const LINKS: [Link; 6] =
    [Link::V4, Link::V4Options, Link::V4Vlan, Link::V6, Link::V6Extensions, Link::V6Vlan];

#[derive(Clone, Copy)]
pub(crate) struct Client {
    source_port: u16,
    port: u16,
    link: Link,
}

impl Client {
    pub(crate) fn new(index: usize, port: u16, link: Link) -> Self {
        Self { source_port: 20_000 + index as u16, port, link }
    }

    /// The segments in order; the sequence number wraps around in their middle.
    pub(crate) fn stream(self, segments: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut sequence = 0_u32.wrapping_sub(100);
        let frames = segments.iter().map(|segment| {
            let frame = self.frame(sequence, segment);
            sequence = sequence.wrapping_add(segment.len() as u32);
            frame
        });
        frames.collect()
    }

    fn frame(self, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let [source, port] = [self.source_port, self.port].map(u16::to_be_bytes);
        let mut tcp = [&source[..], &port, &sequence.to_be_bytes(), &[0; 4]].concat();
        // With a timestamp, as usual.
        tcp.extend([0x80, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        tcp.extend(payload);
        let vlan = [0x81, 0, 0, 42];
        let (tag, ethertype, packet) = match self.link {
            Link::V4 => (&[][..], [8, 0], v4(&[], &tcp)),
            Link::V4Options => (&[][..], [8, 0], v4(&[1; 8], &tcp)),
            Link::V4Vlan => (&vlan[..], [8, 0], v4(&[], &tcp)),
            Link::V6 => (&[][..], [0x86, 0xdd], v6(6, &[], &tcp)),
            Link::V6Extensions => {
                // Hop-by-hop and destination options, and a fragment header of a whole packet.
                let extensions =
                    [[60, 0, 1, 4, 0, 0, 0, 0], [44, 0, 1, 4, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 1]];
                (&[][..], [0x86, 0xdd], v6(0, &extensions.concat(), &tcp))
            }
            Link::V6Vlan => (&vlan[..], [0x86, 0xdd], v6(6, &[], &tcp)),
        };
        let mut frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], tag, &ethertype, &packet].concat();
        // The shortest frame of Ethernet; what is added is no payload.
        frame.resize(frame.len().max(60), 0xee);
        frame
    }
}

fn v4(options: &[u8], payload: &[u8]) -> Vec<u8> {
    let words = 5 + options.len() as u8 / 4;
    let [high, low] = (usize::from(words) * 4 + payload.len()).to_be_bytes()[6..] else { unreachable!() };
    let start = [0x40 | words, 0, high, low, 0, 1, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1];
    [&start[..], &V4.octets(), options, payload].concat()
}

fn v6(next: u8, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let [high, low] = (extensions.len() + payload.len()).to_be_bytes()[6..] else { unreachable!() };
    let source = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x99).octets();
    [&[0x60, 0, 0, 0, high, low, next, 64][..], &source, &V6.octets(), extensions, payload].concat()
}
