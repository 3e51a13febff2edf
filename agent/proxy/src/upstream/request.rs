//! Requests on their way to a backend: the head, and as the body nothing, or what the client sends,
//! passed on frame by frame.

pub(crate) mod base64;
mod client;
mod copies;
mod incoming;
mod kept;
mod piece;
pub(crate) mod whole;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use portcullis_model::Limits;
use tokio::time::Instant;

use crate::core::untaken::Untaken;
use crate::core::upload_progress::UploadProgress;
use crate::core::window::Windows;
use crate::trace::attempt::Attempts;
use crate::upstream::request::base64::NotBase64;
use crate::upstream::request::whole::WholeBody;

pub(crate) use crate::upstream::request::client::{BodyFault, ClientUpload, SharedFault, UploadError};
pub(crate) use crate::upstream::request::copies::{CopiedUpload, Copies, CopyEnd, CopyWatch};
pub(crate) use crate::upstream::request::incoming::{Broken, FedBody, Feed, IncomingBody, StreamBody};
pub(crate) use crate::upstream::request::kept::{KeptBody, Reading};

/// A client that has many requests at once may leave as many responses unread.
const READ_AHEAD: usize = 16 << 10;
pub(crate) const READ_AHEAD_OF_STREAM: usize = 3 << 10;

/// A request on its way from a client to a backend.
pub(crate) struct Outgoing {
    pub parts: Parts,
    pub upload: Upload,
    /// Bytes of an HTTP/1 response that are read before the client asks for them, head included.
    pub read_ahead: usize,
    /// Of the client's connection.
    pub windows: Rc<Windows>,
    /// After which the rest of the body is of no use: it may go on for longer than the response.
    pub upload_until: Option<Instant>,
    /// The time that the rule gives the backend, if it is the rule that does.
    pub answer_time: Option<AnswerTime>,
    /// The backend may take nothing of the body for any time.
    pub may_stall: bool,
    /// Of a request that is recorded, until it is sent. Copies for mirrors have none.
    pub trace: Option<Box<Attempts>>,
}

/// The time in which a backend has to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerTime {
    pub until: Instant,
    /// The whole of it, of which something else may have had a part.
    pub limit: Duration,
}

/// Empty uploads are a case of their own: a request without body can be sent again. The others are
/// boxed, because requests move, and most have none.
pub(crate) enum Upload {
    Empty,
    Client(Box<ClientUpload>),
    /// The client's, of which the beginning is kept.
    Kept(Box<Reading>),
    /// A copy for a mirror.
    Copied(Box<CopiedUpload>),
    Whole(Box<WholeBody>),
}

/// A copy of a request without its body, to send it again. Most have one made and none needs it, so
/// it is a list of fields, which costs less than a map of them.
pub(crate) struct Resend {
    method: Method,
    uri: Uri,
    fields: Vec<(HeaderName, HeaderValue)>,
    read_ahead: usize,
    windows: Rc<Windows>,
    upload_until: Option<Instant>,
    answer_time: Option<AnswerTime>,
    may_stall: bool,
}

// === impl AnswerTime ===

impl AnswerTime {
    /// An endpoint that is asked now is to blame if it does not answer.
    pub(crate) fn is_half_left(self) -> bool {
        self.until.saturating_duration_since(Instant::now()) >= self.limit / 2
    }
}

// === impl Outgoing ===

impl Outgoing {
    /// Of a client whose connection counts what backends are yet to take.
    pub(crate) fn new(
        request: Request<Incoming>,
        limits: &Limits,
        untaken: &Arc<Untaken>,
        windows: &Rc<Windows>,
    ) -> Box<Self> {
        let upload = |body| Upload::new(IncomingBody::Library(body), limits.body_bytes, untaken);
        Self::of(request.map(upload), windows)
    }

    pub(crate) fn of(request: Request<Upload>, windows: &Rc<Windows>) -> Box<Self> {
        let (parts, upload) = request.into_parts();
        let read_ahead = match parts.version {
            Version::HTTP_2 => READ_AHEAD_OF_STREAM,
            _ => READ_AHEAD,
        };
        Box::new(Self {
            parts,
            upload,
            read_ahead,
            windows: windows.clone(),
            upload_until: None,
            answer_time: None,
            may_stall: false,
            trace: None,
        })
    }
}

// === impl Resend ===

impl Resend {
    /// For a request that has no body and an idempotent method.
    pub(crate) fn of(outgoing: &Outgoing) -> Option<Self> {
        let is_safe = matches!(outgoing.upload, Upload::Empty) && outgoing.parts.method.is_idempotent();
        is_safe.then(|| Self::of_head(outgoing))
    }

    /// For any request.
    pub(crate) fn of_head(outgoing: &Outgoing) -> Self {
        let Outgoing { parts, read_ahead, windows, upload_until, answer_time, may_stall, .. } = outgoing;
        let fields = parts.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        Self {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            fields: fields.collect(),
            read_ahead: *read_ahead,
            windows: windows.clone(),
            upload_until: *upload_until,
            answer_time: *answer_time,
            may_stall: *may_stall,
        }
    }

