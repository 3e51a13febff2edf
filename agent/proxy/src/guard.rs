//! The bytes of a client connection, on their way to the HTTP library: replayed where the start was read already, checked
//! against the edge policy, and timed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::clock;
use crate::frames::FrameBudget;
use crate::wire::{Framing, Violation};

/// A client's stream; one type, so that the HTTP code exists once.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

#[derive(Debug)]
pub(crate) struct Guarded {
    transport: Transport,
    /// Bytes that were read before the protocol was known; emptied first.
    replay: Vec<u8>,
    check: Check,
    /// Why nothing more is read.
    refused: Option<&'static str>,
    pulse: Arc<Pulse>,
}

#[derive(Debug)]
pub(crate) enum Check {
    Http1(Framing),
    Http2(FrameBudget),
}

/// How a connection is getting on, as the core's sweeper sees it. Only the connection's core touches it; it is atomic
/// because the stream of an upgraded connection must be `Send`.
#[derive(Debug)]
pub(crate) struct Pulse {
    exchanges: AtomicU32,
    /// When the last exchange ended.
    idle_since: AtomicU32,
    /// When the request head that is being read began, plus one; 0 if none is.
    head_since: AtomicU32,
}

// === impl Guarded ===

impl Guarded {
    pub(crate) fn new(transport: Transport, replay: Vec<u8>, check: Check, pulse: Arc<Pulse>) -> Self {
        Self { transport, replay, check, refused: None, pulse }
    }

    /// The bare stream, for a tunnel.
    pub(crate) fn into_transport(self) -> Transport {
        self.transport
    }

    /// Returns how many of the bytes may be used.
    fn inspect(&mut self, bytes: &mut [u8]) -> usize {
        match &mut self.check {
            Check::Http1(framing) => {
                let verdict = framing.follow(bytes);
                self.pulse.head(framing.in_head());
                match verdict {
                    Ok(()) => {}
                    Err(Violation::Head(at)) => bytes[at] = 0,
                    Err(Violation::Body(at)) => {
                        self.refused = Some("the chunked body is malformed");
                        return at;
                    }
                }
            }
            Check::Http2(budget) => {
                self.pulse.head(false);
                if budget.follow(bytes).is_err() {
                    self.refused = Some("too many control frames");
                    return 0;
                }
            }
        }
        bytes.len()
    }

    fn refusal(&self) -> io::Result<()> {
        self.refused.map_or(Ok(()), |why| Err(io::Error::new(io::ErrorKind::InvalidData, why)))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.refusal()?;
        let before = buffer.filled().len();
        if this.replay.is_empty() {
            ready!(Pin::new(&mut this.transport).poll_read(cx, buffer))?;
        } else {
            let count = this.replay.len().min(buffer.remaining());
            buffer.put_slice(&this.replay[..count]);
            this.replay.drain(..count);
            if this.replay.is_empty() {
                this.replay = Vec::new();
            }
        }
        let usable = this.inspect(&mut buffer.filled_mut()[before..]);
        buffer.set_filled(before + usable);
        // No bytes at all would mean that the client is done.
        Poll::Ready(if usable == 0 { this.refusal() } else { Ok(()) })
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.transport).poll_write(cx, bytes))?;
        if let Check::Http2(budget) = &mut self.check {
            budget.wrote(written);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.transport).poll_write_vectored(cx, parts))?;
        if let Check::Http2(budget) = &mut self.check {
            budget.wrote(written);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

// === impl Transport ===

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

// === impl Pulse ===

impl Pulse {
    /// Of a connection whose first request is awaited.
    pub(crate) fn new() -> Self {
        let now = clock::now();
        Self { exchanges: 0.into(), idle_since: now.into(), head_since: (now + 1).into() }
    }

    pub(crate) fn begin(&self) {
        self.exchanges.store(self.exchanges.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn end(&self) {
        self.exchanges.store(self.exchanges.load(Relaxed) - 1, Relaxed);
        self.idle_since.store(clock::now(), Relaxed);
    }

    /// For how many ticks the current request head has been on its way.
    pub(crate) fn head_age(&self) -> Option<u32> {
        let since = self.head_since.load(Relaxed).checked_sub(1)?;
        Some(clock::now() - since)
    }

    /// For how many ticks nothing has been asked.
    pub(crate) fn idle_age(&self) -> Option<u32> {
        let idle = self.exchanges.load(Relaxed) == 0 && self.head_since.load(Relaxed) == 0;
        idle.then(|| clock::now() - self.idle_since.load(Relaxed))
    }

    fn head(&self, under_way: bool) {
        let since = match (under_way, self.head_since.load(Relaxed)) {
            (false, _) => 0,
            (true, 0) => clock::now() + 1,
            (true, since) => since,
        };
        self.head_since.store(since, Relaxed);
    }
}
