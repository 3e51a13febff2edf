//! The body of a client's request as it comes: within the Gateway's limit, at the minimum rate, and
//! without trailers that it must not have.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::{Frame, SizeHint};

use crate::core::trailers::restrict_trailers;
use crate::core::untaken::{TakenBody, Untaken};
use crate::core::upload_progress::UploadProgress;
use crate::upstream::request::base64::{Base64, NotBase64};
use crate::upstream::request::copies::{Copies, CopyEnd};
use crate::upstream::request::incoming::{IncomingBody, IncomingError};

pub(crate) struct ClientUpload {
    incoming: IncomingBody,
    /// Bytes that may still come.
    left: u64,
    taken: TakenBody,
    fault: SharedFault,
    /// Names that trailers must not have because filters decide about them.
    edited: Vec<HeaderName>,
    /// Of a body that has to come at the minimum rate.
    progress: Option<Rc<UploadProgress>>,
    copies: Option<Box<Copies>>,
    /// Of a body that is to be decoded.
    base64: Option<Box<Base64>>,
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
    Client(#[from] IncomingError),
    #[error("the request body is larger than its Gateway allows")]
    TooLarge,
    #[error("the request body comes more slowly than --minimum-rate")]
    TooSlow,
    #[error("the request is being sent again")]
    SentAgain,
    #[error(transparent)]
    Base64(#[from] NotBase64),
    #[error("the copy for a mirror ended: {0:?}")]
    Copy(CopyEnd),
}

// === impl ClientUpload ===

impl ClientUpload {
    /// `None` for a body that is empty.
    pub(super) fn new(incoming: IncomingBody, limit: Option<u64>, untaken: &Arc<Untaken>) -> Option<Self> {
        if incoming.is_end_stream() {
            return None;
        }
        Some(Self {
            incoming,
            left: limit.unwrap_or(u64::MAX),
            taken: TakenBody::begin(untaken),
            fault: SharedFault::default(),
            edited: vec![],
            progress: None,
            copies: None,
            base64: None,
        })
    }

    /// Has copies made of what is yet to come.
    pub(super) fn copy_to(&mut self, copies: Copies) {
        self.copies = Some(Box::new(copies));
    }

    /// Has what is yet to come decoded. Limits are of what the client sends.
    pub(super) fn decode_base64(&mut self) {
        self.base64 = Some(Box::default());
    }

    pub(super) fn keep_out(&mut self, names: Vec<HeaderName>) {
        self.edited.extend(names);
    }

    /// Removes from trailers what they must not have.
    pub(super) fn restrict(&self, trailers: &mut HeaderMap) {
        restrict_trailers(trailers, &self.edited);
    }

    /// Keeps record of the progress from now on, if the length of the body was announced.
    pub(super) fn track(&mut self) -> Option<Rc<UploadProgress>> {
        self.incoming.size_hint().exact()?;
        Some(self.progress.get_or_insert_default().clone())
    }

    /// Owes nothing until it is asked for more.
    pub(super) fn pause(&self) {
        if let Some(progress) = &self.progress {
            progress.received(0);
        }
    }

    /// Lowers the limit of what is yet to come.
    pub(super) fn limit(&mut self, most: u64) {
        self.left = self.left.min(most);
    }

    /// True if the declared length of the body exceeds the limit.
    pub(super) fn is_too_large(&self) -> bool {
        self.incoming.size_hint().lower() > self.left
    }

    pub(super) fn fault(&self) -> SharedFault {
        self.fault.clone()
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Self { incoming, left, taken, fault, edited, progress, copies, base64 } = self;
        let polled = match progress {
            Some(progress) if progress.is_too_slow() => Poll::Ready(Some(Err(UploadError::TooSlow))),
            _ => incoming.poll_frame(cx).map_err(UploadError::from),
        };
        if polled.is_pending()
            && let Some(progress) = progress
            && incoming.size_hint().lower() > 0
        {
            progress.wait(cx.waker());
        }
        let frame = match ready!(polled) {
            Some(frame) => frame,
            None if is_within_quad(base64) => Err(NotBase64.into()),
            None => {
                copies.iter().for_each(|copies| copies.complete());
                return Poll::Ready(None);
            }
        };
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
            match base64 {
                Some(base64) => decoded(frame, base64),
                None => Ok(frame),
            }
        });
        match (&frame, copies) {
            (Err(error), _) => fault.0.set(error.fault()),
            (Ok(frame), Some(copies)) => {
                copies.push(frame);
                // It may be that no more is asked for, though the end is yet to be told.
                let is_over = incoming.is_end_stream() || incoming.size_hint().exact() == Some(0);
                if is_over && !is_within_quad(base64) {
                    copies.complete();
                }
            }
            (Ok(_), None) => {}
        }
        Poll::Ready(Some(frame))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let is_over = self.incoming.is_end_stream() && !is_within_quad(&self.base64);
        if is_over && let Some(copies) = &self.copies {
            copies.complete();
        }
        is_over
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        if self.base64.is_some() { SizeHint::default() } else { self.incoming.size_hint() }
    }
}

fn decoded(frame: Frame<Bytes>, base64: &mut Base64) -> Result<Frame<Bytes>, UploadError> {
    match frame.into_data() {
        Ok(text) => Ok(Frame::data(base64.decode(&text)?)),
        Err(frame) if base64.is_whole() => Ok(frame),
        Err(_) => Err(NotBase64.into()),
    }
}

/// True where a body that is to be decoded may not end.
fn is_within_quad(base64: &Option<Box<Base64>>) -> bool {
    base64.as_ref().is_some_and(|base64| !base64.is_whole())
}

// === impl UploadError ===

impl UploadError {
    /// The client's part in it; `None` if it has none.
    fn fault(&self) -> Option<BodyFault> {
        match self {
            Self::Client(_) | Self::Base64(_) => Some(BodyFault::Malformed),
            Self::TooLarge => Some(BodyFault::TooLarge),
            Self::TooSlow => Some(BodyFault::TooSlow),
            Self::SentAgain | Self::Copy(_) => None,
        }
    }
}

// === impl SharedFault ===

impl SharedFault {
    pub(crate) fn get(&self) -> Option<BodyFault> {
        self.0.get()
    }
}
