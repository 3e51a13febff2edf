//! Two TCP connections, each of which gets what the other one sends, until both have ended. Bytes
//! go through pipes and stay in the kernel. Where little comes at once, or there is no pipe to be
//! had, they are copied: system calls cost more than a copy then, and a pipe takes one more.
//!
//! One direction reads only when everything it read before is written. So whatever a peer does, a
//! direction holds no more than a pipe and the buffers of two sockets, and a reader that the kernel
//! has nothing for is not mistaken for a pipe that is full.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::SockRef;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;

use crate::core::pipe::{Pipe, Pipes};
use crate::l4::copy::Scratch;
use crate::l4::side::{Broken, Side};
use crate::l4::streams::Progress;

/// Bytes that a socket may hold that came and were not read, with what the kernel needs to hold
/// them; it doubles the number.
const RECEIVED: usize = 1 << 20;
/// Bytes that a socket may hold that are yet to be sent for the first time.
const UNSENT: u32 = 1 << 20;
/// Bytes of a direction from which on both of that is so; many connections never have as many.
const UNBOUNDED: u64 = 64 << 10;
/// Bytes that are worth a pipe.
const MUCH: usize = 16 << 10;
/// Moves in a row, after which others of the core have their turn.
const TURN: usize = 8;

/// Of one direction.
struct Direction<'p> {
    from: Side,
    pipes: &'p Pipes,
    scratch: &'p Scratch,
    progress: &'p Progress,
    /// Not empty.
    pipe: Option<Pipe>,
    /// Bytes that are to go before all others, and how many of them have gone.
    copied: Vec<u8>,
    gone: usize,
    /// Bytes that were read.
    read: u64,
    /// For what is read next.
    way: Way,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Copy,
    Splice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing more comes; what is left has to go.
    Ended,
    /// The end was passed on.
    Over,
}

/// Joins both; `first` goes to the backend before what the client sends.
pub(crate) async fn join(
    client: &mut TcpStream,
    backend: &mut TcpStream,
    first: Vec<u8>,
    pipes: &Pipes,
    scratch: &Scratch,
    progress: &Progress,
) -> Result<(), Broken> {
    let mut upload = Direction::new(Side::Client, first, pipes, scratch, progress);
    let mut download = Direction::new(Side::Backend, Vec::new(), pipes, scratch, progress);
    let (mut from_client, to_client) = client.split();
    let (mut from_backend, to_backend) = backend.split();
    let (client, backend) = (to_client.as_ref(), to_backend.as_ref());
    // A side that is not read, because the other one takes nothing or it has sent its end, may be
    // reset all the same.
    let mut client_failed = pin!(client.ready(Interest::ERROR));
    let mut backend_failed = pin!(backend.ready(Interest::ERROR));
    poll_fn(|cx| {
        let up = upload.poll(cx, &mut from_client, backend)?;
        let down = download.poll(cx, &mut from_backend, client)?;
        progress.hold(upload.held() + download.held());
        if up.is_ready() && down.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if client_failed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Side::Client.broken(failure(client))));
        }
        if backend_failed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Side::Backend.broken(failure(backend))));
        }
        Poll::Pending
    })
    .await
}

/// Bounds what the kernel holds for a peer that does not read. By itself it takes several megabytes
/// of a fast sender. It needs a capability for a number above the system's; without it the system's
/// rules hold.
fn hold_little(from: &TcpStream, to: &TcpStream) {
    let _ = set_socket_recv_buffer_size_force(from, RECEIVED);
    let _ = SockRef::from(to).set_tcp_notsent_lowat(UNSENT);
}

fn failure(stream: &TcpStream) -> io::Error {
    stream.take_error().ok().flatten().unwrap_or_else(|| ErrorKind::ConnectionReset.into())
}

// === impl Direction ===

impl<'p> Direction<'p> {
    fn new(
        from: Side,
        first: Vec<u8>,
        pipes: &'p Pipes,
        scratch: &'p Scratch,
        progress: &'p Progress,
    ) -> Self {
        let (pipe, way, state) = (None, Way::Copy, State::Open);
        Self { from, pipes, scratch, progress, pipe, copied: first, gone: 0, read: 0, way, state }
    }

    fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::held) + self.copied.len() - self.gone
    }

    /// Ready once its end was passed on.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ReadHalf<'_>,
        to: &TcpStream,
    ) -> Poll<Result<(), Broken>> {
        for _ in 0..TURN {
            if self.state == State::Over {
                return Poll::Ready(Ok(()));
            }
            if self.held() > 0 {
                ready!(self.poll_write(cx, to)).map_err(|error| self.from.other().broken(error))?;
            } else if self.state == State::Ended {
                let shut = SockRef::from(to).shutdown(std::net::Shutdown::Write);
                shut.map_err(|error| self.from.other().broken(error))?;
                self.state = State::Over;
            } else {
                ready!(self.poll_move(cx, from, to))?;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            let written = match &mut self.pipe {
                // What was copied came first.
                _ if self.gone < self.copied.len() => {
                    to.try_write(&self.copied[self.gone..]).inspect(|count| self.gone += count)
                }
                Some(pipe) => to.try_io(Interest::WRITABLE, || pipe.drain(to)),
                None => return Poll::Ready(Ok(())),
            };
            match written {
                Ok(count) => {
                    self.progress.moved(self.from, count);
                    self.release();
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Reads, and writes what it copied as far as it is taken at once.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ReadHalf<'_>,
        to: &TcpStream,
    ) -> Poll<Result<(), Broken>> {
        let count = match self.way {
            Way::Copy => ready!(self.poll_copy(cx, from, to))?,
            Way::Splice => ready!(self.poll_splice(cx, from, to))?,
        };
        if count == 0 {
            self.state = State::Ended;
        }
        let before = self.read;
        self.read += count as u64;
        if before < UNBOUNDED && self.read >= UNBOUNDED {
            hold_little(from.as_ref(), to);
        }
        self.way = if count < MUCH { Way::Copy } else { Way::Splice };
        Poll::Ready(Ok(()))
    }

    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ReadHalf<'_>,
        to: &TcpStream,
    ) -> Poll<Result<usize, Broken>> {
        let mut scratch = self.scratch.borrow();
        let mut read = ReadBuf::new(&mut scratch);
        ready!(Pin::new(from).poll_read(cx, &mut read)).map_err(|error| self.from.broken(error))?;
        let bytes = read.filled();
        if !bytes.is_empty() {
            let written = match to.try_write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                written => written.map_err(|error| self.from.other().broken(error))?,
            };
            if written > 0 {
                self.progress.moved(self.from, written);
            }
            self.copied.extend_from_slice(&bytes[written..]);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ReadHalf<'_>,
        to: &TcpStream,
    ) -> Poll<Result<usize, Broken>> {
        let filled = ready!(Pipe::poll_filled(self.pipes, cx, from.as_ref(), usize::MAX));
        let Some(pipe) = filled.map_err(|error| self.from.broken(error))? else {
            return self.poll_copy(cx, from, to);
        };
        let count = pipe.held();
        self.pipe = Some(pipe);
        self.release();
        Poll::Ready(Ok(count))
    }

    /// Gives back what is empty.
    fn release(&mut self) {
        if self.gone == self.copied.len() && self.copied.capacity() > 0 {
            (self.copied, self.gone) = (Vec::new(), 0);
        }
        if let Some(pipe) = self.pipe.take_if(|pipe| pipe.held() == 0) {
            self.pipes.give_back(pipe);
        }
    }
}
