//! The service that answers requests. It cannot fail: anything that goes wrong becomes a status and
//! a line in the log.

use std::convert::Infallible;
use std::rc::Rc;

use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode, Version, header};
use hyper::body::Incoming;

use crate::client::clients::{Client, Exchange};
use crate::client::listener::Listeners;
use crate::core::reason::Reason;
use crate::core::snapshot::SnapshotCell;
use crate::core::stats::CoreCounters;
use crate::http::answer::{self, Response};
use crate::http::body::Body;
use crate::http::decide::{self, Arrival, Decision};
use crate::http::forward::Forwarder;
use crate::http::headers;
use crate::log::access_log::AccessLog;
use crate::log::record::{LoggedRequest, Outcome};
use crate::upstream::request::Outgoing;

/// Answers the requests of a core.
pub(crate) struct Service {
    pub snapshot: Rc<SnapshotCell>,
    pub listeners: Rc<Listeners>,
    pub counters: Rc<CoreCounters>,
    pub access_log: Rc<AccessLog>,
    pub forwarder: Forwarder,
}

// === impl Service ===

impl Service {
    /// The request is put on the heap before anything waits: the future of every request is moved,
    /// and would hold it several times.
    pub(crate) fn answer(
        self: Rc<Self>,
        client: Rc<Client>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response, Infallible>> {
        let exchange = Exchange::begin(&client);
        let outgoing = Outgoing::new(request, client.limits());
        async move { Ok(self.respond(&client, exchange, outgoing).await) }
    }

    async fn respond(&self, client: &Rc<Client>, exchange: Exchange, outgoing: Box<Outgoing>) -> Response {
        let parts = &outgoing.parts;
        let summary = RequestSummary::of(parts);
        let current = self.snapshot.load();
        let port = current.port(client.local).map(|port| &**port);
        let logged = port.and_then(|port| {
            let log = port.gateway.access_log?;
            let hops = self.forwarder.trusted_hops;
            let chain = headers::chain(&parts.headers, hops, &client.address);
            Some(Box::new(LoggedRequest::new(log, parts, chain)))
        });
        let tls = client.tls.as_ref().map(|listener_state| &listener_state.listener);
        let arrival = Arrival { limits: client.limits(), tls };
        let (decision, listener) = decide::decide(arrival, port, parts);
        let listener_state = listener.map(|listener| self.listeners.get(listener));
        let mut destination = decision.destination();
        let answered = match &decision {
            Decision::Forward(plan) => match self.forwarder.forward(client, plan, outgoing).await {
                Ok((response, endpoint)) => {
                    destination.endpoint = Some(endpoint);
                    Ok(response)
                }
                Err(reason) => Err((reason, reason.status())),
            },
            Decision::Redirect { rule, status, location } => Ok(answer::redirect(rule, *status, location)),
            Decision::Answer(reason, status) => Err((*reason, *status)),
        };
        // Failures count as such even where gRPC has them wrapped in a 200.
        let (mut response, status, reason) = match answered {
            Ok(response) => {
                let status = response.status();
                (response, status, None)
            }
            Err((reason, status)) => (self.own(client, &summary, reason, status), status, Some(reason)),
        };
        match &listener_state {
            Some(listener_state) => listener_state.counters().answered(status),
            None => self.counters.unrouted.increment(),
        }
        let record = logged.zip(port).and_then(|(logged, port)| {
            let outcome = Outcome {
                client: client.peer,
                scheme: client.scheme(),
                gateway: &port.gateway.name,
                listener: listener.map(|listener| &listener.id),
                destination,
                status,
                reason,
            };
            logged.record(&self.access_log, &outcome)
        });
        if summary.method == Method::HEAD {
            response = response.map(Body::for_head);
        }
        response.map(|body| body.during(exchange, record))
    }

    fn own(&self, client: &Client, summary: &RequestSummary, reason: Reason, status: StatusCode) -> Response {
        self.counters.answered(reason);
        tracing::debug!(client = %client.peer, reason = reason.name(), status = status.as_u16(), "answered by the gateway");
        if let (Some(content_type), Some(code)) = (&summary.grpc, reason.grpc_code()) {
            return answer::of_grpc(reason, code, content_type.clone());
        }
        let mut response = answer::of(reason, status);
        // Bytes that follow a malformed HTTP/1 request on the same connection cannot be trusted.
        let spoilt = status == StatusCode::BAD_REQUEST || status == StatusCode::NOT_IMPLEMENTED;
        if spoilt && summary.version < Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The parts of a request that an answer of our own depends on, when the request is gone.
struct RequestSummary {
    version: Version,
    method: Method,
    /// The content type of a gRPC request.
    grpc: Option<HeaderValue>,
}

impl RequestSummary {
    fn of(parts: &Parts) -> Self {
        let method = parts.method.clone();
        // gRPC is POST: others need no look at their fields.
        let grpc = if method == Method::POST { answer::grpc_type(&parts.headers) } else { None };
        Self { version: parts.version, method, grpc }
    }
}
