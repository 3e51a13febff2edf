//! The client's side of a tunnel on a stream (RFC 8441). Nothing is written to it while the
//! connection takes nothing: each of a hundred would be held in full.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::exchange::Exchange;
use crate::core::stream_writer::StreamWriter;

/// Both ways of a stream that has its answer.
pub(crate) type OpenStream = (RecvStream, SendStream<Bytes>);

pub(crate) struct ClientStream {
    incoming: RecvStream,
    /// Bytes that came and were not read.
    unread: Bytes,
    outgoing: StreamWriter,
    exchange: Exchange,
}

// === impl ClientStream ===

impl ClientStream {
    /// The exchange lasts as long as the tunnel: its connection is not idle.
    pub(super) fn new((incoming, outgoing): OpenStream, exchange: Exchange) -> Self {
        Self { incoming, unread: Bytes::new(), outgoing: StreamWriter::new(outgoing), exchange }
    }

    /// Says that there is no more, unless that has been said.
    pub(crate) fn end(mut self) {
        self.outgoing.end();
    }

    /// "RST exceptions are represented with the RST_STREAM frame with the CANCEL error code" (RFC
    /// 8441 section 5).
    pub(crate) fn reset(mut self) {
        self.outgoing.reset(Reason::CANCEL);
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.unread.is_empty() {
            match ready!(this.incoming.poll_data(cx)) {
                Some(data) => this.unread = data.map_err(io::Error::other)?,
                None => return Poll::Ready(Ok(())),
            }
        }
        let part = this.unread.len().min(buffer.remaining());
        buffer.put_slice(&this.unread[..part]);
        this.unread.advance(part);
        // The client may send as much again. A stream that is gone needs no room.
        let _ = this.incoming.flow_control().release_capacity(part);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let room = ready!(self.exchange.poll_room(cx)).min(bytes.len());
        self.outgoing.poll_write(cx, &bytes[..room])
    }

    /// The connection writes what there is.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.end();
        Poll::Ready(Ok(()))
    }
}
