//! A stream that is read in small pieces until it proves to carry much. The HTTP library makes its
//! buffer as large as what it reads at once, up to the limit for a whole head, and passes it on as
//! one frame: that is what a response costs for a client that does not take it. Where one is taken
//! as fast as it comes, small pieces would cost half of the throughput.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::net::TcpStream;

/// Bytes of one read. The library's buffer, 8 KiB at first, grows when a read fills it: two or
/// three of its size are what a client costs that does not read.
const READ: u64 = (8 << 10) - 1;
/// Bytes that come in full pieces, one after the other, before larger ones are read. The kernel's
/// buffers of a client that takes nothing hold less.
const BULK: u64 = 1 << 20;

/// A connection to a backend of HTTP/1.
pub(crate) struct SmallReads {
    stream: Take<TcpStream>,
    /// The bytes read since a piece was not full.
    streak: u64,
    read_bytes: ReadBytes,
}

/// The bytes that came since the connection was last written to. Only its core touches them; they
/// are atomic because the stream of an upgraded connection must be `Send`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadBytes(Arc<AtomicUsize>);

// === impl SmallReads ===

impl SmallReads {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: stream.take(READ), streak: 0, read_bytes: ReadBytes::default() }
    }

    pub(crate) fn read_bytes(&self) -> ReadBytes {
        self.read_bytes.clone()
    }
}

// === impl ReadBytes ===

impl ReadBytes {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl AsyncRead for SmallReads {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let whole = self.streak >= BULK || buffer.remaining() as u64 <= READ;
        let read = if whole {
            Pin::new(self.stream.get_mut()).poll_read(cx, buffer)
        } else {
            self.stream.set_limit(READ);
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        };
        if read.is_ready() {
            let bytes = buffer.filled().len() - before;
            self.read_bytes.0.store(self.read_bytes.0.load(Relaxed).saturating_add(bytes), Relaxed);
            let bytes = bytes as u64;
            self.streak = if bytes < READ { 0 } else { self.streak + bytes };
        }
        read
    }
}

impl AsyncWrite for SmallReads {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.read_bytes.0.store(0, Relaxed);
        Pin::new(self.stream.get_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.read_bytes.0.store(0, Relaxed);
        Pin::new(self.stream.get_mut()).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(cx)
    }
}
