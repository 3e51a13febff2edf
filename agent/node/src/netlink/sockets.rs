//! Sockets of this network namespace through sock_diag(7), the interface behind `ss`: which
//! addresses have open TCP connections, who takes connections or datagrams on a port, and whose a
//! unix socket is. The kernel
//! filters by state, so that a node with many connections lists only what is requested.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::Nla as _;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags};
use netlink_packet_sock_diag::message::SockDiagMessage;
use netlink_packet_sock_diag::unix::{self, ShowFlags, UnixRequest};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use portcullis_model::L4Protocol;

use crate::netlink::Connection;

/// From linux/unix_diag.h, since Linux 5.3; the library has neither.
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_UID: u16 = 7;
/// `INET_DIAG_NOCOOKIE`: the inode says which.
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// A socket that accepts connections, or takes datagrams of any sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listening {
    /// As it was bound: an IPv6 socket may have an IPv4-mapped address.
    pub(crate) address: SocketAddr,
    pub(crate) families: Families,
    pub(crate) inode: u64,
}

/// The families that an IPv6 socket bound to `::` accepts; means nothing for other sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv4 too.
    Both,
    /// `IPV6_V6ONLY` is set.
    Ipv6Only,
}

/// The local addresses of connections that may still have bytes to send, IPv4-mapped ones as IPv4.
///
/// # Errors
/// When the kernel does not list sockets: it was built without `INET_DIAG`, or cannot load the
/// module.
pub(crate) fn local_addresses() -> io::Result<BTreeSet<IpAddr>> {
    // FIN_WAIT2 and TIME_WAIT have sent everything; SYN_SENT and SYN_RECV have not begun.
    let open = StateFlags::ESTABLISHED
        | StateFlags::FIN_WAIT1
        | StateFlags::CLOSE_WAIT
        | StateFlags::LAST_ACK
        | StateFlags::CLOSING;
    let mut addresses = BTreeSet::new();
    dump(L4Protocol::Tcp, &open, |socket| {
        addresses.insert(socket.header.socket_id.source_address.to_canonical());
    })?;
    Ok(addresses)
}

/// The local addresses and ports of TCP handshakes that clients have begun and not completed,
/// IPv4-mapped ones as IPv4.
///
/// # Errors
/// As [`local_addresses`].
pub(crate) fn handshakes() -> io::Result<BTreeSet<SocketAddr>> {
    let mut local = BTreeSet::new();
    dump(L4Protocol::Tcp, &StateFlags::SYN_RECV, |socket| {
        let id = &socket.header.socket_id;
        local.insert(SocketAddr::new(id.source_address.to_canonical(), id.source_port));
    })?;
    Ok(local)
}

/// All sockets that listen. Those of UDP are bound, and not connected to one peer.
///
/// # Errors
/// As [`local_addresses`]; UDP is a module of its own.
pub(crate) fn listening(protocol: L4Protocol) -> io::Result<Vec<Listening>> {
    let state = match protocol {
        L4Protocol::Tcp => StateFlags::LISTEN,
        L4Protocol::Udp => StateFlags::CLOSE,
    };
    let mut sockets = Vec::new();
    dump(protocol, &state, |socket| {
        let id = &socket.header.socket_id;
        let is_v6_only = socket.nlas.iter().any(|attribute| matches!(attribute, Nla::SkV6Only(true)));
        sockets.push(Listening {
            address: SocketAddr::new(id.source_address, id.source_port),
            families: if is_v6_only { Families::Ipv6Only } else { Families::Both },
            inode: socket.header.inode.into(),
        });
    })?;
    Ok(sockets)
}

/// The user who made a unix socket: what the kernel knows, not what a process says. `None` where
/// the kernel does not tell, or the socket is gone.
pub(crate) fn owner(inode: u64) -> Option<u32> {
    let request = UnixRequest {
        state_flags: unix::StateFlags::empty(),
        inode: inode.try_into().ok()?,
        show_flags: ShowFlags::from_bits_retain(UDIAG_SHOW_UID),
        cookie: ANY_COOKIE,
    };
    let mut owner = None;
    let mut kernel = Connection::open(NETLINK_SOCK_DIAG).ok()?;
    let told = kernel.get(SockDiagMessage::UnixRequest(request), |message| {
        if let SockDiagMessage::UnixResponse(socket) = message {
            owner = socket.nlas.iter().find_map(user);
        }
    });
    told.ok().and(owner)
}

