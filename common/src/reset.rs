//! The headers of the two resets that end a connection whose ClientHello is refused: one for the
//! node's own socket, in the place of the segment that had the hello, and one for its client.

/// IPv4 without options. All numbers are in network order, in this and the following.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V4 {
    /// Version, length of the header, and service.
    pub start: u16,
    pub length: u16,
    pub id: u16,
    pub fragment: u16,
    pub hops: u8,
    pub protocol: u8,
    pub checksum: u16,
    pub source: u32,
    pub destination: u32,
}

/// IPv6 without extension headers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V6 {
    /// Version, class and label.
    pub start: u32,
    pub length: u16,
    pub next: u8,
    pub hops: u8,
    pub source: [u32; 4],
    pub destination: [u32; 4],
}

/// TCP without options.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    pub source: u16,
    pub destination: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// The header's length in words, in the upper half.
    pub length: u8,
    pub flags: u8,
    pub window: u16,
    pub checksum: u16,
    pub urgent: u16,
}

/// The headers of a segment, as they lie in a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<I> {
    pub ip: I,
    pub tcp: Tcp,
}

/// The form in which a packet has the checksum of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    Full,
    /// The pseudo-header's only: the rest is added where the packet leaves, or not at all
    /// (`CHECKSUM_PARTIAL` of the kernel).
    PseudoHeader,
}

const _: () = assert!(size_of::<Headers<V4>>() == 40 && align_of::<Headers<V4>>() == 4);
const _: () = assert!(size_of::<Headers<V6>>() == 60 && align_of::<Headers<V6>>() == 4);

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

const TCP_LENGTH: u16 = size_of::<Tcp>() as u16;
const PROTOCOL: u16 = 6;
/// Routers on the way (RFC 1700), as Linux has it.
const HOPS: u8 = 64;

/// An IP header with nothing behind it but that of TCP.
pub trait Ip: Copy {
    /// For the same way, around a TCP header alone.
    #[must_use]
    fn shortened(self) -> Self;
    /// The same the other way.
    #[must_use]
    fn answering(self) -> Self;
    /// The sum of the addresses.
    fn addresses(&self) -> u32;
}

impl<I: Ip> Headers<I> {
    /// The reset for the node's own socket. It has the number of the first byte that was refused,
    /// which is the one that the socket waits for.
    #[inline(always)]
    #[must_use]
    pub fn to_server(&self, form: Checksum) -> Self {
        let ip = self.ip.shortened();
        Self { ip, tcp: self.tcp.reset(ip.addresses(), form) }
    }

    /// The reset for the client, whose segment had a payload of this length: it has the number that
    /// the client waits for, and acknowledges all of the segment.
    #[inline(always)]
    #[must_use]
    pub fn to_client(&self, payload: u32, form: Checksum) -> Self {
        let ip = self.ip.shortened().answering();
        let taken = payload + u32::from(self.tcp.flags & FIN);
        let tcp = Tcp {
            source: self.tcp.destination,
            destination: self.tcp.source,
            sequence: self.tcp.acknowledgement,
            acknowledgement: u32::from_be(self.tcp.sequence).wrapping_add(taken).to_be(),
            ..self.tcp
        };
        Self { ip, tcp: tcp.reset(ip.addresses(), form) }
    }
}

impl Tcp {
    #[inline(always)]
    fn reset(self, addresses: u32, form: Checksum) -> Self {
        let length = (TCP_LENGTH << 2) as u8;
        let reset = Self { length, flags: RST | ACK, window: 0, checksum: 0, urgent: 0, ..self };
        let pseudo_header = addresses + u32::from(PROTOCOL.to_be()) + u32::from(TCP_LENGTH.to_be());
        let checksum = match form {
            Checksum::Full => !folded(pseudo_header + reset.sum()),
            Checksum::PseudoHeader => folded(pseudo_header),
        };
        Self { checksum, ..reset }
    }

    /// Of what is not 0 in a reset.
    #[inline(always)]
    const fn sum(&self) -> u32 {
        let ports = self.source as u32 + self.destination as u32;
        let flags = u16::from_ne_bytes([self.length, self.flags]) as u32;
        ports + flags + halves(self.sequence) + halves(self.acknowledgement)
    }
}

impl Ip for V4 {
    #[inline(always)]
    fn shortened(self) -> Self {
        Self { length: (size_of::<Headers<Self>>() as u16).to_be(), ..self }.summed()
    }

    #[inline(always)]
    fn answering(self) -> Self {
        Self { hops: HOPS, source: self.destination, destination: self.source, ..self }.summed()
    }

    #[inline(always)]
    fn addresses(&self) -> u32 {
        halves(self.source) + halves(self.destination)
    }
}

impl V4 {
    #[inline(always)]
    fn summed(self) -> Self {
        let start = u32::from(self.start) + u32::from(self.length) + u32::from(self.id);
        let rest = u32::from(self.fragment) + u32::from(u16::from_ne_bytes([self.hops, self.protocol]));
        Self { checksum: !folded(start + rest + self.addresses()), ..self }
    }
}

impl Ip for V6 {
    #[inline(always)]
    fn shortened(self) -> Self {
        Self { length: TCP_LENGTH.to_be(), ..self }
    }

