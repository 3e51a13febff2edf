//! TCP connections to endpoints, while they are being made. Where a machine on the way says by ICMP
//! that an endpoint cannot be reached, the attempt ends at once: the kernel would try again for as
//! long as it has time.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::TcpStream;

pub(crate) struct Dial {
    stream: TcpStream,
    to: SocketAddr,
}

/// The effect of ICMP messages on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Icmp {
    /// They end it: there is nothing yet that a forged one could harm.
    Heard,
    /// As the kernel thinks fit.
    Judged,
}

impl Dial {
    /// Sends the first packet.
    pub(crate) fn begin(to: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        set_icmp(&socket, to, Icmp::Heard);
        match socket.connect(&to.into()) {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => return Err(error),
            _ => {}
        }
        Ok(Self { stream: TcpStream::from_std(socket.into())?, to })
    }

    /// The address and port that the endpoint sees.
    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    pub(crate) async fn finish(self) -> io::Result<TcpStream> {
        let Self { stream, to } = self;
        let ready = stream.ready(Interest::WRITABLE).await?;
        // The kernel tells here of a message, too, that came while it was busy with the socket.
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        if ready.is_write_closed() {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        set_icmp(&stream, to, Icmp::Judged);
        Ok(stream)
    }
}

/// Over IPv4 the kernel tells by itself what comes before there is a connection.
fn set_icmp(socket: &impl AsFd, to: SocketAddr, icmp: Icmp) {
    if to.is_ipv6() {
        let _ = setsockopt(socket, sockopt::Ipv6RecvErr, &(icmp == Icmp::Heard));
    }
}
