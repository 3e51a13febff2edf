//! Responses on their way to the client of a stream: the head as HTTP/2 has it, and the body piece
//! by piece, as the client has room for it.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body as _, Frame};

use crate::core::head::{FieldName, FieldsMut, KnownField, content_length};
use crate::http::body::{Body, BodyError};
use crate::http::date;
use crate::upstream::endpoint::UpstreamError;
use crate::upstream::http2::Http2Error;

/// The part of a message that is yet to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    More,
}

/// The reason why a response did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the client's stream is gone: {0}")]
    Stream(#[from] h2::Error),
    #[error("the client has reset the stream: {0}")]
    Reset(Reason),
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Makes fields those of a response with this many bytes of a body; `None` if that is not known.
pub(super) fn complete(fields: &mut impl FieldsMut, status: StatusCode, length: Option<u64>) {
    fields.remove_if(is_of_connection);
    // That status has none (RFC 9110 section 8.6).
    match length {
        _ if status == StatusCode::NO_CONTENT => fields.remove(&header::CONTENT_LENGTH),
        None => fields.remove(&header::CONTENT_LENGTH),
        // HEAD may announce what GET would have got.
        Some(0) if content_length(fields).is_some() => {}
        Some(0) => fields.remove(&header::CONTENT_LENGTH),
        Some(_) if content_length(fields) == length => {}
        Some(bytes) => fields.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes)),
    }
    if fields.get(&header::DATE).is_none() {
        fields.append(header::DATE, date::value());
    }
}

/// "An endpoint MUST NOT generate an HTTP/2 message containing connection-specific header fields"
/// (RFC 9113 section 8.2.2); filters can set some.
fn is_of_connection(name: &impl FieldName) -> bool {
    let of_connection = [
        KnownField::Connection,
        KnownField::KeepAlive,
        KnownField::ProxyConnection,
        KnownField::Te,
        KnownField::TransferEncoding,
        KnownField::Upgrade,
    ];
    name.known().is_some_and(|known| of_connection.contains(&known))
}

/// Sends the head.
pub(super) fn begin(
    respond: &mut SendResponse<Bytes>,
    (status, fields): (StatusCode, HeaderMap),
    rest: Rest,
) -> Result<SendStream<Bytes>, SendError> {
    let mut head = Response::new(());
    (*head.status_mut(), *head.headers_mut()) = (status, fields);
    respond.send_response(head, rest == Rest::Nothing).map_err(|error| {
        respond.send_reset(Reason::INTERNAL_ERROR);
        error.into()
    })
}

/// Sends a response, and its body as it comes from the backend.
pub(super) async fn send(
    respond: &mut SendResponse<Bytes>,
    response: Response<Body>,
) -> Result<(), SendError> {
    let (mut parts, body) = response.into_parts();
    complete(&mut parts.headers, parts.status, body.size_hint().exact());
    send_complete(respond, (parts.status, parts.headers), body).await
}

/// The same of one that is complete. Without a body it ends with its head: after HEAD, and with
/// 304, the length that it announces is not that of what follows, which some clients hold it to.
pub(super) async fn send_complete(
    respond: &mut SendResponse<Bytes>,
    head: (StatusCode, HeaderMap),
    body: Body,
) -> Result<(), SendError> {
    let rest = if body.is_end_stream() { Rest::Nothing } else { Rest::More };
    let stream = begin(respond, head, rest)?;
    match rest {
        Rest::Nothing => Ok(()),
        Rest::More => send_body(stream, body).await,
    }
}

