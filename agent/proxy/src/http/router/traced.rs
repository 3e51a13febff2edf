//! The traces of requests: a collector's, if they are sampled, and an operator's who waits for one.

use std::borrow::Cow;
use std::rc::Rc;

use http::{Version, header};
use portcullis_model::{Believer, ListenerId};

use crate::client::clients::Client;
use crate::client::listener::ListenerState;
use crate::core::head::{Fields, Head};
use crate::core::otlp::Parents;
use crate::http::decide::{self, Decision};
use crate::http::edge::bare_host;
use crate::http::path;
use crate::http::router::{Routed, Router};
use crate::http::sender;
use crate::http::steps;
use crate::trace::context::TraceContext;
use crate::trace::request::RequestTrace;
use crate::trace::tracer::{Tracer, watched_alone};
use crate::trace::watch::{Seen, Watched};

/// The time at which the rule of a request was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruled {
    /// Before the checks.
    Before,
    /// After them: a listener's filters come first.
    Now,
}

// === impl Router ===

impl Router {
    /// The request's trace, and what its span says of its head. What comes from no trusted proxy is
    /// followed only where the operator wants that: any client can say that it is to be recorded.
    /// The Gateway's word counts about proxies, and no tenant's.
    fn sampled(
        &self,
        tracer: &Tracer,
        client: &Client,
        fields: &impl Fields,
        decision: &Decision<'_>,
        listener: Option<&ListenerState>,
        watched: Option<Rc<Watched>>,
    ) -> Box<RequestTrace> {
        let peer = (client.peer.ip(), &client.address);
        let is_followed = match tracer.parents() {
            Parents::Any => true,
            Parents::None => false,
            Parents::Trusted => {
                let proxies = self.believed(listener).by(Believer::Gateway);
                sender::chain(fields, proxies, peer).is_some()
            }
        };
        let parent = if is_followed { TraceContext::given(fields) } else { None };
        let of_rule = decision.taken_by().and_then(|rule| rule.policy.as_ref()?.tracing);
        let of_listener = || listener?.listener.policy.as_ref()?.tracing;
        tracer.trace(fields, parent, of_rule.or_else(of_listener), watched)
    }

    /// The trace of a request, be it a collector's or an operator's, and what its span says of its
    /// head.
    pub(super) fn trace(
        &self,
        client: &Client,
        head: &impl Head,
        decision: &Decision<'_>,
        listener: Option<&ListenerState>,
    ) -> Option<Box<RequestTrace>> {
        let fields = head.fields();
        let host = head.authority().or_else(|| std::str::from_utf8(fields.get(&header::HOST)?).ok());
        let host = host.and_then(|host| bare_host(host).ok());
        let id = listener.map(|state| &state.listener.id);
        let watched = if self.traced.has_watches() { self.watched(head, host.as_deref(), id) } else { None };
        let trace = match &self.traced.tracer {
            Some(tracer) => self.sampled(tracer, client, fields, decision, listener, watched),
            None => watched_alone(watched?),
        };
        trace.note(|span| {
            span.method(head.method());
            span.text("url.path", head.path().to_owned());
            span.text("url.scheme", client.scheme());
            if let Some(host) = &host {
                span.text("server.address", host.clone().into_owned());
            }
            span.number("server.port", client.local.port());
            let version = match head.version() {
                Version::HTTP_2 => "2",
                Version::HTTP_10 => "1.0",
                _ => "1.1",
            };
            span.text("network.protocol.version", version);
            span.text("portcullis.gateway", client.gateway().to_string());
            if let Some(listener) = listener {
                span.text("portcullis.listener", listener.listener.id.to_string());
            }
        });
        if trace.is_watched() {
            let head_of = (head.method(), host.as_deref(), head.path(), head.version());
            steps::came(&trace, client, head_of, listener.map(|state| &*state.listener));
            steps::decided(&trace, decision, matched(client, listener, decision, head));
        }
        Some(trace)
    }

    /// The operator's wait for the request, if there is one.
    fn watched(
        &self,
        head: &impl Head,
        host: Option<&str>,
        listener: Option<&ListenerId>,
    ) -> Option<Rc<Watched>> {
        let path = path::normalise(head.path()).unwrap_or(Cow::Borrowed(head.path()));
        self.traced.watched(&Seen {
            method: head.method(),
            host,
            path: &path,
            listener,
            fields: head.fields(),
        })
    }

    /// Tells the operator who waits for the request that it has passed what was in its way.
    pub(crate) fn passed(&self, request: &Routed<'_>, client: &Client, head: &impl Head, ruled: Ruled) {
        let Some(trace) = request.trace.as_ref().filter(|trace| trace.is_watched()) else { return };
        trace.step("checks", || "passed");
        match (&request.decision, ruled) {
            (decision, Ruled::Now) => {
                steps::decided(trace, decision, matched(client, request.listener.as_deref(), decision, head));
            }
            (Decision::Forward(plan), Ruled::Before) => trace.step("backend", || plan.name.to_string()),
            (_, Ruled::Before) => {}
        }
    }
}

/// The match by which a rule took the request, if one did.
fn matched(
    client: &Client,
    listener: Option<&ListenerState>,
    decision: &Decision<'_>,
    head: &impl Head,
) -> Option<String> {
    decide::matched(client.limits(), &listener?.listener, head, decision.taken_by()?)
}
