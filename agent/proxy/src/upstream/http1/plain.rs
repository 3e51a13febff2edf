//! Exchanges with a backend in which the request is bytes already, and the head of the response is
//! read as spans of those that came: nothing of either is kept.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Method, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::head::KnownFields;
use crate::core::head::spans::{Extents, MOST_FIELDS, Spans};
use crate::upstream::http1::body::Decoder;
use crate::upstream::http1::head::{self, BodyLength, HeadError, HeadLimit, HeadLimits};
use crate::upstream::http1::sending::{SendError, Sending};
use crate::upstream::http1::{
    FIRST_PIECE, Http1, Http1Body, Http1Error, LARGEST_PIECE, READ, RestOfRequest, Unanswered, has_empty_line,
};

/// A request as its backend gets it, with all of its body.
pub(crate) struct PlainRequest {
    pub method: Method,
    pub bytes: Vec<u8>,
    /// Bytes of the response that are read before the client asks for them, head included.
    pub read_ahead: usize,
}

/// The head of the response to it.
pub(crate) struct PlainResponse<'b> {
    pub status: StatusCode,
    /// The bytes that it came in.
    pub head: &'b [u8],
    pub fields: Spans<'b>,
    /// The known ones among them.
    pub known: KnownFields,
    pub length: BodyLength,
    /// The body, if all of it came with the head.
    pub body: Option<&'b [u8]>,
}

/// The end of an exchange.
pub(crate) enum Rest {
    /// The response is whole. The connection, if its backend keeps it.
    Nothing(Option<Http1>),
    Body(Http1Body),
}

struct Exchange<'r> {
    request: &'r PlainRequest,
    limits: HeadLimits,
    sent: usize,
    /// All of it went out.
    is_sent: bool,
    broken: Option<io::Error>,
    /// The beginning of a head.
    begun: Vec<u8>,
    received: u64,
}

/// A response of which the head has been seen.
struct Seen<T> {
    seen: T,
    known: KnownFields,
    length: BodyLength,
    is_persistent: bool,
    /// The bytes behind the head, unless they were the whole body.
    rest: Option<Bytes>,
}

/// A head, located in the bytes of a response.
pub(crate) struct Located {
    pub status: StatusCode,
    pub version: Version,
    pub places: Extents,
    pub size: usize,
}

// === impl Http1 ===

impl Http1 {
    /// Sends the request, and has the response seen once its head is here.
    pub(crate) async fn exchange<T>(
        mut self,
        request: &PlainRequest,
        limits: HeadLimits,
        see: impl FnOnce(PlainResponse<'_>) -> T,
    ) -> Result<(T, Rest), Unanswered> {
        let (begun, broken) = (Vec::new(), None);
        let mut exchange = Exchange { request, limits, sent: 0, is_sent: false, broken, begun, received: 0 };
        let mut see = Some(see);
        let answered = poll_fn(|cx| exchange.poll(cx, &mut self, &mut see)).await;
        let Exchange { sent, is_sent, broken, received, .. } = exchange;
        let (Seen { seen, known, length, is_persistent, rest }, broken) = match (answered, broken) {
            (Ok(seen), broken) => (seen, broken),
            (Err(Http1Error::Closed | Http1Error::Io(_)), Some(error)) => {
                let error = SendError::Io(error).into();
                return Err(Unanswered { error, sent: sent as u64, received });
            }
            (Err(error), _) => return Err(Unanswered { error, sent: sent as u64, received }),
        };
        let Self { reader, writer } = self;
        let Some(bytes) = rest else {
            let kept = (is_persistent && is_sent).then_some(Self { reader, writer });
            return Ok((seen, Rest::Nothing(kept)));
        };
        let (writer, sending) = match (is_sent, broken) {
            (true, _) => (Some(writer), None),
            // A backend whose connection closed under what it reads might not go on.
            (false, Some(_)) => {
                writer.forget();
                (None, None)
            }
            (false, None) => {
                let unsent = request.bytes.get(sent..).unwrap_or_default().to_vec();
                (None, Some(RestOfRequest::begin(Sending::of_bytes(unsent), writer)))
            }
        };
        let decoder = Decoder::new(length);
        let body = Http1Body {
            reader,
            writer,
            is_persistent,
            known,
            rest: sending,
            decoder,
            bytes,
            piece: FIRST_PIECE,
        };
        Ok((seen, Rest::Body(body)))
    }
}

// === impl Exchange ===

impl Exchange<'_> {
    fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Http1,
        see: &mut Option<impl FnOnce(PlainResponse<'_>) -> T>,
    ) -> Poll<Result<Seen<T>, Http1Error>> {
        if self.broken.is_none() && !self.is_sent {
            match self.poll_send(cx, connection) {
                Poll::Ready(Ok(())) => self.is_sent = true,
                // A backend may answer, and close, before it has read everything.
                Poll::Ready(Err(error)) => self.broken = Some(error),
                Poll::Pending => {}
            }
        }
        READ.with_borrow_mut(|memory| {
            loop {
                let mut buffer = ReadBuf::new(&mut memory[..self.request.read_ahead.min(LARGEST_PIECE)]);
                ready!(Pin::new(&mut connection.reader).poll_read(cx, &mut buffer))?;
                let read = buffer.filled_mut();
                if read.is_empty() {
                    return Poll::Ready(Err(Http1Error::Closed));
                }
                self.received += read.len() as u64;
                let seen = if self.begun.is_empty() {
                    self.read(read, see)?
                } else {
                    let from = self.begun.len().saturating_sub(3);
                    self.begun.extend_from_slice(read);
                    if !has_empty_line(&self.begun[from..]) && self.begun.len() < self.limits.bytes {
                        continue;
                    }
                    let mut begun = std::mem::take(&mut self.begun);
                    self.read(&mut begun, see)?
                };
                if let Some(seen) = seen {
                    return Poll::Ready(Ok(seen));
                }
            }
        })
    }