async fn send_body(mut stream: SendStream<Bytes>, body: Body) -> Result<(), SendError> {
    let mut body = std::pin::pin!(body);
    while !body.is_end_stream() {
        let Some(frame) = poll_fn(|cx| poll_next(&mut stream, body.as_mut(), cx)).await? else { break };
        match frame.into_data() {
            Ok(data) => {
                let rest = if body.is_end_stream() { Rest::Nothing } else { Rest::More };
                send_data(&mut stream, data, rest).await?;
                if rest == Rest::Nothing {
                    return Ok(());
                }
            }
            Err(frame) => {
                let mut trailers = frame.into_trailers().unwrap_or_default();
                FieldsMut::remove_if(&mut trailers, is_of_connection);
                stream.send_trailers(trailers)?;
                return Ok(());
            }
        }
    }
    Ok(stream.send_data(Bytes::new(), true)?)
}

/// The next frame of the body, as long as the client wants it. A body that breaks off resets the
/// stream: by the backend's reason, if it gave one.
fn poll_next(
    stream: &mut SendStream<Bytes>,
    body: Pin<&mut Body>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Frame<Bytes>>, SendError>> {
    match body.poll_frame(cx) {
        Poll::Ready(Some(Err(error))) => {
            stream.send_reset(reason(&error));
            Poll::Ready(Err(error.into()))
        }
        Poll::Ready(frame) => Poll::Ready(Ok(frame.transpose()?)),
        Poll::Pending => stream.poll_reset(cx).map(|reset| Err(SendError::Reset(reset?))),
    }
}

fn reason(error: &BodyError) -> Reason {
    match error {
        // NO_ERROR would pass for an end.
        BodyError::Upstream(UpstreamError::Http2(Http2Error::Library(error)))
            if error.is_reset() && error.is_remote() && error.reason() != Some(Reason::NO_ERROR) =>
        {
            error.reason().unwrap_or(Reason::INTERNAL_ERROR)
        }
        BodyError::Upstream(_) | BodyError::Encoding(_) | BodyError::Timeout | BodyError::Message => {
            Reason::INTERNAL_ERROR
        }
    }
}

/// Hands a piece over once the client has room for some of it. Room is not asked for before there
/// is something to send: it is taken from what all streams of the connection have.
pub(super) async fn send_data(
    stream: &mut SendStream<Bytes>,
    data: Bytes,
    rest: Rest,
) -> Result<(), SendError> {
    if !data.is_empty() {
        stream.reserve_capacity(1);
        while stream.capacity() == 0 {
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(capacity) => capacity?,
                None => return Err(SendError::Reset(Reason::STREAM_CLOSED)),
            };
        }
    }
    Ok(stream.send_data(data, rest == Rest::Nothing)?)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::core::head::Fields;

    #[test]
    fn a_response_has_no_fields_of_the_connection() {
        let mut fields = HeaderMap::new();
        for name in
            ["connection", "transfer-encoding", "upgrade", "te", "keep-alive", "proxy-connection", "x-a"]
        {
            fields.insert(name, HeaderValue::from_static("x"));
        }
        complete(&mut fields, StatusCode::OK, None);
        let names: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-a", "date"]);
    }

    #[test]
    fn the_length_is_that_of_the_body() {
        for (status, said, length, expected) in [
            (200, None, Some(5), Some("5")),
            (200, Some("5"), Some(5), Some("5")),
            (200, Some("7"), Some(5), Some("5")),
            (200, None, None, None),
            (200, Some("7"), None, None),
            (200, None, Some(0), None),
            (200, Some("7, 7"), Some(0), None),
            // HEAD, and 304, have that of the response to GET.
            (200, Some("7"), Some(0), Some("7")),
            (304, Some("7"), Some(0), Some("7")),
            (204, Some("7"), Some(0), None),
        ] {
            let mut fields = HeaderMap::new();
            if let Some(said) = said {
                fields.insert(header::CONTENT_LENGTH, HeaderValue::from_static(said));
            }
            complete(&mut fields, StatusCode::from_u16(status).unwrap(), length);
            let has = Fields::get(&fields, &header::CONTENT_LENGTH);
            assert_eq!(has, expected.map(str::as_bytes), "{status} {said:?} {length:?}");
        }
    }
}
