//! A rule applied to a request on its way to a backend, and to the response on its way back:
//! target, header fields, and the time that both may take. Nothing here depends on the parser that
//! the heads come from.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, header};
use portcullis_model::{
    BackendName, Defaults, Filter, ListenerId, Retry, Rule, TimeLimit, Timeouts, TrustedProxies,
    WeightedBackend,
};
use tokio::time::Instant;

use crate::client::clients::Client;
use crate::client::listener::ListenerState;
use crate::core::head::{FieldsMut, Head, KnownField, KnownFields};
use crate::core::reason::Reason;
use crate::http::change::Change;
use crate::http::cors::CrossOrigin;
use crate::http::grpc::{self, Call};
use crate::http::headers::{self, Forwarded};
use crate::http::loops;
use crate::http::session::SessionPlan;
use crate::http::templates::{self, FilledTemplates};
use crate::log::record::Destination;
use crate::trace::request::RequestTrace;
use crate::upstream::request::AnswerTime;

/// Fields that every request gets on its way: those of [`headers::forwarded`], and `CDN-Loop`.
const ADDED_FIELDS: usize = 5;

/// A request on its way to a backend.
pub(crate) struct ForwardPlan<'s> {
    pub rule: &'s Rule,
    pub backend: &'s WeightedBackend,
    pub name: &'s BackendName,
    /// Those of the listener's policies, for what neither the rule nor a policy of it says.
    pub defaults: Option<&'s Defaults>,
    /// The host that the client asked for, with port.
    pub authority: HeaderValue,
    /// The path to send, if it is not the one that came.
    pub path: Option<String>,
    pub host: HostToSend,
    /// The known fields among those of the request.
    pub fields: KnownFields,
    pub cross_origin: Option<Box<CrossOrigin<'s>>>,
    /// The changes that the auth services ask for, in the order of the rule's filters: one set for
    /// each that has let the request pass.
    pub granted: Vec<Vec<Change>>,
    /// The checks that policies want. Boxed: few requests need it.
    pub checks: Option<Box<PolicyChecks>>,
    /// The time at which the first check began.
    pub begun: Option<Instant>,
    pub session: Option<Box<SessionPlan<'s>>>,
    /// `None` if no filter has templates.
    pub filled: Option<Box<FilledTemplates>>,
}

/// The checks of credentials, and by auth services, that policies want of a request.
pub(crate) enum PolicyChecks {
    Pending,
    /// It has passed; these changes tell the backend of it, and of what services of the listener
    /// say.
    Passed(Vec<Change>),
}

/// The `Host` that the backend gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostToSend {
    /// The field that came.
    Unchanged,
    /// The authority of the plan: the target named it.
    Authority,
    Rewritten(HeaderValue),
}

/// The gateway's part in a request that it sends on.
#[derive(Clone, Copy)]
pub(crate) struct Passage<'r> {
    /// Proxies in front that are believed.
    pub proxies: &'r TrustedProxies,
    /// An element for `Via`.
    pub via: Option<&'r HeaderValue>,
    /// The id that the request has in the access log. `None`: it has none yet.
    pub request_id: Option<&'r HeaderValue>,
    /// The one that has the request.
    pub listener: Option<&'r Rc<ListenerState>>,
    /// `None` where requests have no traces.
    pub trace: Option<&'r RequestTrace>,
    /// The gRPC call that the request is, or is to become.
    pub call: Option<Call>,
}

// === impl Passage ===

impl<'r> Passage<'r> {
    pub(crate) fn listener_id(self) -> Option<&'r ListenerId> {
        self.listener.map(|state| &state.listener.id)
    }

    /// Tells an operator who waits for the request.
    pub(crate) fn step<T: Into<Cow<'static, str>>>(&self, subject: &'static str, text: impl FnOnce() -> T) {
        if let Some(trace) = self.trace {
            trace.step(subject, text);
        }
    }

    /// Makes the fields of a request those that it is sent on with, but for what rules change.
    /// Returns what it is to be signed by, in the end. `host` is the one that the client asked for,
    /// `upgrade` the protocol that it asks to switch to, and may.
    pub(crate) fn edit_request(
        self,
        fields: &mut impl FieldsMut,
        known: KnownFields,
        client: &Client,
        host: &HeaderValue,
        upgrade: Option<&HeaderValue>,
    ) -> HeaderValue {
        let signature = if known.has(KnownField::CdnLoop) {
            loops::signed(fields, client.pseudonym())
        } else {
            client.pseudonym().clone()
        };
        headers::request_hop_by_hop(fields, known);
        // At once: a map of few fields would grow twice.
        fields.reserve(ADDED_FIELDS + usize::from(self.via.is_some()) + usize::from(self.trace.is_some()));
        if let Some(protocol) = upgrade {
            headers::announce_upgrade(fields, protocol);
        }
        let (peer, address) = (client.peer.ip(), &client.address);
        let forwarded =
            Forwarded { peer, address, scheme: client.scheme(), host, request_id: self.request_id };
        headers::forwarded(fields, known, &forwarded, self.proxies);
        if let Some(identity) = &client.identity {
            identity.insert(fields);
        }
        if let Some(via) = self.via {
            fields.append(header::VIA, via.clone());
        }
        if let Some(trace) = self.trace {
            trace.edit(fields);
        }
        signature
    }
}