fn user(attribute: &unix::nlas::Nla) -> Option<u32> {
    let unix::nlas::Nla::Other(attribute) = attribute else { return None };
    let mut value = [0; size_of::<u32>()];
    if attribute.kind() != UNIX_DIAG_UID || attribute.value_len() != value.len() {
        return None;
    }
    attribute.emit_value(&mut value);
    Some(u32::from_ne_bytes(value))
}

/// A dump lists the sockets of one family; those of the other come with a dump of its own.
fn dump(protocol: L4Protocol, states: &StateFlags, mut take: impl FnMut(&InetResponse)) -> io::Result<()> {
    for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let request = InetRequest {
            family,
            protocol: number(protocol),
            extensions: ExtensionFlags::empty(),
            states: states.clone(),
            socket_id,
        };
        Connection::open(NETLINK_SOCK_DIAG)?.dump(SockDiagMessage::InetRequest(request), |message| {
            if let SockDiagMessage::InetResponse(socket) = message {
                take(&socket);
            }
        })?;
    }
    Ok(())
}

fn number(protocol: L4Protocol) -> u8 {
    match protocol {
        L4Protocol::Tcp => IPPROTO_TCP,
        L4Protocol::Udp => IPPROTO_UDP,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn addresses_have_connections_as_long_as_one_is_open() {
        let v4: IpAddr = "127.93.7.1".parse().unwrap();
        let is_used = |address| local_addresses().unwrap().contains(address);
        let listener = TcpListener::bind((v4, 0)).unwrap();
        assert!(!is_used(&v4), "no client is connected");
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_used(&v4));
        drop(listener.accept().unwrap());
        drop(client);
        let deadline = Instant::now() + Duration::from_secs(5);
        while is_used(&v4) {
            assert!(Instant::now() < deadline, "nothing is left to be sent");
        }
    }

    #[test]
    fn ipv4_connections_of_ipv6_sockets_have_ipv4_addresses() {
        let v4: IpAddr = "127.93.7.2".parse().unwrap();
        let listener = TcpListener::bind("[::]:0").unwrap();
        let client = TcpStream::connect((v4, listener.local_addr().unwrap().port())).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        // Only the accepted socket has this local address.
        assert_eq!(client.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        assert!(local_addresses().unwrap().contains(&v4), "{accepted:?}");
    }

    #[test]
    fn ipv6_connections_have_ipv6_addresses() {
        let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
        let listener = TcpListener::bind((v6, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        assert!(local_addresses().unwrap().contains(&v6), "{client:?}");
        assert!(listening(L4Protocol::Tcp).unwrap().iter().any(|socket| socket.address == address));
        // Others may have connections of this address, too.
        let mut ports = BTreeSet::new();
        dump(L4Protocol::Tcp, &StateFlags::ESTABLISHED, |socket| {
            let id = &socket.header.socket_id;
            ports.extend((id.source_address == v6).then_some(id.source_port));
        })
        .unwrap();
        assert!(ports.contains(&address.port()));
    }

    #[test]
    fn listening_sockets_are_listed_and_connected_ones_are_not() {
        let listener = TcpListener::bind("127.93.7.3:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let sockets = listening(L4Protocol::Tcp).unwrap();
        let of = |address| sockets.iter().filter(move |socket| socket.address == address).count();
        assert_eq!((of(address), of(client.local_addr().unwrap())), (1, 0));
        drop(listener);
        assert!(listening(L4Protocol::Tcp).unwrap().iter().all(|socket| socket.address != address));
    }
    #[test]
    fn sockets_of_udp_listen_unless_they_are_connected() {
        let [v4, v6, connected] =
            ["127.93.7.4:0", "[::1]:0", "127.93.7.4:0"].map(|address| UdpSocket::bind(address).unwrap());
        let [of_v4, of_v6, peer] = [&v4, &v6, &connected].map(|socket| socket.local_addr().unwrap());
        connected.connect(of_v4).unwrap();
        let sockets = listening(L4Protocol::Udp).unwrap();
        let of = |address| sockets.iter().filter(move |socket| socket.address == address).count();
        assert_eq!((of(of_v4), of(of_v6), of(peer)), (1, 1, 0));
        assert!(listening(L4Protocol::Tcp).unwrap().iter().all(|socket| socket.address != of_v4));
    }
}
