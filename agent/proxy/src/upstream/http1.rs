//! A connection to a backend that speaks HTTP/1. It has no task, and no buffer while it is idle or
//! waits: bytes are read when they are wanted, and how many is up to who wants them. So a response
//! that a client does not take costs the piece that was read of it, and no more.

mod body;
pub(crate) mod head;
pub(crate) mod plain;
mod sending;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, Chain, Join, ReadBuf};
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_util::io::poll_read_buf;
use tokio_util::task::AbortOnDropHandle;

use crate::core::clock;
use crate::core::head::KnownFields;
use crate::core::pipe::{Pipe, Pipes};
use crate::upstream::http1::body::BodyError;
use crate::upstream::http1::head::ResponseHead;
use crate::upstream::http1::sending::Sending;
use crate::upstream::request::Outgoing;
use crate::upstream::stream::{BackendStream, ReadHalf, WriteHalf};

pub(crate) use crate::upstream::http1::body::{Decoded, Decoder};
pub(crate) use crate::upstream::http1::head::{BodyLength, HeadError, HeadLimits, join_cookies};
pub(crate) use crate::upstream::http1::sending::SendError;

/// Bytes of a body that are read at once at first, and at most.
const FIRST_PIECE: usize = 4 << 10;
pub(crate) const LARGEST_PIECE: usize = 24 << 10;
/// The time that a request may go on for after its response.
const LINGER: Duration = Duration::from_secs(5);
/// Bytes of the longest end of a head: CRLF, CRLF.
const EMPTY_LINE: usize = 4;

pub(crate) struct Http1 {
    reader: ReadHalf,
    writer: WriteHalf,
}

/// A connection that has switched protocols. What was read of it already comes first.
pub(crate) type Http1Tunnel = Join<Chain<io::Cursor<Bytes>, ReadHalf>, WriteHalf>;

/// The body of a response, with the connection that it comes on.
pub(crate) struct Http1Body {
    reader: ReadHalf,
    /// `None` if the request was not sent as a whole before the response began.
    writer: Option<WriteHalf>,
    rest: Option<RestOfRequest>,
    is_persistent: bool,
    known: KnownFields,
    decoder: Decoder,
    /// Bytes that were read and not decoded.
    bytes: Bytes,
    piece: usize,
}

/// The rest of a request whose response has begun: it is sent meanwhile.
struct RestOfRequest {
    sending: AbortOnDropHandle<Result<(), SendError>>,
    /// Time since which more of the response is waited for, by the core's clock.
    awaited_since: Rc<Cell<Option<u32>>>,
}

/// The reason why a request got no response, or no complete one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http1Error {
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the backend closed the connection without a response")]
    Closed,
    #[error("the backend sent {0}")]
    Head(#[from] HeadError),
    #[error("the backend sent {0}")]
    Body(#[from] BodyError),
}

/// A request that got no response.
pub(crate) struct Unanswered {
    pub error: Http1Error,
    pub sent: u64,
    pub received: u64,
}

/// The state of a request on its way.
enum Progress {
    Sending,
    Sent,
    /// Nothing more can be sent.
    Broken(io::Error),
}

/// Reads the head of a response.
struct HeadReader<'a> {
    method: &'a Method,
    limits: HeadLimits,
    /// Bytes of one read.
    piece: usize,
    /// The beginning of a head.
    begun: BytesMut,
    received: u64,
}

thread_local! {
    /// Nearly every response comes in one read: no connection needs memory of its own for it.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; LARGEST_PIECE].into());
}

// === impl Http1 ===

