//! From a request head to what is done with it: which listener, which rule, which backend. Nothing
//! here waits, or depends on the parser that the head comes from.

mod complete;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use portcullis_model::{
    Action, Authentication, BackendTarget, Cors, DirectResponse, ExternalAuth, Failure, Filter, Found,
    HeaderEdit, Limits, Listener, ListenerFilter, Port, PortListeners, RequestHead, RouteTable, Rule, Scheme,
    Selected, WeightedBackend,
};

use crate::core::head::{Fields, Head, KnownField, KnownFields};
use crate::core::origin::{self, Claim};
use crate::core::reason::Reason;
use crate::http::cors::{CrossOrigin, Preflight};
use crate::http::edge::{self, Target};
use crate::http::loops;
use crate::http::plan::ForwardPlan;
use crate::http::policy::{self, Judge, Refused};
use crate::http::rate_limit::{Exhausted, RateLimits};
use crate::http::search_time::SearchTime;
use crate::http::sender::{Believed, Sender};
use crate::http::session::Sessions;
use crate::http::templates::{Connected, FilledTemplates};
use crate::log::record::Destination;

pub(crate) enum Decision<'s> {
    Forward(ForwardPlan<'s>),
    Own(OwnAnswer<'s>),
    /// Boxed: few requests are.
    Guarded(Box<Guarded<'s>>),
}

/// A request that has to pass filters before anything becomes of it.
pub(crate) struct Guarded<'s> {
    pub steps: Vec<Step<'s>>,
    pub next: Next<'s>,
    /// Path and host that the client asked for, the path in its normal form.
    pub path: String,
    pub authority: HeaderValue,
    /// The known fields among those of the request.
    pub fields: KnownFields,
}

/// A filter on the way.
pub(crate) enum Step<'s> {
    /// Owned where it was filled in for the request.
    Edit(Cow<'s, HeaderEdit>),
    Ask(&'s ExternalAuth, AskedBy),
    /// Comes first, if it comes.
    Authenticate(Vec<&'s Authentication>),
    Fail(&'s Failure),
}

/// The place of an auth service's changes among those that others make to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// Before all filters.
    Policy,
    /// In the filter's place.
    Filter,
}

/// The checks of a request that policies want before its filters run.
#[derive(Default)]
struct Wanted<'s> {
    credentials: Vec<&'s Authentication>,
    services: Vec<&'s ExternalAuth>,
}

/// The fate of a request that has passed.
pub(crate) enum Next<'s> {
    Forward(ForwardPlan<'s>),
    Own(OwnAnswer<'s>),
    Route(Unrouted<'s>),
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

/// An answer of the gateway's own.
pub(crate) enum OwnAnswer<'s> {
    Redirect {
        rule: &'s Rule,
        status: StatusCode,
        location: String,
        cross_origin: Option<Box<CrossOrigin<'s>>>,
        filled: Option<Box<FilledTemplates>>,
    },
    /// Boxed: few answers are such.
    Response(Box<Given<'s>>),
    /// To the question whether a page may send a request that the rule takes.
    Preflight { rule: &'s Rule, cross_origin: CrossOrigin<'s>, asked: Box<Preflight> },
    /// The rule cannot serve the request.
    Failed { status: StatusCode, cross_origin: Option<Box<CrossOrigin<'s>>> },
    /// The status is the reason's but for rules that have one of their own.
    Reason(Reason, StatusCode),
    /// A rate limit is used up.
    Exhausted(Exhausted),
    /// Says in `WWW-Authenticate` which credentials are wanted.
    Challenge(Reason, HeaderValue),
    /// One of a rule that may be asked by pages of other origins, which are to know what is wrong.
    ToPage { own: Box<OwnAnswer<'s>>, cross_origin: Box<CrossOrigin<'s>> },
}

/// A response that a RouteFilter gives.
pub(crate) struct Given<'s> {
    pub rule: &'s Rule,
    /// The one that has the filter, if it is not the rule.
    pub backend: Option<&'s WeightedBackend>,
    pub response: &'s DirectResponse,
    pub cross_origin: Option<Box<CrossOrigin<'s>>>,
    pub filled: Option<Box<FilledTemplates>>,
}

impl Wanted<'_> {
    fn is_empty(&self) -> bool {
        self.credentials.is_empty() && self.services.is_empty()
    }
}

impl<'s> Decision<'s> {
    /// The way that the request goes, as far as it is decided before it is sent on.
    pub(crate) fn destination(&self) -> Destination<'s> {
        match self {
            Self::Forward(plan) => plan.destination(),
            Self::Own(own) => own.destination(),
            Self::Guarded(guarded) => guarded.next.destination(),
        }
    }

    /// The fields by which pages of other origins may read the response, be it a backend's or our
    /// own.
    pub(crate) fn cross_origin(&self) -> Option<&CrossOrigin<'s>> {
        match self {
            Self::Forward(plan) => plan.cross_origin.as_deref(),
            Self::Own(own) => own.cross_origin(),
            Self::Guarded(guarded) => guarded.next.cross_origin(),
        }
    }

    /// The rule by which it is sent on, or may be.
    pub(crate) fn rule(&self) -> Option<&'s Rule> {
        match self {
            Self::Forward(plan) => Some(plan.rule),
            Self::Own(_) => None,
            Self::Guarded(guarded) => guarded.next.rule(),
        }
    }

    /// The fields of templates, if there are any.
    pub(crate) fn filled(&self) -> Option<&FilledTemplates> {
        match self {
            Self::Forward(plan) => plan.filled.as_deref(),
            Self::Own(own) => own.filled(),
            Self::Guarded(guarded) => guarded.next.filled(),
        }
    }
}

impl<'s> OwnAnswer<'s> {
    fn destination(&self) -> Destination<'s> {
        match self {
            Self::Redirect { rule, .. } | Self::Preflight { rule, .. } => {
                Destination { rule: Some(&rule.id), ..Destination::default() }
            }
            Self::Response(given) => Destination { rule: Some(&given.rule.id), ..Destination::default() },
            Self::ToPage { own, .. } => own.destination(),
            Self::Failed { .. } | Self::Reason(..) | Self::Exhausted(_) | Self::Challenge(..) => {
                Destination::default()
            }
        }
    }

    fn cross_origin(&self) -> Option<&CrossOrigin<'s>> {
        match self {
            Self::Redirect { cross_origin, .. } | Self::Failed { cross_origin, .. } => {
                cross_origin.as_deref()
            }
            Self::Response(given) => given.cross_origin.as_deref(),
            Self::ToPage { cross_origin, .. } => Some(cross_origin),
            Self::Preflight { .. } | Self::Reason(..) | Self::Exhausted(_) | Self::Challenge(..) => None,
        }
    }

    fn filled(&self) -> Option<&FilledTemplates> {
        match self {
            Self::Redirect { filled, .. } => filled.as_deref(),
            Self::Response(given) => given.filled.as_deref(),
            Self::ToPage { own, .. } => own.filled(),
            Self::Preflight { .. }
            | Self::Failed { .. }
            | Self::Reason(..)
            | Self::Exhausted(_)
            | Self::Challenge(..) => None,
        }
    }
}

