//! Attempts at getting a response: which endpoint, over which connection, and when it is safe to try again.

use std::io;
use std::net::SocketAddr;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version, header};
use hyper::body::Incoming;
use portcullis_model::BackendName;

use crate::core::Core;
use crate::endpoint::{Connection, Freshness, Lease, SendFailure};
use crate::reason::Reason;
use crate::upload::{Broken, Fault, Upload};

const ATTEMPTS: usize = 3;

/// Why no response came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("the Service has no ready endpoint")]
    NoEndpoint,
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
    #[error("{0} gave no valid response: {1}")]
    Broken(SocketAddr, hyper::Error),
    #[error("the client's request body is malformed or broke off")]
    Client,
    #[error("the client's request body is larger than the Gateway's limits.bodyBytes")]
    TooLarge,
}

pub(crate) type Answered = (http::Response<Incoming>, Lease);

/// Tries again where that is safe: no connection could be made; or a kept connection turned out to be closed, and either
/// nothing of the request was sent or it may be sent twice (RFC 9110 section 9.2.2).
pub(crate) async fn send(
    core: &Core,
    name: &BackendName,
    request: Request<Upload>,
) -> Result<Answered, Trouble> {
    let broken = request.body().broken();
    let mut request = Box::new(request);
    let (mut avoid, mut freshness, mut trouble) = (None, Freshness::Any, Trouble::NoEndpoint);
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            core.counters.retries.increment();
        }
        let Some(endpoint) = core.pools.pick(core, name, avoid) else { break };
        let connection = match endpoint.connection(core, freshness).await {
            Ok(connection) => connection,
            Err(error) => {
                avoid = Some(endpoint.address);
                trouble = Trouble::Connect(endpoint.address, error);
                continue;
            }
        };
        let spare = if connection.reused { Spare::of(&request) } else { None };
        adapt(&mut request, &connection);
        match connection.send(*request).await {
            Ok(answered) => return Ok(answered),
            Err(SendFailure { error, unsent }) => {
                let again = unsent.or_else(|| spare.map(|spare| Box::new(spare.into_request())));
                trouble = match broken.as_ref().and_then(Broken::get) {
                    Some(Fault::Malformed) => Trouble::Client,
                    Some(Fault::TooLarge) => Trouble::TooLarge,
                    None => Trouble::Broken(endpoint.address, error),
                };
                let Some(again) = again else { return Err(trouble) };
                (request, freshness) = (again, Freshness::New);
            }
        }
    }
    Err(trouble)
}

/// What it takes to send a request again. Nearly every request has one made and none needs it, so it is a list of fields,
/// which costs less than a map of them.
struct Spare {
    method: Method,
    uri: Uri,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl Spare {
    /// For a request that has no body and an idempotent method.
    fn of(request: &Request<Upload>) -> Option<Self> {
        if !matches!(request.body(), Upload::Empty) || !request.method().is_idempotent() {
            return None;
        }
        let fields = request.headers().iter().map(|(name, value)| (name.clone(), value.clone()));
        Some(Self { method: request.method().clone(), uri: request.uri().clone(), fields: fields.collect() })
    }

    fn into_request(self) -> Request<Upload> {
        let mut request = Request::new(Upload::Empty);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        for (name, value) in self.fields {
            request.headers_mut().append(name, value);
        }
        request
    }
}

fn adapt(request: &mut Request<Upload>, connection: &Connection) {
    if connection.is_http2() {
        to_http2(request);
    } else {
        to_http1(request);
    }
}

/// HTTP/2 carries the host in the target.
fn to_http2(request: &mut Request<Upload>) {
    *request.version_mut() = Version::HTTP_2;
    let Some(host) = request.headers_mut().remove(header::HOST) else { return };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Authority::try_from(host.as_bytes()).ok();
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

/// HTTP/1 has one `Cookie` field (RFC 9113 section 8.2.3).
fn to_http1(request: &mut Request<Upload>) {
    *request.version_mut() = Version::HTTP_11;
    let crumbs = request.headers().get_all(header::COOKIE);
    if crumbs.iter().nth(1).is_some() {
        let joined = crumbs.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b"; "[..]);
        if let Ok(cookie) = HeaderValue::from_bytes(&joined) {
            request.headers_mut().insert(header::COOKIE, cookie);
        }
    }
}

// === impl Trouble ===

impl Trouble {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Client => Reason::ClientBody,
            Self::TooLarge => Reason::BodyTooLarge,
            Self::NoEndpoint => Reason::NoEndpoint,
            Self::Connect(_, error) if error.kind() == io::ErrorKind::TimedOut => Reason::ConnectTimeout,
            Self::Connect(..) => Reason::ConnectFailed,
            Self::Broken(..) => Reason::BackendBroken,
        }
    }
}
