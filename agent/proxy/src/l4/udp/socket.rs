//! The socket of a UDP frontend. Answers must leave from the address that their client sent to. A
//! socket of one address has no other; that of all addresses is told by the kernel which one it
//! was, and tells the kernel which one it is to be.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::l4::udp::table::Network;

/// One client at one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey {
    pub peer: SocketAddr,
    pub local: IpAddr,
}

pub(crate) struct FrontendSocket {
    socket: UdpSocket,
    /// `None`: all addresses.
    local: Option<IpAddr>,
}

// === impl ClientKey ===

impl Network for ClientKey {
    fn network(&self) -> IpAddr {
        match self.peer.ip() {
            v4 @ IpAddr::V4(_) => v4,
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        }
    }
}

// === impl FrontendSocket ===

impl FrontendSocket {
    /// Of a socket that is bound to the address.
    pub(crate) fn new(socket: StdUdpSocket, address: IpAddr) -> io::Result<Self> {
        let is_any = address.is_unspecified();
        if is_any && address.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        } else if is_any {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        Ok(Self { socket: UdpSocket::from_std(socket)?, local: (!is_any).then_some(address) })
    }

    pub(crate) fn share(&self) -> io::Result<StdUdpSocket> {
        Ok(self.socket.as_fd().try_clone_to_owned()?.into())
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// The length of the next datagram, and its sender; `InvalidData` if it is to be passed over.
    pub(crate) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<(usize, ClientKey)> {
        match self.local {
            Some(local) => {
                let (length, peer) = self.socket.try_recv_from(buffer)?;
                Ok((length, ClientKey { peer, local }))
            }
            None => self.socket.try_io(Interest::READABLE, || self.receive_with_local(buffer)),
        }
    }

    /// Sends to the client, from the address that it knows.
    pub(crate) fn try_send(&self, bytes: &[u8], to: ClientKey) -> io::Result<usize> {
        match self.local {
            Some(_) => self.socket.try_send_to(bytes, to.peer),
            None => self.socket.try_io(Interest::WRITABLE, || self.send_from(bytes, to)),
        }
    }

    pub(crate) async fn send(&self, bytes: &[u8], to: ClientKey) -> io::Result<usize> {
        loop {
            self.socket.writable().await?;
            match self.try_send(bytes, to) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
    }

    fn receive_with_local(&self, buffer: &mut [u8]) -> io::Result<(usize, ClientKey)> {
        let mut control = nix::cmsg_space!(in6_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.socket.as_raw_fd();
        let received =
            recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
        let peer = received.address.as_ref().and_then(socket_address);
        // To all of a network or group: nothing can answer from that address, and one datagram of a
        // forged sender would have the answers of all nodes.
        let local = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                let to_one = info.ipi_addr.s_addr == info.ipi_spec_dst.s_addr;
                to_one.then(|| IpAddr::V4(u32::from_be(info.ipi_spec_dst.s_addr).into()))
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                Some(IpAddr::V6(info.ipi6_addr.s6_addr.into())).filter(|local| !local.is_multicast())
            }
            _ => None,
        });
        let (peer, local) = peer.zip(local).ok_or(ErrorKind::InvalidData)?;
        Ok((received.bytes, ClientKey { peer, local }))
    }

    fn send_from(&self, bytes: &[u8], to: ClientKey) -> io::Result<usize> {
        let parts = [IoSlice::new(bytes)];
        let (fd, peer, flags) =
            (self.socket.as_raw_fd(), SockaddrStorage::from(to.peer), MsgFlags::MSG_DONTWAIT);
        let sent = match to.local {
            IpAddr::V4(local) => {
                let from = in_addr { s_addr: u32::from(local).to_be() };
                let any = in_addr { s_addr: Ipv4Addr::UNSPECIFIED.into() };
                let info = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: any };
                sendmsg(fd, &parts, &[ControlMessage::Ipv4PacketInfo(&info)], flags, Some(&peer))
            }
            IpAddr::V6(local) => {
                let info = in6_pktinfo { ipi6_addr: in6_addr { s6_addr: local.octets() }, ipi6_ifindex: 0 };
                sendmsg(fd, &parts, &[ControlMessage::Ipv6PacketInfo(&info)], flags, Some(&peer))
            }
        };
        Ok(sent?)
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|it| SocketAddr::V4((*it).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|it| SocketAddr::V6((*it).into())))
}
