//! Attempts at getting a response: which endpoint, over which connection, and when it is safe to
//! try again.

use std::io;
use std::net::SocketAddr;

use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version, header};
use portcullis_model::BackendName;
use tokio::time::Instant;

use crate::core::reason::Reason;
use crate::trace::active::ActiveSpan;
use crate::trace::attempt::Attempts;
use crate::upstream::balance::{Asked, Preference};
use crate::upstream::endpoint::{
    Connection, Downstream, Endpoint, Freshness, GRPC_STATUS, ResponseBody, SendFailure, UpstreamError,
};
use crate::upstream::extended_connect::Handshake;
use crate::upstream::health::endpoint::{EndpointHealth, Failure};
use crate::upstream::health::places::{Full, RequestPlace};
use crate::upstream::http1::{HeadError, Http1Error, SendError, join_cookies};
use crate::upstream::http2::Http2Error;
use crate::upstream::pool::Pools;
use crate::upstream::request::{BodyFault, Outgoing, SharedFault, Upload};
use crate::upstream::tls::is_tls_failure;

pub(super) const ATTEMPTS: usize = 3;
/// Fields of ours that say something about an HTTP/1 connection (RFC 9113 section 8.2.2).
const CONNECTION_FIELDS: [HeaderName; 3] = [header::CONNECTION, header::UPGRADE, header::TRANSFER_ENCODING];

/// The reason why no response came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    #[error("the Service has no ready endpoint")]
    NoEndpoint,
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
    #[error("{0} gave no valid response: {1}")]
    Broken(SocketAddr, UpstreamError),
    #[error("{0} sent {1}")]
    Head(SocketAddr, HeadError),
    #[error("{0} takes no WebSocket over HTTP/2: {1}")]
    NoTunnels(SocketAddr, Http2Error),
    #[error("{0} did not take a request with large fields: {1}")]
    LargeHead(SocketAddr, Http2Error),
    #[error("the backend has as many requests as its limits permit")]
    Full,
    #[error("as many requests are sent again as the budget of the Service permits")]
    RetryBudget,
    #[error("the rule's time-out")]
    Timeout,
    #[error("{0} holds the request up: {1}")]
    Stalled(SocketAddr, UpstreamError),
    #[error("the client's request body is malformed or broke off")]
    Client,
    #[error("the client's request body is larger than the Gateway's limits.bodyBytes")]
    TooLarge,
    #[error("the client's request body comes more slowly than --minimum-rate")]
    TooSlow,
}

/// An attempt whose outcome is not known yet. Dropped after the time that the rule gives the
/// backend, it has seen the endpoint fail, if that had at least half of that time; otherwise
/// nothing.
pub(super) struct Undecided<'e> {
    health: &'e EndpointHealth,
    until: Option<Instant>,
}

pub(crate) type UpstreamResponse = http::Response<ResponseBody>;

/// Tries again where that is safe: no connection could be made; or a kept connection turned out to
/// be closed, and either nothing of the request was sent or it may be sent twice (RFC 9110 section
/// 9.2.2). The client's address and fields decide where its backend wants that. `downstream` is the
/// client's connection, which the backend may have to learn of.
pub(crate) async fn send(
    pools: &Pools,
    name: &BackendName,
    preference: Preference,
    downstream: &Downstream,
    mut outgoing: Box<Outgoing>,
) -> Result<UpstreamResponse, AttemptError> {
    let (fault, trace) = (outgoing.upload.fault(), outgoing.trace.take());
    let (mut avoid, mut freshness, mut failure) = (None, Freshness::Any, AttemptError::NoEndpoint);
    let mut place = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            pools.counters.retries.increment();
        }
        let asked = Asked { preference, headers: Some(&outgoing.parts.headers), avoid };
        let endpoint = pools.pick(name, asked).filter(|it| Some(it.address) != avoid);
        let Some(endpoint) = endpoint else { break };
        if attempt == 0
            && let Some(budget) = &endpoint.budget
        {
            budget.count();
        }
        let mut span =
            trace.as_deref().map(|attempts| begin_span(attempts, &mut outgoing, name, &endpoint, attempt));
        let mut undecided = None;
        if let Some(health) = &endpoint.health {
            if place.is_none() {
                place = Some(enter(health).await.inspect_err(|error| end_span(&mut span, Err(error)))?);
            }
            undecided = Some(Undecided::begin(health, &outgoing));
        }
        let connecting = endpoint.connection(&pools.counters, freshness, &outgoing.parts, downstream);
        let connection = match connecting.await {
            Ok(connection) => {
                note_connection(span.as_deref(), &connection);
                connection
            }
            Err(error) => {
                avoid = Some(endpoint.address);
                failure = AttemptError::Connect(endpoint.address, error);
                end_span(&mut span, Err(&failure));
                continue;
            }
        };
        adapt(&mut outgoing, &connection);
        let sent = connection.send(outgoing).await;
        match sent {
            Ok(mut answered) => {
                end_span(&mut span, Ok(answered.status()));
                judge(&endpoint, Ok(&mut answered));
                std::mem::forget(undecided);
                answered.body_mut().hold(place);
                return Ok(answered);
            }
            Err(SendFailure { error, again, .. }) => {
                failure = AttemptError::of(endpoint.address, error, fault.as_ref());
                end_span(&mut span, Err(&failure));
                let Some(again) = again else {
                    judge(&endpoint, Err(&failure));
                    std::mem::forget(undecided);
                    return Err(failure);
                };
                (outgoing, freshness) = (again, Freshness::New);
            }
        }
    }
    Err(failure)
}

