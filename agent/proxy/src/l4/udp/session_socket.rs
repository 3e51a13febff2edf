//! The socket of a UDP session: it is connected to the endpoint, and told what ICMP says of it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, recvmsg, setsockopt, sockopt};
use tokio::net::UdpSocket;

pub(super) fn connected(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let any = if endpoint.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = StdUdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.set_nonblocking(true)?;
    // Without it the kernel keeps to itself that a host or network cannot be reached.
    let _ = match endpoint {
        SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true),
        SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true),
    };
    connect(&socket, endpoint)?;
    UdpSocket::from_std(socket)
}

/// From now on nothing comes but from the endpoint. What came since the socket has its port, such
/// as a late answer to a session that had it before, is no answer to anything.
fn connect(socket: &StdUdpSocket, endpoint: SocketAddr) -> io::Result<()> {
    socket.connect(endpoint)?;
    while socket.recv(&mut [0]).is_ok() {}
    Ok(())
}

/// True if an ICMP message, or this machine's routes, say that nothing is there.
pub(super) fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            // By a filter's word.
            | ErrorKind::PermissionDenied
    )
}

/// Takes what the kernel has kept of ICMP messages, to the end.
pub(super) fn forget_errors(socket: &UdpSocket) -> io::Result<()> {
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    loop {
        recvmsg::<()>(socket.as_raw_fd(), &mut [], None, flags)?;
    }
}

/// True of this machine's own addresses.
pub(super) fn is_local(address: IpAddr) -> bool {
    StdUdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_a_session_is_no_answer() {
        let [session, endpoint, stranger] =
            [(); 3].map(|()| StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        session.set_nonblocking(true).unwrap();
        let address = session.local_addr().unwrap();
        stranger.send_to(b"stray", address).unwrap();
        connect(&session, endpoint.local_addr().unwrap()).unwrap();
        endpoint.send_to(b"answer", address).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(session.recv(&mut buffer).unwrap(), 6);
        assert_eq!(&buffer[..6], b"answer");
    }
}
