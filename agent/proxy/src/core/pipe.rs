//! Pipes that bytes pass between two sockets without being copied. A connection has one only while
//! bytes of it are in there; a core keeps some that are empty.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes that a pipe has room for, if the kernel gives as much. With a quarter of it a byte costs
/// half as much again.
const CAPACITY: usize = 1 << 20;
/// Bytes of a pipe that is no better than a copy.
const SMALL: usize = 64 << 10;
/// Empty pipes that a core keeps: they count towards what the user may have.
const KEPT: usize = 8;

pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Bytes in it.
    held: usize,
}

/// Those of a core that are empty.
#[derive(Default)]
pub(crate) struct Pipes(RefCell<Vec<Pipe>>);

// === impl Pipe ===

impl Pipe {
    fn open() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A user who has many pipes gets no larger ones, then much smaller ones.
        if fcntl_setpipe_size(&writer, CAPACITY).is_err() && fcntl_getpipe_size(&writer)? < SMALL {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        Ok(Self { reader, writer, held: 0 })
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Takes what the socket has, and no more than `most` of it; 0 is its end. The pipe must be
    /// empty: that it is full would look like a socket that has nothing.
    pub(crate) fn fill(&mut self, from: &TcpStream, most: usize) -> io::Result<usize> {
        debug_assert_eq!(self.held, 0);
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        self.held = splice(from, None, &self.writer, None, most.min(CAPACITY), flags)?;
        Ok(self.held)
    }

    /// [`fill`](Self::fill), once the socket has something. `None` if there is no pipe to be had.
    pub(crate) fn poll_filled(
        pipes: &Pipes,
        cx: &mut Context<'_>,
        from: &TcpStream,
        most: usize,
    ) -> Poll<io::Result<Option<Self>>> {
        loop {
            ready!(from.poll_read_ready(cx))?;
            let Ok(mut pipe) = pipes.take() else { return Poll::Ready(Ok(None)) };
            match from.try_io(Interest::READABLE, || pipe.fill(from, most)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => pipes.give_back(pipe),
                filled => return Poll::Ready(filled.map(|_| Some(pipe))),
            }
        }
    }

    /// Gives the socket as much as it takes; the pipe must not be empty.
    pub(crate) fn drain(&mut self, to: &TcpStream) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let taken = splice(&self.reader, None, to, None, self.held, flags)?;
        self.held -= taken;
        Ok(taken)
    }

    /// [`drain`](Self::drain), once the socket takes something.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            match to.try_io(Interest::WRITABLE, || self.drain(to)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                drained => return Poll::Ready(drained),
            }
        }
    }
}

// === impl Pipes ===

impl Pipes {
    /// # Errors
    /// When the process has too many descriptors, or its user too many pipes.
    pub(crate) fn take(&self) -> io::Result<Pipe> {
        self.0.borrow_mut().pop().map_or_else(Pipe::open, Ok)
    }

    /// One that is not empty is closed.
    pub(crate) fn give_back(&self, pipe: Pipe) {
        let mut kept = self.0.borrow_mut();
        if pipe.held == 0 && kept.len() < KEPT {
            kept.push(pipe);
        }
    }
}
