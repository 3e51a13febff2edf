//! From a request head to what is done with it: which listener, which rule, which backend. Nothing
//! here waits, or knows which parser the head comes from.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use portcullis_model::{
    Action, BackendName, BackendTarget, Failure, Filter, Found, Limits, Listener, Port, Redirect,
    RequestHead, Rewrite, RouteTable, Rule, RuleId, Scheme, Selected, WeightedBackend,
};

use crate::core::head::{Fields, Head};
use crate::core::reason::Reason;
use crate::http::edge::{self, Target};
use crate::http::headers;
use crate::log::record::Destination;

pub(crate) enum Decision<'s> {
    Forward(ForwardPlan<'s>),
    Redirect {
        rule: &'s Rule,
        status: StatusCode,
        location: String,
    },
    /// An answer of ours; the status is the reason's own but for rules that say theirs.
    Answer(Reason, StatusCode),
}

/// A request on its way to a backend.
pub(crate) struct ForwardPlan<'s> {
    pub rule: &'s Rule,
    pub backend: &'s WeightedBackend,
    pub name: &'s BackendName,
    /// The host that the client asked for, with port.
    pub authority: HeaderValue,
    /// The path to send, if it is not the one that came.
    pub path: Option<String>,
    /// The host to send, if a filter changes it.
    pub host: Option<HeaderValue>,
}

impl<'s> Decision<'s> {
    /// Which way the request goes, as far as it is decided before it is sent on.
    pub(crate) fn destination(&self) -> Destination<'s> {
        match self {
            Self::Forward(plan) => {
                Destination { rule: Some(&plan.rule.id), backend: Some(plan.name), endpoint: None }
            }
            Self::Redirect { rule, .. } => Destination { rule: Some(&rule.id), ..Destination::default() },
            Self::Answer(..) => Destination::default(),
        }
    }
}

/// The connection that a request came on.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'r> {
    pub limits: &'r Limits,
    /// The listener whose server name was asked for; `None` without TLS.
    pub tls: Option<&'r Arc<Listener>>,
}

impl Arrival<'_> {
    fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::Https } else { Scheme::Http }
    }
}

impl From<Reason> for Decision<'_> {
    fn from(reason: Reason) -> Self {
        Self::Answer(reason, reason.status())
    }
}

/// Decides by the listeners of the port, and says whose listener the request was for.
pub(crate) fn decide<'s>(
    arrival: Arrival<'_>,
    port: Option<&'s Port>,
    head: &impl Head,
) -> (Decision<'s>, Option<&'s Arc<Listener>>) {
    let target = match edge::admit(head, arrival.limits) {
        Ok(target) => target,
        Err(reason) => return (reason.into(), None),
    };
    let Some(port) = port else { return (Reason::NoListener.into(), None) };
    match listener(port, arrival.tls, &target.host) {
        Ok((listener, routes)) => {
            let request = AdmittedRequest { arrival, head, target: &target, port: port.key.number };
            (route(&request, listener, routes), Some(listener))
        }
        Err(reason) => (reason.into(), None),
    }
}

/// A request that passed the edge and has a listener.
struct AdmittedRequest<'r, H> {
    arrival: Arrival<'r>,
    head: &'r H,
    target: &'r Target<'r>,
    /// The listener's.
    port: u16,
}

/// The listener a request belongs to, with its routes; with TLS it must also be the one that the
/// connection was opened for.
fn listener<'p>(
    port: &'p Port,
    opened_for: Option<&Arc<Listener>>,
    host: &str,
) -> Result<(&'p Arc<Listener>, &'p RouteTable), Reason> {
    let is_connections = |best: &Arc<Listener>| match opened_for {
        Some(listener) => Arc::ptr_eq(listener, best) || listener.id == best.id,
        None => true,
    };
    let listeners = port.listeners.by_name().ok_or(Reason::NoListener)?;
    match listeners.for_request(host, is_connections) {
        Selected::Listener(listener) => {
            let routes = listener.serves.routes().ok_or(Reason::NoListener)?;
            Ok((listener, routes))
        }
        Selected::Misdirected(_) => Err(Reason::Misdirected),
        Selected::NoListener => Err(Reason::NoListener),
    }
}

fn route<'s>(
    request: &AdmittedRequest<'_, impl Head>,
    listener: &Listener,
    routes: &'s RouteTable,
) -> Decision<'s> {
    let head = RoutedHead { head: request.head, target: request.target, query: OnceCell::new() };
    let Some(found) = routes.find(&head) else {
        tracing::debug!(listener = %listener.id, host = head.host(), path = head.path(), "no rule matches");
        return Reason::NoRoute.into();
    };
    match &found.rule.action {
        Action::Redirect(redirect) => redirected(request, found, redirect),
        Action::Fail(failure) => failed(&found.rule.id, failure),
        Action::Forward(split) => {
            let backend = split.pick(fastrand::u64(..));
            match &backend.target {
                BackendTarget::Invalid(failure) => failed(&found.rule.id, failure),
                BackendTarget::Known(name) => Decision::Forward(forward(request, found, backend, name)),
            }
        }
    }
}