impl Http1 {
    pub(crate) fn new(stream: BackendStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader, writer }
    }

    /// False if the backend has closed the connection, or has sent what was not asked for.
    pub(crate) fn is_usable(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.reader).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Sends the request, and waits for the head of the response. For so long, the backend may take
    /// nothing of the request.
    pub(crate) async fn send(
        self,
        outgoing: &mut Outgoing,
        limits: HeadLimits,
        longest_stall: Option<Duration>,
    ) -> Result<Response<Http1Body>, Unanswered> {
        let Self { mut reader, mut writer } = self;
        let mut sending = Sending::new(&outgoing.parts, &mut outgoing.upload, longest_stall);
        let mut progress = Progress::Sending;
        let mut head = HeadReader::new(&outgoing.parts.method, limits, outgoing.read_ahead);
        let answered = poll_fn(|cx| {
            if let Progress::Sending = progress {
                match sending.poll(cx, &mut writer) {
                    Poll::Ready(Ok(())) => progress = Progress::Sent,
                    // A backend may answer, and close, before it has read everything.
                    Poll::Ready(Err(SendError::Io(error))) => progress = Progress::Broken(error),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                    Poll::Pending => {}
                }
            }
            head.poll(cx, &mut reader)
        });
        let answered = answered.await;
        let (sent, received) = (sending.sent(), head.received);
        let (ResponseHead { parts, known, length, is_persistent }, bytes) = match (answered, &mut progress) {
            (Ok(answered), _) => answered,
            (Err(Http1Error::Closed | Http1Error::Io(_)), Progress::Broken(error)) => {
                let error = SendError::Io(std::mem::replace(error, io::ErrorKind::Other.into())).into();
                return Err(Unanswered { error, sent, received });
            }
            (Err(error), _) => return Err(Unanswered { error, sent, received }),
        };
        let (writer, rest) = match progress {
            Progress::Sent => (Some(writer), None),
            Progress::Sending => (None, Some(RestOfRequest::begin(sending, writer))),
            Progress::Broken(_) => (None, None),
        };
        let decoder = Decoder::new(length);
        let body =
            Http1Body { reader, writer, is_persistent, known, rest, decoder, bytes, piece: FIRST_PIECE };
        Ok(Response::from_parts(parts, body))
    }
}

// === impl Http1Body ===

impl Http1Body {
    /// The known fields among those of the head that came before it.
    pub(crate) fn known_fields(&self) -> KnownFields {
        self.known
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.decoder.is_end()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.decoder.size_hint()
    }

    /// The next frame. No more than `most` bytes are read for it.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        loop {
            match self.decoder.decode(&mut self.bytes)? {
                Decoded::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Decoded::Trailers(fields) => return Poll::Ready(Some(Ok(Frame::trailers(fields)))),
                Decoded::End => return Poll::Ready(None),
                Decoded::More => {
                    let read = self.poll_read(cx, most);
                    if let Some(rest) = &mut self.rest {
                        rest.note(&read);
                        if read.is_pending()
                            && let Poll::Ready(sent) = Pin::new(&mut rest.sending).poll(cx)
                        {
                            self.rest = None;
                            if let Ok(Err(stalled @ SendError::Stalled)) = sent {
                                return Poll::Ready(Some(Err(stalled.into())));
                            }
                        }
                    }
                    if ready!(read)? == 0 {
                        self.decoder.close()?;
                    }
                }
            }
        }
    }

    /// Bytes to come that a pipe could take: all of them are the body's, and none was read.
    pub(crate) fn unframed(&self) -> Option<u64> {
        let is_here = !self.bytes.is_empty() || self.rest.is_some();
        match (self.decoder, &self.reader) {
            (Decoder::Bytes(left), ReadHalf::Plain(_)) if !is_here => Some(left),
            _ => None,
        }
    }

    /// Has a pipe take what there is of them, and no more than `most`. `None` if there is no pipe
    /// to be had.
    pub(crate) fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: usize,
    ) -> Poll<Result<Option<Pipe>, Http1Error>> {
        let (Some(left), ReadHalf::Plain(reader)) = (self.unframed(), &self.reader) else {
            return Poll::Ready(Ok(None));
        };
        let most = usize::try_from(left).map_or(most, |left| most.min(left));
        let pipe = ready!(Pipe::poll_filled(pipes, cx, reader.as_ref(), most))?;
        if let Some(pipe) = &pipe {
            match pipe.held() {
                0 => self.decoder.close()?,
                bytes => self.decoder.skip(bytes),
            }
        }
        Poll::Ready(Ok(pipe))
    }

    /// The connection, if the backend keeps it and nothing of this exchange is left on it. A
    /// request that is not over yet goes on for a while: a client whose connection closed under
    /// what it sends might not get to read its response.
    pub(crate) fn into_connection(self) -> Option<Http1> {
        if let Some(rest) = self.rest {
            spawn_local(timeout(LINGER, rest.sending));
        }
        let is_over = self.is_persistent && self.decoder.is_end() && self.bytes.is_empty();
        let writer = self.writer.filter(|_| is_over)?;
        Some(Http1 { reader: self.reader, writer })
    }

    /// Both directions of a connection that has switched protocols.
    pub(crate) fn into_tunnel(self) -> Option<Http1Tunnel> {
        let reader = AsyncReadExt::chain(io::Cursor::new(self.bytes), self.reader);
        Some(tokio::io::join(reader, self.writer?))
    }

    /// Pieces are as large as the last read suggests, and grow while they are full. One byte more
    /// than is to come is asked for: a read that fills less than it could has left nothing, which
    /// the runtime knows then.
    fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        let piece = self.piece.min(most);
        let left = self.decoder.size_hint().exact().and_then(|left| usize::try_from(left).ok());
        let capacity = left.map_or(piece, |left| piece.min(left.saturating_add(1)));
        let mut buffer = BytesMut::with_capacity(self.bytes.len() + capacity);
        buffer.extend_from_slice(&self.bytes);
        let read = ready!(poll_read_buf(Pin::new(&mut self.reader), cx, &mut buffer))?;
        self.piece = (read + 1).next_power_of_two().clamp(FIRST_PIECE, LARGEST_PIECE);
        // A piece that is mostly empty would take more memory than is counted for it.
        self.bytes = if read < capacity / 2 { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() };
        Poll::Ready(Ok(read))
    }
}