// === impl ForwardPlan ===

impl<'s> ForwardPlan<'s> {
    /// The target in origin form, path and query only; `None` if it is the one that came, as for
    /// nearly every request.
    pub(crate) fn target(&self, head: &impl Head) -> Option<PathAndQuery> {
        if self.path.is_none() && head.authority().is_none() {
            return None;
        }
        let target = match (&self.path, head.query()) {
            (None, _) => head.target(),
            (Some(path), None) => PathAndQuery::try_from(path.as_str()).ok(),
            (Some(path), Some(query)) => PathAndQuery::try_from(format!("{path}?{query}")).ok(),
        };
        Some(target.unwrap_or_else(|| PathAndQuery::from_static("/")))
    }

    /// Until then the response must be complete, however many attempts there are; without retries
    /// the limit of an attempt is one of the whole. The clock is read only for rules that limit
    /// something, and for gRPC calls that do.
    pub(crate) fn deadline(&self, call: Option<Call>) -> Option<Instant> {
        let timeouts = self.timeouts();
        let begun = || self.begun.unwrap_or_else(Instant::now);
        let attempt = if self.retry().is_none() { timeouts.backend_request.duration() } else { None };
        let whole = timeouts.request.duration().into_iter().chain(call.and_then(|call| call.timeout)).min();
        let whole = whole.map(|limit| begun() + limit);
        whole.into_iter().chain(attempt.map(|limit| Instant::now() + limit)).min()
    }

    /// The time that the rule gives the backend, whatever the call says.
    pub(crate) fn answer_time(&self) -> Option<AnswerTime> {
        Some(AnswerTime { until: self.deadline(None)?, limit: self.limit()? })
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.defaults.map_or(self.rule.timeouts, |defaults| self.rule.timeouts.over(defaults.timeouts))
    }

    /// The retries of the rule, or else the default ones, which also say what it leaves open.
    pub(crate) fn retry(&self) -> Option<(&'s Retry, Option<&'s Retry>)> {
        let default = self.defaults.and_then(|defaults| defaults.retry.as_ref());
        match &self.rule.retry {
            Some(own) => Some((own, default)),
            None => Some((default?, None)),
        }
    }

    /// The time of an attempt.
    fn limit(&self) -> Option<Duration> {
        let Timeouts { request, backend_request } = self.timeouts();
        [request, backend_request].into_iter().filter_map(TimeLimit::duration).min()
    }

