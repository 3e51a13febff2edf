//! The body of a request on its way out: as much as the backend's window takes.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, timeout, timeout_at};

use crate::upstream::http2::body::{Begun, Inboxes};
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
    /// The backend has taken nothing for too long.
    Stalled,
}

/// The time for which a backend may have no room for what is there.
pub(super) struct StallLimit {
    /// `None`: it may take its time.
    longest: Option<Duration>,
    inboxes: Rc<Inboxes>,
    state: Rc<State>,
    is_over: Rc<Cell<bool>>,
}

/// Sends the body. A response that is under way ends with a body that breaks off.
pub(super) async fn send(
    mut upload: Upload,
    mut stream: SendStream<Bytes>,
    wire: Rc<Wire>,
    limit: StallLimit,
    until: Option<Instant>,
) {
    let sending = send_all(&mut upload, &mut stream, &limit);
    let sent = match until {
        None => sending.await,
        Some(until) => timeout_at(until, sending).await.unwrap_or(Err(Stopped::Deadline)),
    };
    let reason = match sent {
        Ok(()) | Err(Stopped::Backend) => return,
        Err(Stopped::Upload) => Reason::INTERNAL_ERROR,
        Err(Stopped::Deadline) => Reason::CANCEL,
        Err(Stopped::Stalled) => {
            limit.is_over.set(true);
            Reason::CANCEL
        }
    };
    stream.send_reset(reason);
    wire.touch(stream.stream_id().as_u32());
}

async fn send_all(
    upload: &mut Upload,
    stream: &mut SendStream<Bytes>,
    limit: &StallLimit,
) -> Result<(), Stopped> {
    while !upload.is_end_stream() {
        let frame = next(upload, stream, limit).await?;
        let Some(frame) = frame else { return Ok(stream.send_data(Bytes::new(), true)?) };
        match frame.into_data() {
            // The last piece may say that it is the last.
            Ok(data) if upload.is_end_stream() && data.len() <= stream.capacity() => {
                return Ok(stream.send_data(data, true)?);
            }
            Ok(mut data) => {
                while !data.is_empty() {
                    let room = room(stream, data.len(), limit).await?;
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

/// The next frame of the client. None is read before the backend has room for it; but one, if that
/// lasts: without it, the backend holds nothing up.
async fn next(
    upload: &mut Upload,
    stream: &mut SendStream<Bytes>,
    limit: &StallLimit,
) -> Result<Option<Frame<Bytes>>, Stopped> {
    if soon(stream, 1).await?.is_some() {
        return poll_fn(|cx| poll_upload(cx, upload, stream)).await;
    }
    let mut stalled = Some(Stalled::new(&limit.state));
    let frame = poll_fn(|cx| {
        if stalled.is_some() && poll_room(cx, stream)?.is_ready() {
            stalled = None;
        }
        poll_upload(cx, upload, stream)
    });
    let frame = frame.await?;
    let has_data = frame.as_ref().and_then(Frame::data_ref).is_some_and(|data| !data.is_empty());
    if stalled.is_some() && has_data {
        limit.wait(stream).await?;
    }
    Ok(frame)
}

/// The bytes that the backend has room for. Until it has some, the connection takes no other
/// request, if that lasts.
async fn room(stream: &mut SendStream<Bytes>, wanted: usize, limit: &StallLimit) -> Result<usize, Stopped> {
    if let Some(room) = soon(stream, wanted).await? {
        return Ok(room);
    }
    let _stalled = Stalled::new(&limit.state);
    limit.wait(stream).await
}

/// The same, if it has some at once or in a moment.
async fn soon(stream: &mut SendStream<Bytes>, wanted: usize) -> Result<Option<usize>, Stopped> {
    stream.reserve_capacity(wanted);
    if stream.capacity() > 0 {
        return Ok(Some(stream.capacity()));
    }
    timeout(STALLED, poll_fn(|cx| poll_room(cx, stream))).await.ok().transpose()
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

// === impl StallLimit ===

impl StallLimit {
    pub(super) fn new(longest: Option<Duration>, inboxes: Rc<Inboxes>, state: Rc<State>) -> Self {
        Self { longest, inboxes, state, is_over: Rc::default() }
    }

    /// Set before the stream is reset for it.
    pub(super) fn is_over(&self) -> Rc<Cell<bool>> {
        self.is_over.clone()
    }

    /// Waits until the backend has room. One that sends its response meanwhile, or whose client
    /// does not read that, may have a reason to have none.
    async fn wait(&self, stream: &mut SendStream<Bytes>) -> Result<usize, Stopped> {
        let id = stream.stream_id().as_u32();
        let mut room = poll_fn(|cx| poll_room(cx, stream));
        let Some(longest) = self.longest else { return room.await };
        let mut before = self.inboxes.begun(id);
        loop {
            if let Ok(room) = timeout(longest, &mut room).await {
                return room;
            }
            let now = self.inboxes.begun(id);
            match now {
                None => return Err(Stopped::Stalled),
                Some(Begun::Awaited(_)) if now == before => return Err(Stopped::Stalled),
                Some(Begun::Awaited(_) | Begun::Held) => before = now,
            }
        }
    }
}

// === impl Stopped ===

impl From<h2::Error> for Stopped {
    fn from(_: h2::Error) -> Self {
        Self::Backend
    }
}
