//! PINGs that find out whether a client is still there. Their time is kept by the core's clock: the
//! sweep of [`Clients`](crate::client::clients::Clients) wakes the connection when it has come.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};

use crate::client::progress::Progress;
use crate::core::clock;

const EVERY: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct KeepAlive {
    pings: PingPong,
    /// Bytes that had been written to the client when its answer was waited for. `None` if none is.
    awaited: Option<u64>,
    /// By the core's clock.
    due: u32,
}

// === impl KeepAlive ===

impl KeepAlive {
    pub(super) fn new(pings: PingPong) -> Self {
        Self { pings, awaited: None, due: clock::now() + clock::ticks(EVERY) }
    }

    /// The time at which it is to be polled at the latest.
    pub(super) fn due(&self) -> u32 {
        self.due
    }

    /// # Errors
    /// When the client does not answer, unless its socket is full and has taken something
    /// meanwhile: before an answer can come, it has much to read. A socket that is not full takes
    /// bytes for a client that is gone, too.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, progress: &Progress) -> io::Result<()> {
        if self.awaited.is_some()
            && let Poll::Ready(answered) = self.pings.poll_pong(cx)
        {
            answered.map_err(io::Error::other)?;
            self.wait(None);
        }
        if clock::now() < self.due {
            return Ok(());
        }
        let written = progress.bytes_written();
        match self.awaited {
            Some(before) if before == written || !progress.is_write_blocked() => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Some(_) => {}
            None => {
                self.pings.send_ping(Ping::opaque()).map_err(io::Error::other)?;
                // Nothing can have come yet: this is to be woken by what will.
                let _ = self.pings.poll_pong(cx);
            }
        }
        self.wait(Some(written));
        Ok(())
    }

    fn wait(&mut self, awaited: Option<u64>) {
        self.awaited = awaited;
        let time = if awaited.is_some() { TIMEOUT } else { EVERY };
        self.due = clock::now() + clock::ticks(time);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use bytes::Bytes;
    use h2::server::Connection;
    use tokio::io::DuplexStream;

    use super::*;

    /// A client's socket between two times at which the connection is polled.
    enum Socket {
        Takes(usize),
        IsFull,
        IsFullAndTook(usize),
    }

    /// A connection whose client never answers.
    async fn connection() -> Connection<DuplexStream, Bytes> {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (server, client) = tokio::join!(h2::server::handshake(near), h2::client::handshake(far));
        std::mem::forget(client.unwrap());
        server.unwrap()
    }

    /// Seconds after which the connection is given up.
    async fn given_up(sockets: impl Iterator<Item = Socket>) -> Option<u32> {
        let mut connection = connection().await;
        let mut keep_alive = KeepAlive::new(connection.ping_pong().unwrap());
        let (progress, begun) = (Progress::new(), clock::now());
        let mut cx = Context::from_waker(Waker::noop());
        for socket in sockets {
            let (bytes, write) = match socket {
                Socket::Takes(bytes) => (bytes, Poll::Ready(())),
                Socket::IsFull => (0, Poll::Pending),
                Socket::IsFullAndTook(bytes) => (bytes, Poll::Pending),
            };
            progress.written(bytes);
            progress.note_write(&write);
            while clock::now() < keep_alive.due() {
                clock::advance();
            }
            if keep_alive.poll(&mut cx, &progress).is_err() {
                return Some((clock::now() - begun) / clock::PER_SECOND);
            }
            let _ = connection.poll_accept(&mut cx);
        }
        None
    }

    #[tokio::test]
    async fn a_client_that_does_not_answer_is_given_up_unless_it_reads() {
        use Socket::{IsFull, IsFullAndTook, Takes};
        // The PING is written, too, and so may be events that never arrive.
        assert_eq!(given_up([0, 17, 17].map(Takes).into_iter()).await, Some(40));
        assert_eq!(given_up((0..100).map(Takes)).await, Some(40));
        assert_eq!(given_up([IsFull, IsFull].into_iter()).await, Some(40));
        assert_eq!(given_up((0..100).map(|_| IsFullAndTook(1))).await, None);
        assert_eq!(given_up([IsFull, IsFullAndTook(1), IsFull].into_iter()).await, Some(50));
    }
}
