//! Packets from addresses that are not the sender's: half SYNs, half datagrams.
#![cfg(test)]

use std::net::{Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::PORT;

/// From this thread's namespace.
pub(crate) fn flood(packets: u32, to: Ipv4Addr) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc_raw()))).unwrap();
    let address = SockAddr::from(SocketAddrV4::new(to, 0));
    for number in 0..packets {
        let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number / 2);
        let packet = if number % 2 == 0 { syn(source, to, PORT) } else { datagram(source, to) };
        while socket.send_to(&packet, &address).is_err() {
            std::thread::yield_now();
        }
    }
}

/// `IPPROTO_RAW`: the header is the sender's.
const fn libc_raw() -> i32 {
    255
}

/// With the header's checksum.
pub(crate) fn whole_syn(source: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut packet = syn(source, to, port);
    let sum: u32 = packet[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn syn(source: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    let mut segment = vec![0x9c, 0x40, high, low, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    let sum = checksum(source, to, 6, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    packet(source, to, 6, &segment)
}

fn datagram(source: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let [high, low] = PORT.to_be_bytes();
    packet(source, to, 17, &[0x9c, 0x40, high, low, 0, 9, 0, 0, 7])
}

/// The kernel fills in the header's checksum.
fn packet(source: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + payload.len() as u16).to_be_bytes();
    let start = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0];
    [&start[..], &source.octets(), &to.octets(), payload].concat()
}

fn checksum(source: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> u16 {
    let length = payload.len() as u16;
    let words = [&source.octets()[..], &to.octets(), &[0, protocol], &length.to_be_bytes(), payload].concat();
    let sum: u32 = words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