impl<'s> Next<'s> {
    pub(crate) fn rule(&self) -> Option<&'s Rule> {
        match self {
            Self::Forward(plan) => Some(plan.rule),
            Self::Own(OwnAnswer::Redirect { rule, .. }) => Some(rule),
            Self::Own(OwnAnswer::Response(given)) => Some(given.rule),
            Self::Own(_) | Self::Route(_) => None,
        }
    }

    pub(crate) fn filled(&self) -> Option<&FilledTemplates> {
        match self {
            Self::Forward(plan) => plan.filled.as_deref(),
            Self::Own(own) => own.filled(),
            Self::Route(_) => None,
        }
    }

    fn cross_origin(&self) -> Option<&CrossOrigin<'s>> {
        match self {
            Self::Forward(plan) => plan.cross_origin.as_deref(),
            Self::Own(own) => own.cross_origin(),
            Self::Route(_) => None,
        }
    }

    fn destination(&self) -> Destination<'s> {
        match self {
            Self::Forward(plan) => plan.destination(),
            Self::Own(own) => own.destination(),
            Self::Route(_) => Destination::default(),
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
}

impl<'r> Arrival<'r> {
    fn at(self, port: u16, host: &'r str, believed: Believed<'r>, sender: Sender<'r>) -> Circumstances<'r> {
        let Self { limits, tls, sessions, rates, connected, .. } = self;
        let judge = Judge { sender, limits: rates, host };
        let connected = Connected { proxies: believed.of_listener, ..connected };
        let scheme = if tls.is_some() { Scheme::Https } else { Scheme::Http };
        Circumstances { limits, scheme, port, sessions, judge, connected }
    }
}

impl From<Reason> for OwnAnswer<'_> {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason, reason.status())
    }
}

