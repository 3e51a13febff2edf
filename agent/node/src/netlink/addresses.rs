//! The node's addresses through rtnetlink (rtnetlink(7)): list, add to and remove from loopback.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Every network namespace has loopback as its first interface.
const LOOPBACK: u32 = 1;
/// What marks an address as added by Portcullis. 0 to 3 are the kernel's own (linux/if_addr.h).
const PROTOCOL: AddressProtocol = AddressProtocol::Other(112);
/// The same for IPv4 before Linux 5.18, and what `ip address` shows. At most 15 characters, beginning with the interface.
const LABEL: &str = "lo:portcullis";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalAddress {
    pub(crate) address: IpAddr,
    pub(crate) ours: bool,
}

/// The addresses of this thread's network namespace.
pub(crate) struct Addresses(Socket);

impl Addresses {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    pub(crate) fn list(&mut self) -> io::Result<Vec<LocalAddress>> {
        self.send(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        let mut found = Vec::new();
        loop {
            for payload in self.receive()? {
                match payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(message)) => {
                        found.extend(local_address(&message));
                    }
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) => return Ok(found),
                    _ => {}
                }
            }
        }
    }

    /// Adding what is there already is no error.
    pub(crate) fn add(&mut self, address: IpAddr) -> io::Result<()> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(RouteNetlinkMessage::NewAddress(on_loopback(address)), flags)
    }

    pub(crate) fn remove(&mut self, address: IpAddr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelAddress(on_loopback(address)), NLM_F_ACK)
    }

    /// Sends a change and waits for its acknowledgement.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(message, flags)?;
        loop {
            for payload in self.receive()? {
                match payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.0.send(&bytes, 0).map(drop)
    }

    /// One datagram: one or several messages, each padded to four bytes.
    fn receive(&mut self) -> io::Result<Vec<NetlinkPayload<RouteNetlinkMessage>>> {
        let (bytes, _) = self.0.recv_from_full()?;
        let mut rest = &bytes[..];
        let mut payloads = Vec::new();
        while !rest.is_empty() {
            let message =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            let length = (message.header.length as usize).next_multiple_of(4);
            payloads.push(message.payload);
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
        Ok(payloads)
    }
}

/// A whole-address prefix with no life beyond this host: never a source address the kernel picks by itself.
fn on_loopback(address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = LOOPBACK;
    message.header.scope = AddressScope::Host;
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
        AddressAttribute::Protocol(PROTOCOL),
    ];
    match address {
        IpAddr::V4(_) => {
            (message.header.family, message.header.prefix_len) = (AddressFamily::Inet, 32);
            message.attributes.push(AddressAttribute::Label(LABEL.to_owned()));
        }
        IpAddr::V6(_) => {
            (message.header.family, message.header.prefix_len) = (AddressFamily::Inet6, 128);
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
    }
    message
}

/// IPv6 has only `Address`; for IPv4 on a point-to-point link that is the peer, and `Local` is what is local.
fn local_address(message: &AddressMessage) -> Option<LocalAddress> {
    let find = |select: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(select);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = find(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some(LocalAddress {
        address: local.or(address)?,
        ours: message.header.index == LOOPBACK && is_ours(message),
    })
}

fn is_ours(message: &AddressMessage) -> bool {
    message.attributes.iter().any(|attribute| match attribute {
        AddressAttribute::Protocol(protocol) => *protocol == PROTOCOL,
        AddressAttribute::Label(label) => label == LABEL,
        _ => false,
    })
}
