//! PINGs that find out whether a client is still there. Their time is kept by the core's clock: the
//! sweep of [`Clients`](crate::client::clients::Clients) wakes the connection when it has come.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};

use crate::client::clients::Client;
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
    pub(super) fn new(pings: PingPong, client: &Client) -> Self {
        let mut keep_alive = Self { pings, awaited: None, due: 0 };
        keep_alive.wait(None, client);
        keep_alive
    }

    /// # Errors
    /// When the client does not answer, and its socket takes nothing either: before an answer can
    /// come, it may have much to read.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, client: &Client) -> io::Result<()> {
        if self.awaited.is_some()
            && let Poll::Ready(answered) = self.pings.poll_pong(cx)
        {
            answered.map_err(io::Error::other)?;
            self.wait(None, client);
        }
        if clock::now() < self.due {
            return Ok(());
        }
        let written = client.progress.bytes_written();
        match self.awaited {
            Some(before) if before == written => return Err(io::ErrorKind::TimedOut.into()),
            Some(_) => {}
            None => {
                self.pings.send_ping(Ping::opaque()).map_err(io::Error::other)?;
                // Nothing can have come yet: this is to be woken by what will.
                let _ = self.pings.poll_pong(cx);
            }
        }
        self.wait(Some(written), client);
        Ok(())
    }

    fn wait(&mut self, awaited: Option<u64>, client: &Client) {
        self.awaited = awaited;
        let time = if awaited.is_some() { TIMEOUT } else { EVERY };
        self.due = clock::now() + clock::ticks(time);
        client.wake_at(self.due);
    }
}
