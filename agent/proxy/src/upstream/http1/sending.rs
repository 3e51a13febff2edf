//! A request on its way out: its head, and its body in the framing that the head announces, one
//! frame at a time.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::{Body as _, Frame};
use tokio::io::AsyncWrite;
use tokio_util::io::poll_write_buf;

use crate::core::clock;
use crate::upstream::http1::head;
use crate::upstream::request::{Upload, UploadError};
use crate::upstream::stall::Stall;
use crate::upstream::stream::WriteHalf;

/// Bytes of a usual request head.
const HEAD: usize = 1 << 10;

pub(crate) struct Sending {
    /// Framing, data, framing.
    unsent: Chain<Chain<Bytes, Bytes>, Bytes>,
    rest: Rest,
    sent: u64,
    stall: Stall,
}

/// The part of the body that has not been asked for yet.
enum Rest {
    Nothing,
    Bytes(Upload, u64),
    Chunks(Upload),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("cannot send the request: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Upload(#[from] UploadError),
    #[error("the request body is not of the length that its head announces")]
    Length,
    #[error("the backend took nothing of the request for too long")]
    Stalled,
}

// === impl Sending ===

impl Sending {
    /// The upload is taken, if there is one: what was read of it cannot be sent again. For so long,
    /// the backend may take nothing of it.
    pub(crate) fn new(parts: &Parts, upload: &mut Upload, longest_stall: Option<Duration>) -> Self {
        let mut bytes = Vec::with_capacity(HEAD);
        head::write_request(parts, &mut bytes);
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let rest = match (std::mem::replace(upload, Upload::Empty), length) {
            (Upload::Empty, _) => Rest::Nothing,
            (upload, Some(length)) => Rest::Bytes(upload, length),
            (upload, None) => Rest::Chunks(upload),
        };
        Self { unsent: frame(bytes, Bytes::new(), b""), rest, sent: 0, stall: Stall::new(longest_stall) }
    }

    /// Of a request of which only these bytes are left.
    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Self {
        let unsent = frame(bytes, Bytes::new(), b"");
        Self { unsent, rest: Rest::Nothing, sent: 0, stall: Stall::new(None) }
    }

    /// Bytes that went out.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends what there is; ready when that was all.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut WriteHalf,
    ) -> Poll<Result<(), SendError>> {
        loop {
            // The head waits for the first frame, if there is one: both go out at once.
            let next = self.poll_next(cx)?;
            while self.unsent.has_remaining() {
                let written = match poll_write_buf(Pin::new(&mut *stream), cx, &mut self.unsent) {
                    Poll::Ready(written) => written?,
                    Poll::Pending => return self.poll_stalled(cx),
                };
                if written == 0 {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
                }
                self.sent += written as u64;
                self.stall.end();
            }
            let is_all = matches!(self.rest, Rest::Nothing);
            if is_all || next.is_pending() {
                match Pin::new(&mut *stream).poll_flush(cx) {
                    Poll::Ready(flushed) => flushed?,
                    Poll::Pending => return self.poll_stalled(cx),
                }
                self.stall.end();
            }
            match next {
                _ if is_all => return Poll::Ready(Ok(())),
                Poll::Ready(()) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The backend takes nothing now.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.stall.poll(cx).map(|()| Err(SendError::Stalled))
    }

    /// Sends the rest, and leaves the connection open in both directions. `awaited_since` is the
    /// time since which more of the response is waited for: a backend that sends it, or whose
    /// client does not read it, may have a reason to take nothing of the request.
    pub(crate) async fn finish(
        mut self,
        mut stream: WriteHalf,
        awaited_since: Rc<Cell<Option<u32>>>,
    ) -> Result<(), SendError> {
        let sent = loop {
            let sent = poll_fn(|cx| self.poll(cx, &mut stream)).await;
            let since = awaited_since.get();
            if !matches!(sent, Err(SendError::Stalled))
                || since.is_some_and(|since| self.stall.is_over_since(since))
            {
                break sent;
            }
            self.stall.count_from(since.unwrap_or_else(clock::now));
        };
        if let Err(error) = &sent {
            tracing::debug!(%error, "the response began before its request was sent");
        }
        stream.forget();
        sent
    }

    /// Adds the next frame of the body to what is to be sent, unless there are others in front.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if self.unsent.last_ref().has_remaining() || self.unsent.first_ref().last_ref().has_remaining() {
            return Poll::Ready(Ok(()));
        }
        let upload = match &mut self.rest {
            Rest::Nothing => return Poll::Ready(Ok(())),
            Rest::Bytes(upload, _) | Rest::Chunks(upload) => upload,
        };
        let next = ready!(Pin::new(upload).poll_frame(cx)).transpose()?.map(Frame::into_data);
        let mut framing = self.unsent.first_ref().first_ref().to_vec();
        self.unsent = match (&mut self.rest, next) {
            (Rest::Bytes(_, left), Some(Ok(data))) => {
                *left = left.checked_sub(data.len() as u64).ok_or(SendError::Length)?;
                if *left == 0 {
                    self.rest = Rest::Nothing;
                }
                frame(framing, data, b"")
            }
            (Rest::Bytes(_, 1..), None) => return Poll::Ready(Err(SendError::Length)),
            // Trailers have no place behind a body of a known length.
            (Rest::Bytes(..), Some(Err(_))) | (Rest::Nothing, _) => frame(framing, Bytes::new(), b""),
            (Rest::Bytes(..), None) => {
                self.rest = Rest::Nothing;
                frame(framing, Bytes::new(), b"")
            }
            (Rest::Chunks(_), Some(Ok(data))) if data.is_empty() => frame(framing, data, b""),
            (Rest::Chunks(_), Some(Ok(data))) => {
                framing.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                frame(framing, data, b"\r\n")
            }
            (Rest::Chunks(_), last) => {
                framing.extend_from_slice(b"0\r\n");
                match last {
                    Some(Err(trailers)) => {
                        let fields = trailers.into_trailers().unwrap_or_default();
                        head::write_section(&fields, &mut framing);
                    }
                    Some(Ok(_)) | None => framing.extend_from_slice(b"\r\n"),
                }
                self.rest = Rest::Nothing;
                frame(framing, Bytes::new(), b"")
            }
        };
        Poll::Ready(Ok(()))
    }
}

fn frame(before: Vec<u8>, data: Bytes, after: &'static [u8]) -> Chain<Chain<Bytes, Bytes>, Bytes> {
    Bytes::from(before).chain(data).chain(Bytes::from_static(after))
}
