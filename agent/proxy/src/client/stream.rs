//! The bytes of a client connection, on their way to the HTTP library: replayed where the start was
//! read already, checked against the edge policy, and timed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::client::frame_budget::{BIG_WRITE, FrameBudget};
use crate::client::framing::{Framing, Violation};
use crate::client::progress::Progress;

/// A client's stream; one type, so that the HTTP code exists once.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

#[derive(Debug)]
pub(crate) struct CheckedStream {
    transport: Transport,
    /// Bytes that were read before the protocol was known; emptied first.
    replay: Vec<u8>,
    check: ProtocolCheck,
    /// The reason why nothing more is read.
    refused: Option<&'static str>,
    progress: Arc<Progress>,
}

#[derive(Debug)]
pub(crate) enum ProtocolCheck {
    Http1(Framing),
    Http2(FrameBudget),
}

// === impl CheckedStream ===

impl CheckedStream {
    pub(crate) fn new(
        transport: Transport,
        replay: Vec<u8>,
        check: ProtocolCheck,
        progress: Arc<Progress>,
    ) -> Self {
        Self { transport, replay, check, refused: None, progress }
    }

    /// The bare stream, for a tunnel.
    pub(crate) fn into_transport(self) -> Transport {
        self.transport
    }

    /// Returns how many of the bytes may be used.
    fn inspect(&mut self, bytes: &mut [u8]) -> usize {
        match &mut self.check {
            ProtocolCheck::Http1(framing) => {
                let was_in_body = framing.in_body();
                let verdict = framing.follow(bytes);
                if was_in_body || framing.in_body() {
                    self.progress.untaken.came(bytes.len());
                }
                if framing.in_head() {
                    self.progress.head_is_due();
                } else {
                    self.progress.head_is_complete();
                }
                self.progress.received(bytes.len());
                match verdict {
                    Ok(()) => {}
                    Err(Violation::Head(at)) => bytes[at] = 0,
                    Err(Violation::Body(at)) => {
                        self.refused = Some("the chunked body is malformed");
                        return at;
                    }
                    Err(Violation::NotHttp) => {
                        self.refused = Some("the connection begins with no request of HTTP");
                        return 0;
                    }
                }
            }
            ProtocolCheck::Http2(budget) => {
                budget.earn(self.progress.take_completed());
                let verdict = budget.follow(bytes);
                self.progress.untaken.came(budget.take_data());
                if budget.has_begun() && !budget.is_in_head() {
                    self.progress.head_is_complete();
                } else {
                    self.progress.head_is_due();
                }
                if verdict.is_err() {
                    self.refused = Some("too many control frames or resets");
                    return 0;
                }
            }
        }
        bytes.len()
    }

    /// On HTTP/2 a write may be mere bookkeeping, unless it is large.
    fn wrote(&mut self, bytes: usize) {
        self.progress.written(bytes);
        match &mut self.check {
            ProtocolCheck::Http1(_) => self.progress.moved(),
            ProtocolCheck::Http2(_) if bytes < BIG_WRITE => {}
            ProtocolCheck::Http2(budget) => {
                budget.wrote_much();
                self.progress.moved();
            }
        }
    }

    fn refusal(&self) -> io::Result<()> {
        self.refused.map_or(Ok(()), |why| Err(io::Error::new(io::ErrorKind::InvalidData, why)))
    }
}

impl AsyncRead for CheckedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.refusal()?;
        let before = buffer.filled().len();
        if this.replay.is_empty() {
            let read = Pin::new(&mut this.transport).poll_read(cx, buffer);
            // The HTTP library reads bodies only as far as the backend takes them.
            if read.is_pending()
                && let ProtocolCheck::Http1(framing) = &this.check
                && framing.in_body()
            {
                this.progress.wants_body(|| framing.owes_body());
            }
            ready!(read)?;
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

impl AsyncWrite for CheckedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.progress.note_write(&written);
        let written = ready!(written)?;
        self.wrote(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write_vectored(cx, parts);
        self.progress.note_write(&written);
        let written = ready!(written)?;
        self.wrote(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    /// TLS takes more than the socket does; what is left shows here.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        self.progress.note_write(&flushed);
        flushed
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
