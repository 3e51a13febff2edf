//! The body of a request on its way out: as much as the backend's window takes.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, timeout, timeout_at};

use crate::upstream::http2::wire::Wire;
use crate::upstream::http2::{STALLED, Stalled, State};
use crate::upstream::request::Upload;

/// The reason why a body is not sent to its end.
enum Stopped {
    /// The client's part.
    Upload,
    /// The backend wants no more of it, or is gone.
    Backend,
    /// Its time is over.
    Deadline,
}

/// Sends the body. A response that is under way ends with a body that breaks off.
pub(super) async fn send(
    mut upload: Upload,
    mut stream: SendStream<Bytes>,
    wire: Rc<Wire>,
    state: Rc<State>,
    until: Option<Instant>,
) {
    let sending = send_all(&mut upload, &mut stream, &state);
    let sent = match until {
        None => sending.await,
        Some(until) => timeout_at(until, sending).await.unwrap_or(Err(Stopped::Deadline)),
    };
    let reason = match sent {
        Ok(()) | Err(Stopped::Backend) => return,
        Err(Stopped::Upload) => Reason::INTERNAL_ERROR,
        Err(Stopped::Deadline) => Reason::CANCEL,
    };
    stream.send_reset(reason);
    wire.touch(stream.stream_id().as_u32());
}

/// Nothing is read of the client before the backend has room for it.
async fn send_all(upload: &mut Upload, stream: &mut SendStream<Bytes>, state: &State) -> Result<(), Stopped> {
    while !upload.is_end_stream() {
        room(stream, 1, state).await?;
        let frame = poll_fn(|cx| poll_upload(cx, upload, stream)).await?;
        let Some(frame) = frame else { return Ok(stream.send_data(Bytes::new(), true)?) };
        match frame.into_data() {
            // The last piece may say that it is the last.
            Ok(data) if upload.is_end_stream() && data.len() <= stream.capacity() => {
                return Ok(stream.send_data(data, true)?);
            }
            Ok(mut data) => {
                while !data.is_empty() {
                    let room = room(stream, data.len(), state).await?;
                    let piece = data.split_to(room.min(data.len()));
                    stream.send_data(piece, false)?;
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return Ok(stream.send_trailers(trailers)?);
                }
            }
        }
    }
    Ok(stream.send_data(Bytes::new(), true)?)
}

/// The bytes that the backend has room for. Until it has some, the connection takes no other
/// request, if that lasts.
async fn room(stream: &mut SendStream<Bytes>, wanted: usize, state: &State) -> Result<usize, Stopped> {
    stream.reserve_capacity(wanted);
    if stream.capacity() > 0 {
        return Ok(stream.capacity());
    }
    let mut room = pin!(poll_fn(|cx| poll_room(cx, stream)));
    if let Ok(room) = timeout(STALLED, &mut room).await {
        return room;
    }
    let _stalled = Stalled::new(state);
    room.await
}

fn poll_room(cx: &mut Context<'_>, stream: &mut SendStream<Bytes>) -> Poll<Result<usize, Stopped>> {
    loop {
        if stream.capacity() > 0 {
            return Poll::Ready(Ok(stream.capacity()));
        }
        match stream.poll_capacity(cx) {
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(Err(Stopped::Backend)),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// The next that the client sends, unless the backend resets the stream before.
fn poll_upload(
    cx: &mut Context<'_>,
    upload: &mut Upload,
    stream: &mut SendStream<Bytes>,
) -> Poll<Result<Option<Frame<Bytes>>, Stopped>> {
    if stream.poll_reset(cx).is_ready() {
        return Poll::Ready(Err(Stopped::Backend));
    }
    Pin::new(upload).poll_frame(cx).map(|frame| frame.transpose().map_err(|_| Stopped::Upload))
}

// === impl Stopped ===

impl From<h2::Error> for Stopped {
    fn from(_: h2::Error) -> Self {
        Self::Backend
    }
}
