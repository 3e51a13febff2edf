//! A netlink socket (netlink(7)) of this thread's network namespace: requests with their
//! acknowledgement, and dumps. The messages are in the modules below; their purpose is not known
//! here.

pub(crate) mod addresses;
pub(crate) mod changes;
pub(crate) mod classifiers;
pub(crate) mod links;
pub(crate) mod reachable;
pub(crate) mod sockets;

use std::io;
use std::marker::PhantomData;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// A connection to the kernel for one protocol.
pub(crate) struct Connection<M> {
    socket: Socket,
    messages: PhantomData<M>,
}

impl<M> Connection<M>
where
    M: NetlinkSerializable + NetlinkDeserializable + Into<NetlinkPayload<M>>,
{
    /// `protocol` is one of `netlink_sys::protocols`.
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, messages: PhantomData })
    }

    /// Sends a change and waits for its acknowledgement.
    pub(crate) fn request(&mut self, message: M, flags: u16) -> io::Result<()> {
        self.exchange(message, flags, drop)
    }

    /// Requests one thing, and takes what the kernel says of it.
    pub(crate) fn get(&mut self, message: M, take: impl FnMut(M)) -> io::Result<()> {
        self.exchange(message, 0, take)
    }

    fn exchange(&mut self, message: M, flags: u16, mut take: impl FnMut(M)) -> io::Result<()> {
        self.send(message, NLM_F_ACK | flags)?;
        loop {
            for payload in self.receive()? {
                match payload {
                    NetlinkPayload::InnerMessage(message) => take(message),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Requests a list and takes each of its messages. A list that the kernel cannot make ends with
    /// an error code.
    pub(crate) fn dump(&mut self, message: M, mut take: impl FnMut(M)) -> io::Result<()> {
        self.send(message, NLM_F_DUMP)?;
        loop {
            for payload in self.receive()? {
                match payload {
                    NetlinkPayload::InnerMessage(message) => take(message),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, message: M, flags: u16) -> io::Result<()> {
        let mut packet = NetlinkMessage::new(Default::default(), message.into());
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// One datagram: one or several messages, each padded to four bytes.
    fn receive(&mut self) -> io::Result<Vec<NetlinkPayload<M>>> {
        let (bytes, _) = self.socket.recv_from_full()?;
        let mut rest = &bytes[..];
        let mut payloads = Vec::new();
        while !rest.is_empty() {
            let message = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
            let length = (message.header.length as usize).next_multiple_of(4);
            payloads.push(message.payload);
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
        Ok(payloads)
    }
}
