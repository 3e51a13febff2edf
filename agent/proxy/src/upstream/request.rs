//! Requests on their way to a backend: the head, and as the body nothing, or what the client sends,
//! passed on frame by frame.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use portcullis_model::Limits;

use crate::core::trailers::restrict_trailers;
use crate::core::untaken::{TakenBody, Untaken};
use crate::core::upload_progress::UploadProgress;
use crate::core::window::Windows;

/// A client that has many requests at once may leave as many responses unread.
const READ_AHEAD: usize = 16 << 10;
const READ_AHEAD_OF_STREAM: usize = 3 << 10;

/// A request on its way from a client to a backend.
pub(crate) struct Outgoing {
    pub parts: Parts,
    pub upload: Upload,
    /// Bytes of an HTTP/1 response that are read before the client asks for them, head included.
    pub read_ahead: usize,
    /// Of the client's connection.
    pub windows: Rc<Windows>,
}

/// Empty uploads are a case of their own: a request without body can be sent again. The other is
/// boxed, because requests move, and most have none.
pub(crate) enum Upload {
    Empty,
    Client(Box<ClientUpload>),
}

/// A copy of a request, to send it again where the HTTP library takes it. Most have one made and
/// none needs it, so it is a list of fields, which costs less than a map of them.
pub(crate) struct Resend {
    method: Method,
    uri: Uri,
    fields: Vec<(HeaderName, HeaderValue)>,
    read_ahead: usize,
    windows: Rc<Windows>,
}

pub(crate) struct ClientUpload {
    incoming: Incoming,
    /// Bytes that may still come.
    left: u64,
    taken: TakenBody,
    fault: SharedFault,
    /// Names that trailers must not have because filters decide about them.
    edited: Vec<HeaderName>,
    /// Of a body that has to come at the minimum rate.
    progress: Option<Rc<UploadProgress>>,
}

/// The fault of the client's body, if it has one; shared with the task that waits for the response.
#[derive(Clone, Default)]
pub(crate) struct SharedFault(Rc<Cell<Option<BodyFault>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    /// Or broke off.
    Malformed,
    TooLarge,
    TooSlow,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error(transparent)]
    Client(#[from] hyper::Error),
    #[error("the request body is larger than its Gateway allows")]
    TooLarge,
    #[error("the request body comes more slowly than --minimum-rate")]
    TooSlow,
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
        Self::of(request.map(|body| Upload::new(body, limits.body_bytes, untaken)), windows)
    }

    pub(crate) fn of(request: Request<Upload>, windows: &Rc<Windows>) -> Box<Self> {
        let (parts, upload) = request.into_parts();
        let read_ahead = match parts.version {
            Version::HTTP_2 => READ_AHEAD_OF_STREAM,
            _ => READ_AHEAD,
        };
        Box::new(Self { parts, upload, read_ahead, windows: windows.clone() })
    }
}

// === impl Resend ===

impl Resend {
    /// For a request that has no body and an idempotent method.
    pub(crate) fn of(Outgoing { parts, upload, read_ahead, windows }: &Outgoing) -> Option<Self> {
        if !matches!(upload, Upload::Empty) || !parts.method.is_idempotent() {
            return None;
        }
        let fields = parts.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        Some(Self {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            fields: fields.collect(),
            read_ahead: *read_ahead,
            windows: windows.clone(),
        })
    }

    pub(crate) fn into_outgoing(self) -> Box<Outgoing> {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method;
        parts.uri = self.uri;
        for (name, value) in self.fields {
            parts.headers.append(name, value);
        }
        let Self { read_ahead, windows, .. } = self;
        Box::new(Outgoing { parts, upload: Upload::Empty, read_ahead, windows })
    }
}

// === impl Upload ===

impl Upload {
    pub(crate) fn new(incoming: Incoming, limit: Option<u64>, untaken: &Arc<Untaken>) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        Self::Client(Box::new(ClientUpload {
            incoming,
            left: limit.unwrap_or(u64::MAX),
            taken: TakenBody::begin(untaken),
            fault: SharedFault::default(),
            edited: vec![],
            progress: None,
        }))
    }

    /// Notes the names that trailers must not have, if there may be trailers.
    pub(crate) fn keep_out(&mut self, names: impl FnOnce() -> Vec<HeaderName>) {
        if let Self::Client(upload) = self {
            upload.edited = names();
        }
    }

    /// Keeps record of the progress from now on, if the length of the body was announced.
    pub(crate) fn track(&mut self) -> Option<Rc<UploadProgress>> {
        let Self::Client(upload) = self else { return None };
        upload.incoming.size_hint().exact()?;
        Some(upload.progress.get_or_insert_default().clone())
    }

    /// True if the declared length of the body exceeds the limit.
    pub(crate) fn is_too_large(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::Client(upload) => upload.incoming.size_hint().lower() > upload.left,
        }
    }

    pub(crate) fn fault(&self) -> Option<SharedFault> {
        match self {
            Self::Empty => None,
            Self::Client(upload) => Some(upload.fault.clone()),
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
        let Self::Client(upload) = &mut *self else { return Poll::Ready(None) };
        let ClientUpload { incoming, left, taken, fault, edited, progress } = &mut **upload;
        let polled = match progress {
            Some(progress) if progress.is_too_slow() => Poll::Ready(Some(Err(UploadError::TooSlow))),
            _ => Pin::new(&mut *incoming).poll_frame(cx).map_err(UploadError::from),
        };
        if polled.is_pending()
            && let Some(progress) = progress
            && incoming.size_hint().lower() > 0
        {
            progress.wait(cx.waker());
        }
        let Some(frame) = ready!(polled) else { return Poll::Ready(None) };
        let frame = frame.and_then(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                restrict_trailers(trailers, edited);
            }
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            taken.take(bytes);
            if let Some(progress) = progress {
                progress.received(bytes);
            }
            *left = left.checked_sub(bytes as u64).ok_or(UploadError::TooLarge)?;
            Ok(frame)
        });
        if let Err(error) = &frame {
            fault.0.set(Some(match error {
                UploadError::Client(_) => BodyFault::Malformed,
                UploadError::TooLarge => BodyFault::TooLarge,
                UploadError::TooSlow => BodyFault::TooSlow,
            }));
        }
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(upload) => upload.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client(upload) => upload.incoming.size_hint(),
        }
    }
}

// === impl SharedFault ===

impl SharedFault {
    pub(crate) fn get(&self) -> Option<BodyFault> {
        self.0.get()
    }
}
