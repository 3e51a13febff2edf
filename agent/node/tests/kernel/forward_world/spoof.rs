//! Packets that no stack has sent: floods of SYNs and datagrams, resets, fragments.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::PORT;

/// From this thread's namespace, with a number that its connection may not be at.
pub(crate) fn reset(from: &str, to: SocketAddr, sequence: u32) {
    let (from, SocketAddr::V4(to)) = (from.parse::<SocketAddrV4>().unwrap(), to) else { unreachable!() };
    let mut segment =
        [&from.port().to_be_bytes()[..], &to.port().to_be_bytes(), &sequence.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 0, 0x50, 4, 0, 0, 0, 0, 0, 0]);
    let sum = checksum(*from.ip(), *to.ip(), 6, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    send(&packet(*from.ip(), *to.ip(), 6, &segment), *to.ip());
}

/// Half SYNs, half datagrams, from this thread's namespace.
pub(crate) fn flood(packets: u32, to: IpAddr) {
    let address = SocketAddr::new(to, 0);
    let socket =
        Socket::new(Domain::for_address(address), Type::RAW, Some(Protocol::from(libc_raw()))).unwrap();
    let address = SockAddr::from(address);
    for number in 0..packets {
        let is_syn = number % 2 == 0;
        let packet = match to {
            IpAddr::V4(to) => {
                let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number / 2);
                if is_syn { syn(source, to, PORT) } else { datagram(source, to) }
            }
            IpAddr::V6(to) => {
                let network = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0));
                v6(Ipv6Addr::from(network + u128::from(number / 2)), to, is_syn)
            }
        };
        while socket.send_to(&packet, &address).is_err() {
            std::thread::yield_now();
        }
    }
}

/// The "more fragments" of a fragment.
#[derive(Clone, Copy)]
pub(crate) enum Rest {
    Follows,
    Last,
}

/// Eight bytes of a datagram to a port: at 0 its header, which says more, and else the port again.
pub(crate) fn fragment(from: [u8; 4], to: [u8; 4], port: u16, identification: u16, offset: u16, rest: Rest) {
    let [high, low] = port.to_be_bytes();
    let mut packet = packet(from.into(), to.into(), 17, &[0x9c, 0x40, high, low, 0, 40, 0, 0]);
    packet[4..6].copy_from_slice(&identification.to_be_bytes());
    let more = if matches!(rest, Rest::Follows) { 0x2000 } else { 0 };
    packet[6..8].copy_from_slice(&(more | (offset / 8)).to_be_bytes());
    send(&packet, to.into());
}

/// A packet with its header.
fn send(packet: &[u8], to: Ipv4Addr) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc_raw()))).unwrap();
    socket.send_to(packet, &SocketAddr::new(to.into(), 0).into()).unwrap();
}

/// A SYN or a datagram.
fn v6(source: Ipv6Addr, to: Ipv6Addr, is_syn: bool) -> Vec<u8> {
    let [high, low] = PORT.to_be_bytes();
    let (protocol, checksum_at, mut payload) = match is_syn {
        true => (6, 16, vec![0x9c, 0x40, high, low, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]),
        false => (17, 6, vec![0x9c, 0x40, high, low, 0, 10, 0, 0, 7, 7]),
    };
    let length = payload.len() as u16;
    let pseudo =
        [&source.octets()[..], &to.octets(), &length.to_be_bytes(), &[0, protocol], &payload].concat();
    let sum = folded(&pseudo);
    payload[checksum_at..][..2].copy_from_slice(&sum.to_be_bytes());
    let start = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, 64]].concat();
    [&start[..], &source.octets(), &to.octets(), &payload].concat()
}

/// A whole frame, by an interface of this thread's namespace.
pub(crate) fn send_frame(interface: &str, frame: &[u8]) {
    let socket = Socket::new(Domain::PACKET, Type::RAW, None).unwrap();
    let index = rustix::net::netdevice::name_to_index(&socket, interface).unwrap();
    #[expect(unsafe_code, reason = "no safe call names an interface to a packet socket")]
    // SAFETY: all zeros are a value; the storage has room for it, and holds as much as it says.
    let ((), to) = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        SockAddr::try_init(|storage, length| {
            storage.cast::<libc::sockaddr_ll>().write(address);
            *length = size_of::<libc::sockaddr_ll>() as u32;
            Ok(())
        })
    }
    .unwrap();
    socket.send_to(frame, &to).unwrap();
}

/// The Internet checksum of an even number of bytes (RFC 1071).
fn folded(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
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
