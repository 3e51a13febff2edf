//! Forwarding: the request as the backend gets it, attempts and time-outs, the response as the client gets it.

use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, StatusCode, Uri, Version};
use hyper::body::Incoming;
use portcullis_model::{
    Action, BackendName, BackendTarget, Filter, HeaderEdit, Rule, Timeouts, WeightedBackend,
};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use crate::answer::{self, Response};
use crate::body::Body;
use crate::connection::Client;
use crate::core::Core;
use crate::decide::Forward;
use crate::pool::{Connection, Lease, SendFailure};
use crate::{headers, upgrade};

/// Attempts at sending one request; a further one only where nothing of the request has left yet.
const ATTEMPTS: usize = 3;
const FAR_FUTURE: Duration = Duration::from_secs(86_400 * 365);

/// Why no response came.
enum Trouble {
    NoEndpoint,
    Connect(SocketAddr, std::io::Error),
    Broken(SocketAddr, hyper::Error),
}

type Answered = (http::Response<Incoming>, Lease);

/// Sends the request where the plan says and returns what the client gets.
pub(crate) async fn forward(
    core: &Rc<Core>,
    client: &Client,
    plan: Forward,
    mut request: Request<Incoming>,
) -> Response {
    let Some(backend) = chosen(&plan) else { return answer::status(StatusCode::INTERNAL_SERVER_ERROR) };
    let BackendTarget::Known(name) = &backend.target else {
        return answer::status(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let switch = upgrade::Pending::take(&mut request);
    prepare(core, client, &plan, backend, &mut request, switch.as_ref());
    let start = Instant::now();
    let deadline = attempt_deadline(plan.rule.timeouts, start);
    match timeout_at(deadline, send(core, name, request)).await {
        Err(_) => failed(&plan.rule, name, StatusCode::GATEWAY_TIMEOUT, "time-out"),
        Ok(Err(trouble)) => trouble.answer(&plan.rule, name),
        Ok(Ok((response, lease))) => {
            let until = plan.rule.timeouts.request.map(|limit| Box::pin(sleep_until(start + limit)));
            respond(core, &plan.rule, backend, response, lease, until, switch)
        }
    }
}

fn chosen(plan: &Forward) -> Option<&WeightedBackend> {
    match &plan.rule.action {
        Action::Forward(split) => split.backends().get(plan.backend),
        Action::Redirect(_) | Action::Fail(_) => None,
    }
}

fn attempt_deadline(timeouts: Timeouts, start: Instant) -> Instant {
    let limit = [timeouts.request, timeouts.backend_request].into_iter().flatten().min();
    start + limit.unwrap_or(FAR_FUTURE)
}

// --- the request ---

fn prepare(
    core: &Core,
    client: &Client,
    plan: &Forward,
    backend: &WeightedBackend,
    request: &mut Request<Incoming>,
    switch: Option<&upgrade::Pending>,
) {
    set_path(request, plan.path.as_deref());
    let host = plan.host.as_deref().unwrap_or(&plan.authority);
    let fields = request.headers_mut();
    let trailers = fields.get(header::TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    headers::remove_hop_by_hop(fields);
    fields.remove(header::EXPECT);
    if trailers {
        fields.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(switch) = switch {
        switch.announce(fields);
    }
    headers::forwarded(fields, client, &plan.authority, &core.settings);
    edit_all(fields, &plan.rule.filters, backend, request_edit);
    if let Ok(host) = HeaderValue::from_str(host) {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// Origin form: path and query only.
fn set_path(request: &mut Request<Incoming>, path: Option<&str>) {
    let uri = request.uri();
    let target = match (path, uri.query()) {
        (None, _) if uri.authority().is_none() => return,
        (None, _) => uri.path_and_query().cloned(),
        (Some(path), None) => PathAndQuery::try_from(path).ok(),
        (Some(path), Some(query)) => PathAndQuery::try_from(format!("{path}?{query}")).ok(),
    };
    *request.uri_mut() = target.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
}

fn edit_all(
    fields: &mut HeaderMap,
    rule: &[Filter],
    backend: &WeightedBackend,
    of_direction: fn(&Filter) -> Option<&HeaderEdit>,
) {
    for edit in rule.iter().chain(&backend.filters).filter_map(of_direction) {
        headers::edit(fields, edit);
    }
}

fn request_edit(filter: &Filter) -> Option<&HeaderEdit> {
    if let Filter::RequestHeaders(edit) = filter { Some(edit) } else { None }
}

fn response_edit(filter: &Filter) -> Option<&HeaderEdit> {
    if let Filter::ResponseHeaders(edit) = filter { Some(edit) } else { None }
}

// --- attempts ---

/// Tries again where that is safe: no connection could be made, or a kept connection turned out to be closed before
/// anything of the request was sent.
async fn send(core: &Core, name: &BackendName, mut request: Request<Incoming>) -> Result<Answered, Trouble> {
    let mut avoid = None;
    let mut trouble = Trouble::NoEndpoint;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            core.counters.retries.increment();
        }
        let Some(endpoint) = core.pools.pick(core, name, avoid) else { break };
        match endpoint.connection(core).await {
            Err(error) => {
                avoid = Some(endpoint.address);
                trouble = Trouble::Connect(endpoint.address, error);
            }
            Ok(connection) => match exchange(connection, request).await {
                Ok(answered) => return Ok(answered),
                Err(SendFailure { error, unsent: None }) => {
                    return Err(Trouble::Broken(endpoint.address, error));
                }
                Err(SendFailure { error, unsent: Some(again) }) => {
                    request = again;
                    trouble = Trouble::Broken(endpoint.address, error);
                }
            },
        }
    }
    Err(trouble)
}

async fn exchange(connection: Connection, mut request: Request<Incoming>) -> Result<Answered, SendFailure> {
    if connection.is_http2() {
        to_http2(&mut request);
    } else {
        *request.version_mut() = Version::HTTP_11;
    }
    connection.send(request).await
}

/// HTTP/2 carries the host in the target.
fn to_http2(request: &mut Request<Incoming>) {
    *request.version_mut() = Version::HTTP_2;
    let Some(host) = request.headers_mut().remove(header::HOST) else { return };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Authority::try_from(host.as_bytes()).ok();
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

// --- the response ---

fn respond(
    core: &Rc<Core>,
    rule: &Rule,
    backend: &WeightedBackend,
    mut response: http::Response<Incoming>,
    lease: Lease,
    deadline: Option<Pin<Box<Sleep>>>,
    switch: Option<upgrade::Pending>,
) -> Response {
    let tunnel = if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        match switch {
            Some(switch) => Some(switch.tunnel(core, &mut response)),
            None => return answer::status(StatusCode::BAD_GATEWAY),
        }
    } else {
        None
    };
    let (mut parts, incoming) = response.into_parts();
    headers::remove_hop_by_hop(&mut parts.headers);
    if let Some(protocol) = tunnel {
        protocol.announce(&mut parts.headers);
    }
    edit_all(&mut parts.headers, &rule.filters, backend, response_edit);
    parts.version = Version::default();
    http::Response::from_parts(parts, Body::upstream(incoming, lease, deadline))
}

// === impl Trouble ===

impl Trouble {
    fn answer(self, rule: &Rule, name: &BackendName) -> Response {
        match self {
            Self::NoEndpoint => {
                failed(rule, name, StatusCode::SERVICE_UNAVAILABLE, "the Service has no ready endpoint")
            }
            Self::Connect(address, error) => {
                let status = match error.kind() {
                    std::io::ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                failed(rule, name, status, &format!("cannot connect to {address}: {error}"))
            }
            Self::Broken(address, error) => failed(
                rule,
                name,
                StatusCode::BAD_GATEWAY,
                &format!("{address} gave no valid response: {error}"),
            ),
        }
    }
}

fn failed(rule: &Rule, backend: &BackendName, status: StatusCode, problem: &str) -> Response {
    tracing::debug!(rule = %rule.id, %backend, problem, status = status.as_u16(), "the backend did not answer");
    answer::status(status)
}