    /// The way that the request goes, as far as it is decided.
    pub(crate) fn destination(&self) -> Destination<'s> {
        Destination { rule: Some(&self.rule.id), backend: Some(self.name), endpoint: None }
    }

    /// Has the backend told what services of the listener say of the client, before those of
    /// policies have their say.
    pub(crate) fn say(&mut self, said: Vec<Change>) {
        if said.is_empty() {
            return;
        }
        match self.checks.as_deref_mut() {
            None => self.checks = Some(Box::new(PolicyChecks::Passed(said))),
            Some(PolicyChecks::Passed(changes)) => drop(changes.splice(..0, said)),
            // The request goes nowhere.
            Some(PolicyChecks::Pending) => {}
        }
    }

    /// True if the checks of policies are passed, and no auth service of the rule is left to be
    /// asked.
    pub(crate) fn is_authorized(&self) -> bool {
        if matches!(self.checks.as_deref(), Some(PolicyChecks::Pending)) {
            return false;
        }
        let asked = self.filters().filter(|filter| matches!(filter, Filter::ExternalAuth(_)));
        self.granted.len() == asked.count()
    }

    /// True if nothing happens to the request besides what is done to its head, and nothing to the
    /// response besides what is done to its own.
    pub(crate) fn is_plain(&self) -> bool {
        self.checks.is_none()
            && self.session.is_none()
            && self.retry().is_none()
            && self.timeouts() == Timeouts::default()
            && !self.filters().any(|filter| matches!(filter, Filter::ExternalAuth(_) | Filter::Mirror(_)))
    }

    fn filters(&self) -> impl Iterator<Item = &Filter> {
        self.rule.filters.iter().chain(&self.backend.filters)
    }

    /// Makes the fields of the request those that the backend gets. `upgrade` is the protocol that
    /// the client asks to switch to, and may.
    pub(crate) fn edit_request(
        &self,
        fields: &mut impl FieldsMut,
        client: &Client,
        passage: Passage<'_>,
        upgrade: Option<&HeaderValue>,
    ) {
        let signature = passage.edit_request(fields, self.fields, client, &self.authority, upgrade);
        match &self.host {
            HostToSend::Unchanged => {}
            HostToSend::Authority => fields.insert(header::HOST, self.authority.clone()),
            HostToSend::Rewritten(host) => fields.insert(header::HOST, host.clone()),
        }
        if let Some(PolicyChecks::Passed(changes)) = self.checks.as_deref() {
            changes.iter().for_each(|change| change.apply(fields));
        }
        let mut granted = self.granted.iter();
        let mut filled = FilledTemplates::request_edits(self.filled.as_deref());
        for filter in self.filters() {
            match filter {
                Filter::RequestHeaders(edit) => headers::edit_request(fields, edit),
                Filter::RequestTemplates(_) => {
                    filled.next().into_iter().for_each(|edit| headers::edit_request(fields, edit));
                }
                Filter::ExternalAuth(_) => {
                    granted.next().into_iter().flatten().for_each(|change| change.apply(fields));
                }
                Filter::ResponseHeaders(_)
                | Filter::ResponseTemplates(_)
                | Filter::Rewrite(_)
                | Filter::Substitution(_)
                | Filter::Cors(_)
                | Filter::Mirror(_) => {}
            }
        }
        if let Some(timeout) = passage.call.and_then(|call| call.shortened(self.limit())) {
            fields.insert(grpc::TIMEOUT, timeout);
        }
        // Not for filters to change: a loop would go unnoticed.
        loops::sign(fields, signature);
    }

    /// The names that its trailers must not have, because filters decide about them.
    pub(crate) fn edited_names(&self) -> Vec<HeaderName> {
        let mut names = Vec::new();
        for filter in self.filters() {
            match filter {
                Filter::RequestHeaders(edit) => names.extend(headers::edited(edit)),
                Filter::RequestTemplates(templates) => {
                    names.extend(templates.names().map(headers::copy_name));
                }
                Filter::ResponseHeaders(_)
                | Filter::ResponseTemplates(_)
                | Filter::Rewrite(_)
                | Filter::Substitution(_)
                | Filter::Mirror(_)
                | Filter::Cors(_)
                | Filter::ExternalAuth(_) => {}
            }
        }
        names
    }

    /// The backends that get a copy of this request.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = &BackendName> {
        self.filters().filter_map(|filter| match filter {
            Filter::Mirror(mirror) if mirror.share.takes(fastrand::u32(..)) => Some(&mirror.backend),
            _ => None,
        })
    }

    /// Makes the fields of the response, among which are `known` ones, those that the client gets.
    /// `upgrade` is the protocol that the backend switches to.
    pub(crate) fn edit_response(
        &self,
        fields: &mut impl FieldsMut,
        known: KnownFields,
        upgrade: Option<&HeaderValue>,
    ) {
        headers::remove_hop_by_hop(fields, known);
        if let Some(protocol) = upgrade {
            headers::announce_upgrade(fields, protocol);
        }
        let mut filled = FilledTemplates::response_edits(self.filled.as_deref());
        for filter in self.filters() {
            match filter {
                Filter::Cors(_) => self.cross_origin.iter().for_each(|it| it.edit(fields)),
                other => templates::edit_response(fields, other, &mut filled),
            }
        }
    }

    /// Logs why the request got no response.
    pub(crate) fn failed(&self, reason: Reason, problem: &dyn std::fmt::Display) -> Reason {
        tracing::debug!(rule = %self.rule.id, backend = %self.name, %problem, reason = reason.name(), "no response");
        reason
    }
}
