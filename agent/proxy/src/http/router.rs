//! The parser-independent treatment of a request: the decision, answers of our own, counters, the
//! access log. Nothing here depends on the parser that the head comes from, or on how the request
//! is forwarded.

mod traced;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, Version, header};
use portcullis_model::{
    Believer, Compression, GrpcWeb, Listener, ListenerId, ObjectName, TimeLimit, TrustedProxies,
};

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::client::listener::{ListenerState, Listeners};
use crate::core::durations::{
    ABORTED, Answered, Durations, Extent, Measured, UNANSWERED, Upstream, status_class,
};
use crate::core::head::Head;
use crate::core::log_limit::LogLimit;
use crate::core::moment::Moment;
use crate::core::reason::{GrpcCode, Reason};
use crate::core::snapshot::Current;
use crate::core::stats::{CoreCounters, NotAdmitted};
use crate::http::answer::{self, Answer};
use crate::http::decide::{self, Arrival, Decision, Given, OwnAnswer};
use crate::http::grpc::Call;
use crate::http::headers::Via;
use crate::http::plan::Passage;
use crate::http::rate_limit::RateLimits;
use crate::http::request_id;
use crate::http::sender::{self, Believed, Sender};
use crate::http::session::Sessions;
use crate::http::templates::Connected;
use crate::log::access_log::AccessLog;
use crate::log::record::{Destination, LoggedRequest, Outcome, Record};
use crate::trace::active::ActiveSpan;
use crate::trace::request::RequestTrace;
use crate::trace::requests::TracedRequests;

pub(crate) use crate::http::router::traced::Ruled;

/// Routes the requests of a core.
pub(crate) struct Router {
    pub listeners: Rc<Listeners>,
    pub counters: Rc<CoreCounters>,
    pub access_log: Rc<AccessLog>,
    /// Proxies in front that are believed where no policy says which.
    pub proxies: TrustedProxies,
    pub via: Option<Via>,
    pub looped: LogLimit,
    pub slow: LogLimit,
    pub sessions: Rc<Sessions>,
    pub rate_limits: Rc<RateLimits>,
    pub durations: Rc<Durations>,
    pub traced: TracedRequests,
}

/// A request with the decision about it, and what of its head is needed once it has been sent on.
pub(crate) struct Routed<'s> {
    pub decision: Decision<'s>,
    /// Told when the request is dropped before there is an answer: its client did not wait.
    durations: Rc<Durations>,
    is_answered: Cell<bool>,
    begun: Moment,
    /// The end of checks that had to wait for others.
    passed: Option<Moment>,
    listener: Option<Rc<ListenerState>>,
    version: Version,
    method: Method,
    /// The content type of a gRPC request, and what it says of its time.
    grpc: Option<(HeaderValue, Call)>,
    /// With its Gateway, if that has an access log.
    logged: Option<(Box<LoggedRequest>, &'s ObjectName)>,
    trace: Option<Box<RequestTrace>>,
}

// === impl Routed ===

