//! Responses on their way to the client: the head, and the body in the framing that it announces.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::{self, HeaderName};
use http::{Method, StatusCode, Version};
use http_body::{Body as _, Frame};

use crate::core::head::{Fields, FieldsMut, content_length, write_fields};
use crate::core::pipe::Pipes;
use crate::http::body::{Body, BodyError};
use crate::http::date;
use crate::http::h1::splice;
use crate::http::h1::stream::OwnStream;

/// Bytes of a usual head.
pub(super) const HEAD: usize = 512;

/// The fate of the client's connection behind a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    Stays,
    Ends,
}

/// A request, as far as the form of its response depends on it.
pub(super) struct Asked {
    pub method: Method,
    pub version: Version,
    /// The client has use for trailers (RFC 9110 section 10.1.4).
    pub takes_trailers: bool,
}

/// The end of a body, as the head announces it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// A field says how long it is, or that there is none.
    Announced,
    Length(u64),
    /// With the names of trailers that are announced.
    Chunked(Vec<HeaderName>),
    /// Of the connection, which HTTP/1.0 has in the place of chunks.
    UntilClose,
}

/// Trailers that would change what the head says (RFC 9110 section 6.5.1).
const NO_TRAILERS: [HeaderName; 12] = [
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::HOST,
    header::MAX_FORWARDS,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

// === impl Framing ===

impl Framing {
    /// Of a body of this length, `None` if that is not known. Fields that say something else are
    /// removed: filters may have set them.
    fn of(length: Option<u64>, fields: &mut impl FieldsMut, status: StatusCode, asked: &Asked) -> Self {
        fields.remove(&header::CONNECTION);
        fields.remove(&header::TRANSFER_ENCODING);
        let announced = content_length(fields);
        let (has_body, is_old) = (has_body(status, asked), asked.version == Version::HTTP_10);
        // HTTP/1.0 has no trailers.
        if is_old || !has_body {
            fields.remove(&header::TRAILER);
        }
        let framing = match length {
            _ if !has_body || (length.is_some() && announced == length) => Self::Announced,
            Some(bytes) => Self::Length(bytes),
            None if is_old => Self::UntilClose,
            None if asked.takes_trailers => Self::chunked(fields),
            None => Self::Chunked(Vec::new()),
        };
        let is_true = if has_body {
            framing == Self::Announced
        } else {
            // That of the response to GET; 204 has none (RFC 9110 section 8.6).
            announced.is_some() && asked.method == Method::HEAD && status != StatusCode::NO_CONTENT
        };
        if !is_true {
            fields.remove(&header::CONTENT_LENGTH);
        }
        framing
    }

    /// In chunks, with the trailers that the fields announce.
    fn chunked(fields: &impl Fields) -> Self {
        let names = fields.get_all(&header::TRAILER).flat_map(|value| value.split(|byte| *byte == b','));
        let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
        Self::Chunked(names.filter(|name| !NO_TRAILERS.contains(name)).collect())
    }
}

fn has_body(status: StatusCode, asked: &Asked) -> bool {
    asked.method != Method::HEAD && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Appends the head of a response with a body of this length, `None` if that is not known. Fields
/// become what is true of it. Returns the end of the body, and what is left of the connection's
/// persistence.
pub(super) fn write_head(
    asked: &Asked,
    persistence: Persistence,
    status: StatusCode,
    fields: &mut impl FieldsMut,
    length: Option<u64>,
    out: &mut Vec<u8>,
) -> (Framing, Persistence) {
    let framing = Framing::of(length, fields, status, asked);
    let persistence = if framing == Framing::UntilClose { Persistence::Ends } else { persistence };
    let is_old = asked.version == Version::HTTP_10;
    out.extend_from_slice(if is_old { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    // No reader needs the phrase (RFC 9112 section 4).
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    write_fields(fields, out);
    match &framing {
        Framing::Announced | Framing::UntilClose => {}
        Framing::Length(bytes) => {
            out.extend_from_slice(format!("content-length: {bytes}\r\n").as_bytes());
        }
        Framing::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    match persistence {
        Persistence::Ends => out.extend_from_slice(b"connection: close\r\n"),
        Persistence::Stays if is_old => out.extend_from_slice(b"connection: keep-alive\r\n"),
        Persistence::Stays => {}
    }
    if fields.get(&header::DATE).is_none() {
        date::write(out);
    }
    out.extend_from_slice(b"\r\n");
    (framing, persistence)
}

/// Writes a response. Returns what is left of the connection's persistence.
pub(super) async fn write(
    stream: &mut OwnStream,
    response: http::Response<Body>,
    asked: &Asked,
    persistence: Persistence,
    pipes: &Pipes,
) -> io::Result<Persistence> {
    let (mut parts, body) = response.into_parts();
    let (status, length) = (parts.status, body.size_hint().exact());
    let mut out = Vec::with_capacity(HEAD);
    let (framing, persistence) = write_head(asked, persistence, status, &mut parts.headers, length, &mut out);
    if has_body(status, asked) {
        write_body(stream, out, body, &framing, pipes).await?;
    } else {
        stream.write(&*out).await?;
    }
    Ok(persistence)
}

/// Writes what is begun, and the body behind it.
pub(super) async fn write_body(
    stream: &mut OwnStream,
    begun: Vec<u8>,
    mut body: Body,
    framing: &Framing,
    pipes: &Pipes,
) -> io::Result<()> {
    let written = write_frames(stream, begun, Pin::new(&mut body), framing, pipes).await;
    if written.is_err() {
        body.note_cut_off();
    }
    written
}

async fn write_frames(
    stream: &mut OwnStream,
    mut begun: Vec<u8>,
    mut body: Pin<&mut Body>,
    framing: &Framing,
    pipes: &Pipes,
) -> io::Result<()> {
    let mut trailers = None;
    while !body.is_end_stream() {
        let frame = match poll_fn(|cx| Poll::Ready(poll_next(body.as_mut(), cx))).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                // What there is goes out before more is waited for.
                if !begun.is_empty() {
                    stream.write(&*begun).await?;
                    begun.clear();
                }
                stream.watch(pin!(poll_fn(|cx| poll_next(body.as_mut(), cx)))).await?
            }
        };
        let Some(frame) = frame else { break };
        match frame.map_err(io::Error::other)?.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) if matches!(framing, Framing::Chunked(_)) => {
                begun.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                let end = if body.is_end_stream() { END } else { BREAK };
                stream.write((&*begun).chain(data).chain(end)).await?;
                begun.clear();
                if body.is_end_stream() {
                    return Ok(());
                }
            }
            Ok(data) => {
                let came = data.len();
                stream.write((&*begun).chain(data)).await?;
                begun.clear();
                if splice::is_worth_it(came, stream, &body) {
                    // Boxed: few bodies need the room that its future takes.
                    Box::pin(splice::splice(stream, &mut body, pipes)).await?;
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    if let Framing::Chunked(announced) = framing {
        begun.extend_from_slice(b"0\r\n");
        if let Some(mut trailers) = trailers {
            let names: Vec<_> = trailers.keys().filter(|name| !announced.contains(name)).cloned().collect();
            names.iter().for_each(|name| drop(trailers.remove(name)));
            write_fields(&trailers, &mut begun);
        }
        begun.extend_from_slice(b"\r\n");
    }
    if begun.is_empty() {
        return Ok(());
    }
    stream.write(&*begun).await
}

/// The break behind the data of a chunk, and that of the last one with the end of the body.
const BREAK: &[u8] = b"\r\n";
const END: &[u8] = b"\r\n0\r\n\r\n";

fn poll_next(body: Pin<&mut Body>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    body.poll_frame(cx)
}