fn failed<'s>(rule: &RuleId, failure: &Failure) -> Decision<'s> {
    tracing::debug!(%rule, reason = %failure.reason, status = failure.status.as_u16(), "the rule cannot serve");
    Decision::Answer(Reason::Rule, failure.status)
}

fn forward<'s>(
    request: &AdmittedRequest<'_, impl Head>,
    found: Found<'s>,
    backend: &'s WeightedBackend,
    name: &'s BackendName,
) -> ForwardPlan<'s> {
    let mut path = match &request.target.path {
        Cow::Borrowed(_) => None,
        Cow::Owned(normal) => Some(normal.clone()),
    };
    let mut host = None;
    for rewrite in rewrites(found.rule, backend) {
        if let Some(change) = &rewrite.path {
            path = Some(change.apply(&request.target.path, found.prefix).into_owned());
        }
        host = rewrite.hostname.as_ref().or(host);
    }
    let host = host.map(headers::copy_value);
    ForwardPlan { rule: found.rule, backend, name, authority: authority(request.head), path, host }
}

fn rewrites<'r>(rule: &'r Rule, backend: &'r WeightedBackend) -> impl Iterator<Item = &'r Rewrite> {
    rule.filters.iter().chain(&backend.filters).filter_map(|filter| match filter {
        Filter::Rewrite(rewrite) => Some(rewrite),
        Filter::RequestHeaders(_) | Filter::ResponseHeaders(_) => None,
    })
}

fn authority(head: &impl Head) -> HeaderValue {
    let from_target = head.authority().and_then(|it| HeaderValue::from_str(it).ok());
    let host = from_target.or_else(|| head.fields().copy(&http::header::HOST));
    host.unwrap_or(HeaderValue::from_static(""))
}

// --- redirects ---

fn redirected<'s>(
    request: &AdmittedRequest<'_, impl Head>,
    found: Found<'s>,
    redirect: &Redirect,
) -> Decision<'s> {
    let path = &request.target.path;
    let scheme = redirect.scheme.unwrap_or(request.arrival.scheme());
    let host = redirect.hostname.as_deref().unwrap_or(&request.target.host);
    let path = redirect.path.as_ref().map_or(Cow::Borrowed(&**path), |it| it.apply(path, found.prefix));
    let port = redirect_port(redirect, scheme, request.port).map_or_else(String::new, |it| format!(":{it}"));
    let query = request.head.query().map_or_else(String::new, |query| format!("?{query}"));
    let location = format!("{scheme}://{host}{port}{path}{query}");
    Decision::Redirect { rule: found.rule, status: redirect.status, location }
}

/// "If no port is specified, the redirect port MUST be derived": from an explicit scheme its well-known port, else the
/// listener's. A scheme's well-known port is left out of `Location`.
fn redirect_port(redirect: &Redirect, scheme: Scheme, port: u16) -> Option<u16> {
    let implied = redirect.scheme.map(Scheme::default_port);
    let port = redirect.port.or(implied).unwrap_or(port);
    (port != scheme.default_port()).then_some(port)
}

// --- the head as routes see it ---

struct RoutedHead<'r, H> {
    head: &'r H,
    target: &'r Target<'r>,
    query: OnceCell<Vec<(Cow<'r, str>, Cow<'r, str>)>>,
}

impl<H: Head> RequestHead for RoutedHead<'_, H> {
    fn method(&self) -> &str {
        self.head.method().as_str()
    }

    fn host(&self) -> &str {
        &self.target.host
    }

    fn path(&self) -> &str {
        &self.target.path
    }

    fn header(&self, name: &HeaderName) -> Option<Cow<'_, [u8]>> {
        let mut values = self.head.fields().get_all(name);
        let first = values.next()?;
        Some(values.fold(Cow::Borrowed(first), |all, value| Cow::Owned([&all, value].join(&b','))))
    }

    fn query_param(&self, name: &str) -> Option<Cow<'_, str>> {
        let parse = || form_urlencoded::parse(self.head.query().unwrap_or_default().as_bytes()).collect();
        let pairs = self.query.get_or_init(parse);
        pairs.iter().find(|(key, _)| key == name).map(|(_, value)| Cow::Borrowed(&**value))
    }
}
