//! The messages of a hand-over: lines of JSON on a unix socket, with descriptors. Agents of other
//! versions read them, so that what is here stays as it is, and what is added must be optional.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// Version of the conversation.
pub(super) const PROTOCOL: u32 = 1;

/// Descriptors of one message; the kernel takes 253 (`SCM_MAX_FD`).
pub(super) const MAX_DESCRIPTORS: usize = 128;

/// Bytes of a line. All lines are short.
const LONGEST: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    /// The successor's first word.
    Hello { protocol: u32, installation: String },
    /// With the lock of the network namespace, then those of directories.
    Welcome,
    /// The predecessor serves on, and the successor is to end. May come at any time.
    Refused { reason: String },
    /// The successor is ready to serve.
    Take,
    /// With listening sockets.
    Sockets { role: Role },
    /// There are no more.
    AllSockets,
    /// The successor serves. It may ask for the path of the admin socket.
    Serving { needs_admin_socket: bool },
    /// The predecessor accepts and writes nothing any more.
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Role {
    /// Connections of every frontend are steered there.
    Steered,
    /// Bound to the address and port of a frontend; its type tells TCP from UDP.
    Bound,
}

/// A message that came, with its descriptors.
pub(super) struct Received {
    pub message: Message,
    pub descriptors: Vec<OwnedFd>,
}

/// The kernel may deliver several lines at once, with the descriptors of one.
#[derive(Serialize, Deserialize)]
struct Line {
    message: Message,
    /// Their number.
    descriptors: usize,
}

/// The receiving side of a connection.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: VecDeque<u8>,
    descriptors: VecDeque<OwnedFd>,
}

/// Blocks if the socket does.
pub(super) fn send(stream: impl AsFd, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let line = Line { message: message.clone(), descriptors: descriptors.len() };
    let mut line = serde_json::to_vec(&line)?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    // A line this short is sent whole or not at all.
    sendmsg(stream, &[IoSlice::new(&line)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

// === impl Inbox ===

impl Inbox {
    /// Reads once from the socket, unless there is a message already; `None` if more is to come.
    pub(super) fn receive(&mut self, stream: impl AsFd) -> io::Result<Option<Received>> {
        if let Some(message) = self.next()? {
            return Ok(Some(message));
        }
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(stream, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.extend(&bytes[..received.bytes]);
        self.next()
    }

    fn next(&mut self) -> io::Result<Option<Received>> {
        let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') else {
            return match self.bytes.len() {
                0..=LONGEST => Ok(None),
                _ => Err(io::Error::other("the message does not end")),
            };
        };
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        // As it is, an error of JSON that ends early would be the end of the connection.
        let line = serde_json::from_slice(&line);
        let Line { message, descriptors } =
            line.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if descriptors > self.descriptors.len() {
            // As many as this process may have were taken.
            return Err(io::Error::other(
                "descriptors are missing: raise the limit of open files (ulimit -Hn)",
            ));
        }
        Ok(Some(Received { message, descriptors: self.descriptors.drain(..descriptors).collect() }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (from, to) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let many = vec![file.as_fd(); MAX_DESCRIPTORS];
        let sockets = |role| Message::Sockets { role };
        let sent = [
            (Message::Take, 0),
            (sockets(Role::Bound), MAX_DESCRIPTORS),
            (sockets(Role::Steered), 1),
            (Message::AllSockets, 0),
        ];
        for (message, count) in &sent {
            send(&from, message, &many[..*count]).unwrap();
        }
        drop(from);
        let mut inbox = Inbox::default();
        let mut came = Vec::new();
        let end = loop {
            match inbox.receive(&to) {
                Ok(Some(received)) => came.push((received.message, received.descriptors.len())),
                Ok(None) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(came, sent);
    }
}
