//! The packet table: frame in, reason out, against one small world of VIPs and frontends. The host
//! test of this crate runs it on `verdict` itself, the test of `portcullis-node` on the loaded XDP
//! program.
#![cfg(test)]

use std::net::IpAddr;

use portcullis_common::abi::{Address, TCP, UDP, VIP_EXCLUSIVE, VIP_SHARED};
use portcullis_common::reason::Reason::{self, *};

/// (VIP, flags)
pub(crate) const VIPS: &[(&str, u32)] =
    &[("10.0.0.1", VIP_EXCLUSIVE), ("10.0.0.2", VIP_SHARED), ("2001:db8::1", VIP_EXCLUSIVE)];

/// (protocol, address, port) with a listener
pub(crate) const FRONTENDS: &[(u8, &str, u16)] = &[
    (TCP, "10.0.0.1", 443),
    (UDP, "10.0.0.1", 53),
    (TCP, "10.0.0.2", 443),
    (TCP, "0.0.0.0", 8080),
    (TCP, "2001:db8::1", 443),
    (TCP, "::", 8081),
];

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) frame: Vec<u8>,
    pub(crate) reason: Reason,
}

pub(crate) fn cases() -> Vec<Case> {
    [ipv4(), ipv4_odd(), ipv6(), link()].into_iter().flatten().collect()
}

