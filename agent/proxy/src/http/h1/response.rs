//! Responses on their way to the client: the head, and the body in the framing that it announces.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use http::{HeaderMap, StatusCode, header};
use http_body::Body as _;

use crate::core::head::Fields;
use crate::http::body::Body;
use crate::http::h1::date;
use crate::http::h1::stream::OwnStream;

/// Bytes of a usual head.
pub(super) const HEAD: usize = 512;

/// The end of a body, as the head announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// A field says how long it is, or that there is none.
    Announced,
    Length(u64),
    Chunked,
}

/// Appends the status line. No reader needs the phrase (RFC 9112 section 4).
pub(super) fn write_status(status: StatusCode, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the fields that every response has, and the empty line. `fields` are those that are
/// there already.
pub(super) fn write_rest(fields: &impl Fields, framing: Framing, is_last: bool, out: &mut Vec<u8>) {
    match framing {
        Framing::Announced => {}
        Framing::Length(bytes) => {
            out.extend_from_slice(format!("content-length: {bytes}\r\n").as_bytes());
        }
        Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    if is_last {
        out.extend_from_slice(b"connection: close\r\n");
    }
    if fields.get(&header::DATE).is_none() {
        date::write(out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a response; nothing of it is left in `body` then.
pub(super) async fn write(
    stream: &mut OwnStream,
    response: http::Response<Body>,
    is_head: bool,
    is_last: bool,
) -> io::Result<()> {
    let (mut parts, body) = response.into_parts();
    let has_body = !is_head && !matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let framing = match body.size_hint().exact() {
        _ if !has_body || parts.headers.contains_key(header::CONTENT_LENGTH) => Framing::Announced,
        Some(bytes) => Framing::Length(bytes),
        None => Framing::Chunked,
    };
    if parts.status == StatusCode::NO_CONTENT {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    // It is said in one place.
    parts.headers.remove(header::CONNECTION);
    let mut out = Vec::with_capacity(HEAD);
    write_status(parts.status, &mut out);
    write_fields(&parts.headers, &mut out);
    write_rest(&parts.headers, framing, is_last, &mut out);
    write_body(stream, out, body, framing).await
}

/// Writes what is begun, and the body behind it.
pub(super) async fn write_body(
    stream: &mut OwnStream,
    mut out: Vec<u8>,
    body: Body,
    framing: Framing,
) -> io::Result<()> {
    let mut body = std::pin::pin!(body);
    let is_chunked = framing == Framing::Chunked;
    while !body.is_end_stream() {
        // What there is goes out before more is waited for.
        let frame = poll_fn(|cx| std::task::Poll::Ready(body.as_mut().poll_frame(cx))).await;
        let frame = match frame {
            std::task::Poll::Ready(frame) => frame,
            std::task::Poll::Pending => {
                if !out.is_empty() {
                    stream.write_all(&out).await?;
                    out.clear();
                }
                let next = poll_fn(|cx| body.as_mut().poll_frame(cx));
                stream.watch(next).await?
            }
        };
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        if data.is_empty() {
            continue;
        }
        if is_chunked {
            out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        }
        out.extend_from_slice(&data);
        if is_chunked {
            out.extend_from_slice(b"\r\n");
        }
        drop(data);
        if out.len() >= PIECE {
            stream.write_all(&out).await?;
            out.clear();
        }
    }
    if is_chunked {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    if !out.is_empty() {
        stream.write_all(&out).await?;
    }
    let _ = Pin::new(&mut body);
    Ok(())
}

/// Bytes that are written at once.
const PIECE: usize = 8 << 10;

fn write_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}
