//! The bytes of a connection to a backend, in plaintext or in TLS. Plaintext costs a comparison:
//! the rest of TLS is elsewhere on the heap.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::client::TlsStream;

pub(crate) enum BackendStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The half of a connection that is read.
pub(crate) enum ReadHalf {
    Plain(OwnedReadHalf),
    Tls(SharedTls),
}

/// The half that is written.
pub(crate) enum WriteHalf {
    Plain(OwnedWriteHalf),
    Tls(SharedTls),
}

/// One stream, read and written in turns. It is borrowed for the time of a poll, which calls
/// nothing that could ask for it again.
pub(crate) struct SharedTls(Rc<RefCell<TlsStream<TcpStream>>>);

/// Calls a method of what is pinned in either variant.
macro_rules! either {
    ($self:ident, $type:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            $type::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            $type::Tls($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
        }
    };
}

// === impl BackendStream ===

impl BackendStream {
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// True if the other side chose HTTP/2, by ALPN.
    pub(crate) fn is_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    pub(crate) fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Plain(socket) => {
                let (reader, writer) = socket.into_split();
                (ReadHalf::Plain(reader), WriteHalf::Plain(writer))
            }
            Self::Tls(stream) => {
                let shared = Rc::new(RefCell::new(*stream));
                (ReadHalf::Tls(SharedTls(shared.clone())), WriteHalf::Tls(SharedTls(shared)))
            }
        }
    }
}

impl AsyncRead for BackendStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, Self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for BackendStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, Self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, Self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, Self, stream => stream.poll_shutdown(cx))
    }
}

// === impl ReadHalf ===

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, Self, stream => stream.poll_read(cx, buffer))
    }
}

// === impl WriteHalf ===

impl WriteHalf {
    /// Leaves the connection open in this direction, when it is dropped.
    pub(crate) fn forget(self) {
        match self {
            Self::Plain(writer) => writer.forget(),
            // It ends with the half that is read.
            Self::Tls(_) => {}
        }
    }

    /// Has the connection end with a reset, once the half that is read is dropped.
    pub(crate) fn reset(self) {
        let set = match &self {
            Self::Plain(writer) => SockRef::from(writer.as_ref()).set_linger(Some(Duration::ZERO)),
            Self::Tls(SharedTls(stream)) => {
                SockRef::from(stream.borrow().get_ref().0).set_linger(Some(Duration::ZERO))
            }
        };
        // One that cannot be is closed in the ordinary way.
        let _ = set;
        self.forget();
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, Self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, Self, stream => stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(writer) => writer.is_write_vectored(),
            Self::Tls(writer) => writer.is_write_vectored(),
        }
    }

    /// TLS takes more than the socket does.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, Self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, Self, stream => stream.poll_shutdown(cx))
    }
}

// === impl SharedTls ===

impl AsyncRead for SharedTls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for SharedTls {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}
