//! A stream that is read in small pieces. The HTTP library makes its buffer as large as what it
//! reads at once, up to the limit for a whole head, and passes it on as one frame: that is what a
//! response costs for a client that does not take it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::net::TcpStream;

/// Bytes of one read. The library's buffer, 8 KiB at first, grows when a read fills it: two or
/// three of its size are what a client costs that does not read.
const READ: u64 = (8 << 10) - 1;

/// A connection to a backend of HTTP/1.
pub(crate) struct SmallReads(Take<TcpStream>);

// === impl SmallReads ===

impl SmallReads {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(stream.take(READ))
    }
}

impl AsyncRead for SmallReads {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() as u64 <= READ {
            return Pin::new(self.0.get_mut()).poll_read(cx, buffer);
        }
        self.0.set_limit(READ);
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for SmallReads {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_shutdown(cx)
    }
}
