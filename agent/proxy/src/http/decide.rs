//! From a request head to what is done with it: which listener, which rule, which backend. Nothing
//! here waits, or depends on the parser that the head comes from.

mod complete;
mod decision;
mod head;
mod matched;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;
use portcullis_model::{
    Action, Authentication, BackendTarget, Cors, ExternalAuth, Failure, Filter, Found, Limits, Listener,
    ListenerFilter, Port, PortListeners, RequestHead, RouteTable, Rule, Scheme, Selected,
};

use crate::core::head::{Head, KnownField, KnownFields};
use crate::core::reason::Reason;
use crate::http::cors::{CrossOrigin, Preflight};
use crate::http::decide::head::RoutedHead;
use crate::http::edge::{self, Target};
use crate::http::loops;
use crate::http::policy::{self, Judge};
use crate::http::rate_limit::RateLimits;
use crate::http::sender::{Believed, Sender};
use crate::http::session::Sessions;
use crate::http::templates::{Connected, FilledTemplates};

pub(crate) use crate::http::decide::decision::{AskedBy, Decision, Given, Guarded, Next, OwnAnswer, Step};
#[cfg(feature = "fuzzing")]
pub(crate) use crate::http::decide::head::RoutedHead as RoutedRequest;
pub(crate) use crate::http::decide::matched::matched;

/// The checks of a request that policies want before its filters run.
#[derive(Default)]
struct Wanted<'s> {
    credentials: Vec<&'s Authentication>,
    services: Vec<&'s ExternalAuth>,
}

/// A request for a listener, without its head.
pub(crate) struct Unrouted<'s> {
    listener: &'s Arc<Listener>,
    routes: &'s RouteTable,
    target: Target<'static>,
    scheme: Scheme,
    port: u16,
    sender: Sender<'static>,
    rates: Rc<RateLimits>,
    sessions: Option<Rc<Sessions>>,
}

/// The connection that a request came on.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'r> {
    pub limits: &'r Limits,
    /// The listener whose server name was asked for; `None` without TLS.
    pub tls: Option<&'r Arc<Listener>>,
    /// Of the Gateway, in requests that it sends on.
    pub pseudonym: &'r HeaderValue,
    /// `None` in tests: rules have no sessions then.
    pub sessions: Option<&'r Rc<Sessions>>,
    pub rates: &'r Rc<RateLimits>,
    /// With the proxies that are believed where policies of the listener do not say.
    pub connected: Connected<'r>,
}

/// The circumstances in which a request is routed.
#[derive(Clone, Copy)]
struct Circumstances<'r> {
    limits: &'r Limits,
    scheme: Scheme,
    port: u16,
    sessions: Option<&'r Rc<Sessions>>,
    judge: Judge<'r>,
    connected: Connected<'r>,
    /// The sender of what is said of the client; `None` if that went, unless it is believed.
    claimant: Option<Connected<'r>>,
}

impl<'r> Arrival<'r> {
    fn at(self, port: u16, host: &'r str, believed: Believed<'r>, sender: Sender<'r>) -> Circumstances<'r> {
        let Self { limits, tls, sessions, rates, connected, .. } = self;
        let judge = Judge { sender, limits: rates, host };
        let connected = Connected { proxies: believed.of_listener, ..connected };
        let scheme = if tls.is_some() { Scheme::Https } else { Scheme::Http };
        let claimant = Some(connected);
        Circumstances { limits, scheme, port, sessions, judge, connected, claimant }
    }
}

impl Wanted<'_> {
    fn is_empty(&self) -> bool {
        self.credentials.is_empty() && self.services.is_empty()
    }
}

/// Decides by the listeners of the port; returns the listener that the request was for, too. That
/// has to `admit` its sender first.
pub(crate) fn decide<'s>(
    arrival: Arrival<'_>,
    port: Option<&'s Port>,
    head: &impl Head,
    admit: impl FnOnce(&'s Arc<Listener>, Sender<'_>) -> Result<(), Reason>,
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
    let believed = Believed::of(listener.admission.listed.as_deref(), arrival.connected.proxies);
    let sender = Sender::Listed { peer: arrival.connected.peer.ip(), believed };
    if let Err(reason) = admit(listener, sender) {
        return (reason.into(), Some(listener));
    }
    if let Some(limits) = &listener.admission.limits
        && let Err(reason) = edge::check_size(head, limits)
    {
        return (reason.into(), Some(listener));
    }
    if target.fields.has(KnownField::CdnLoop) && loops::is_loop(head.fields(), arrival.pseudonym) {
        return (Reason::Loop.into(), Some(listener));
    }
    let circumstances = arrival.at(port.key.number, &target.host, believed, sender);
    if let Some(policy) = &listener.policy
        && let Err(refused) = policy::admit(policy, circumstances.judge, head.fields())
    {
        return (Decision::Own(refused.into()), Some(listener));
    }
    let decision = if listener.filters.is_empty() {
        route(listener, routes, &target, circumstances, head)
    } else {
        filtered(listener, routes, &target, circumstances, head)
    };
    (decision, Some(listener))
}

