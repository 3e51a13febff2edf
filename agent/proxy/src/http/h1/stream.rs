//! The bytes of a client connection that is served without the HTTP library, and timed.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_write_buf;

use crate::client::progress::Progress;
use crate::client::stream::Transport;
use crate::core::pipe::Pipe;
use crate::http::h1::Unserved;
use crate::http::h1::head::RequestBody;
use crate::http::h1::intake::{Intake, Next};
use crate::upstream::request::{Broken, FedBody};

/// Bytes of one read.
const SCRATCH: usize = 16 << 10;

/// Bytes of a pipe at the beginning of a connection's first large body.
pub(super) const FIRST_PIECE: usize = 16 << 10;

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
    /// Bytes of a pipe at the beginning of a body.
    pub first_piece: usize,
    /// The body of the request that is being served, as long as there is more of it.
    intake: Option<Box<Intake>>,
    /// A body broke off: where the next request begins cannot be told.
    is_broken: bool,
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
    pub(super) fn new(unserved: Unserved, progress: Arc<Progress>) -> Self {
        let Unserved { transport, unread, has_served } = unserved;
        let (is_partial, first_piece, intake, is_broken) = (false, FIRST_PIECE, None, false);
        Self { transport, unread, is_partial, has_served, progress, first_piece, intake, is_broken }
    }

    pub(super) fn into_unserved(self) -> Unserved {
        let Self { transport, unread, has_served, .. } = self;
        Unserved { transport, unread, has_served }
    }

    // --- heads ---

    /// True if a head may end in the unread bytes from there on.
    pub(super) fn has_empty_line(&self, from: usize) -> bool {
        let bytes = &self.unread[from.saturating_sub(EMPTY_LINE - 1)..];
        let mut ends = memchr::memchr_iter(b'\n', bytes);
        ends.any(|at| matches!(&bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
    }

    /// Reads more of a head, behind what is unread.
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

    // --- bodies of requests ---

    /// Begins with a body, of which these bytes are the first, unless they are behind it.
    pub(super) fn begin_body(&mut self, body: RequestBody, bytes: &[u8]) -> FedBody {
        let (mut intake, fed) = Intake::new(body);
        let taken = intake.take(bytes);
        self.progress.untaken.came(taken);
        self.unread = bytes[taken..].to_vec();
        self.intake = Some(Box::new(intake));
        fed
    }

    /// True if no request can follow, because the reader of this one's body is gone before its end.
    pub(super) fn is_cut_off(&mut self, cx: &mut Context<'_>) -> bool {
        if self.intake.as_ref().is_some_and(|intake| !intake.feed.has_reader()) {
            self.discard(cx);
        }
        self.is_broken
    }

    /// Waits until the body has come or has no reader. False if no request can follow.
    pub(super) async fn end_body(&mut self) -> bool {
        if self.intake.is_some() {
            poll_fn(|cx| {
                loop {
                    match &self.intake {
                        Some(intake) if intake.feed.has_reader() => ready!(self.poll_body(cx)),
                        Some(_) => self.discard(cx),
                        None => return Poll::Ready(()),
                    }
                }
            })
            .await;
        }
        !self.is_broken
    }

    /// Hands over the next frame, when one is wanted and has come.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(intake) = &mut self.intake else { return Poll::Pending };
        ready!(intake.feed.poll_wanted(cx));
        while intake.feed.has_reader() {
            match intake.next() {
                Ok(Next::Frame(frame)) => {
                    intake.feed.push(frame, cx);
                    if intake.is_over() {
                        intake.feed.end(Ok(()), cx);
                        self.intake = None;
                    }
                    return Poll::Ready(());
                }
                Ok(Next::End) => {
                    intake.feed.end(Ok(()), cx);
                    self.intake = None;
                    return Poll::Ready(());
                }
                Ok(Next::More) => {
                    let read = poll_more(intake, &mut self.transport, &self.progress, cx);
                    match ready!(read) {
                        Ok(behind) => self.unread = behind,
                        Err(broken) => return self.break_off(broken, cx),
                    }
                }
                Err(broken) => return self.break_off(broken, cx),
            }
        }
        Poll::Pending
    }

    fn break_off(&mut self, broken: Broken, cx: &Context<'_>) -> Poll<()> {
        if let Some(intake) = self.intake.take() {
            intake.feed.end(Err(broken), cx);
        }
        self.is_broken = true;
        Poll::Ready(())
    }

    /// Skips the rest of a body if it has come. If not, it is not worth to be waited for.
    fn discard(&mut self, cx: &mut Context<'_>) {
        let Some(mut intake) = self.intake.take() else { return };
        let mut has_read = false;
        while !intake.is_over() {
            match intake.next() {
                Ok(Next::Frame(_)) => {}
                Ok(Next::End) => return,
                Ok(Next::More) if !has_read => {
                    has_read = true;
                    match poll_more(&mut intake, &mut self.transport, &self.progress, cx) {
                        Poll::Ready(Ok(behind)) => self.unread = behind,
                        Poll::Ready(Err(_)) | Poll::Pending => break,
                    }
                }
                Ok(Next::More) | Err(_) => break,
            }
        }
        self.is_broken = !intake.is_over();
    }

    // --- responses ---

    /// Waits for the outcome of a request, as long as the client is there.
    pub(super) async fn watch<T>(&mut self, mut outcome: Pin<&mut impl Future<Output = T>>) -> io::Result<T> {
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(outcome) = outcome.as_mut().poll(cx) {
                    return Poll::Ready(Ok(outcome));
                }
                if self.intake.is_some() {
                    ready!(self.poll_body(cx));
                } else {
                    return self.poll_gone(cx).map(Err);
                }
            }
        })
        .await
    }

    /// Ready when the client is gone. It may send another request, but no more until that is read.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while self.unread.is_empty() && !self.is_broken {
            match ready!(self.poll_read(cx)) {
                Ok(Read::Scratch(bytes)) => {
                    with_scratch(|scratch| self.unread.extend_from_slice(&scratch[..bytes]));
                }
                Ok(Read::Kept) => {}
                Ok(Read::End) => return Poll::Ready(io::ErrorKind::ConnectionAborted.into()),
                Err(error) => return Poll::Ready(error),
            }
        }
        Poll::Pending
    }

    /// Writes all of the bytes. Meanwhile the body of the request goes on: a client may read
    /// nothing before it has sent everything.
    pub(super) async fn write(&mut self, mut bytes: impl Buf) -> io::Result<()> {
        poll_fn(|cx| {
            let written = self.poll_write(cx, &mut bytes);
            if written.is_pending() {
                while self.poll_body(cx).is_ready() {}
            }
            written
        })
        .await
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &mut impl Buf) -> Poll<io::Result<()>> {
        while bytes.has_remaining() {
            let written = poll_write_buf(Pin::new(&mut self.transport), cx, bytes);
            self.progress.note_write(&written);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.progress.written(written),
            }
            self.progress.moved();
        }
        // TLS takes more than the socket does; what is left shows here.
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        self.progress.note_write(&flushed);
        flushed
    }

    /// True if the connection takes bytes as they are.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.transport, Transport::Plain(_))
    }

    /// Writes some of what a pipe holds.
    pub(super) async fn drain(&mut self, pipe: &mut Pipe) -> io::Result<usize> {
        poll_fn(|cx| {
            let drained = pipe.poll_drain(cx, self.transport.socket());
            self.progress.note_write(&drained);
            if drained.is_pending() {
                while self.poll_body(cx).is_ready() {}
            }
            let written = ready!(drained)?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.progress.written(written);
            self.progress.moved();
            Poll::Ready(Ok(written))
        })
        .await
    }

    /// Ends it before it is closed.
    pub(super) async fn shut_down(&mut self) {
        let _ = poll_fn(|cx| self.transport.poll_end(cx)).await;
    }
}

/// Reads more of a body. Returns what came behind it.
fn poll_more(
    intake: &mut Intake,
    transport: &mut Transport,
    progress: &Progress,
    cx: &mut Context<'_>,
) -> Poll<Result<Vec<u8>, Broken>> {
    with_scratch(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        let read = Pin::new(transport).poll_read(cx, &mut buffer);
        if read.is_pending() {
            progress.wants_body(|| intake.is_owed());
        }
        let read = ready!(read).map(|()| buffer.filled());
        let Some(read) = read.ok().filter(|read| !read.is_empty()) else {
            return Poll::Ready(Err(Broken::Closed));
        };
        progress.received(read.len());
        let taken = intake.take(read);
        progress.untaken.came(taken);
        Poll::Ready(Ok(read[taken..].to_vec()))
    })
}
