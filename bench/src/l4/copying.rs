//! A proxy that copies, the yardstick for those that need not: a thread for each direction, 64 KiB
//! at a time, and not a system call more than that takes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Result, anyhow};

/// Connections at a time. Threads stay, since the CPU time of one that ended is not to be had.
const CONNECTIONS: usize = 32;
const COPY: usize = 64 << 10;

#[derive(clap::Args)]
pub(crate) struct Args {
    listen: SocketAddr,
    backend: SocketAddr,
}

/// Until it is killed.
pub(super) fn run(args: &Args) -> Result<()> {
    let (listener, backend) = (Arc::new(TcpListener::bind(args.listen)?), args.backend);
    let serving = |listener: Arc<TcpListener>| thread::spawn(move || serve_forever(&listener, backend));
    let threads: Vec<_> = (0..CONNECTIONS).map(|_| serving(listener.clone())).collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked")))
}

/// A connection at a time.
fn serve_forever(listener: &TcpListener, backend: SocketAddr) {
    let (uploads, waiting) = channel::<(TcpStream, TcpStream)>();
    thread::spawn(move || {
        for (client, backend) in waiting {
            // A side that goes away is no error.
            let _ = copy(client, backend);
        }
    });
    for client in listener.incoming().flatten() {
        let download = || {
            let backend = TcpStream::connect(backend)?;
            client.set_nodelay(true)?;
            backend.set_nodelay(true)?;
            let _ = uploads.send((client.try_clone()?, backend.try_clone()?));
            copy(backend, client)
        };
        let _ = download();
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; COPY];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            length => to.write_all(&buffer[..length])?,
        }
    }
}