// === impl RestOfRequest ===

impl RestOfRequest {
    fn begin(sending: Sending, writer: WriteHalf) -> Self {
        let awaited_since = Rc::<Cell<_>>::default();
        let sending = spawn_local(sending.finish(writer, awaited_since.clone()));
        Self { sending: AbortOnDropHandle::new(sending), awaited_since }
    }

    /// The outcome of reading more of the response.
    fn note<T>(&self, read: &Poll<T>) {
        let since = self.awaited_since.get();
        self.awaited_since.set(read.is_pending().then(|| since.unwrap_or_else(clock::now)));
    }
}

// === impl HeadReader ===

impl<'a> HeadReader<'a> {
    fn new(method: &'a Method, limits: HeadLimits, piece: usize) -> Self {
        Self { method, limits, piece: piece.min(LARGEST_PIECE), begun: BytesMut::new(), received: 0 }
    }

    /// The head of the final response, and what was read behind it.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut ReadHalf,
    ) -> Poll<Result<(ResponseHead, Bytes), Http1Error>> {
        loop {
            let mut bytes = ready!(self.poll_read(cx, reader))?;
            while let Some((head, size)) = head::parse_response(&bytes, self.method, self.limits)? {
                bytes.advance(size);
                if !head.parts.status.is_informational()
                    || head.parts.status == StatusCode::SWITCHING_PROTOCOLS
                {
                    return Poll::Ready(Ok((head, bytes)));
                }
            }
            self.begun = BytesMut::from(bytes);
        }
    }

    /// Reads until the head may be complete: one that comes byte by byte is not parsed each time.
    fn poll_read(&mut self, cx: &mut Context<'_>, reader: &mut ReadHalf) -> Poll<Result<Bytes, Http1Error>> {
        READ.with_borrow_mut(|memory| {
            loop {
                let mut buffer = ReadBuf::new(&mut memory[..self.piece]);
                ready!(Pin::new(&mut *reader).poll_read(cx, &mut buffer))?;
                let read = buffer.filled();
                if read.is_empty() {
                    return Poll::Ready(Err(Http1Error::Closed));
                }
                self.received += read.len() as u64;
                if self.begun.is_empty() {
                    return Poll::Ready(Ok(Bytes::copy_from_slice(read)));
                }
                let seen = self.begun.len().saturating_sub(EMPTY_LINE - 1);
                self.begun.extend_from_slice(read);
                if has_empty_line(&self.begun[seen..]) || self.begun.len() >= self.limits.bytes {
                    return Poll::Ready(Ok(std::mem::take(&mut self.begun).freeze()));
                }
            }
        })
    }
}

/// Line breaks may be bare in a response.
fn has_empty_line(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes).any(|at| matches!(&bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}