    pub(crate) fn into_outgoing(self) -> Box<Outgoing> {
        self.outgoing(Upload::Empty)
    }

    /// The request with this body.
    pub(crate) fn outgoing(&self, upload: Upload) -> Box<Outgoing> {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method.clone();
        parts.uri = self.uri.clone();
        for (name, value) in &self.fields {
            parts.headers.append(name.clone(), value.clone());
        }
        let Self { read_ahead, upload_until, answer_time, may_stall, .. } = *self;
        let (windows, trace) = (self.windows.clone(), None);
        Box::new(Outgoing { parts, upload, read_ahead, windows, upload_until, answer_time, may_stall, trace })
    }
}

// === impl Upload ===

impl Upload {
    pub(crate) fn new(incoming: IncomingBody, limit: Option<u64>, untaken: &Arc<Untaken>) -> Self {
        let upload = ClientUpload::new(incoming, limit, untaken);
        upload.map_or(Self::Empty, |upload| Self::Client(Box::new(upload)))
    }

    /// Adds names that trailers must not have, if there may be trailers.
    pub(crate) fn keep_out(&mut self, names: impl FnOnce() -> Vec<HeaderName>) {
        match self {
            Self::Empty | Self::Copied(_) => {}
            Self::Client(upload) => upload.keep_out(names()),
            Self::Kept(reading) => reading.with_source(|upload| upload.keep_out(names())),
            Self::Whole(upload) => upload.keep_out(&names()),
        }
    }

    /// Has copies made of the body as it is read.
    pub(crate) fn copy_to(&mut self, copies: Copies) {
        match self {
            Self::Empty | Self::Copied(_) => copies.complete(),
            Self::Whole(upload) => {
                upload.frames().for_each(|frame| copies.push(&frame));
                copies.complete();
            }
            Self::Client(upload) => upload.copy_to(copies),
            Self::Kept(reading) => reading.copy_to(copies),
        }
    }

    /// Has the rest of the body decoded.
    ///
    /// # Errors
    /// When it is here already, and not base64.
    pub(crate) fn decode_base64(&mut self) -> Result<(), NotBase64> {
        match self {
            Self::Empty | Self::Copied(_) => {}
            Self::Whole(body) => body.decode_base64()?,
            Self::Client(upload) => upload.decode_base64(),
            Self::Kept(reading) => reading.with_source(ClientUpload::decode_base64),
        }
        Ok(())
    }

    /// Keeps record of the progress from now on, if the length of the body was announced.
    pub(crate) fn track(&mut self) -> Option<Rc<UploadProgress>> {
        match self {
            Self::Empty | Self::Copied(_) | Self::Whole(_) => None,
            Self::Client(upload) => upload.track(),
            Self::Kept(reading) => reading.with_source(ClientUpload::track),
        }
    }

    /// Lowers the limit of the body.
    ///
    /// # Errors
    /// When it is here already, and longer.
    pub(crate) fn limit(&mut self, most: u64) -> Result<(), UploadError> {
        match self {
            Self::Empty | Self::Copied(_) => Ok(()),
            Self::Whole(body) if body.bytes().len() as u64 > most => Err(UploadError::TooLarge),
            Self::Whole(_) => Ok(()),
            Self::Client(upload) => {
                upload.limit(most);
                Ok(())
            }
            Self::Kept(reading) => {
                reading.with_source(|upload| upload.limit(most));
                Ok(())
            }
        }
    }

    /// True if the declared length of the body exceeds the limit.
    pub(crate) fn is_too_large(&self) -> bool {
        match self {
            Self::Empty | Self::Copied(_) | Self::Whole(_) => false,
            Self::Client(upload) => upload.is_too_large(),
            Self::Kept(reading) => reading.with_source(|upload| upload.is_too_large()),
        }
    }

    pub(crate) fn fault(&self) -> Option<SharedFault> {
        match self {
            Self::Empty | Self::Copied(_) | Self::Whole(_) => None,
            Self::Client(upload) => Some(upload.fault()),
            Self::Kept(reading) => Some(reading.fault()),
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Client(upload) => upload.poll_frame(cx),
            Self::Kept(reading) => reading.poll_frame(cx),
            Self::Copied(copy) => copy.poll_frame(cx).map_err(UploadError::Copy),
            Self::Whole(upload) => Poll::Ready(upload.next().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(upload) => upload.is_end_stream(),
            Self::Kept(reading) => reading.is_end_stream(),
            Self::Copied(copy) => copy.is_end_stream(),
            Self::Whole(upload) => upload.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client(upload) => upload.size_hint(),
            Self::Kept(_) | Self::Copied(_) => SizeHint::default(),
            Self::Whole(upload) => upload.size_hint(),
        }
    }
}