    /// Reads a head, and keeps its beginning if there is no more yet.
    fn read<T>(
        &mut self,
        mut bytes: &mut [u8],
        see: &mut Option<impl FnOnce(PlainResponse<'_>) -> T>,
    ) -> Result<Option<Seen<T>>, Http1Error> {
        loop {
            let Some(Located { status, version, places, size }) = locate(bytes, self.limits)? else {
                self.begun = bytes.to_vec();
                return Ok(None);
            };
            let (head, rest) = bytes.split_at_mut(size);
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(HeadError::Invalid.into());
            }
            if status.is_informational() {
                bytes = rest;
                continue;
            }
            let (fields, head) = places.spans(head).ok_or(HeadError::Invalid)?;
            let known = KnownFields::of(&fields);
            let length = head::body_length((status, version), &fields, known, &self.request.method)?;
            let is_persistent =
                head::is_persistent(version, &fields, known) && length != BodyLength::UntilClose;
            let is_whole = matches!(length, BodyLength::Bytes(bytes) if bytes == rest.len() as u64);
            let body = is_whole.then_some(&*rest);
            let Some(see) = see.take() else { return Err(Http1Error::Closed) };
            let seen = see(PlainResponse { status, head, fields, known, length, body });
            let rest = (!is_whole).then(|| Bytes::copy_from_slice(rest));
            return Ok(Some(Seen { seen, known, length, is_persistent, rest }));
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, connection: &mut Http1) -> Poll<io::Result<()>> {
        while let Some(unsent) = self.request.bytes.get(self.sent..).filter(|unsent| !unsent.is_empty()) {
            match ready!(Pin::new(&mut connection.writer).poll_write(cx, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        Pin::new(&mut connection.writer).poll_flush(cx)
    }
}

/// Finds the head at the beginning of a response; `None` if there is more to come.
pub(crate) fn locate(bytes: &[u8], limits: HeadLimits) -> Result<Option<Located>, HeadError> {
    let mut headers = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let size = match parser.parse_response_with_uninit_headers(&mut response, bytes, &mut headers) {
        Ok(httparse::Status::Complete(size)) if size <= limits.bytes => size,
        Ok(httparse::Status::Partial) if bytes.len() < limits.bytes => return Ok(None),
        Ok(_) => return Err(HeadError::TooLarge(HeadLimit::Bytes(limits.bytes))),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(HeadError::TooLarge(HeadLimit::Fields(limits.fields)));
        }
        Err(error) => return Err(error.into()),
    };
    if response.headers.len() > limits.fields {
        return Err(HeadError::TooLarge(HeadLimit::Fields(limits.fields)));
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(HeadError::Invalid)?;
    let version = if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let places = Extents::of(bytes, response.headers).ok_or(HeadError::Invalid)?;
    Ok(Some(Located { status, version, places, size }))
}