/// Has an attempt's span begin, and the request carry its context.
pub(super) fn begin_span(
    attempts: &Attempts,
    outgoing: &mut Outgoing,
    name: &BackendName,
    endpoint: &Endpoint,
    tried: usize,
) -> Box<ActiveSpan> {
    let asked = (name, endpoint.address, endpoint.scheme());
    attempts.begin(&mut outgoing.parts, asked, tried)
}

/// Ends it, if there is one.
pub(super) fn end_span(span: &mut Option<Box<ActiveSpan>>, outcome: Result<StatusCode, &AttemptError>) {
    let Some(mut span) = span.take() else { return };
    match outcome {
        Ok(status) => {
            span.step("answer", || format!("{}: the head of the response is here", status.as_u16()));
            span.answered(status, None);
        }
        Err(error) => {
            span.step("failure", || format!("{}: {error}", error.reason().name()));
            span.failed(error.reason().name());
        }
    }
    span.finish();
}

/// Tells the operator who waits for the request of the connection that it goes by.
pub(super) fn note_connection(span: Option<&ActiveSpan>, connection: &Connection) {
    let Some(span) = span else { return };
    span.step("connection", || {
        let age = if connection.reused { "a kept one" } else { "a new one" };
        let version = if connection.is_http2() { "HTTP/2" } else { "HTTP/1.1" };
        let tls = if connection.scheme() == Scheme::HTTPS { "in TLS" } else { "without TLS" };
        format!("{age} to {}, {version}, {tls}", connection.endpoint())
    });
}

/// A place within the limits of the backend. Boxed: few backends have such, and every request would
/// have room for the wait.
pub(super) async fn enter(health: &EndpointHealth) -> Result<RequestPlace, AttemptError> {
    Box::pin(health.backend.request()).await.map_err(|Full| AttemptError::Full)
}

/// Has the endpoint's health follow from an attempt. An attempt to connect has been noted there,
/// and what is the client's fault is not the endpoint's.
pub(super) fn judge(endpoint: &Endpoint, sent: Result<&mut UpstreamResponse, &AttemptError>) {
    let Some(health) = &endpoint.health else { return };
    match sent {
        // Of what is no call, `grpc-status` says nothing.
        Ok(response) if is_call(response.headers()) => match response.headers().get(GRPC_STATUS) {
            Some(status) => health.called(status),
            None if response.status() == StatusCode::OK => response.body_mut().judge_by_trailers(),
            None => health.answered(response.status()),
        },
        Ok(response) => health.answered(response.status()),
        Err(AttemptError::Broken(..) | AttemptError::Head(..)) => health.failed(Failure::Broken),
        Err(AttemptError::Timeout | AttemptError::Stalled(_, UpstreamError::Http1(_))) => {
            health.failed(Failure::Timeout);
        }
        Err(
            AttemptError::NoEndpoint
            | AttemptError::Connect(..)
            | AttemptError::NoTunnels(..)
            | AttemptError::LargeHead(..)
            // Another client's upload may have taken the room that its connection has.
            | AttemptError::Stalled(_, UpstreamError::Http2(_))
            | AttemptError::Full
            | AttemptError::RetryBudget
            | AttemptError::Client
            | AttemptError::TooLarge
            | AttemptError::TooSlow,
        ) => health.undecided(),
    }
}

