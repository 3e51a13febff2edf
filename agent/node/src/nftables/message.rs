//! nf_tables' side of netlink (linux/netfilter/nfnetlink.h and nf_tables.h), as far as it is
//! needed: messages of nested attributes, many of them one transaction. The numbers are the
//! kernel's user-space interface and never change.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFTABLES: u16 = 10;

const REQUEST: u16 = 0x01;
const ACK: u16 = 0x04;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// Of an attribute's type: it holds attributes.
const NESTED: u16 = 0x8000;

/// Room for a message per VIP and more; the default holds some thousand.
const SEND_BUFFER: usize = 8 << 20;

/// `enum nf_tables_msg_types`.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    NewTable = 0,
    DeleteTable = 2,
    NewChain = 3,
    NewRule = 6,
    GetRule = 7,
    NewSet = 9,
    NewElements = 12,
    GetElements = 13,
    DeleteElements = 14,
}

/// Attributes one after the other, each padded to four bytes; numbers are big-endian.
pub(super) struct Attributes(Vec<u8>);

/// Messages that take effect together, or not at all.
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Of the last message.
    sequence: u32,
}

impl Attributes {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn text(self, kind: u16, text: &str) -> Self {
        self.bytes(kind, &[text.as_bytes(), &[0]].concat())
    }

    pub(super) fn number(self, kind: u16, number: u32) -> Self {
        self.bytes(kind, &number.to_be_bytes())
    }

    pub(super) fn nested(self, kind: u16, attributes: Self) -> Self {
        self.bytes(kind | NESTED, &attributes.0)
    }

    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        // The callers' longest list is a thousand addresses, well below 64 KiB.
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

impl Batch {
    pub(super) fn new() -> Self {
        let mut batch = Self { bytes: Vec::new(), sequence: 0 };
        batch.message(BATCH_BEGIN, REQUEST, [0, 0, 0, NFTABLES as u8], &[]);
        batch
    }

    pub(super) fn add(&mut self, kind: Kind, family: u8, attributes: Attributes) {
        let flags = match kind {
            Kind::DeleteTable | Kind::DeleteElements => REQUEST,
            Kind::NewRule => REQUEST | CREATE | APPEND,
            _ => REQUEST | CREATE,
        };
        let number = NFTABLES << 8 | kind as u16;
        // Every message is acknowledged; errors come in the same order.
        self.message(number, flags | ACK, [family, 0, 0, 0], &attributes.0);
    }

    fn message(&mut self, kind: u16, flags: u16, general: [u8; 4], attributes: &[u8]) {
        self.sequence += 1;
        self.bytes.extend(message(kind, flags, self.sequence, general, attributes));
    }

    /// Returns once the kernel has done all of it, or the first thing it did not like. Tables that
    /// are owned go with the socket.
    pub(super) fn send(mut self) -> io::Result<Socket> {
        let last = self.sequence;
        self.message(BATCH_END, REQUEST, [0, 0, 0, NFTABLES as u8], &[]);
        let socket = connect()?;
        // Without the privilege the default has to do.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER);
        socket.send(&self.bytes, 0)?;
        loop {
            let (answer, _) = socket.recv_from_full()?;
            if acknowledgements(&answer)?.contains(&last) {
                return Ok(socket);
            }
        }
    }
}

/// Number of objects that the kernel lists, of those that have these attributes.
pub(super) fn count(kind: Kind, family: u8, attributes: Attributes) -> io::Result<usize> {
    list(kind, family, attributes, |_| 1)
}

/// The same of a set's elements, of which a message has many.
pub(super) fn count_elements(family: u8, set: Attributes) -> io::Result<usize> {
    // NFTA_SET_ELEM_LIST_ELEMENTS.
    const ELEMENTS: u16 = 3;
    list(Kind::GetElements, family, set, |message| {
        let lists = attributes(message).filter(|(kind, _)| *kind == ELEMENTS);
        lists.map(|(_, list)| attributes(list).count()).sum()
    })
}

/// The sum of what is counted in each message that the kernel answers with.
fn list(kind: Kind, family: u8, attributes: Attributes, count: impl Fn(&[u8]) -> usize) -> io::Result<usize> {
    let socket = connect()?;
    let request = NFTABLES << 8 | kind as u16;
    socket.send(&message(request, REQUEST | DUMP, 1, [family, 0, 0, 0], &attributes.0), 0)?;
    let mut listed = 0;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        for (kind, header, body) in messages(&answer) {
            match kind {
                NLMSG_DONE => return Ok(listed),
                NLMSG_ERROR => drop(acknowledged(header, body)?),
                _ => {
                    let length = (number(header, 0) as usize).saturating_sub(HEADER);
                    // Behind `struct nfgenmsg`.
                    listed += count(body.get(4..length).unwrap_or_default());
                }
            }
        }
    }
}

fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// `struct nlmsghdr`, `struct nfgenmsg`, attributes.
fn message(kind: u16, flags: u16, sequence: u32, general: [u8; 4], attributes: &[u8]) -> Vec<u8> {
    let length = (HEADER + general.len() + attributes.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(general);
    bytes.extend(attributes);
    bytes
}

/// The sequence numbers of what was done; an error if something was not.
fn acknowledgements(datagram: &[u8]) -> io::Result<Vec<u32>> {
    let errors = messages(datagram).filter(|(kind, ..)| *kind == NLMSG_ERROR);
    errors.map(|(_, header, body)| acknowledged(header, body)).collect()
}

/// `struct nlmsgerr`: 0 stands for success.
fn acknowledged(header: &[u8], body: &[u8]) -> io::Result<u32> {
    match number(body, 0).cast_signed() {
        0 => Ok(number(header, 8)),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// The kind, header and all that follows it of each message.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (header, body) = rest.split_at_checked(HEADER)?;
        let length = number(header, 0) as usize;
        rest = rest.get(length.next_multiple_of(4).max(HEADER)..).unwrap_or_default();
        Some((u16::from_ne_bytes([header[4], header[5]]), header, body))
    })
}

/// The kind and value of each attribute.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([header[2], header[3]]) & !NESTED, value))
    })
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let number = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    number.map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_but_say_their_length() {
        let attributes = Attributes::new().text(1, "ab").nested(2, Attributes::new().number(3, 1));
        let mut expected = Vec::new();
        expected.extend([7_u16.to_ne_bytes(), 1_u16.to_ne_bytes()].concat());
        expected.extend(b"ab\0\0");
        expected.extend([12_u16.to_ne_bytes(), 0x8002_u16.to_ne_bytes()].concat());
        expected.extend([8_u16.to_ne_bytes(), 3_u16.to_ne_bytes()].concat());
        expected.extend([0, 0, 0, 1]);
        assert_eq!(attributes.0, expected);
    }

    #[test]
    fn errors_are_told_from_acknowledgements() {
        let answer = |sequence: u32, error: i32| {
            let mut bytes = 36_u32.to_ne_bytes().to_vec();
            bytes.extend([NLMSG_ERROR.to_ne_bytes(), [0, 0]].concat());
            bytes.extend(sequence.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(error.to_ne_bytes());
            bytes.resize(36, 0);
            bytes
        };
        assert_eq!(acknowledgements(&[answer(7, 0), answer(8, 0)].concat()).unwrap(), [7, 8]);
        let refused = acknowledgements(&[answer(7, 0), answer(8, -1)].concat()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(acknowledgements(&[]).unwrap().is_empty());
    }
}
