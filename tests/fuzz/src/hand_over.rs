//! Messages between an agent that starts and the one that it follows: wherever the kernel cuts
//! them, they are the same, with the descriptors that each says; and what is read reads the same
//! when it is sent on.

#[expect(dead_code, reason = "the conversation is not part of this")]
#[path = "../../../agent/src/hand_over/message.rs"]
mod message;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use message::{Inbox, Message, Received, send};

use crate::PIECES;

/// Descriptors that come with the first message.
const SENT: usize = 3;
/// Bytes that are cut, each of which costs calls of the kernel: several whole conversations. Of a
/// line that is too long, the cuts say when that is noticed.
const CUT: usize = 1 << 10;

type Read = (Vec<(Message, usize)>, io::ErrorKind);

pub(crate) fn run(bytes: &[u8]) {
    let Ok(whole) = read(bytes, usize::MAX >> 1) else { unreachable!("there is no socket") };
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    let (messages, end) = &whole;
    assert!(messages.len() <= lines, "{} messages in {lines} lines", messages.len());
    let descriptors: usize = messages.iter().map(|(_, descriptors)| descriptors).sum();
    assert!(descriptors <= SENT, "{descriptors} of {SENT} descriptors");
    // The connection has ended, and nothing was wrong: all lines were read.
    assert!(*end != io::ErrorKind::UnexpectedEof || messages.len() == lines, "a line is missing");
    if bytes.len() > CUT {
        return;
    }
    for piece in PIECES {
        assert_eq!(read(bytes, piece).ok().as_ref(), Some(&whole), "by {piece}");
    }
    for (message, descriptors) in messages {
        assert_eq!(sent_on(message, *descriptors).ok().as_ref(), Some(message));
    }
}

/// The messages that come in pieces of this size, and what ends them.
fn read(bytes: &[u8], piece: usize) -> io::Result<Read> {
    let (mut from, to) = UnixStream::pair()?;
    to.set_nonblocking(true)?;
    let (mut inbox, mut messages) = (Inbox::default(), Vec::new());
    let null = File::open("/dev/null")?;
    let mut pieces = bytes.chunks(piece);
    if let Some(first) = pieces.next() {
        with_descriptors(&from, first, &[null.as_fd(); SENT])?;
    }
    loop {
        match inbox.receive(&to) {
            Ok(Some(Received { message, descriptors })) => messages.push((message, descriptors.len())),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match pieces.next() {
                Some(piece) => from.write_all(piece)?,
                None => from.shutdown(std::net::Shutdown::Both)?,
            },
            Err(error) => return Ok((messages, error.kind())),
        }
    }
}

fn with_descriptors(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    sendmsg(stream, &[io::IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn sent_on(message: &Message, descriptors: usize) -> io::Result<Message> {
    let (from, to) = UnixStream::pair()?;
    let null = File::open("/dev/null")?;
    send(&from, message, &vec![null.as_fd(); descriptors])?;
    drop(from);
    let mut inbox = Inbox::default();
    loop {
        if let Some(received) = inbox.receive(&to)? {
            return Ok(received.message);
        }
    }
}
