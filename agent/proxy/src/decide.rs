//! From a request head to what is done with it: which listener, which rule, which backend. Nothing here waits.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use http::request::Parts;
use portcullis_model::{
    Action, BackendTarget, Failure, Filter, Listener, ListenerGroup, PathRewrite, Redirect, RequestHead,
    Rewrite, Rule, Selected, WeightedBackend,
};

use crate::connection::Client;
use crate::core::Core;
use crate::edge::{self, Rejection, Target};
use crate::worker::Worker;

pub(crate) enum Decision {
    Forward(Forward),
    Redirect { status: StatusCode, location: String },
    Answer(StatusCode),
    Reject(Rejection),
}

/// A request on its way to a backend.
pub(crate) struct Forward {
    pub rule: Arc<Rule>,
    /// Index among the rule's backends.
    pub backend: usize,
    /// The host that the client asked for, with port.
    pub authority: Box<str>,
    /// The path to send, if it is not the one that came.
    pub path: Option<Box<str>>,
    /// The host to send, if a filter changes it.
    pub host: Option<Box<str>>,
}

/// Decides, and says whose listener the request was for.
pub(crate) fn decide(core: &Core, client: &Client, parts: &Parts) -> (Decision, Option<Rc<Worker>>) {
    let target = match edge::admit(parts, &core.settings.limits) {
        Ok(target) => target,
        Err(rejection) => return (Decision::Reject(rejection), None),
    };
    let Some(group) = core.group(client.local) else {
        return (Decision::Answer(StatusCode::NOT_FOUND), None);
    };
    match listener(&group, client, &target.host) {
        Ok(listener) => (route(client, parts, &target, listener), Some(core.workers.get(listener))),
        Err(status) => (Decision::Answer(status), None),
    }
}

/// The listener a request belongs to; with TLS it must also be the one that the connection was opened for.
fn listener<'g>(
    group: &'g ListenerGroup,
    client: &Client,
    host: &str,
) -> Result<&'g Arc<Listener>, StatusCode> {
    let connections = client.tls.as_ref().map(|name| group.listeners.for_sni(name.as_deref()));
    let is_connections = |best: &Arc<Listener>| match connections {
        Some(connections) => connections.is_some_and(|its| Arc::ptr_eq(its, best)),
        None => true,
    };
    match group.listeners.for_request(host, is_connections) {
        Selected::Listener(listener) => Ok(listener),
        Selected::Misdirected(_) => Err(StatusCode::MISDIRECTED_REQUEST),
        Selected::Nobody => Err(StatusCode::NOT_FOUND),
    }
}

fn route(client: &Client, parts: &Parts, target: &Target<'_>, listener: &Listener) -> Decision {
    let head = Head { parts, target, query: OnceCell::new() };
    let Some(found) = listener.routes.find(&head) else { return Decision::Answer(StatusCode::NOT_FOUND) };
    match &found.rule.action {
        Action::Redirect(redirect) => redirected(redirect, client, parts, target, found.prefix),
        Action::Fail(failure) => failed(&found.rule.id, failure),
        Action::Forward(split) => {
            let chosen = split.pick(fastrand::u64(..));
            match &chosen.target {
                BackendTarget::Invalid(failure) => failed(&found.rule.id, failure),
                BackendTarget::Known(_) => {
                    let backend =
                        split.backends().iter().position(|it| std::ptr::eq(it, chosen)).unwrap_or(0);
                    Decision::Forward(forward(found.rule, chosen, backend, parts, target, found.prefix))
                }
            }
        }
    }
}

fn failed(rule: &portcullis_model::RuleId, failure: &Failure) -> Decision {
    tracing::debug!(%rule, reason = %failure.reason, status = failure.status, "the rule cannot serve");
    Decision::Answer(StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
}

fn forward(
    rule: &Arc<Rule>,
    chosen: &WeightedBackend,
    backend: usize,
    parts: &Parts,
    target: &Target<'_>,
    prefix: &str,
) -> Forward {
    let mut path = match &target.path {
        Cow::Borrowed(_) => None,
        Cow::Owned(normal) => Some(normal.as_str().into()),
    };
    let mut host = None;
    for rewrite in rewrites(rule, chosen) {
        if let Some(change) = &rewrite.path {
            path = Some(change.apply(&target.path, prefix).into());
        }
        host = rewrite.hostname.clone().or(host);
    }
    Forward { rule: rule.clone(), backend, authority: authority(parts).into(), path, host }
}

fn rewrites<'r>(rule: &'r Rule, backend: &'r WeightedBackend) -> impl Iterator<Item = &'r Rewrite> {
    rule.filters.iter().chain(&backend.filters).filter_map(|filter| match filter {
        Filter::Rewrite(rewrite) => Some(rewrite),
        Filter::RequestHeaders(_) | Filter::ResponseHeaders(_) => None,
    })
}

fn authority(parts: &Parts) -> &str {
    let from_header = || parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    parts.uri.authority().map(http::uri::Authority::as_str).or_else(from_header).unwrap_or_default()
}

// --- redirects ---

fn redirected(
    redirect: &Redirect,
    client: &Client,
    parts: &Parts,
    target: &Target<'_>,
    prefix: &str,
) -> Decision {
    let scheme = redirect.scheme.as_deref().unwrap_or(client.scheme());
    let host = redirect.hostname.as_deref().unwrap_or(&target.host);
    let path: Cow<'_, str> = match &redirect.path {
        Some(change @ (PathRewrite::Full(_) | PathRewrite::Prefix(_))) => change.apply(&target.path, prefix),
        None => Cow::Borrowed(&*target.path),
    };
    let port = redirect_port(redirect, scheme, client).map_or_else(String::new, |port| format!(":{port}"));
    let query = parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let status = StatusCode::from_u16(redirect.status).unwrap_or(StatusCode::FOUND);
    Decision::Redirect { status, location: format!("{scheme}://{host}{port}{path}{query}") }
}

/// "If no port is specified, the redirect port MUST be derived": from an explicit scheme its well-known port, else the
/// listener's. A scheme's well-known port is left out of `Location`.
fn redirect_port(redirect: &Redirect, scheme: &str, client: &Client) -> Option<u16> {
    let well_known = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let implied = if redirect.scheme.is_some() { well_known } else { None };
    let port = redirect.port.or(implied).unwrap_or(client.local.port());
    (Some(port) != well_known).then_some(port)
}

// --- the head as routes see it ---

struct Head<'r> {
    parts: &'r Parts,
    target: &'r Target<'r>,
    query: OnceCell<Vec<(Cow<'r, str>, Cow<'r, str>)>>,
}

impl RequestHead for Head<'_> {
    fn method(&self) -> &str {
        self.parts.method.as_str()
    }

    fn host(&self) -> &str {
        &self.target.host
    }

    fn path(&self) -> &str {
        &self.target.path
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut values = self.parts.headers.get_all(name).iter();
        let first = values.next()?.as_bytes();
        Some(values.fold(Cow::Borrowed(first), |all, value| Cow::Owned([&all, value.as_bytes()].join(&b','))))
    }

    fn query_param(&self, name: &str) -> Option<Cow<'_, str>> {
        let parse =
            || form_urlencoded::parse(self.parts.uri.query().unwrap_or_default().as_bytes()).collect();
        let pairs = self.query.get_or_init(parse);
        pairs.iter().find(|(key, _)| key == name).map(|(_, value)| Cow::Borrowed(&**value))
    }
}