impl Routed<'_> {
    pub(crate) fn is_grpc(&self) -> bool {
        self.grpc.is_some()
    }

    /// True if its spans are: each attempt at an answer has one, with a context of its own.
    pub(crate) fn is_recorded(&self) -> bool {
        self.trace.as_ref().is_some_and(|trace| trace.is_recorded())
    }

    pub(crate) fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// The length that policies leave to the request's body, as far as its rule is known.
    pub(crate) fn most_body_bytes(&self) -> Option<u64> {
        let of_listener = self.listener.as_ref().and_then(|state| state.listener.policy.as_ref());
        let of_rule = self.decision.rule().and_then(|rule| rule.policy.as_ref());
        let policies = of_listener.into_iter().chain(of_rule);
        policies.filter_map(|policy| policy.most_body_bytes).min()
    }

    /// The compression of the response: the rule's goes before the listener's. gRPC has codings of
    /// its own.
    pub(crate) fn compression(&self) -> Option<&Arc<Compression>> {
        let of_rule = self.decision.rule().and_then(|rule| rule.policy.as_ref()?.compression.as_ref());
        let of_listener = || self.listener.as_ref()?.listener.policy.as_ref()?.compression.as_ref();
        of_rule.or_else(of_listener).filter(|_| !self.is_grpc())
    }

    /// The call; none of gRPC-Web unless that is to be translated.
    fn call(&self) -> Option<Call> {
        let (_, call) = self.grpc.as_ref()?;
        let of_rule = self.decision.rule().and_then(|rule| rule.policy.as_ref()?.grpc_web);
        let of_listener = || self.listener.as_ref()?.listener.policy.as_ref()?.grpc_web;
        let web = call.web.filter(|_| of_rule.or_else(of_listener) == Some(GrpcWeb::Translate));
        Some(Call { web, ..*call })
    }

    /// True if its rule says that requests may take any time; or else a policy of the listener.
    pub(crate) fn may_take_any_time(&self) -> bool {
        let Some(rule) = self.decision.rule() else { return false };
        let of_listener = || self.listener.as_ref()?.listener.policy.as_ref()?.defaults.as_deref();
        let request = match rule.timeouts.request {
            TimeLimit::Unsaid => of_listener().map(|defaults| defaults.timeouts.request),
            said => Some(said),
        };
        request == Some(TimeLimit::Lifted)
    }

    /// Notes that nothing keeps the request from being sent on any more.
    pub(crate) fn pass(&mut self) {
        self.passed = Some(Moment::now());
    }

    pub(crate) fn listener_id(&self) -> Option<&ListenerId> {
        self.listener.as_ref().map(|listener_state| &listener_state.listener.id)
    }

    /// The span, which lasts as long as the response.
    fn answered(
        &self,
        mut span: Box<ActiveSpan>,
        status: StatusCode,
        reason: Option<Reason>,
    ) -> Box<ActiveSpan> {
        span.step("response", || {
            let class = status.as_u16() / 100;
            match reason {
                None => format!("{} ({class}xx){}", status.as_u16(), self.answering()),
                Some(reason) => format!(
                    "{} ({class}xx), by the gateway itself: {}: {}",
                    status.as_u16(),
                    reason.name(),
                    reason.text().trim_end()
                ),
            }
        });
        let Destination { rule, backend, .. } = self.decision.destination();
        if let Some(rule) = rule {
            let rule = rule.to_string();
            span.name(&rule);
            span.text("http.route", rule);
        }
        if let Some(backend) = backend {
            span.text("portcullis.backend", backend.to_string());
        }
        span.answered(status, reason.map(Reason::name));
        span.unless_finished("incomplete");
        span
    }

    /// The one who gives an answer that is no refusal.
    fn answering(&self) -> String {
        match &self.decision {
            Decision::Forward(plan) => format!(", by the backend {}", plan.name),
            Decision::Own(_) => ", by the gateway itself, as its rule says".to_owned(),
            Decision::Guarded(_) => String::new(),
        }
    }

    /// Counts the request, or begins to measure its response; with the class that its backend has
    /// the request counted by.
    fn measured(&self, class: usize, of_backend: Option<usize>, extent: Extent) -> Option<Measured> {
        let upstream = match (&self.decision, of_backend) {
            (Decision::Forward(plan), Some(class)) => {
                Some(Upstream { backend: plan.name, class, passed: self.passed })
            }
            _ => None,
        };
        let rule = self.decision.destination().rule;
        let listener = self.listener.as_ref().and_then(|listener| listener.durations());
        let answered = Answered { begun: self.begun, class, rule, upstream, extent };
        self.durations.answered(answered, listener.as_ref())
    }
}

impl Drop for Routed<'_> {
    fn drop(&mut self) {
        if !self.is_answered.get() {
            if let Some(listener) = &self.listener {
                listener.counters().aborted();
            }
            self.measured(ABORTED, Some(ABORTED), Extent::Whole);
        }
    }
}

// === impl Router ===