    #[inline(always)]
    fn answering(self) -> Self {
        Self { hops: HOPS, source: self.destination, destination: self.source, ..self }
    }

    #[inline(always)]
    fn addresses(&self) -> u32 {
        let sum = |[a, b, c, d]: [u32; 4]| halves(a) + halves(b) + halves(c) + halves(d);
        sum(self.source) + sum(self.destination)
    }
}

/// The sum of both halves; checksums come out right in any order of bytes (RFC 1071, section 2).
#[inline(always)]
const fn halves(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

#[inline(always)]
const fn folded(sum: u32) -> u16 {
    halves(halves(sum)) as u16
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const SEGMENT: Tcp = Tcp {
        source: 40_000_u16.to_be(),
        destination: 443_u16.to_be(),
        sequence: 0xffff_ff00_u32.to_be(),
        acknowledgement: 77_u32.to_be(),
        length: 0x80,
        flags: 0x18,
        window: 258,
        checksum: 999,
        urgent: 0,
    };
    const IPV4: V4 = V4 {
        start: 0x4500_u16.to_be(),
        length: 521_u16.to_be(),
        id: 7,
        fragment: 0x4000_u16.to_be(),
        hops: 61,
        protocol: 6,
        checksum: 99,
        source: 0xc000_0201_u32.to_be(),
        destination: 0x0a00_0001_u32.to_be(),
    };
    const IPV6: V6 = V6 {
        start: 0x6001_0203_u32.to_be(),
        length: 521_u16.to_be(),
        next: 6,
        hops: 61,
        source: [0x2001_0db8, 1, 2, 3],
        destination: [0xfd00_0000, 9, 8, 7],
    };

    /// As it is sent, by a way of its own.
    fn sum(parts: &[&[u8]]) -> u16 {
        let bytes: Vec<u8> = parts.concat();
        let words = bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    fn bytes(tcp: &Tcp) -> Vec<u8> {
        let ports = [tcp.source, tcp.destination].map(u16::to_ne_bytes).concat();
        let numbers = [tcp.sequence, tcp.acknowledgement].map(u32::to_ne_bytes).concat();
        let end = [tcp.window, tcp.checksum, tcp.urgent].map(u16::to_ne_bytes).concat();
        [&ports[..], &numbers, &[tcp.length, tcp.flags], &end].concat()
    }

    fn start(ip: &V4) -> Vec<u8> {
        let start = [ip.start, ip.length, ip.id, ip.fragment].map(u16::to_ne_bytes).concat();
        [&start[..], &[ip.hops, ip.protocol], &ip.checksum.to_ne_bytes()].concat()
    }

    fn v4(ip: &V4) -> Vec<u8> {
        [ip.source, ip.destination].map(u32::to_ne_bytes).concat()
    }

    fn v6(ip: &V6) -> Vec<u8> {
        ip.source.iter().chain(&ip.destination).flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn both_ends_get_the_number_that_they_wait_for() {
        let headers = Headers { ip: IPV4, tcp: SEGMENT };
        let Headers { tcp, .. } = headers.to_server(Checksum::Full);
        assert_eq!((tcp.sequence, tcp.acknowledgement), (SEGMENT.sequence, SEGMENT.acknowledgement));
        assert_eq!((tcp.flags, tcp.length), (RST | ACK, 0x50));
        let Headers { ip, tcp } = headers.to_client(0x1ff, Checksum::Full);
        assert_eq!((ip.source, ip.destination), (IPV4.destination, IPV4.source));
        assert_eq!((tcp.source, tcp.destination), (SEGMENT.destination, SEGMENT.source));
        assert_eq!(tcp.sequence, SEGMENT.acknowledgement);
        assert_eq!(tcp.acknowledgement, 0xff_u32.to_be(), "it wraps around");
    }

    #[test]
    fn checksums_hold() {
        let headers = Headers { ip: IPV4, tcp: SEGMENT };
        for Headers { ip, tcp } in [headers.to_server(Checksum::Full), headers.to_client(5, Checksum::Full)] {
            assert_eq!(sum(&[&start(&ip), &v4(&ip)]), 0xffff);
            assert_eq!(sum(&[&v4(&ip), &[0, 6, 0, 20], &bytes(&tcp)]), 0xffff);
            assert_eq!(ip.length, 40_u16.to_be());
        }
        let headers = Headers { ip: IPV6, tcp: SEGMENT };
        for Headers { ip, tcp } in [headers.to_server(Checksum::Full), headers.to_client(5, Checksum::Full)] {
            assert_eq!(sum(&[&v6(&ip), &[0, 6, 0, 20], &bytes(&tcp)]), 0xffff);
            assert_eq!(ip.length, 20_u16.to_be());
        }
    }

    /// As the kernel seeds what an interface completes.
    #[test]
    fn a_checksum_that_is_to_be_completed_has_the_pseudo_header() {
        let Headers { ip, tcp } = Headers { ip: IPV6, tcp: SEGMENT }.to_client(5, Checksum::PseudoHeader);
        assert_eq!(u16::from_be(tcp.checksum), sum(&[&v6(&ip), &[0, 6, 0, 20]]));
    }
}