impl From<Refused> for OwnAnswer<'_> {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::By(reason) => reason.into(),
            Refused::Exhausted(exhausted) => Self::Exhausted(exhausted),
        }
    }
}

impl From<Reason> for Decision<'_> {
    fn from(reason: Reason) -> Self {
        Self::Own(reason.into())
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
    let request = RoutedHead::new(head, head.method(), target);
    if let Some(asked) = Preflight::of(head)
        && let Some(decision) = preflight(routes, &request, asked, circumstances.judge)
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
    let Some((_, filter)) = cors(found) else { return Decision::Own(own) };
    let cross_origin = Box::new(CrossOrigin::of(filter, head.fields()));
    Decision::Own(OwnAnswer::ToPage { own: Box::new(own), cross_origin })
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
        let circumstances = Circumstances { limits, scheme, port, sessions, judge, connected };
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
    Decision::Own(OwnAnswer::Failed { status: *status, cross_origin: cross_origin(&rule.filters, head) })
}

/// The answer to a preflight request, if a CORS filter gives one: of the rule that takes the
/// request which the page is about to send; or else, where rules tell OPTIONS from other methods,
/// of the one that takes the preflight request itself.
fn preflight<'s>(
    routes: &'s RouteTable,
    request: &RoutedHead<'_, impl Head>,
    asked: Preflight,
    judge: Judge<'_>,
) -> Option<Decision<'s>> {
    let (head, target) = (request.head, request.target);
    let announced = RoutedHead::new(head, &asked.method, target);
    let found = routes.find(&announced).and_then(cors);
    if announced.search.is_over() {
        return Some(slow(&announced));
    }
    let (rule, filter) = found.or_else(|| cors(routes.find(request)?))?;
    if let Some(policy) = &rule.policy
        && let Err(refused) = policy::admit(policy, judge, head.fields())
    {
        return Some(Decision::Own(refused.into()));
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

/// The head as routes see it.
struct RoutedHead<'r, H> {
    head: &'r H,
    method: &'r Method,
    target: &'r Target<'r>,
    query: OnceCell<Vec<(Cow<'r, str>, Cow<'r, str>)>>,
    search: SearchTime,
}

impl<'r, H: Head> RoutedHead<'r, H> {
    fn new(head: &'r H, method: &'r Method, target: &'r Target<'r>) -> Self {
        Self { head, method, target, query: OnceCell::new(), search: SearchTime::default() }
    }

    /// The host with port, as the target names it; or else as the field does.
    fn named_and_field(&self) -> (Option<HeaderValue>, Option<HeaderValue>) {
        let named = self.head.authority().and_then(|authority| HeaderValue::from_str(authority).ok());
        let field = if named.is_none() { self.head.fields().copy(&header::HOST) } else { None };
        (named, field)
    }

    fn guarded<'s>(&self, steps: Vec<Step<'s>>, next: Next<'s>) -> Decision<'s> {
        let (named, field) = self.named_and_field();
        let authority = named.or(field).unwrap_or(HeaderValue::from_static(""));
        let (path, fields) = (self.target.path.clone().into_owned(), self.target.fields);
        Decision::Guarded(Box::new(Guarded { steps, next, path, authority, fields }))
    }
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
        // It is the client's word, which backends do not get either.
        if origin::claim(name.as_str()) == Some(Claim::Identity) {
            return None;
        }
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

    fn may_search(&self, bytes: usize) -> bool {
        self.search.permits(bytes)
    }
}