/// The decision about a request that has passed the listener's filters.
fn route<'s>(
    listener: &'s Listener,
    routes: &'s RouteTable,
    target: &Target<'_>,
    circumstances: Circumstances<'_>,
    head: &impl Head,
) -> Decision<'s> {
    let request = RoutedHead::new(head, head.method(), target).of(circumstances.claimant);
    if let Some(asked) = Preflight::of(head)
        && let Some(decision) = preflight(routes, &request, asked, circumstances)
    {
        return decision;
    }
    let found = routes.find(&request);
    if request.search.is_over() {
        return slow(&request);
    }
    let Some(found) = found else {
        tracing::debug!(
            listener = %listener.id, host = request.host(), path = request.path(), "no rule matches"
        );
        return Reason::NoRoute.into();
    };
    let Circumstances { sessions, judge, .. } = circumstances;
    if let Some(policy) = &found.rule.policy
        && let Err(refused) = policy::admit(policy, judge, head.fields())
    {
        return told(found, head, refused.into());
    }
    let session = sessions.and_then(|sessions| sessions.plan(found.rule, head.fields()));
    let (session, home) = session.unzip();
    let routed = Routed { request: &request, circumstances, listener };
    let decision = match &found.rule.action {
        _ if let Some((backend, name)) = home.flatten() => routed.plan(found, backend, name, session),
        Action::Redirect(redirect) => routed.redirect(found, redirect),
        Action::Respond(response) => routed.respond(found.rule, None, response),
        Action::Fail(failure) => Ok(failed(found.rule, failure, head)),
        Action::Forward(split) => {
            let backend = split.pick(fastrand::u64(..));
            match &backend.target {
                BackendTarget::Invalid(failure) => Ok(failed(found.rule, failure, head)),
                BackendTarget::Respond(response) => routed.respond(found.rule, Some(backend), response),
                BackendTarget::Known(name) => routed.plan(found, backend, name, session),
            }
        }
    };
    decision.unwrap_or_else(|reason| told(found, head, reason.into()))
}

/// The answer if it took too long to find the rule for a request.
fn slow(request: &impl RequestHead) -> Decision<'static> {
    tracing::debug!(
        host = request.host(),
        path = request.path(),
        "regular expressions of the host's routes take too long"
    );
    Reason::SlowExpressions.into()
}

/// The answer of a rule that does not serve the request: "so that the page can read what is wrong".
fn told<'s>(found: Found<'s>, head: &impl Head, own: OwnAnswer<'s>) -> Decision<'s> {
    let cross_origin = cors(found).map(|(_, filter)| Box::new(CrossOrigin::of(filter, head.fields())));
    Decision::Own(OwnAnswer::OfRule { rule: found.rule, own: Box::new(own), cross_origin })
}

fn filtered<'s>(
    listener: &'s Arc<Listener>,
    routes: &'s RouteTable,
    target: &Target<'_>,
    circumstances: Circumstances<'_>,
    head: &impl Head,
) -> Decision<'s> {
    let steps = listener.filters.iter().map(|filter| match filter {
        ListenerFilter::ExternalAuth(auth) => Step::Ask(auth, AskedBy::Filter),
        ListenerFilter::Fail(failure) => Step::Fail(failure),
    });
    let owned = Target {
        host: target.host.clone().into_owned().into(),
        path: target.path.clone().into_owned().into(),
        fields: target.fields,
    };
    let Circumstances { scheme, port, sessions, judge, .. } = circumstances;
    // Filters may change the fields that list it.
    let (sender, rates) = (judge.sender.resolved(head.fields()), judge.limits.clone());
    let sessions = sessions.cloned();
    let unrouted = Unrouted { listener, routes, target: owned, scheme, port, sender, rates, sessions };
    let request = RoutedHead::new(head, head.method(), target);
    request.guarded(steps.collect(), Next::Route(unrouted))
}

