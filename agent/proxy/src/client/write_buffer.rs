//! A buffer for what an HTTP/2 connection writes, as long as it has more to write. The library
//! flushes after every DATA frame; each of these would be a TLS record, a system call and a wake-up
//! of the client, though the next response is often ready, too.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The largest write: a TLS record.
const LIMIT: usize = 16 << 10;

/// A stream whose writes wait for a flush by [`FlushAfterPoll`]; the library's own flushes do
/// nothing.
#[derive(Debug)]
pub(crate) struct WriteBuffer<S>(Rc<RefCell<Shared<S>>>);

#[derive(Debug)]
struct Shared<S> {
    stream: S,
    bytes: Vec<u8>,
    /// The number of bytes that are written.
    sent: usize,
}

/// A connection over a [`WriteBuffer`], which is flushed whenever the connection has done what it
/// can for now.
pub(crate) struct FlushAfterPoll<C, S> {
    connection: Pin<Box<C>>,
    buffer: WriteBuffer<S>,
}

// === impl WriteBuffer ===

impl<S> WriteBuffer<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(Rc::new(RefCell::new(Shared { stream, bytes: Vec::new(), sent: 0 })))
    }

    /// The same one.
    pub(crate) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// Gives back the memory of a burst.
    pub(crate) fn shrink(&self) {
        self.0.borrow_mut().bytes.shrink_to_fit();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteBuffer<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBuffer<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut shared = self.0.borrow_mut();
        if shared.bytes.len() >= LIMIT {
            ready!(shared.poll_send(cx))?;
        }
        let before = shared.bytes.len();
        for part in parts {
            let room = LIMIT - shared.bytes.len();
            shared.bytes.extend_from_slice(&part[..part.len().min(room)]);
        }
        Poll::Ready(Ok(shared.bytes.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.0.borrow_mut();
        ready!(shared.poll_send(cx))?;
        Pin::new(&mut shared.stream).poll_shutdown(cx)
    }
}

// === impl Shared ===

impl<S: AsyncWrite + Unpin> Shared<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.bytes[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

// === impl FlushAfterPoll ===

impl<C, S> FlushAfterPoll<C, S> {
    pub(crate) fn new(connection: C, buffer: WriteBuffer<S>) -> Self {
        Self { connection: Box::pin(connection), buffer }
    }

    pub(crate) fn connection(self: Pin<&mut Self>) -> Pin<&mut C> {
        self.get_mut().connection.as_mut()
    }
}

impl<C, S> Future for FlushAfterPoll<C, S>
where
    C: Future<Output = io::Result<()>>,
    S: AsyncWrite + Unpin,
{
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.connection.as_mut().poll(cx);
        // A connection that has ended has shut the buffer down, which is another flush.
        let sent = self.buffer.0.borrow_mut().poll_send(cx);
        match (ended, sent) {
            (Poll::Ready(ended), _) => Poll::Ready(ended),
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (Poll::Pending, _) => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn memory_is_given_back_and_nothing_else_is_lost() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut buffer = WriteBuffer::new(Vec::new());
        for burst in [&[1; LIMIT][..], &[2; 10]] {
            assert!(matches!(Pin::new(&mut buffer).poll_write(&mut cx, burst), Poll::Ready(Ok(_))));
            buffer.shrink();
            assert!(buffer.0.borrow_mut().poll_send(&mut cx).is_ready());
            buffer.shrink();
            assert_eq!(buffer.0.borrow().bytes.capacity(), 0);
        }
        assert_eq!(buffer.0.borrow().stream, [&[1; LIMIT][..], &[2; 10]].concat());
    }
}
