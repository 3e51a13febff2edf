//! From a request head to what is done with it: which listener, which rule, which backend. Nothing
//! here waits, or depends on the parser that the head comes from.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use portcullis_model::{
    Action, BackendName, BackendTarget, Failure, Filter, Found, Limits, Listener, Port, Redirect,
    RequestHead, RouteTable, Rule, RuleId, Scheme, Selected, WeightedBackend,
};

use crate::core::head::{Fields, Head, KnownField};
use crate::core::reason::Reason;
use crate::http::edge::{self, Target};
use crate::http::plan::{ForwardPlan, HostToSend};
use crate::http::{headers, loops};
use crate::log::record::Destination;

pub(crate) enum Decision<'s> {
    Forward(ForwardPlan<'s>),
    Own(OwnAnswer<'s>),
}

/// An answer of the gateway's own.
pub(crate) enum OwnAnswer<'s> {
    Redirect {
        rule: &'s Rule,
        status: StatusCode,
        location: String,
    },
    /// The status is the reason's but for rules that have one of their own.
    Reason(Reason, StatusCode),
}

impl<'s> Decision<'s> {
    /// The way that the request goes, as far as it is decided before it is sent on.
    pub(crate) fn destination(&self) -> Destination<'s> {
        match self {
            Self::Forward(plan) => {
                Destination { rule: Some(&plan.rule.id), backend: Some(plan.name), endpoint: None }
            }
            Self::Own(OwnAnswer::Redirect { rule, .. }) => {
                Destination { rule: Some(&rule.id), ..Destination::default() }
            }
            Self::Own(OwnAnswer::Reason(..)) => Destination::default(),
        }
    }
}

/// The connection that a request came on.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'r> {
    pub limits: &'r Limits,
    /// The listener whose server name was asked for; `None` without TLS.
    pub tls: Option<&'r Arc<Listener>>,
    /// Of the Gateway, in requests that it sends on.
    pub pseudonym: &'r HeaderValue,
}

impl Arrival<'_> {
    fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::Https } else { Scheme::Http }
    }
}

impl From<Reason> for OwnAnswer<'_> {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason, reason.status())
    }
}

impl From<Reason> for Decision<'_> {
    fn from(reason: Reason) -> Self {
        Self::Own(reason.into())
    }
}

/// Decides by the listeners of the port; returns the listener that the request was for, too.
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
    let (listener, routes) = match listener(port, arrival.tls, &target.host) {
        Ok(found) => found,
        Err(reason) => return (reason.into(), None),
    };
    if target.fields.has(KnownField::CdnLoop) && loops::is_loop(head.fields(), arrival.pseudonym) {
        return (Reason::Loop.into(), Some(listener));
    }
    let request = RoutedHead { head, target: &target, query: OnceCell::new() };
    let Some(found) = routes.find(&request) else {
        tracing::debug!(
            listener = %listener.id, host = request.host(), path = request.path(), "no rule matches"
        );
        return (Reason::NoRoute.into(), Some(listener));
    };
    let decision = match &found.rule.action {
        Action::Redirect(redirect) => Decision::Own(OwnAnswer::Redirect {
            rule: found.rule,
            status: redirect.status,
            location: location(redirect, &request, found.prefix, arrival.scheme(), port.key.number),
        }),
        Action::Fail(failure) => failed(&found.rule.id, failure),
        Action::Forward(split) => {
            let backend = split.pick(fastrand::u64(..));
            match &backend.target {
                BackendTarget::Invalid(failure) => failed(&found.rule.id, failure),
                BackendTarget::Known(name) => Decision::Forward(plan(&request, found, backend, name)),
            }
        }
    };
    (decision, Some(listener))
}

