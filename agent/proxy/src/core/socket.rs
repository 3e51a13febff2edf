//! Listening sockets: a pair on loopback that the kernel steers connections to, or one per
//! frontend.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use portcullis_model::SpeaksFirst;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

const BACKLOG: i32 = 4096;
/// A client that vanished is noticed after two minutes. Tunnels and streams may be silent for
/// longer, and middleboxes forget silent connections, too.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// Bytes of a connection that may wait in the kernel to be sent. By default it takes megabytes for
/// a client that does not read, and a slow reader looks like one for as long as it takes to drain
/// a third of them.
const UNSENT: u32 = 16 << 10;

/// Bytes of datagrams that may wait to be read from a frontend's socket; the kernel doubles it.
const DATAGRAMS: usize = 1 << 20;

/// A pair of steered sockets, which one core has for connections of one kind.
#[derive(Debug)]
pub struct CoreSockets {
    pub speaks_first: SpeaksFirst,
    pub v4: TcpListener,
    /// Absent on hosts without IPv6.
    pub v6: Option<TcpListener>,
}

/// Listening sockets that one agent gives to the next, with the connections that wait there.
#[derive(Debug, Default)]
pub struct Sockets {
    pub steered: Vec<CoreSockets>,
    /// Of frontends, each by its local address; several of one, as there were cores.
    pub bound: Vec<TcpListener>,
    /// The same for UDP.
    pub datagrams: Vec<UdpSocket>,
}

// === impl CoreSockets ===

impl CoreSockets {
    pub(crate) fn open(speaks_first: SpeaksFirst) -> io::Result<Self> {
        let v4 = listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
        Ok(Self { speaks_first, v4, v6: listen(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0)).ok() })
    }

    pub(crate) fn into_listeners(self) -> impl Iterator<Item = TcpListener> {
        [Some(self.v4), self.v6].into_iter().flatten()
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let v6 = self.v6.as_ref().map(TcpListener::try_clone).transpose()?;
        Ok(Self { speaks_first: self.speaks_first, v4: self.v4.try_clone()?, v6 })
    }
}

// === impl Sockets ===

impl Sockets {
    /// For each of so many cores its part.
    pub(crate) fn dealt(self, cores: usize) -> Vec<Self> {
        let mut parts: Vec<_> = (0..cores).map(|_| Self::default()).collect();
        let mut dealt = BTreeMap::<SpeaksFirst, usize>::new();
        for pair in self.steered {
            let place = dealt.entry(pair.speaks_first).or_default();
            parts[*place % cores].steered.push(pair);
            *place += 1;
        }
        let mut dealt = HashMap::<SocketAddr, usize>::new();
        for listener in self.bound {
            let Ok(local) = listener.local_addr() else { continue };
            let place = dealt.entry(local).or_default();
            parts[*place % cores].bound.push(listener);
            *place += 1;
        }
        let mut dealt = HashMap::<SocketAddr, usize>::new();
        for socket in self.datagrams {
            let Ok(local) = socket.local_addr() else { continue };
            let place = dealt.entry(local).or_default();
            parts[*place % cores].datagrams.push(socket);
            *place += 1;
        }
        parts
    }
}

/// A non-blocking socket for datagrams that other cores may bind, too; the kernel deals clients out
/// to them.
pub(crate) fn bind_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    if matches!(address.ip(), IpAddr::V6(_)) {
        socket.set_only_v6(true)?;
    }
    // More than the system's default needs a capability, and is no condition.
    let _ = set_socket_recv_buffer_size_force(&socket, DATAGRAMS);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Advice to those who may not have a port.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ": ports below 1024 take root, or the capability NET_BIND_SERVICE",
        _ => "",
    }
}

/// A non-blocking listener that other cores may bind, too. `::` does not take IPv4 connections, so
/// that both unspecified addresses can be frontends.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if matches!(address.ip(), IpAddr::V6(_)) {
        socket.set_only_v6(true)?;
    }
    // Inherited by what is accepted.
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_notsent_lowat(UNSENT)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn every_core_gets_its_part_of_each_kind() {
        use SpeaksFirst::{Client, Either};
        let kinds = [Either, Either, Client, Either, Client];
        let steered = kinds.map(|kind| CoreSockets::open(kind).unwrap()).into();
        let parts = Sockets { steered, ..Sockets::default() }.dealt(2);
        let kinds = |part: &Sockets| part.steered.iter().map(|pair| pair.speaks_first).collect::<Vec<_>>();
        assert_eq!(kinds(&parts[0]), [Either, Client, Either]);
        assert_eq!(kinds(&parts[1]), [Either, Client]);
    }

    #[test]
    fn what_is_accepted_sends_at_once() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(accepted.nodelay().unwrap());
    }
}
