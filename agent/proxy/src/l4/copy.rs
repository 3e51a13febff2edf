//! A client's stream and a backend's connection, each of which gets what the other one sends, for
//! streams whose bytes the kernel does not have: those inside TLS.

use std::cell::{RefCell, RefMut};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server;

use crate::l4::side::{Broken, Side};
use crate::l4::streams::{Progress, Watch};
use crate::upstream::stream::BackendStream;

/// Bytes of a read, and the most that a direction holds.
const READ: usize = 32 << 10;
/// Moves in a row, after which others of the core have their turn.
const TURN: usize = 16;

/// The memory that a core reads into, once for all its connections.
pub(crate) struct Scratch(RefCell<Box<[u8]>>);

/// Of one direction.
struct Direction<'p> {
    from: Side,
    scratch: &'p Scratch,
    progress: &'p Progress,
    /// Bytes that were read and not taken, and how many of them have been since.
    left: Vec<u8>,
    gone: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing more comes; what is left has to go.
    Ended,
    /// The end was passed on.
    Over,
}

pub(crate) async fn join(
    client: &mut server::TlsStream<TcpStream>,
    backend: &mut BackendStream,
    scratch: &Scratch,
    progress: &Progress,
) -> Result<(), Broken> {
    let mut upload = Direction::new(Side::Client, scratch, progress);
    let mut download = Direction::new(Side::Backend, scratch, progress);
    poll_fn(|cx| {
        let up = upload.poll(cx, client, backend)?;
        let down = download.poll(cx, backend, client)?;
        progress.hold(upload.held() + download.held());
        if up.is_ready() && down.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if upload.is_reading() && download.is_reading() {
            progress.watch(Watch::Reads);
            return Poll::Pending;
        }
        // A side that is not read may be reset all the same.
        progress.watch(Watch::Sweep);
        for (side, stream) in [(Side::Client, client.get_ref().0), (Side::Backend, backend.socket())] {
            if has_failed(cx, stream) {
                return Poll::Ready(Err(side.broken(io::ErrorKind::ConnectionReset.into())));
            }
        }
        Poll::Pending
    })
    .await
}

/// Looks, and does not wait.
fn has_failed(cx: &mut Context<'_>, stream: &TcpStream) -> bool {
    pin!(stream.ready(Interest::ERROR)).poll(cx).is_ready()
}

// === impl Scratch ===

impl Default for Scratch {
    fn default() -> Self {
        Self(RefCell::new(vec![0; READ].into()))
    }
}

impl Scratch {
    pub(crate) fn borrow(&self) -> RefMut<'_, Box<[u8]>> {
        self.0.borrow_mut()
    }
}

// === impl Direction ===

impl<'p> Direction<'p> {
    fn new(from: Side, scratch: &'p Scratch, progress: &'p Progress) -> Self {
        Self { from, scratch, progress, left: Vec::new(), gone: 0, state: State::Open }
    }

    fn held(&self) -> usize {
        self.left.len() - self.gone
    }

    fn is_reading(&self) -> bool {
        self.held() == 0 && self.state == State::Open
    }

    /// Ready once its end was passed on.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<Result<(), Broken>> {
        let writer = self.from.other();
        for _ in 0..TURN {
            if self.state == State::Over {
                return Poll::Ready(Ok(()));
            }
            if self.held() > 0 {
                ready!(self.poll_write_left(cx, to)).map_err(|error| writer.broken(error))?;
            } else if self.state == State::Ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(|error| writer.broken(error))?;
                self.state = State::Over;
            } else if let Poll::Ready(moved) = self.poll_move(cx, from, to) {
                moved?;
            } else {
                // TLS takes more than the socket does.
                ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(|error| writer.broken(error))?;
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads, and writes as much of it as is taken at once. Pending if there is nothing to read.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<Result<(), Broken>> {
        let mut scratch = self.scratch.borrow();
        let mut read = ReadBuf::new(&mut scratch);
        ready!(Pin::new(from).poll_read(cx, &mut read)).map_err(|error| self.from.broken(error))?;
        let mut bytes = read.filled();
        if bytes.is_empty() {
            self.state = State::Ended;
        }
        while !bytes.is_empty() {
            match self.poll_write(cx, to, bytes) {
                Poll::Ready(written) => {
                    bytes = &bytes[written.map_err(|error| self.from.other().broken(error))?..];
                }
                Poll::Pending => {
                    self.left = bytes.to_vec();
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_left(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        self.gone += ready!(self.poll_write(cx, to, &self.left[self.gone..]))?;
        if self.held() == 0 {
            (self.left, self.gone) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        to: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(to).poll_write(cx, bytes))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.progress.moved(self.from, count);
        Poll::Ready(Ok(count))
    }
}
