//! Bodies that auth services are to see. They are in memory as a whole, so none is read that there
//! is no room for: with a length that is announced, not a byte of it.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use portcullis_model::{AuthProtocol, ExternalAuth};

use crate::client::clients::Client;
use crate::client::progress::Progress;
use crate::core::reason::Reason;
use crate::core::shares::{CoreShares, Share};
use crate::upstream::request::whole::{Held, WholeBody};
use crate::upstream::request::{Outgoing, Upload, UploadError};

/// Bytes that a core has for bodies, however little memory there is: half of it is for one
/// namespace, and the largest body takes 2 MiB with the question that it is part of.
const LEAST: usize = 4 << 20;
/// Bytes that a body of unknown length has room for at first.
const FIRST: usize = 4 << 10;

/// The room of a core, which namespaces share.
pub(crate) struct BodyRoom(CoreShares);

/// A body in memory, or what is made of one; it counts as the client's. Room is given back in the
/// end.
pub(super) struct HeldBody {
    reserved: usize,
    /// The bytes that are there.
    bytes: usize,
    share: Share,
    client: Arc<Progress>,
}

/// A body while it is read.
struct Growing {
    bytes: BytesMut,
    held: HeldBody,
    most: usize,
}

// === impl BodyRoom ===

impl BodyRoom {
    pub(crate) fn new(buffers: usize) -> Self {
        Self(CoreShares::new(buffers.max(LEAST)))
    }

    /// The request's body, which is in memory from now on, and the room of the question, until it
    /// is answered. "Bodies over that size must be rejected with a 4xx series error".
    pub(super) async fn read(
        &self,
        client: &Client,
        namespace: &str,
        outgoing: &mut Outgoing,
        auth: &ExternalAuth,
        most: NonZeroU32,
    ) -> Result<(Bytes, HeldBody), Reason> {
        let most = most.get() as usize;
        let upload = &mut outgoing.upload;
        let announced = match upload {
            Upload::Empty => 0,
            Upload::Whole(body) => body.bytes().len(),
            Upload::Client(_) | Upload::Kept(_) | Upload::Copied(_) if upload.is_too_large() => {
                return Err(Reason::BodyTooLarge);
            }
            Upload::Client(_) | Upload::Kept(_) | Upload::Copied(_) => {
                usize::try_from(upload.size_hint().lower()).unwrap_or(usize::MAX)
            }
        };
        if announced > most {
            return Err(Reason::BodyTooLarge);
        }
        let share = self.0.of(namespace);
        let held = || HeldBody::new(share.clone(), client.progress.clone());
        let mut question = held();
        let is_copied = matches!(auth.protocol, AuthProtocol::Grpc { .. });
        if is_copied {
            question.reserve(announced)?;
        }
        let bytes = match upload {
            Upload::Empty => Bytes::new(),
            Upload::Whole(body) => body.bytes().clone(),
            Upload::Client(_) | Upload::Kept(_) | Upload::Copied(_) => {
                let (whole, bytes) = whole(upload, held(), announced, most).await?;
                *upload = whole;
                bytes
            }
        };
        if is_copied {
            question.reserve(bytes.len())?;
            question.add(bytes.len());
        }
        Ok((bytes, question))
    }
}

/// All of a body, as it is sent on, and its bytes.
async fn whole(
    upload: &mut Upload,
    mut held: HeldBody,
    announced: usize,
    most: usize,
) -> Result<(Upload, Bytes), Reason> {
    held.reserve(announced)?;
    let mut body = Growing { bytes: BytesMut::with_capacity(announced), held, most };
    let mut trailers = None;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *upload).poll_frame(cx)).await {
        match frame.map_err(|error| reason(&error))?.into_data() {
            Ok(data) => body.add(&data)?,
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    let Growing { bytes, held, .. } = body;
    let bytes = bytes.freeze();
    Ok((Upload::Whole(Box::new(WholeBody::new(bytes.clone(), trailers, Some(Rc::new(held))))), bytes))
}

fn reason(error: &UploadError) -> Reason {
    match error {
        UploadError::Client(_) | UploadError::Base64(_) | UploadError::SentAgain | UploadError::Copy(_) => {
            Reason::ClientBody
        }
        UploadError::TooLarge => Reason::BodyTooLarge,
        UploadError::TooSlow => Reason::BodyTooSlow,
    }
}

// === impl Growing ===

impl Growing {
    fn add(&mut self, data: &[u8]) -> Result<(), Reason> {
        let length = self.bytes.len() + data.len();
        if length > self.most {
            return Err(Reason::BodyTooLarge);
        }
        if length > self.bytes.capacity() {
            // As vectors grow, but not past what the body may have.
            let capacity = length.max(2 * self.bytes.capacity()).max(FIRST).min(self.most);
            self.held.reserve(capacity)?;
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.held.add(data.len());
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

// === impl HeldBody ===

impl HeldBody {
    fn new(share: Share, client: Arc<Progress>) -> Self {
        Self { reserved: 0, bytes: 0, share, client }
    }

    /// Makes it room for so many bytes, if it has less.
    fn reserve(&mut self, bytes: usize) -> Result<(), Reason> {
        let more = bytes.saturating_sub(self.reserved);
        if more > 0 && !self.share.take(more) {
            return Err(Reason::AuthBodies);
        }
        self.reserved += more;
        Ok(())
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.client.hold(bytes);
    }
}

impl Held for HeldBody {}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.client.release(self.bytes);
        self.share.give_back(self.reserved);
    }
}
