//! A tunnel on a stream of a shared connection. What comes waits in the stream's inbox, within its
//! window, and what goes for the window of the backend.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::stream_writer::StreamWriter;
use crate::upstream::extended_connect::Handshake;
use crate::upstream::http2::body::Http2Body;

pub(crate) struct Http2Tunnel {
    incoming: Http2Body,
    outgoing: StreamWriter,
}

/// The response to an extended CONNECT: any success opens the tunnel.
pub(super) fn opened(
    response: Response<Http2Body>,
    handshake: &Handshake,
    mut outgoing: SendStream<Bytes>,
) -> Response<Http2Body> {
    let (mut parts, mut body) = response.into_parts();
    if parts.status.is_success() {
        handshake.complete(&mut parts);
        body.open_tunnel(outgoing);
    } else {
        // One that was reset needs no end.
        let _ = outgoing.send_data(Bytes::new(), true);
    }
    Response::from_parts(parts, body)
}

// === impl Http2Tunnel ===

impl Http2Tunnel {
    /// `None` if the stream is no tunnel.
    pub(crate) fn of(mut incoming: Http2Body) -> Option<Self> {
        let outgoing = incoming.take_tunnel()?;
        Some(Self { incoming, outgoing: StreamWriter::new(outgoing) })
    }

    /// "RST exceptions are represented with the RST_STREAM frame with the CANCEL error code" (RFC
    /// 8441 section 5).
    pub(crate) fn reset(mut self) {
        self.outgoing.reset(Reason::CANCEL);
    }
}

impl AsyncRead for Http2Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A client that asks for more has what came before.
        self.incoming.renew();
        let frame = ready!(self.incoming.poll_frame(cx, buffer.remaining()));
        // Trailers end it as well.
        if let Some(bytes) = frame.transpose().map_err(io::Error::other)?.and_then(|it| it.into_data().ok()) {
            buffer.put_slice(&bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.outgoing.poll_write(cx, bytes)
    }

    /// The connection's task writes what there is.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.end();
        Poll::Ready(Ok(()))
    }
}
