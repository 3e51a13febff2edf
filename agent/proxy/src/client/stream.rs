//! The bytes of a client connection, on their way to the HTTP library: replayed where the start was
//! read already, checked against the edge policy, and timed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
    OneRequest(OneRequest),
    Http2(FrameBudget),
}

/// A request of HTTP/1 that the library is to have, and nothing of the next one.
#[derive(Debug)]
pub(crate) struct OneRequest {
    framing: Framing,
    /// All of it has come. What is to be replayed is behind it.
    is_whole: bool,
    /// Set once the library has read all of it, and asks for the next one.
    is_read: Arc<AtomicBool>,
}

/// Bytes that are read behind a request that is being served.
const BEHIND: usize = 512;

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

    /// The transport, and bytes that were read of it, but not from here.
    pub(crate) fn into_parts(self) -> (Transport, Vec<u8>) {
        (self.transport, self.replay)
    }

    /// Returns how many of the bytes may be used.
    fn inspect(&mut self, bytes: &mut [u8]) -> usize {
        match &mut self.check {
            ProtocolCheck::Http1(framing) => {
                let was_in_body = framing.in_body();
                let verdict = framing.follow(bytes).map(|()| bytes.len());
                let of_body = if was_in_body || framing.in_body() { bytes.len() } else { 0 };
                note(framing, bytes.len(), of_body, &self.progress);
                return self.judge(bytes, verdict);
            }
            ProtocolCheck::OneRequest(request) => {
                let was_in_body = request.framing.in_body();
                let verdict = request.framing.follow_request(bytes).map(|(own, is_whole)| {
                    request.is_whole = is_whole;
                    drop(self.replay.splice(..0, bytes[own..].iter().copied()));
                    own
                });
                let own = verdict.unwrap_or(bytes.len());
                let of_body = if was_in_body || request.framing.in_body() { own } else { 0 };
                note(&request.framing, own, of_body, &self.progress);
                return self.judge(bytes, verdict);
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

    /// Has nothing read behind what frames no request unambiguously.
    fn judge(&mut self, bytes: &mut [u8], verdict: Result<usize, Violation>) -> usize {
        match verdict {
            Ok(usable) => usable,
            Err(Violation::Head(at)) => {
                bytes[at] = 0;
                bytes.len()
            }
            Err(Violation::Body(at)) => {
                self.refused = Some("the chunked body is malformed");
                at
            }
            Err(Violation::NotHttp) => {
                self.refused = Some("the connection begins with no request of HTTP");
                0
            }
        }
    }

    /// Behind the only request there is nothing to be read but the end of the connection.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.replay.is_empty() {
            return Poll::Pending;
        }
        let mut bytes = [0; BEHIND];
        let mut buffer = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.transport).poll_read(cx, &mut buffer))?;
        let read = buffer.filled();
        if read.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.progress.head_is_due();
        self.progress.received(read.len());
        self.replay = read.to_vec();
        Poll::Pending
    }

    /// On HTTP/2 a write may be mere bookkeeping, unless it is large.
    fn wrote(&mut self, bytes: usize) {
        self.progress.written(bytes);
        match &mut self.check {
            ProtocolCheck::Http1(_) | ProtocolCheck::OneRequest(_) => self.progress.moved(),
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

/// Leaves marks of bytes that came.
fn note(framing: &Framing, bytes: usize, of_body: usize, progress: &Progress) {
    progress.untaken.came(of_body);
    if framing.in_head() {
        progress.head_is_due();
    } else {
        progress.head_is_complete();
    }
    progress.received(bytes);
}

impl AsyncRead for CheckedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.refusal()?;
        if let ProtocolCheck::OneRequest(request) = &mut this.check
            && request.is_whole
        {
            request.is_read.store(true, Relaxed);
            return this.poll_end(cx);
        }
        let before = buffer.filled().len();
        if this.replay.is_empty() {
            let read = Pin::new(&mut this.transport).poll_read(cx, buffer);
            // The HTTP library reads bodies only as far as the backend takes them.
            if read.is_pending()
                && let ProtocolCheck::Http1(framing) | ProtocolCheck::OneRequest(OneRequest { framing, .. }) =
                    &this.check
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

// === impl OneRequest ===

impl OneRequest {
    /// `framing` is that of a connection on which the request is the next one.
    pub(crate) fn new(framing: Framing) -> (Self, Arc<AtomicBool>) {
        let is_read = Arc::<AtomicBool>::default();
        (Self { framing, is_whole: false, is_read: is_read.clone() }, is_read)
    }
}

// === impl Transport ===

impl Transport {
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Ends TLS. The end of the connection itself follows when it is closed: to shut it down before
    /// would be one more call for the same.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => {
                stream.get_mut().1.send_close_notify();
                Pin::new(stream).poll_flush(cx)
            }
        }
    }
}

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
