//! The body of a response on its way through an encoder.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;

use crate::http::body::{BodyError, UpstreamBody};
use crate::http::compress;
use crate::http::encoder::Encoder;

/// Bytes that are compressed in one go, before everything else of the core has its turn: a
/// millisecond's work.
const TURN: usize = 64 << 10;

pub(crate) struct CompressedBody {
    upstream: UpstreamBody,
    /// Until the last byte has been made: a client may take its time to read it.
    encoder: Option<Encoder>,
    /// The trailers, until the last byte has been sent.
    trailers: Option<Frame<Bytes>>,
    /// Bytes that were compressed in this turn.
    in_turn: usize,
}

// === impl CompressedBody ===

impl CompressedBody {
    pub(super) fn new(upstream: UpstreamBody, encoder: Encoder) -> Self {
        Self { upstream, encoder: Some(encoder), trailers: None, in_turn: 0 }
    }

    pub(super) fn upstream(&self) -> &UpstreamBody {
        &self.upstream
    }

    pub(super) fn is_over(&self) -> bool {
        self.encoder.is_none() && self.trailers.is_none()
    }

    /// The next frame. `most` bytes of the backend's are taken at a time; there are as many in a
    /// frame as an encoder makes at once.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        while let Some(encoder) = &mut self.encoder {
            if self.in_turn >= TURN {
                self.in_turn = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let made = match self.upstream.poll(cx, most) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => {
                        self.in_turn += bytes.len();
                        encoder.write(cx, &bytes)
                    }
                    Err(mut frame) => {
                        if let Some(trailers) = frame.trailers_mut() {
                            compress::edit_trailers(trailers);
                        }
                        self.trailers = Some(frame);
                        self.finish(cx)
                    }
                },
                Poll::Ready(None) => self.finish(cx),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => {
                    self.in_turn = 0;
                    match encoder.flush(cx) {
                        Ok(None) => return Poll::Pending,
                        flushed => flushed,
                    }
                }
            };
            match made {
                Ok(Some(made)) => return Poll::Ready(Some(Ok(Frame::data(made)))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
        Poll::Ready(self.trailers.take().map(Ok))
    }

    fn finish(&mut self, cx: &mut Context<'_>) -> io::Result<Option<Bytes>> {
        self.encoder.take().map_or(Ok(None), |mut encoder| encoder.finish(cx))
    }
}