/// The listener a request belongs to, with its routes; with TLS it must also be the one that the
/// connection was opened for.
fn listener<'p>(
    port: &'p Port,
    opened_for: Option<&Arc<Listener>>,
    host: &str,
) -> Result<(&'p Arc<Listener>, &'p RouteTable), Reason> {
    let listeners = port.listeners.by_name().ok_or(Reason::NoListener)?;
    let selected = listeners.for_request(host, |best| {
        opened_for.is_none_or(|listener| Arc::ptr_eq(listener, best) || listener.id == best.id)
    });
    match selected {
        Selected::Listener(listener) => {
            let routes = listener.serves.routes().ok_or(Reason::NoListener)?;
            Ok((listener, routes))
        }
        Selected::Misdirected(_) => Err(Reason::Misdirected),
        Selected::NoListener => Err(Reason::NoListener),
    }
}

fn failed<'s>(rule: &RuleId, failure: &Failure) -> Decision<'s> {
    tracing::debug!(%rule, reason = %failure.reason, status = failure.status.as_u16(), "the rule cannot serve");
    Decision::Own(OwnAnswer::Reason(Reason::Rule, failure.status))
}

fn plan<'s>(
    request: &RoutedHead<'_, impl Head>,
    found: Found<'s>,
    backend: &'s WeightedBackend,
    name: &'s BackendName,
) -> ForwardPlan<'s> {
    let mut path = match &request.target.path {
        Cow::Borrowed(_) => None,
        Cow::Owned(normal) => Some(normal.clone()),
    };
    let mut host = None;
    for filter in found.rule.filters.iter().chain(&backend.filters) {
        let rewrite = match filter {
            Filter::Rewrite(rewrite) => rewrite,
            Filter::RequestHeaders(_) | Filter::ResponseHeaders(_) => continue,
        };
        if let Some(change) = &rewrite.path {
            path = Some(change.apply(&request.target.path, found.prefix).into_owned());
        }
        host = rewrite.hostname.as_ref().or(host);
    }
    let named = request.head.authority().and_then(|authority| HeaderValue::from_str(authority).ok());
    let field = if named.is_none() { request.head.fields().copy(&header::HOST) } else { None };
    let host = match (host, &field) {
        (Some(rewritten), _) => HostToSend::Rewritten(headers::copy_value(rewritten)),
        (None, Some(_)) => HostToSend::Unchanged,
        (None, None) => HostToSend::Authority,
    };
    let authority = named.or(field).unwrap_or(HeaderValue::from_static(""));
    ForwardPlan { rule: found.rule, backend, name, authority, path, host, fields: request.target.fields }
}

/// The `Location` of a redirect.
fn location(
    redirect: &Redirect,
    request: &RoutedHead<'_, impl Head>,
    prefix: &str,
    scheme: Scheme,
    port: u16,
) -> String {
    let scheme = redirect.scheme.unwrap_or(scheme);
    let host = redirect.hostname.as_deref().unwrap_or(&request.target.host);
    let path = &request.target.path;
    let path = redirect.path.as_ref().map_or(Cow::Borrowed(&**path), |change| change.apply(path, prefix));
    // "If no port is specified, the redirect port MUST be derived": from an explicit scheme its
    // well-known port, else the listener's. A scheme's well-known port is left out of `Location`.
    let port = redirect.port.or(redirect.scheme.map(Scheme::default_port)).unwrap_or(port);
    let port = if port == scheme.default_port() { String::new() } else { format!(":{port}") };
    let query = request.head.query().map_or_else(String::new, |query| format!("?{query}"));
    format!("{scheme}://{host}{port}{path}{query}")
}

/// The head as routes see it.
struct RoutedHead<'r, H> {
    head: &'r H,
    target: &'r Target<'r>,
    query: OnceCell<Vec<(Cow<'r, str>, Cow<'r, str>)>>,
}

impl<H: Head> RequestHead for RoutedHead<'_, H> {
    fn method(&self) -> &Method {
        self.head.method()
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
        let pairs = self.query.get_or_init(|| {
            form_urlencoded::parse(self.head.query().unwrap_or_default().as_bytes()).collect()
        });
        pairs.iter().find(|(key, _)| key == name).map(|(_, value)| Cow::Borrowed(&**value))
    }
}