/// True for the response to a gRPC call; gRPC-Web has its trailers in the body.
fn is_call(fields: &HeaderMap) -> bool {
    let kind = fields.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Makes the request one of the protocol that the connection speaks.
pub(super) fn adapt(outgoing: &mut Outgoing, connection: &Connection) {
    if connection.is_http2() {
        to_http2(outgoing, connection.scheme(), connection.endpoint());
    } else {
        to_http1(&mut outgoing.parts, &outgoing.upload);
    }
}

/// HTTP/2 carries the host in the target, and has another handshake for WebSockets. Requests of
/// HTTP/1.0 may have no host: then it is the endpoint's address.
fn to_http2(outgoing: &mut Outgoing, scheme: Scheme, endpoint: SocketAddr) {
    let Outgoing { parts, upload, .. } = outgoing;
    parts.version = Version::HTTP_2;
    let [_, protocol, _] = CONNECTION_FIELDS.map(|name| parts.headers.remove(name));
    if let (Some(protocol), Upload::Empty) = (protocol, upload) {
        Handshake::begin(parts, &protocol);
    }
    let Some(host) = parts.headers.remove(header::HOST) else { return };
    let mut target = std::mem::take(&mut parts.uri).into_parts();
    target.scheme = Some(scheme);
    let host = Authority::try_from(host.as_bytes()).or_else(|_| Authority::try_from(endpoint.to_string()));
    target.authority = host.ok();
    target.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    parts.uri = Uri::from_parts(target).unwrap_or_default();
}

/// HTTP/1 declares the length of a body, or that it is chunked.
fn to_http1(parts: &mut Parts, upload: &Upload) {
    parts.version = Version::HTTP_11;
    if !matches!(upload, Upload::Empty) && !parts.headers.contains_key(header::CONTENT_LENGTH) {
        parts.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    // Nearly no request has a field twice.
    if parts.headers.len() > parts.headers.keys_len() {
        join_cookies(&mut parts.headers);
    }
}

// === impl Undecided ===

impl<'e> Undecided<'e> {
    /// Of a connection, which has a time-out of its own.
    pub(super) fn connection(health: &'e EndpointHealth) -> Self {
        Self { health, until: None }
    }

    pub(super) fn begin(health: &'e EndpointHealth, outgoing: &Outgoing) -> Self {
        // A client's body may be what takes the time, and so may auth services, or the wait for a
        // place.
        let is_empty = matches!(outgoing.upload, Upload::Empty);
        let time = outgoing.answer_time.filter(|time| is_empty && time.is_half_left());
        Self { health, until: time.map(|time| time.until) }
    }
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.health.failed(Failure::Timeout);
        } else {
            self.health.undecided();
        }
    }
}

// === impl AttemptError ===

impl AttemptError {
    /// Of a request that was being sent to the endpoint; `fault` is that of its body.
    pub(super) fn of(endpoint: SocketAddr, error: UpstreamError, fault: Option<&SharedFault>) -> Self {
        match (fault.and_then(SharedFault::get), error) {
            (Some(BodyFault::Malformed), _) => Self::Client,
            (Some(BodyFault::TooLarge), _) => Self::TooLarge,
            (Some(BodyFault::TooSlow), _) => Self::TooSlow,
            (None, UpstreamError::Http1(Http1Error::Head(error))) => Self::Head(endpoint, error),
            (None, UpstreamError::Http2(error @ Http2Error::NoTunnels)) => Self::NoTunnels(endpoint, error),
            (None, UpstreamError::Http2(error @ (Http2Error::TooLarge { .. } | Http2Error::Large(_)))) => {
                Self::LargeHead(endpoint, error)
            }
            (
                None,
                error @ (UpstreamError::Http1(Http1Error::Send(SendError::Stalled))
                | UpstreamError::Http2(Http2Error::Stalled)),
            ) => Self::Stalled(endpoint, error),
            (None, error) => Self::Broken(endpoint, error),
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Client => Reason::ClientBody,
            Self::TooLarge => Reason::BodyTooLarge,
            Self::TooSlow => Reason::BodyTooSlow,
            Self::NoEndpoint => Reason::NoEndpoint,
            Self::NoTunnels(..) => Reason::NoWebSocket,
            Self::LargeHead(_, Http2Error::TooLarge { .. }) => Reason::FieldsTooLarge,
            Self::Full => Reason::BackendFull,
            Self::RetryBudget => Reason::RetryBudget,
            Self::Timeout | Self::Stalled(..) => Reason::Timeout,
            Self::Connect(_, error) if error.kind() == io::ErrorKind::TimedOut => Reason::ConnectTimeout,
            Self::Connect(_, error) if is_tls_failure(error) => Reason::BackendTls,
            Self::Connect(..) => Reason::ConnectFailed,
            Self::Head(_, HeadError::TooLarge(_)) => Reason::ResponseTooLarge,
            Self::Head(_, HeadError::TransferCoding) => Reason::ResponseCoding,
            Self::Head(..) | Self::Broken(..) | Self::LargeHead(..) => Reason::BackendBroken,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::core::window::Windows;
    use crate::upstream::http2::HeadSize;

    /// It is counted where a connection is chosen, which is before.
    #[test]
    fn a_head_has_the_same_size_before_it_is_one_of_http2() {
        let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
        for (target, fields) in [
            ("/a?b=c", &[("host", "any.test:8080"), ("x-long", "some value"), ("accept", "*/*")][..]),
            ("/", &[("host", "any.test")]),
        ] {
            let mut request = Request::builder().uri(target);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            let request = request.body(Upload::Empty).unwrap();
            let mut outgoing = Outgoing::of(request, &Windows::http1());
            let before = HeadSize::of(&outgoing.parts);
            to_http2(&mut outgoing, Scheme::HTTPS, endpoint);
            assert!(outgoing.parts.uri.authority().is_some() && !outgoing.parts.headers.contains_key("host"));
            assert_eq!(HeadSize::of(&outgoing.parts), before, "{target}");
        }
    }
}
