//! The bytes of a client connection that is served without the HTTP library, and timed.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::progress::Progress;
use crate::client::stream::Transport;
use crate::http::h1::Left;

/// Bytes of one read.
const SCRATCH: usize = 16 << 10;
/// Bytes that are read of requests behind the one that is being served.
const AHEAD: usize = 4 << 10;

/// Bytes of the longest end of a head: CRLF, CRLF.
const EMPTY_LINE: usize = 4;

thread_local! {
    /// Nearly every request comes in one read: no connection needs memory of its own for it.
    static MEMORY: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

pub(super) struct OwnStream {
    transport: Transport,
    /// Bytes that were read, and are of no request that has been served.
    pub unread: Vec<u8>,
    /// These are the beginning of a head.
    pub is_partial: bool,
    /// There has been a request.
    pub has_served: bool,
    pub progress: Arc<Progress>,
}

/// The place of bytes that were read.
pub(super) enum Read {
    /// So many are in the scratch memory of the core, until the next one reads.
    Scratch(usize),
    /// They are among those that are unread.
    Kept,
    End,
}

pub(super) fn with_scratch<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    MEMORY.with_borrow_mut(|memory| use_it(memory))
}

// === impl OwnStream ===

impl OwnStream {
    pub(super) fn new(transport: Transport, unread: Vec<u8>, progress: Arc<Progress>) -> Self {
        Self { transport, unread, is_partial: false, has_served: false, progress }
    }

    pub(super) fn into_left(self) -> Left {
        Left { transport: self.transport, unread: self.unread, has_served: self.has_served }
    }

    /// True if a head may end in the unread bytes from there on.
    pub(super) fn has_empty_line(&self, from: usize) -> bool {
        let bytes = &self.unread[from.saturating_sub(EMPTY_LINE - 1)..];
        let mut ends = memchr::memchr_iter(b'\n', bytes);
        ends.any(|at| matches!(&bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
    }

    /// Reads more, behind what is unread.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Read>> {
        let Self { transport, unread, progress, .. } = self;
        with_scratch(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(transport).poll_read(cx, &mut buffer))?;
            let read = buffer.filled();
            if read.is_empty() {
                return Poll::Ready(Ok(Read::End));
            }
            progress.head_is_due();
            progress.received(read.len());
            if unread.is_empty() {
                return Poll::Ready(Ok(Read::Scratch(read.len())));
            }
            unread.extend_from_slice(read);
            Poll::Ready(Ok(Read::Kept))
        })
    }

    /// Waits for the outcome of a request, as long as the client is there.
    pub(super) async fn watch<T>(&mut self, outcome: impl Future<Output = T>) -> io::Result<T> {
        let mut outcome = std::pin::pin!(outcome);
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = outcome.as_mut().poll(cx) {
                return Poll::Ready(Ok(outcome));
            }
            while self.unread.len() < AHEAD {
                match ready!(self.poll_read(cx))? {
                    Read::End => return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
                    Read::Scratch(bytes) => {
                        with_scratch(|scratch| self.unread.extend_from_slice(&scratch[..bytes]));
                    }
                    Read::Kept => {}
                }
            }
            Poll::Pending
        })
        .await
    }

    pub(super) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        poll_fn(|cx| {
            while !bytes.is_empty() {
                match ready!(self.poll_write(cx, bytes))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => bytes = &bytes[written..],
                }
            }
            self.poll_flush(cx)
        })
        .await
    }

    pub(super) async fn shut_down(&mut self) {
        let _ = poll_fn(|cx| Pin::new(&mut self.transport).poll_shutdown(cx)).await;
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.progress.note_write(&written);
        let written = ready!(written)?;
        self.progress.written(written);
        self.progress.moved();
        Poll::Ready(Ok(written))
    }

    /// TLS takes more than the socket does; what is left shows here.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        self.progress.note_write(&flushed);
        flushed
    }
}
