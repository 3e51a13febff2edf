//! The body of a backend's response. It holds the connection that it comes on, and a place among
//! the requests that its endpoint is busy with.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::either::Either;

use crate::core::head::KnownFields;
use crate::core::pipe::{Pipe, Pipes};
use crate::upstream::endpoint::UpstreamError;
use crate::upstream::endpoint::in_flight::InFlight;
use crate::upstream::health::endpoint::EndpointHealth;
use crate::upstream::health::places::RequestPlace;
use crate::upstream::http1::{Http1Body, Http1Tunnel};
use crate::upstream::http2::{Http2Body, Http2Error, Http2Tunnel, Stream};

/// The outcome of a gRPC call: in the trailers, or in a head that is all there is.
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The body of a response, which holds the connection that it comes on.
pub(crate) struct ResponseBody {
    source: Source,
    in_flight: InFlight,
    /// Within the limit of the backend, if it has one.
    place: Option<RequestPlace>,
    /// Until the trailers come that say whether the endpoint has failed.
    undecided: Option<UndecidedCall>,
}

/// A gRPC call whose `grpc-status` is in the trailers. Dropped before, it has seen nothing.
struct UndecidedCall(Arc<EndpointHealth>);

/// The backend's side of a tunnel: a connection, or a stream of one.
pub(crate) struct BackendTunnel(Either<Http1Tunnel, Http2Tunnel>);

/// The place of a tunnel among the endpoint's requests, and within the backend's limit.
pub(crate) struct TunnelPlace {
    _in_flight: InFlight,
    _place: Option<RequestPlace>,
    _stream: Option<Stream>,
}

/// The connection, in the middle of a response.
pub(super) enum Source {
    Http1(Box<Http1Body>),
    Http2 { body: Http2Body, place: Stream },
}

// === impl ResponseBody ===

impl ResponseBody {
    pub(super) fn new(source: Source, in_flight: InFlight) -> Self {
        Self { source, in_flight, place: None, undecided: None }
    }

    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.in_flight.endpoint().address
    }

    /// The known fields among those of the head, which the parser of HTTP/1 looks for anyway.
    pub(crate) fn known_fields(&self, head: &HeaderMap) -> KnownFields {
        match &self.source {
            Source::Http1(body) => body.known_fields(),
            Source::Http2 { .. } => KnownFields::of(head),
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Http1(body) => body.is_end_stream(),
            Source::Http2 { body, .. } => body.is_end_stream(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Http1(body) => body.size_hint(),
            Source::Http2 { body, .. } => body.size_hint(),
        }
    }

    /// Takes its place until it is over.
    pub(crate) fn hold(&mut self, place: Option<RequestPlace>) {
        self.place = place;
    }

    /// Has the endpoint's health follow from the trailers.
    pub(crate) fn judge_by_trailers(&mut self) {
        self.undecided = self.in_flight.endpoint().health.clone().map(UndecidedCall);
    }

    /// Bytes that the client has yet to be written count against what a backend of HTTP/2 may send.
    pub(crate) fn count_unread(&self, unread: impl FnOnce() -> Arc<AtomicUsize>) {
        if let Source::Http2 { body, .. } = &self.source {
            body.count_unread(unread());
        }
    }

    /// The next frame, which has no more than `most` bytes.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match &mut self.source {
            Source::Http1(body) => body.poll_frame(cx, most).map_err(UpstreamError::from),
            Source::Http2 { body, .. } => {
                let polled = body.poll_frame(cx, most).map_err(|error| Http2Error::from(error).into());
                if self.undecided.is_some()
                    && let Poll::Ready(Some(Ok(frame))) = &polled
                    && let Some(trailers) = frame.trailers_ref()
                    && let Some(status) = trailers.get(GRPC_STATUS)
                    && let Some(call) = self.undecided.take()
                {
                    call.0.called(status);
                }
                polled
            }
        }
    }

    /// Bytes to come that a pipe could take.
    pub(crate) fn unframed(&self) -> Option<u64> {
        match &self.source {
            Source::Http1(body) => body.unframed(),
            Source::Http2 { .. } => None,
        }
    }

    /// Has a pipe take what there is of them, and no more than `most`. `None` if there is no pipe
    /// to be had.
    pub(crate) fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: usize,
    ) -> Poll<Result<Option<Pipe>, UpstreamError>> {
        match &mut self.source {
            Source::Http1(body) => body.poll_pipe(cx, pipes, most).map_err(UpstreamError::from),
            Source::Http2 { .. } => Poll::Ready(Ok(None)),
        }
    }

    /// Keeps the connection for the next request, if it can be: an unfinished response closes it.
    pub(crate) fn release(self) {
        if let Source::Http1(body) = self.source
            && let Some(connection) = body.into_connection()
        {
            self.in_flight.endpoint().keep(connection);
        }
    }

    /// The connection, after its backend has switched protocols.
    pub(crate) fn into_tunnel(self) -> Option<(BackendTunnel, TunnelPlace)> {
        let Self { source, in_flight, place, .. } = self;
        let (tunnel, stream) = match source {
            Source::Http1(body) => (Either::Left(body.into_tunnel()?), None),
            Source::Http2 { body, place } => (Either::Right(Http2Tunnel::of(body)?), Some(place)),
        };
        Some((BackendTunnel(tunnel), TunnelPlace { _in_flight: in_flight, _place: place, _stream: stream }))
    }
}

impl Drop for UndecidedCall {
    fn drop(&mut self) {
        self.0.undecided();
    }
}

// === impl BackendTunnel ===

impl BackendTunnel {
    /// Ends it so that the backend does not take what came for all there was.
    pub(crate) fn reset(self) {
        match self.0 {
            Either::Left(connection) => connection.into_inner().1.reset(),
            Either::Right(stream) => stream.reset(),
        }
    }
}

impl AsyncRead for BackendTunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for BackendTunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