impl<'s> Unrouted<'s> {
    /// The known fields among those of the request, which filters may have changed.
    pub(crate) fn fields_mut(&mut self) -> &mut KnownFields {
        &mut self.target.fields
    }

    /// Looks for the route. "Implementations MUST evaluate route matching exactly once after the
    /// last ListenerFilter has run": the listener stays the same.
    pub(crate) fn route(self, limits: &Limits, connected: Connected<'_>, head: &impl Head) -> Decision<'s> {
        let Self { listener, routes, target, scheme, port, sender, rates, sessions } = self;
        let judge = Judge { sender, limits: &rates, host: &target.host };
        let sessions = sessions.as_ref();
        // Filters of the listener have seen to it: what there is of claims now may be theirs.
        let claimant = None;
        let circumstances = Circumstances { limits, scheme, port, sessions, judge, connected, claimant };
        route(listener, routes, &target, circumstances, head)
    }
}

/// The checks that policies want, the filters that change what auth services see, and theirs.
fn steps<'s>(
    Wanted { credentials, services }: Wanted<'s>,
    filters: impl IntoIterator<Item = &'s Filter>,
    filled: Option<&FilledTemplates>,
) -> Vec<Step<'s>> {
    let first = (!credentials.is_empty()).then_some(Step::Authenticate(credentials));
    let services = services.into_iter().map(|auth| Step::Ask(auth, AskedBy::Policy));
    let mut filled = FilledTemplates::request_edits(filled);
    let steps = filters.into_iter().filter_map(|filter| match filter {
        Filter::RequestHeaders(edit) => Some(Step::Edit(Cow::Borrowed(edit))),
        Filter::RequestTemplates(_) => filled.next().map(|edit| Step::Edit(Cow::Owned(edit.clone()))),
        Filter::ExternalAuth(auth) => Some(Step::Ask(auth, AskedBy::Filter)),
        Filter::ResponseHeaders(_)
        | Filter::ResponseTemplates(_)
        | Filter::Rewrite(_)
        | Filter::Substitution(_)
        | Filter::Cors(_)
        | Filter::Mirror(_) => None,
    });
    first.into_iter().chain(services).chain(steps).collect()
}

/// The listener a request belongs to, with its routes; with TLS it must also be the one that the
/// connection was opened for.
fn listener<'p>(
    port: &'p Port,
    opened_for: Option<&Arc<Listener>>,
    host: &str,
) -> Result<(&'p Arc<Listener>, &'p RouteTable), Reason> {
    let listeners = port.listeners.by_name().ok_or(Reason::NoListener)?;
    // The port may be one of HTTPS by now.
    if opened_for.is_none() && !matches!(port.listeners, PortListeners::Http(_)) {
        return Err(Reason::Misdirected);
    }
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
    let cross_origin = cross_origin(&rule.filters, head);
    Decision::Own(OwnAnswer::Failed { rule, status: *status, cross_origin })
}

/// The answer to a preflight request, if a CORS filter gives one: of the rule that takes the
/// request which the page is about to send; or else, where rules tell OPTIONS from other methods,
/// of the one that takes the preflight request itself.
fn preflight<'s>(
    routes: &'s RouteTable,
    request: &RoutedHead<'_, impl Head>,
    asked: Preflight,
    Circumstances { judge, claimant, .. }: Circumstances<'_>,
) -> Option<Decision<'s>> {
    let (head, target) = (request.head, request.target);
    let announced = RoutedHead::new(head, &asked.method, target).of(claimant);
    let found = routes.find(&announced).and_then(cors);
    if announced.search.is_over() {
        return Some(slow(&announced));
    }
    let (rule, filter) = found.or_else(|| cors(routes.find(request)?))?;
    if let Some(policy) = &rule.policy
        && let Err(refused) = policy::admit(policy, judge, head.fields())
    {
        return Some(Decision::Own(OwnAnswer::OfRule {
            rule,
            own: Box::new(refused.into()),
            cross_origin: None,
        }));
    }
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

/// A request for a rule, and where it came.
struct Routed<'r, 's, H> {
    request: &'r RoutedHead<'r, H>,
    circumstances: Circumstances<'r>,
    listener: &'s Listener,
}
