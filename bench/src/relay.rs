//! The floor under proxies in user space: a thread that waits for sockets and passes on what it
//! reads, to a backend's connection for each of a client's. It parses nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

const BUFFER: usize = 64 << 10;
const EVENTS: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Args {
    listen: SocketAddr,
    backend: SocketAddr,
}

/// One end of what is relayed.
struct End {
    stream: TcpStream,
    /// Index of the other one.
    other: usize,
}

/// By the numbers of their file descriptors.
#[derive(Default)]
struct Ends(Vec<Option<End>>);

/// Until it is killed.
pub(super) fn run(args: &Args) -> Result<()> {
    let listener = TcpListener::bind(args.listen)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, data(number(&listener)), EventFlags::IN)?;
    let mut ends = Ends::default();
    let mut events = Vec::<Event>::with_capacity(EVENTS);
    let mut buffer = vec![0; BUFFER];
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let at = usize::try_from(event.data.u64())?;
            if at == number(&listener) {
                let (client, _) = listener.accept()?;
                let backend = TcpStream::connect(args.backend).context("the backend refuses")?;
                for stream in [&client, &backend] {
                    stream.set_nodelay(true)?;
                    epoll::add(&epoll, stream, data(number(stream)), EventFlags::IN)?;
                }
                ends.join(client, backend);
            } else {
                ends.pass_on(at, &mut buffer);
            }
        }
    }
}

impl Ends {
    fn join(&mut self, client: TcpStream, backend: TcpStream) {
        let (one, two) = (number(&client), number(&backend));
        let length = self.0.len().max(one.max(two) + 1);
        self.0.resize_with(length, || None);
        self.0[one] = Some(End { stream: client, other: two });
        self.0[two] = Some(End { stream: backend, other: one });
    }

    /// Sends on as much as can be read at once. If either end is gone, so is the other.
    fn pass_on(&mut self, from: usize, buffer: &mut [u8]) {
        let Some(end) = &mut self.0[from] else { return };
        let other = end.other;
        let read = end.stream.read(buffer).unwrap_or(0);
        let to = self.0[other].as_mut().filter(|_| read > 0);
        if to.is_none_or(|to| to.stream.write_all(&buffer[..read]).is_err()) {
            self.0[from] = None;
            self.0[other] = None;
        }
    }
}

fn number(socket: &impl AsRawFd) -> usize {
    // Descriptors of open sockets are not negative.
    usize::try_from(socket.as_raw_fd()).unwrap_or(0)
}

fn data(number: usize) -> EventData {
    EventData::new_u64(number as u64)
}
