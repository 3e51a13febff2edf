//! From a request head to what is done with it: which listener, which rule, which backend. Nothing
//! here waits, or depends on the parser that the head comes from.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use portcullis_model::{
    Action, BackendName, BackendTarget, Cors, DirectResponse, Failure, Filter, Found, Limits, Listener, Port,
    Redirect, RequestHead, RouteTable, Rule, Scheme, Selected, Substituted, WeightedBackend,
};

use crate::core::head::{Fields, Head, KnownField};
use crate::core::reason::Reason;
use crate::http::cors::{CrossOrigin, Preflight};
use crate::http::edge::{self, Target};
use crate::http::plan::{ForwardPlan, HostToSend};
use crate::http::templates::{Connected, FilledTemplates};
use crate::http::{headers, loops, path};
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
        cross_origin: Option<Box<CrossOrigin<'s>>>,
        filled: Option<Box<FilledTemplates>>,
    },
    Response {
        rule: &'s Rule,
        /// The one that has the filter, if it is not the rule.
        backend: Option<&'s WeightedBackend>,
        response: &'s DirectResponse,
        cross_origin: Option<Box<CrossOrigin<'s>>>,
        filled: Option<Box<FilledTemplates>>,
    },
    /// To the question whether a page may send a request that the rule takes.
    Preflight { rule: &'s Rule, cross_origin: CrossOrigin<'s>, asked: Box<Preflight> },
    /// The rule cannot serve the request.
    Failed { status: StatusCode, cross_origin: Option<Box<CrossOrigin<'s>>> },
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
            Self::Own(
                OwnAnswer::Redirect { rule, .. }
                | OwnAnswer::Response { rule, .. }
                | OwnAnswer::Preflight { rule, .. },
            ) => Destination { rule: Some(&rule.id), ..Destination::default() },
            Self::Own(OwnAnswer::Failed { .. } | OwnAnswer::Reason(..)) => Destination::default(),
        }
    }

    /// The fields by which pages of other origins may read the response, be it a backend's or our
    /// own.
    pub(crate) fn cross_origin(&self) -> Option<&CrossOrigin<'s>> {
        match self {
            Self::Forward(plan) => plan.cross_origin.as_deref(),
            Self::Own(
                OwnAnswer::Redirect { cross_origin, .. }
                | OwnAnswer::Response { cross_origin, .. }
                | OwnAnswer::Failed { cross_origin, .. },
            ) => cross_origin.as_deref(),
            Self::Own(OwnAnswer::Preflight { .. } | OwnAnswer::Reason(..)) => None,
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
    pub connected: Connected<'r>,
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
    let request = RoutedHead { head, method: head.method(), target: &target, query: OnceCell::new() };
    if let Some(asked) = Preflight::of(head)
        && let Some(decision) = preflight(routes, &request, asked)
    {
        return (decision, Some(listener));
    }
    let Some(found) = routes.find(&request) else {
        tracing::debug!(
            listener = %listener.id, host = request.host(), path = request.path(), "no rule matches"
        );
        return (Reason::NoRoute.into(), Some(listener));
    };
    let (rule, asked) = (&**found.rule, Asked { arrival, request: &request, listener });
    let decision = match &rule.action {
        Action::Redirect(redirect) => asked.filled(rule, None).map_or_else(Into::into, |filled| {
            let location = location(redirect, &request, found.prefix, arrival.scheme(), port.key.number);
            let (status, cross_origin) = (redirect.status, cross_origin(&rule.filters, head));
            Decision::Own(OwnAnswer::Redirect { rule, status, location, cross_origin, filled })
        }),
        Action::Respond(response) => asked.respond(rule, None, response),
        Action::Fail(failure) => failed(rule, failure, head),
        Action::Forward(split) => {
            let backend = split.pick(fastrand::u64(..));
            match &backend.target {
                BackendTarget::Invalid(failure) => failed(rule, failure, head),
                BackendTarget::Respond(response) => asked.respond(rule, Some(backend), response),
                BackendTarget::Known(name) => {
                    asked.plan(found, backend, name).map_or_else(Into::into, Decision::Forward)
                }
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

fn failed<'s>(rule: &'s Rule, failure: &Failure, head: &impl Head) -> Decision<'s> {
    let Failure { status, reason } = failure;
    tracing::debug!(rule = %rule.id, %reason, status = status.as_u16(), "the rule cannot serve");
    Decision::Own(OwnAnswer::Failed { status: *status, cross_origin: cross_origin(&rule.filters, head) })
}

/// The answer to a preflight request, if a CORS filter gives one: of the rule that takes the
/// request which the page is about to send; or else, where rules tell OPTIONS from other methods,
/// of the one that takes the preflight request itself.
fn preflight<'s>(
    routes: &'s RouteTable,
    request: &RoutedHead<'_, impl Head>,
    asked: Preflight,
) -> Option<Decision<'s>> {
    let (head, target) = (request.head, request.target);
    let announced = RoutedHead { head, method: &asked.method, target, query: OnceCell::new() };
    let (rule, filter) = routes.find(&announced).and_then(cors).or_else(|| cors(routes.find(request)?))?;
    if let Action::Fail(failure) = &rule.action {
        return Some(failed(rule, failure, head));
    }
    let cross_origin = CrossOrigin::of(filter, head.fields());
    Some(Decision::Own(OwnAnswer::Preflight { rule, cross_origin, asked: asked.into() }))
}