impl Router {
    pub(crate) fn route<'s>(&self, current: &'s Current, client: &Client, head: &impl Head) -> Routed<'s> {
        let begun = Moment::now();
        let port = current.port(client.local).map(|port| &**port);
        let tls = client.tls.as_ref().map(|listener_state| &listener_state.listener);
        let arrival = Arrival {
            limits: client.limits(),
            tls,
            pseudonym: client.pseudonym(),
            sessions: Some(&self.sessions),
            rates: &self.rate_limits,
            connected: Connected {
                peer: client.peer,
                address: &client.address,
                server_name: client.server_name.as_deref(),
                proxies: &self.proxies,
                request_id: None,
            },
        };
        let mut listener = None;
        let admit = |asked: &Arc<Listener>, sender: Sender<'_>| {
            let asked = listener.insert(self.listeners.get(asked));
            let admitted = client.admit(asked, |believer| sender.address(believer, head.fields()));
            admitted.map_err(|kept_out| match kept_out {
                NotAdmitted::Address => Reason::ClientAddress,
                NotAdmitted::Connections | NotAdmitted::Handshakes | NotAdmitted::ProxyHeader => {
                    Reason::NewConnections
                }
            })
        };
        let (decision, _) = decide::decide(arrival, port, head, admit);
        let trace = if self.traced.is_any() {
            self.trace(client, head, &decision, listener.as_deref())
        } else {
            None
        };
        let logged = port.and_then(|port| {
            let parameters = port.gateway.access_log;
            let log = match &listener {
                Some(state) => state.listener.admission.access_log(parameters)?,
                None => parameters?,
            };
            let believed = self.believed(listener.as_deref());
            let peer = (client.peer.ip(), &client.address);
            let chain = |believer| sender::chain(head.fields(), believed.by(believer), peer);
            let id = decision.filled().map(|filled| filled.request_id.clone());
            let given = || chain(Believer::Listener).and_then(|_| request_id::given(head.fields()));
            let id = id.or_else(given).unwrap_or_else(request_id::make);
            // Whom others believe is no matter of the Gateway's log.
            let mut logged = LoggedRequest::new(log, head, id, chain(Believer::Gateway));
            if let Some(trace) = &trace {
                logged.trace = trace.ids();
                trace.note(|span| {
                    span.text("portcullis.request_id", logged.id.to_str().unwrap_or_default().to_owned())
                });
            }
            Some((Box::new(logged), &port.gateway.name))
        });
        let method = head.method().clone();
        // gRPC is POST: others need no look at their fields.
        let grpc = if method == Method::POST { answer::grpc_type(head.fields()) } else { None };
        let grpc = grpc.map(|content_type| {
            let call = Call::of(head, &content_type);
            (content_type, call)
        });
        Routed {
            decision,
            durations: self.durations.clone(),
            is_answered: Cell::new(false),
            begun,
            passed: None,
            listener,
            version: head.version(),
            method,
            grpc,
            logged,
            trace,
        }
    }

    fn believed<'r>(&'r self, listener: Option<&'r ListenerState>) -> Believed<'r> {
        let listed = listener.and_then(|state| state.listener.admission.listed.as_deref());
        Believed::of(listed, &self.proxies)
    }

    /// Requests that are not logged get their id when they are sent on.
    pub(crate) fn passage<'r>(&'r self, request: &'r Routed<'_>) -> Passage<'r> {
        Passage {
            proxies: self.believed(request.listener.as_deref()).of_listener,
            via: self.via.as_ref().map(|via| via.received_by(request.version)),
            request_id: match request.decision.filled() {
                Some(filled) => Some(&filled.request_id),
                None => request.logged.as_ref().map(|(logged, _)| &logged.id),
            },
            listener: request.listener.as_ref(),
            trace: request.trace.as_deref(),
            call: request.call(),
        }
    }

    /// Notes that a backend answers the request. Returns the line of the access log, for when the
    /// response has come to its end.
    pub(crate) fn forwarded(
        &self,
        exchange: &mut Exchange,
        request: &Routed<'_>,
        (status, extent): (StatusCode, Extent),
        endpoint: SocketAddr,
    ) -> Option<Box<Record>> {
        let outcome = (status, None, Some(endpoint));
        self.answered(exchange, request, outcome, extent)
    }

    /// Notes that an auth service's answer is the client's.
    pub(crate) fn denied(
        &self,
        exchange: &mut Exchange,
        request: &Routed<'_>,
        status: StatusCode,
    ) -> Option<Box<Record>> {
        self.counters.answered(Reason::AuthDenied);
        self.answered(exchange, request, (status, Some(Reason::AuthDenied), None), Extent::Begun)
    }

    /// An answer of the gateway's own, with its line of the access log.
    pub(crate) fn answer(
        &self,
        exchange: &mut Exchange,
        request: &Routed<'_>,
        own: &OwnAnswer<'_>,
    ) -> (Answer, Option<Box<Record>>) {
        let client = exchange.client();
        let (mut answer, status, reason) = match own {
            OwnAnswer::Redirect { rule, status, location, filled, .. } => {
                let answer = answer::redirect(rule, *status, location, filled.as_deref());
                let status = answer.status();
                (answer, status, None)
            }
            OwnAnswer::Response(given) => (self.given(request, given), given.response.status, None),
            OwnAnswer::Preflight { cross_origin, asked, .. } => {
                let answer = cross_origin.answer(asked);
                let status = answer.status();
                (answer, status, None)
            }
            OwnAnswer::Failed { status, .. } => {
                (self.explain(client, request, Reason::Rule, *status), *status, Some(Reason::Rule))
            }
            // Failures count as such even where gRPC has them wrapped in a 200.
            OwnAnswer::Reason(reason, status) => {
                (self.explain(client, request, *reason, *status), *status, Some(*reason))
            }
            OwnAnswer::Challenge(reason, challenge) => {
                let status = reason.status();
                let mut answer = self.explain(client, request, *reason, status);
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.clone());
                (answer, status, Some(*reason))
            }
            // The decision has the fields.
            OwnAnswer::OfRule { own, .. } => return self.answer(exchange, request, own),
            OwnAnswer::Exhausted(exhausted) => {
                let reason = Reason::RateLimited;
                let mut answer = self.explain(client, request, reason, reason.status());
                exhausted.tell(answer.headers_mut());
                (answer, reason.status(), Some(reason))
            }
        };
        if let Some(cross_origin) = request.decision.cross_origin() {
            cross_origin.edit(answer.headers_mut());
        }
        let record = self.answered(exchange, request, (status, reason, None), Extent::Begun);
        // An answer to HEAD has no body.
        let answer = if request.method == Method::HEAD { answer.map(|_| Bytes::new()) } else { answer };
        (answer, record)
    }

    fn given(&self, request: &Routed<'_>, given: &Given<'_>) -> Answer {
        let grpc = request.grpc.as_ref().map(|(content_type, _)| content_type);
        let mut answer = answer::direct(given.response, grpc);
        let of_backend = given.backend.iter().flat_map(|backend| &backend.filters);
        let filters = given.rule.filters.iter().chain(of_backend);
        answer::edit(filters, given.filled.as_deref(), answer.headers_mut());
        // The length that GET would have got; these two have none.
        let has_length = !matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if request.is_head() && has_length {
            let length = HeaderValue::from(answer.body().len());
            answer.headers_mut().insert(header::CONTENT_LENGTH, length);
        }
        answer
    }

    fn explain(&self, client: &Client, request: &Routed<'_>, reason: Reason, status: StatusCode) -> Answer {
        self.counters.answered(reason);
        if reason == Reason::Loop && self.looped.is_due() {
            tracing::warn!(
                listener = request.listener_id().map(tracing::field::display),
                "508: Gateway {} got a request that it had sent on before; an endpoint of one of its backends leads \
                 back to it: look for a Service whose endpoints are the Gateway's own address",
                client.gateway()
            );
        }
        if reason == Reason::SlowExpressions && self.slow.is_due() {
            tracing::warn!(
                listener = request.listener_id().map(tracing::field::display),
                "503: regular expressions of routes took too long for a request, or would have: look for HTTPRoutes \
                 or GRPCRoutes with many that have large repetitions, such as .{{100}}; --log debug names the host"
            );
        }
        tracing::debug!(client = %client.peer, reason = reason.name(), status = status.as_u16(), "answered by the gateway");
        if let (Some((content_type, _)), Some(code)) = (&request.grpc, grpc_code(reason, status)) {
            return answer::of_grpc(reason, code, content_type.clone());
        }
        let mut answer = answer::of(reason, status);
        // Bytes that follow a malformed HTTP/1 request on the same connection cannot be trusted.
        let is_malformed = status == StatusCode::BAD_REQUEST || status == StatusCode::NOT_IMPLEMENTED;
        // A connection that is kept out is not to wait for better times.
        if (is_malformed || reason == Reason::NewConnections) && request.version < Version::HTTP_2 {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    fn answered(
        &self,
        exchange: &mut Exchange,
        request: &Routed<'_>,
        (status, reason, endpoint): (StatusCode, Option<Reason>, Option<SocketAddr>),
        extent: Extent,
    ) -> Option<Box<Record>> {
        if let Some(listener) = &request.listener {
            listener.counters().answered(status);
        }
        request.is_answered.set(true);
        let class = status_class(status);
        let of_backend = match (endpoint, reason) {
            (Some(_), _) => Some(class),
            (None, reason) => reason.filter(|reason| !reason.is_of_body()).map(|_| UNANSWERED),
        };
        if let Some(measured) = request.measured(class, of_backend, extent) {
            exchange.measure(measured);
        }
        let span = request.trace.as_ref().and_then(|trace| trace.take_span());
        let span = span.map(|span| request.answered(span, status, reason));
        let client = exchange.client();
        let line = request.logged.as_ref().and_then(|(logged, gateway)| {
            let outcome = Outcome {
                client: client.peer,
                scheme: client.scheme(),
                gateway,
                listener: request.listener_id(),
                destination: Destination { endpoint, ..request.decision.destination() },
                status,
                reason,
            };
            logged.begin(&self.access_log, &outcome)
        });
        Record::of(line, span)
    }
}

/// An auth service that wants credentials, or leads to where there are some, says that there are
/// none.
fn grpc_code(reason: Reason, status: StatusCode) -> Option<GrpcCode> {
    let wants_credentials = status == StatusCode::UNAUTHORIZED || status.is_redirection();
    if reason == Reason::AuthDenied && wants_credentials {
        return Some(GrpcCode::Unauthenticated);
    }
    reason.grpc_code()
}