pub(crate) fn address(text: &str) -> Address {
    match text.parse().expect("an address") {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn case(name: &'static str, reason: Reason, frame: Vec<u8>) -> Case {
    Case { name, frame, reason }
}

fn ipv4() -> Vec<Case> {
    vec![
        case("tcp to a listener", PassedListener, v4("10.0.0.1", TCP, &tcp(443)).frame()),
        case("udp to a listener", PassedListener, v4("10.0.0.1", UDP, &udp(53)).frame()),
        case("tcp to no listener", DroppedNoListener, v4("10.0.0.1", TCP, &tcp(22)).frame()),
        case("udp to no listener", DroppedNoListener, v4("10.0.0.1", UDP, &udp(123)).frame()),
        case("the port's other protocol", DroppedNoListener, v4("10.0.0.1", UDP, &udp(443)).frame()),
        case("wildcard listener on a VIP", PassedListener, v4("10.0.0.1", TCP, &tcp(8080)).frame()),
        case("v6 wildcard is not for v4", DroppedNoListener, v4("10.0.0.1", TCP, &tcp(8081)).frame()),
        case("shared VIP, listener", PassedListener, v4("10.0.0.2", TCP, &tcp(443)).frame()),
        case("shared VIP, no listener", PassedSharedAddress, v4("10.0.0.2", TCP, &tcp(22)).frame()),
        case("reply to a local client", PassedNotVip, v4("192.0.2.7", TCP, &tcp(40_000)).frame()),
        case("forwarded, even to port 443", PassedNotVip, v4("192.0.2.7", TCP, &tcp(443)).frame()),
        case("ping", PassedIcmp, v4("10.0.0.1", 1, &[8, 0, 0, 0, 0, 0, 0, 0]).frame()),
        case("ICMPv6 is no protocol of IPv4", PassedOtherProtocol, v4("10.0.0.1", 58, &[128; 8]).frame()),
        case("GRE", PassedOtherProtocol, v4("10.0.0.1", 47, &[0; 8]).frame()),
    ]
}

fn ipv4_odd() -> Vec<Case> {
    let one_option = || v4("10.0.0.1", TCP, &tcp(22)).options(1);
    vec![
        case("options, no listener", DroppedNoListener, one_option().frame()),
        case("most options, listener", PassedListener, v4("10.0.0.1", TCP, &tcp(443)).options(10).frame()),
        case("options cut off the ports", PassedMalformed, one_option().cut(14 + 24 + 2).frame()),
        case(
            "first fragment, no listener",
            DroppedNoListener,
            v4("10.0.0.1", UDP, &udp(9)).fragment(0x2000).frame(),
        ),
        case("later fragment", PassedFragment, v4("10.0.0.1", UDP, &udp(9)).fragment(0x2001).frame()),
        case("last fragment", PassedFragment, v4("10.0.0.1", UDP, &udp(9)).fragment(0x00b9).frame()),
        case("don't fragment", PassedListener, v4("10.0.0.1", TCP, &tcp(443)).fragment(0x4000).frame()),
        case("header length 4", PassedMalformed, v4("10.0.0.1", TCP, &tcp(22)).set(14, 0x44).frame()),
        case("version 5", PassedMalformed, v4("10.0.0.1", TCP, &tcp(22)).set(14, 0x55).frame()),
        case("header cut short", PassedMalformed, v4("10.0.0.1", TCP, &tcp(22)).cut(14 + 19).frame()),
        case("no transport header", PassedMalformed, v4("10.0.0.1", TCP, &[]).frame()),
    ]
}

fn ipv6() -> Vec<Case> {
    vec![
        case("v6 tcp to a listener", PassedListener, v6("2001:db8::1", TCP, &tcp(443)).frame()),
        case("v6 wildcard listener", PassedListener, v6("2001:db8::1", TCP, &tcp(8081)).frame()),
        case("v6 tcp to no listener", DroppedNoListener, v6("2001:db8::1", TCP, &tcp(22)).frame()),
        case("v6 udp to no listener", DroppedNoListener, v6("2001:db8::1", UDP, &udp(443)).frame()),
        case("v4 wildcard is not for v6", DroppedNoListener, v6("2001:db8::1", TCP, &tcp(8080)).frame()),
        case("v6 not a VIP", PassedNotVip, v6("2001:db8::2", TCP, &tcp(443)).frame()),
        case(
            "a mapped address is the v4 VIP",
            DroppedNoListener,
            v6("::ffff:10.0.0.1", TCP, &tcp(22)).frame(),
        ),
        case("neighbour discovery", PassedIcmp, v6("2001:db8::1", 58, &[135; 24]).frame()),
        case(
            "hop-by-hop options",
            PassedExtension,
            v6("2001:db8::1", 0, &[TCP, 0, 0, 0, 0, 0, 0, 0]).frame(),
        ),
        case("v6 fragment", PassedExtension, v6("2001:db8::1", 44, &[TCP, 0, 0, 8, 0, 0, 0, 1]).frame()),
        case("ESP", PassedOtherProtocol, v6("2001:db8::1", 50, &[0; 16]).frame()),
        case("v6 version 4", PassedMalformed, v6("2001:db8::1", TCP, &tcp(22)).set(14, 0x40).frame()),
        case("v6 header cut short", PassedMalformed, v6("2001:db8::1", TCP, &tcp(22)).cut(14 + 39).frame()),
    ]
}

fn link() -> Vec<Case> {
    let tagged = |ethertype| v4("10.0.0.1", TCP, &tcp(22)).vlan(ethertype);
    vec![
        case("VLAN, no listener", DroppedNoListener, tagged(0x8100).frame()),
        case("VLAN, v6 listener", PassedListener, v6("2001:db8::1", TCP, &tcp(443)).vlan(0x8100).frame()),
        case("service VLAN", DroppedNoListener, tagged(0x88a8).frame()),
        case("two tags", PassedNotIp, tagged(0x8100).vlan(0x88a8).frame()),
        case("VLAN tag cut short", PassedNotIp, tagged(0x8100).cut(16).frame()),
        case("ARP", PassedNotIp, ethernet(0x0806, &[0; 28]).frame()),
        case("only an Ethernet header", PassedMalformed, ethernet(0x0800, &[]).frame()),
    ]
}

/// A frame under construction. Checksums stay 0: the guard does not look at them.
struct Builder(Vec<u8>);

impl Builder {
    fn frame(self) -> Vec<u8> {
        self.0
    }

    fn set(mut self, offset: usize, byte: u8) -> Self {
        self.0[offset] = byte;
        self
    }

    fn cut(mut self, length: usize) -> Self {
        self.0.truncate(length);
        self
    }

    /// Flags and offset, as one word.
    fn fragment(self, word: u16) -> Self {
        let [high, low] = word.to_be_bytes();
        self.set(20, high).set(21, low)
    }

    /// `words` IPv4 option words of no-ops.
    fn options(mut self, words: u8) -> Self {
        self.0.splice(34..34, vec![1; usize::from(words) * 4]);
        self.set(14, 0x45 + words)
    }

    fn vlan(mut self, ethertype: u16) -> Self {
        let [high, low] = ethertype.to_be_bytes();
        self.0.splice(12..12, [high, low, 0, 42]);
        self
    }
}

fn ethernet(ethertype: u16, payload: &[u8]) -> Builder {
    let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    Builder([&macs[..], &ethertype.to_be_bytes(), payload].concat())
}

fn v4(destination: &str, protocol: u8, payload: &[u8]) -> Builder {
    let [length_high, length_low] = u16::try_from(20 + payload.len()).expect("a short packet").to_be_bytes();
    let start = [0x45, 0, length_high, length_low, 0, 1, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1];
    let destination = &address(destination).0[12..];
    ethernet(0x0800, &[&start, destination, payload].concat())
}

fn v6(destination: &str, next_header: u8, payload: &[u8]) -> Builder {
    let [length_high, length_low] = u16::try_from(payload.len()).expect("a short packet").to_be_bytes();
    let start = [0x60, 0, 0, 0, length_high, length_low, next_header, 64];
    let source = address("2001:db8::99").0;
    ethernet(0x86dd, &[&start[..], &source, &address(destination).0, payload].concat())
}

/// A SYN.
fn tcp(port: u16) -> [u8; 20] {
    let [high, low] = port.to_be_bytes();
    [0x9c, 0x40, high, low, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]
}

fn udp(port: u16) -> [u8; 12] {
    let [high, low] = port.to_be_bytes();
    [0x9c, 0x40, high, low, 0, 12, 0, 0, 1, 2, 3, 4]
}
