//! The way out of a tunnel on a stream of HTTP/2, to a client or to a backend.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};

/// Bytes that are written at once.
const PIECE: usize = 16 << 10;

pub(crate) struct StreamWriter(SendStream<Bytes>);

// === impl StreamWriter ===

impl StreamWriter {
    pub(crate) fn new(stream: SendStream<Bytes>) -> Self {
        Self(stream)
    }

    /// Writes as much as the peer has room for.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self(stream) = self;
        stream.reserve_capacity(bytes.len().min(PIECE));
        while stream.capacity() == 0 {
            match ready!(stream.poll_capacity(cx)) {
                Some(capacity) => capacity.map_err(io::Error::other)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        let piece = &bytes[..stream.capacity().min(bytes.len())];
        stream.send_data(Bytes::copy_from_slice(piece), false).map_err(io::Error::other)?;
        Poll::Ready(Ok(piece.len()))
    }

    pub(crate) fn end(&mut self) {
        // One that was reset needs no end.
        let _ = self.0.send_data(Bytes::new(), true);
    }

    pub(crate) fn reset(&mut self, reason: Reason) {
        self.0.send_reset(reason);
    }
}