/// A rule with its CORS filter, or that of the backend that its next request goes to.
fn cors(found: Found<'_>) -> Option<(&Rule, &Cors)> {
    let rule = &**found.rule;
    let of_backend = match &rule.action {
        Action::Forward(split) => split.pick(fastrand::u64(..)).filters.as_slice(),
        Action::Redirect(_) | Action::Respond(_) | Action::Fail(_) => &[],
    };
    let filter = rule.filters.iter().chain(of_backend).find_map(Filter::cors)?;
    Some((rule, filter))
}

fn cross_origin<'s>(filters: &'s [Filter], head: &impl Head) -> Option<Box<CrossOrigin<'s>>> {
    let filter = filters.iter().find_map(Filter::cors)?;
    Some(Box::new(CrossOrigin::of(filter, head.fields())))
}

/// A request, and where it came.
struct Asked<'r, H> {
    arrival: Arrival<'r>,
    request: &'r RoutedHead<'r, H>,
    listener: &'r Arc<Listener>,
}

impl<H: Head> Asked<'_, H> {
    fn plan<'s>(
        &self,
        found: Found<'s>,
        backend: &'s WeightedBackend,
        name: &'s BackendName,
    ) -> Result<ForwardPlan<'s>, Reason> {
        let request = self.request;
        let mut path = match &request.target.path {
            Cow::Borrowed(_) => None,
            Cow::Owned(normal) => Some(normal.clone()),
        };
        let (mut host, mut cross_origin) = (None, None);
        let (mut substitutes, mut fills) = (false, false);
        for filter in found.rule.filters.iter().chain(&backend.filters) {
            let rewrite = match filter {
                Filter::Rewrite(rewrite) => rewrite,
                Filter::Cors(filter) => {
                    cross_origin = Some(Box::new(CrossOrigin::of(filter, request.head.fields())));
                    continue;
                }
                Filter::Substitution(_) => {
                    substitutes = true;
                    continue;
                }
                Filter::RequestTemplates(_) | Filter::ResponseTemplates(_) => {
                    fills = true;
                    continue;
                }
                Filter::RequestHeaders(_) | Filter::ResponseHeaders(_) | Filter::Mirror(_) => continue,
            };
            if let Some(change) = &rewrite.path {
                path = Some(change.apply(&request.target.path, found.prefix).into_owned());
            }
            host = rewrite.hostname.as_ref().or(host);
        }
        if substitutes {
            path = self.substituted(found.rule, backend, path)?;
        }
        let filled = if fills { self.filled(found.rule, Some(backend))? } else { None };
        let named = request.head.authority().and_then(|authority| HeaderValue::from_str(authority).ok());
        let field = if named.is_none() { request.head.fields().copy(&header::HOST) } else { None };
        let host = match (host, &field) {
            (Some(rewritten), _) => HostToSend::Rewritten(headers::copy_value(rewritten)),
            (None, Some(_)) => HostToSend::Unchanged,
            (None, None) => HostToSend::Authority,
        };
        let authority = named.or(field).unwrap_or(HeaderValue::from_static(""));
        let (rule, fields) = (&**found.rule, request.target.fields);
        Ok(ForwardPlan { rule, backend, name, authority, path, host, fields, cross_origin, filled })
    }

    /// The path after all substitutions, each of what the one before it left. What they make has to
    /// be a path as those of clients have to be.
    fn substituted(
        &self,
        rule: &Rule,
        backend: &WeightedBackend,
        mut path: Option<String>,
    ) -> Result<Option<String>, Reason> {
        let longest = self.arrival.limits.target_bytes as usize;
        for filter in rule.filters.iter().chain(&backend.filters) {
            let Filter::Substitution(substitution) = filter else { continue };
            let before = path.as_deref().unwrap_or(&self.request.target.path);
            match substitution.apply(before, longest) {
                Substituted::Unchanged => {}
                Substituted::TooLong => return Err(Reason::TargetTooLong),
                Substituted::To(made) => {
                    let normal = path::normalise_made(&made).map_err(|problem| {
                        tracing::debug!(rule = %rule.id, made, problem = problem.name(), "the rewrite makes no path");
                        Reason::MadePath
                    })?;
                    path = Some(normal.into_owned());
                }
            }
        }
        Ok(path)
    }

    /// `None` if there are no templates to be filled in.
    fn filled(
        &self,
        rule: &Rule,
        backend: Option<&WeightedBackend>,
    ) -> Result<Option<Box<FilledTemplates>>, Reason> {
        let filters = rule.filters.iter().chain(backend.into_iter().flat_map(|backend| &backend.filters));
        let is_template =
            |filter: &Filter| matches!(filter, Filter::RequestTemplates(_) | Filter::ResponseTemplates(_));
        if !filters.clone().any(is_template) {
            return Ok(None);
        }
        let Self { arrival, request, listener } = self;
        let connection = (arrival.connected, arrival.scheme());
        let way = (*listener, &*rule.id);
        FilledTemplates::of(filters, (request.head, request.target), connection, way, arrival.limits)
            .map(Some)
    }

    fn respond<'s>(
        &self,
        rule: &'s Rule,
        backend: Option<&'s WeightedBackend>,
        response: &'s DirectResponse,
    ) -> Decision<'s> {
        self.filled(rule, backend).map_or_else(Into::into, |filled| {
            let of_backend = backend.and_then(|backend| cross_origin(&backend.filters, self.request.head));
            let cross_origin = cross_origin(&rule.filters, self.request.head).or(of_backend);
            Decision::Own(OwnAnswer::Response { rule, backend, response, cross_origin, filled })
        })
    }
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
    method: &'r Method,
    target: &'r Target<'r>,
    query: OnceCell<Vec<(Cow<'r, str>, Cow<'r, str>)>>,
}

impl<H: Head> RequestHead for RoutedHead<'_, H> {
    fn method(&self) -> &Method {
        self.method
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
