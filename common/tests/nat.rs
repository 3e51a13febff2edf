//! Frames as the programs that forward read them.
#![cfg(test)]

use std::net::IpAddr;

use portcullis_common::abi::{Address, TCP, UDP};
use portcullis_common::flow::{Hook, Ip};
use portcullis_common::nat::{Kind, Packet, TCP_ACK, TCP_SYN, Unread};

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.9"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::9"];

fn octets(text: &str) -> Vec<u8> {
    match text.parse().expect("an address") {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn ip(text: &str) -> Ip {
    match text.parse().expect("an address") {
        IpAddr::V4(ip) => Ip::from(Address::v4(ip.octets())),
        IpAddr::V6(ip) => Ip::from(Address::v6(ip.octets())),
    }
}

/// From port 40000 to port 80.
fn tcp(flags: u8) -> Vec<u8> {
    vec![0x9c, 0x40, 0, 80, 0, 0, 0, 5, 0, 0, 0, 6, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]
}

fn udp() -> Vec<u8> {
    vec![0x9c, 0x40, 0, 80, 0, 8, 0, 0]
}

fn v4([from, to]: [&str; 2], protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let [high, low] = fragment.to_be_bytes();
    let words = 0x45 + options.len() as u8 / 4;
    let start = [words, 0, 0, 0, 0x12, 0x34, high, low, 64, protocol, 0, 0];
    [&start[..], &octets(from), &octets(to), options, payload].concat()
}

fn v6([from, to]: [&str; 2], next: u8, payload: &[u8]) -> Vec<u8> {
    [&[0x60, 0, 0, 0, 0, 0, next, 64][..], &octets(from), &octets(to), payload].concat()
}

fn frame(tag: &[u8], packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&[2; 12], tag, &ethertype, packet].concat()
}

fn read(frame: &[u8]) -> Result<Packet, Unread> {
    Packet::read(frame, Hook::In)
}

#[test]
fn ports_and_places_are_found_behind_tags_and_options() {
    let vlan = [0x81, 0, 0, 42];
    let cases = [
        (frame(&[], &v4(V4, TCP, 0x4000, &[], &tcp(TCP_SYN))), V4, 14, 34),
        (frame(&vlan, &v4(V4, TCP, 0, &[], &tcp(TCP_SYN))), V4, 18, 38),
        (frame(&[], &v4(V4, TCP, 0, &[1; 8], &tcp(TCP_SYN))), V4, 14, 42),
        (frame(&[], &v6(V6, TCP, &tcp(TCP_SYN))), V6, 14, 54),
        (frame(&vlan, &v6(V6, TCP, &tcp(TCP_SYN))), V6, 18, 58),
    ];
    for (frame, [from, to], network, transport) in cases {
        let packet = read(&frame).unwrap();
        assert_eq!((packet.network, packet.transport), (network, transport));
        assert_eq!((packet.tuple.source, packet.tuple.destination), (ip(from), ip(to)));
        let ports = [packet.tuple.source_port_be, packet.tuple.destination_port_be].map(u16::from_be);
        assert_eq!(ports, [40_000, 80]);
        assert_eq!((packet.kind, packet.flags), (Kind::Tcp, TCP_SYN));
        assert_eq!((packet.sequence, packet.acknowledgement), (5, 6));
        assert!(packet.begins());
        // Whatever is cut off, it is not read wrongly.
        for length in 0..transport + 20 {
            assert_eq!(read(&frame[..length]), Err(Unread::Short), "{length}");
        }
    }
    assert!(!read(&frame(&[], &v4(V4, TCP, 0, &[], &tcp(TCP_SYN | TCP_ACK)))).unwrap().begins());
}

#[test]
fn fragments_are_told_apart() {
    let first = read(&frame(&[], &v4(V4, UDP, 0x2000, &[], &udp()))).unwrap();
    assert_eq!((first.kind, first.identification), (Kind::Udp, Some(0x1234)));
    assert!(first.begins());
    let later = read(&frame(&[], &v4(V4, UDP, 0x00b9, &[], &[7; 3]))).unwrap();
    assert_eq!((later.kind, later.identification), (Kind::LaterFragment, Some(0x1234)));
    assert_eq!(later.tuple.destination_port_be, 0);
    assert!(!later.begins());

    let header = |word: u16| [&[UDP, 0][..], &word.to_be_bytes(), &[0, 0, 0x12, 0x34], &udp()].concat();
    let of = |word| read(&frame(&[], &v6(V6, 44, &header(word)))).unwrap();
    assert_eq!((of(1).kind, of(1).identification), (Kind::Udp, Some(0x1234)));
    assert_eq!((of(1).transport, of(1).begins()), (62, true));
    assert_eq!((of(0x00b9).kind, of(0x00b8).kind), (Kind::LaterFragment, Kind::LaterFragment));
    assert_eq!(of(0).identification, None, "a whole one");
}

/// An answer to the quoted packet is what finds its flow.
#[test]
fn errors_are_read_as_far_as_what_they_quote() {
    let [from, to] = V4;
    let error = |kind: u8, quoted: &[u8]| [&[kind, 4, 0, 0, 0, 0, 5, 0][..], quoted].concat();
    let quoted = v4([from, to], UDP, 0x4000, &[1; 4], &udp());
    let frame_v4 = frame(&[], &v4(["192.0.2.1", from], 1, 0, &[], &error(3, &quoted)));
    let packet = read(&frame_v4).unwrap();
    assert_eq!((packet.kind, packet.sender, packet.addressee), (Kind::IcmpError, ip("192.0.2.1"), ip(from)));
    assert_eq!((packet.tuple.source, packet.tuple.destination), (ip(to), ip(from)));
    assert_eq!(u16::from_be(packet.tuple.source_port_be), 80);
    assert_eq!((packet.tuple.protocol, packet.quoted_network, packet.quoted_transport), (UDP, 42, 66));

    let [from, to] = V6;
    let quoted = v6([from, to], TCP, &tcp(0)[..8]);
    let packet = read(&frame(&[], &v6(["2001:db8::7", from], 58, &error(2, &quoted)))).unwrap();
    assert_eq!((packet.tuple.source, packet.tuple.destination), (ip(to), ip(from)));
    assert_eq!((packet.tuple.protocol, packet.quoted_network, packet.quoted_transport), (TCP, 62, 102));

    // A question, an answer, neighbour discovery; and an error about something else.
    for kind in [8, 0, 5] {
        let quoted = v4(V4, UDP, 0, &[], &udp());
        assert_eq!(read(&frame(&[], &v4(V4, 1, 0, &[], &error(kind, &quoted)))), Err(Unread::Other));
    }
    for kind in [128, 129, 135] {
        let quoted = v6(V6, TCP, &tcp(0));
        assert_eq!(read(&frame(&[], &v6(V6, 58, &error(kind, &quoted)))), Err(Unread::Other));
    }
    let ping = v4(V4, 1, 0, &[], &[0; 8]);
    assert_eq!(read(&frame(&[], &v4(V4, 1, 0, &[], &error(3, &ping)))), Err(Unread::Other));
    let later = v4(V4, UDP, 7, &[], &[0; 8]);
    assert_eq!(read(&frame(&[], &v4(V4, 1, 0, &[], &error(3, &later)))), Err(Unread::Other));
}

#[test]
fn everything_else_is_left_alone() {
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    let others = [
        arp,
        frame(&[], &v4(V4, 47, 0, &[], &[0; 20])),
        frame(&[], &v4(V4, 58, 0, &[], &[1; 60])),
        frame(&[], &v6(V6, 0, &[TCP, 0, 0, 0, 0, 0, 0, 0])),
        frame(&[], &v6(V6, 50, &[0; 20])),
    ];
    for frame in others {
        assert_eq!(read(&frame), Err(Unread::Other), "{frame:?}");
    }
    let mut short = frame(&[], &v4(V4, TCP, 0, &[], &tcp(TCP_SYN)));
    short[14] = 0x44;
    assert_eq!(read(&short), Err(Unread::Other));
}
