//! A tunnel: two streams, each of which gets what the other one sends, until both have ended,
//! nothing has moved for too long, or the tunnel is withdrawn.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use crate::core::clock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both sides have sent all they had; or one is gone that speaks TLS, as many end without a
    /// word.
    Closed,
    /// One side failed, nothing moved, or it was withdrawn: no side is to take what came for all
    /// there was.
    Broken,
}

/// A side, of which it is noted when it took something last.
struct Noted<'t, S> {
    stream: &'t mut S,
    still_since: &'t Cell<u32>,
}

/// The failure of either side ends both, and so does `idle` without a byte either way, or that it
/// is `withdrawn`.
pub(crate) async fn join(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    backend: &mut (impl AsyncRead + AsyncWrite + Unpin),
    idle: Duration,
    withdrawn: impl Future<Output = ()>,
) -> Ending {
    let still_since = Cell::new(clock::now());
    let mut client = Noted { stream: client, still_since: &still_since };
    let mut backend = Noted { stream: backend, still_since: &still_since };
    tokio::select! {
        biased;
        copied = copy_bidirectional(&mut client, &mut backend) => match copied {
            Ok(_) => Ending::Closed,
            Err(error) => {
                tracing::debug!(%error, "tunnel ended");
                if error.kind() == ErrorKind::UnexpectedEof { Ending::Closed } else { Ending::Broken }
            }
        },
        () = stillness(&still_since, clock::ticks(idle)) => {
            tracing::debug!("tunnel ended: nothing moved for {idle:?}");
            Ending::Broken
        }
        () = withdrawn => {
            tracing::debug!("tunnel ended: its listener is gone");
            Ending::Broken
        }
    }
}

/// Waits until nothing has moved for more than so many ticks. There are few tunnels, and a timer of
/// each goes off once in that time.
async fn stillness(still_since: &Cell<u32>, ticks: u32) {
    loop {
        let still = clock::now() - still_since.get();
        if still > ticks {
            return;
        }
        clock::wait(ticks - still + 1).await;
    }
}

// === impl Noted ===

impl<S: AsyncRead + Unpin> AsyncRead for Noted<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut *self.stream).poll_write(cx, bytes))?;
        self.still_since.set(clock::now());
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}
