//! Listening sockets: a pair on loopback that the kernel steers connections to, or one per
//! frontend.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

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

/// The steered sockets of one core.
#[derive(Debug)]
pub struct CoreSockets {
    pub v4: TcpListener,
    /// Absent on hosts without IPv6.
    pub v6: Option<TcpListener>,
}

// === impl CoreSockets ===

impl CoreSockets {
    pub(crate) fn open() -> io::Result<Self> {
        let v4 = listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
        Ok(Self { v4, v6: listen(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0)).ok() })
    }

    /// For a runtime, which must be the current one.
    pub(crate) fn watch(self) -> io::Result<Vec<tokio::net::TcpListener>> {
        [Some(self.v4), self.v6].into_iter().flatten().map(tokio::net::TcpListener::from_std).collect()
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { v4: self.v4.try_clone()?, v6: self.v6.as_ref().map(TcpListener::try_clone).transpose()? })
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
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
