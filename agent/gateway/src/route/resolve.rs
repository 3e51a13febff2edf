//! From a parsed route to runnable rules: references are looked up, and what cannot be served gets
//! an answer that says why.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_api::types::shared::SessionPersistence as WrittenSessions;
use portcullis_model::{
    Action, BackendName, BackendTarget, Defaults, DirectResponse, Failure, Filter, KeptSessions, L4Action,
    L4Backend, L4Rule, L4Target, ListenerFilter, Mirror, ObjectName, RouteMatch, Rule, RuleId,
    SessionPersistence, SessionTerms, Split, TrafficPolicy, WeightedBackend,
};

use super::extension::Extension;
use super::external::{in_own_namespace, not_for};
use super::external_auth::ParsedAuth;
use super::filter::{ExtensionRef, FilterReference, ParsedMirror, RuleFilters};
use super::reference::{Delegation, ParsedBackendRef};
use super::service_reference::Referred;
use super::services::{self, Services, Target};
use super::{
    BackendUse, ExternalTerms, ExternalUse, ParsedRoute, ParsedRule, is_about_streams, kind, session,
};
use crate::{Fault, Reason};

/// The objects that references of rules are looked up in.
pub trait Resolver {
    fn services(&self) -> &impl Services;
    /// The policy of a rule, with those of the `joined` ones that have become one with it.
    fn traffic_policy(&self, id: &RuleId, joined: &[Arc<RuleId>]) -> Option<Arc<TrafficPolicy>>;
    /// The sessions that a Service has by a policy of its own.
    fn sessions(&self, service: &ObjectName) -> Option<&WrittenSessions>;
    /// The RouteFilter, or the fault that its status reports; `None` if there is none of the name.
    fn route_filter(&self, name: &ObjectName) -> Option<&Result<Extension, Fault>>;
    /// The XBackend of that name; the fault if it may not be used.
    fn external(&self, name: &ObjectName) -> Option<Result<ExternalTerms, &Fault>>;
}

/// Of a rule, and of each of its backends: every one looks at the whole path of each request.
const MOST_SUBSTITUTIONS: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct ResolvedRoute {
    pub rules: Vec<ResolvedRule>,
    /// The fault that `ResolvedRefs=False` reports.
    pub fault: Option<Fault>,
    /// The same, in addition, where TLS ends before connections are passed on.
    pub decrypted_fault: Option<Fault>,
    /// Services with policies that ask for TLS and are without effect on what is passed on as it
    /// is.
    pub unheeded: BTreeSet<ObjectName>,
    /// The backends that rules forward to.
    pub backends: BTreeSet<BackendUse>,
    /// Every Service referred to, found or not: when one of them changes, the route has to be
    /// resolved again.
    pub services: BTreeSet<ObjectName>,
    /// The same of RouteFilters.
    pub route_filters: BTreeSet<ObjectName>,
    pub external_uses: BTreeSet<ExternalUse>,
    /// All XBackends of the route's namespace that are referred to, usable or not.
    pub externals: BTreeSet<ObjectName>,
}

#[derive(Clone, Debug)]
pub enum ResolvedRule {
    Requests {
        /// The alternatives that find it.
        matches: Vec<Arc<RouteMatch>>,
        rule: Arc<Rule>,
    },
    Streams {
        rule: Arc<L4Rule>,
        /// In its place where TLS has ended before: backends that are to get what comes in TLS, and
        /// cannot, get nothing. The same one if there are no such backends.
        decrypted: Arc<L4Rule>,
    },
}

impl ResolvedRule {
    /// True if requests fare the same with both, and as the same alternatives.
    pub(crate) fn serves_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Requests { matches, rule }, Self::Requests { matches: others, rule: other }) => {
                rule == other
                    && matches.len() == others.len()
                    && matches.iter().zip(others).all(|(a, b)| Arc::ptr_eq(a, b))
            }
            (Self::Streams { rule, decrypted }, Self::Streams { rule: other, decrypted: others }) => {
                (rule, decrypted) == (other, others)
            }
            _ => false,
        }
    }
}

pub fn resolve(route: &ParsedRoute, resolver: &(impl Resolver + ?Sized)) -> ResolvedRoute {
    let mut resolution = Resolution {
        kind: route.key.kind,
        resolver,
        faults: Vec::new(),
        decrypted_faults: Vec::new(),
        resolved: ResolvedRoute::default(),
    };
    for rule in &route.rules {
        let resolved = resolution.rule(rule);
        resolution.resolved.rules.push(resolved);
    }
    resolution.resolved.fault = Fault::summary(resolution.faults);
    resolution.resolved.decrypted_fault = Fault::summary(resolution.decrypted_faults);
    resolution.resolved
}

/// The filters of a listener, with what they refer to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResolvedFilters {
    pub(crate) filters: Arc<[ListenerFilter]>,
    /// The fault that `ResolvedRefs=False` reports.
    pub(crate) fault: Option<Fault>,
    pub(crate) backends: BTreeSet<BackendUse>,
    /// As of a route.
    pub(crate) services: BTreeSet<ObjectName>,
}

/// Resolves the filters of a listener of an object of this kind. One that leads nowhere fails all
/// requests.
pub(crate) fn resolve_filters(
    kind: Kind,
    parsed: &[ParsedAuth],
    services: &(impl Services + ?Sized),
) -> ResolvedFilters {
    let mut resolved = ResolvedFilters::default();
    let (mut filters, mut faults) = (Vec::with_capacity(parsed.len()), Vec::new());
    for (at, auth) in parsed.iter().enumerate() {
        resolved.services.extend(auth.service.referred().service());
        filters.push(match auth.resolve(kind, services) {
            Ok((auth, used)) => {
                resolved.backends.insert(used);
                ListenerFilter::ExternalAuth(auth)
            }
            Err(fault) => {
                let failure = Failure { status: kind::failure(kind), reason: fault.message.as_str().into() };
                let reason = match fault.reason {
                    Reason::RefNotPermitted => Reason::RefNotPermitted,
                    _ => Reason::InvalidListenerFilterRef,
                };
                faults.push(fault.because(reason).within(&format!("filters.requests[{at}]: externalAuth")));
                ListenerFilter::Fail(failure)
            }
        });
    }
    ResolvedFilters { filters: filters.into(), fault: Fault::summary(faults), ..resolved }
}

struct Resolution<'r, R: ?Sized> {
    kind: Kind,
    resolver: &'r R,
    faults: Vec<Fault>,
    decrypted_faults: Vec<Fault>,
    resolved: ResolvedRoute,
}

/// The filters of a rule or of a backendRef, with RouteFilters in their places.
#[derive(Default)]
struct Filters {
    list: Vec<Filter>,
    /// The answer, if one of them gives it before anything else does.
    response: Option<Arc<DirectResponse>>,
}

/// A backend that requests are sent to.
enum Used {
    Service(BackendUse),
    External(ExternalUse),
}

impl<R: Resolver + ?Sized> Resolution<'_, R> {
    fn rule(&mut self, rule: &ParsedRule) -> ResolvedRule {
        let unresolved = rule.faults.iter().filter(|fault| !fault.is_unacceptable());
        self.faults.extend(unresolved.map(|fault| fault.clone().within(&rule.label())));
        // Looked up for an invalid rule, too: its broken references are worth reporting.
        if is_about_streams(self.kind) { self.stream_rule(rule) } else { self.request_rule(rule) }
    }

    fn request_rule(&mut self, rule: &ParsedRule) -> ResolvedRule {
        // Children's rules get them; the route that wrote them is told whether they lead anywhere.
        if let Some(Delegation::Listed(children)) = &rule.delegation {
            children.iter().for_each(|child| self.mirrors(rule, &child.mirrors, &mut Vec::new()));
        }
        let filters = self.filters(rule, &rule.filters, None);
        let references = rule.backend_refs.iter().enumerate();
        let backends: Vec<_> = references.map(|(at, reference)| self.weighted(rule, at, reference)).collect();
        let session = rule.session.clone().or_else(|| self.sessions_of_backends(rule, &backends));
        let session = session.filter(|_| rule.faults.is_empty() && filters.is_ok());
        let session = session.map(|mut session| {
            session.drained = backends.iter().filter(|backend| backend.weight == 0).cloned().collect();
            session
        });
        let (filters, action) = match filters {
            Ok(Filters { list, response }) => (list, self.action(rule, response, backends)),
            Err(failure) => (rule.filters.filters.clone(), Action::Fail(failure)),
        };
        // A session would lead past the response.
        let session = session.filter(|_| !matches!(action, Action::Respond(_)));
        let policy = self.resolver.traffic_policy(&rule.id, &rule.joined);
        // What the rule writes is never overridden.
        let (mut timeouts, mut retry) = (rule.timeouts, rule.retry.clone());
        if let Some(defaults) = policy.as_ref().and_then(|policy| policy.defaults.as_deref()) {
            let own = Defaults { timeouts, retry: retry.map(|retry| *retry) };
            let patched = own.over(defaults);
            (timeouts, retry) = (patched.timeouts, patched.retry.map(Box::new));
        }
        let compiled = Rule { id: rule.id.clone(), filters, action, timeouts, retry, session, policy };
        ResolvedRule::Requests { matches: rule.matches.clone(), rule: Arc::new(compiled) }
    }

    fn stream_rule(&mut self, rule: &ParsedRule) -> ResolvedRule {
        let (mut backends, mut decrypted) = (Vec::new(), Vec::new());
        for reference in &rule.backend_refs {
            let (target, instead) = self.l4_targets(rule, reference);
            decrypted.push(L4Backend {
                weight: reference.weight,
                target: instead.unwrap_or_else(|| target.clone()),
            });
            backends.push(L4Backend { weight: reference.weight, target });
        }
        let [resolved, decrypted] = [backends, decrypted].map(|backends| Arc::new(l4_rule(rule, backends)));
        let decrypted = if decrypted == resolved { resolved.clone() } else { decrypted };
        ResolvedRule::Streams { rule: resolved, decrypted }
    }

    /// The target of what is passed on, and another one where TLS has ended before.
    fn l4_targets(
        &mut self,
        rule: &ParsedRule,
        reference: &ParsedBackendRef,
    ) -> (L4Target, Option<L4Target>) {
        let refuse = |fault: &Fault| L4Target::Refuse(fault.message.as_str().into());
        let Target { used, has_policy, tls_fault } = match self.target(reference.referred(), self.kind) {
            Ok(target) => target,
            Err(fault) => {
                let refused = refuse(&fault);
                self.faults.push(fault.within(&rule.label()));
                return (refused, None);
            }
        };
        if has_policy {
            self.resolved.unheeded.insert(used.service.clone());
        }
        let known = L4Target::Known(used.name());
        self.resolved.backends.insert(used);
        let refused = tls_fault.as_ref().map(refuse);
        self.decrypted_faults.extend(tls_fault.map(|fault| fault.within(&rule.label())));
        (known, refused)
    }

    fn action(
        &self,
        rule: &ParsedRule,
        response: Option<Arc<DirectResponse>>,
        backends: Vec<WeightedBackend>,
    ) -> Action {
        if let Some(fault) = rule.faults.first() {
            return Action::Fail(self.failure(&fault.message));
        }
        if let Some(response) = response {
            return Action::Respond(response);
        }
        if let Some(redirect) = &rule.filters.redirect {
            return Action::Redirect(redirect.clone());
        }
        let reason = match &rule.delegation {
            Some(_) => "no child route is bound to the rule",
            None => without_backends(rule),
        };
        Split::new(backends).map_or_else(|| Action::Fail(self.failure(reason)), Action::Forward)
    }

    fn weighted(&mut self, rule: &ParsedRule, at: usize, reference: &ParsedBackendRef) -> WeightedBackend {
        let found = match &reference.fault {
            Some(fault) => Err(fault.as_ref().clone()),
            None => self.request_target(reference.referred(), self.kind),
        };
        let found = found.and_then(|used| self.sole_persistence(rule, used));
        let target = self.usable(rule, found);
        let filters = self.filters(rule, &reference.filters, Some(at));
        let (target, filters) = match (target, filters) {
            (Ok(_), Ok(Filters { list, response: Some(response) })) => {
                (BackendTarget::Respond(response), list)
            }
            (Ok(name), Ok(Filters { list, response: None })) => (BackendTarget::Known(name), list),
            (Err(failure), _) | (_, Err(failure)) => {
                (BackendTarget::Invalid(failure), reference.filters.filters.clone())
            }
        };
        WeightedBackend { weight: reference.weight, target, filters }
    }

    /// The filters of a rule, or of the backend at this place of it.
    ///
    /// # Errors
    /// When one leads nowhere, be it an auth service ("requests that would have been processed by
    /// that filter MUST receive a HTTP error response") or a RouteFilter ("if a reference to a
    /// custom filter type cannot be resolved, the filter MUST NOT be skipped").
    fn filters(
        &mut self,
        rule: &ParsedRule,
        parsed: &RuleFilters,
        backend: Option<usize>,
    ) -> Result<Filters, Failure> {
        let mut completed = Filters { list: Vec::with_capacity(parsed.filters.len()), response: None };
        let mut failure = None;
        let mut written = 0;
        for reference in &parsed.references {
            let at = reference.at();
            completed.list.extend_from_slice(&parsed.filters[written..at]);
            written = at;
            let added = match reference {
                FilterReference::Auth(auth) => {
                    let found = self.request_target(auth.service.referred(), auth.speaks_as());
                    let used = self.usable(rule, found);
                    used.map(|used| completed.list.push(Filter::ExternalAuth(Box::new(auth.resolved(used)))))
                }
                FilterReference::RouteFilter(extension) => {
                    self.resolved.route_filters.insert(extension.name.clone());
                    let found = self.extension(extension).and_then(|found| completed.add(extension, found));
                    found.map_err(|fault| {
                        let failure = self.failure(&fault.message);
                        let fault = fault.within(&format!("filters[{}]", extension.index));
                        let fault = match backend {
                            Some(at) => fault.within(&format!("backendRefs[{at}]")),
                            None => fault,
                        };
                        self.faults.push(fault.within(&rule.label()));
                        failure
                    })
                }
            };
            failure = failure.or(added.err());
        }
        completed.list.extend_from_slice(&parsed.filters[written..]);
        self.mirrors(rule, &parsed.mirrors, &mut completed.list);
        failure.map_or(Ok(completed), Err)
    }

    fn extension(&self, ExtensionRef { name, .. }: &ExtensionRef) -> Result<Extension, Fault> {
        match self.resolver.route_filter(name) {
            Some(Ok(extension)) => Ok(extension.clone()),
            Some(Err(fault)) => Err(Fault::unresolved(
                Reason::Invalid,
                format!("RouteFilter {name} is not accepted: {}", fault.message),
            )),
            None => Err(Fault::unresolved(
                Reason::BackendNotFound,
                format!("RouteFilter {name} does not exist: create it, or remove the filter"),
            )),
        }
    }

    /// A mirror that cannot be referred to "must be dropped from the Gateway" and "not configured",
    /// which is what the status says; requests go on without it.
    fn mirrors(&mut self, rule: &ParsedRule, written: &[ParsedMirror], filters: &mut Vec<Filter>) {
        for mirror in written {
            let reference = ParsedBackendRef::of_mirror(mirror);
            match self.request_target(reference.referred(), self.kind) {
                Ok(used) => {
                    filters.push(Filter::Mirror(Mirror { backend: used.name(), share: mirror.share }));
                    self.resolved.note(used);
                }
                Err(fault) => self.faults.push(fault.within("requestMirror").within(&rule.label())),
            }
        }
    }

    /// The sessions of a rule without any of its own: "only for the backends with it configured",
    /// by the policies of their Services.
    fn sessions_of_backends(
        &self,
        rule: &ParsedRule,
        backends: &[WeightedBackend],
    ) -> Option<Box<SessionPersistence>> {
        let scope = session::scope(&rule.id);
        let mut kept: Vec<(BackendName, SessionTerms)> = Vec::new();
        for (reference, backend) in rule.backend_refs.iter().zip(backends) {
            let BackendTarget::Known(name) = &backend.target else { continue };
            let written = reference.referred().service().and_then(|it| self.resolver.sessions(&it));
            let terms = written.and_then(|written| session::parse(written, &scope).ok());
            kept.extend(
                terms
                    .filter(|_| kept.iter().all(|(known, _)| known != name))
                    .map(|terms| (name.clone(), terms)),
            );
        }
        let kept = (!kept.is_empty()).then_some(KeptSessions::At(kept))?;
        Some(Box::new(SessionPersistence { scope: scope.into(), kept, drained: Vec::new() }))
    }

    /// "In these cases where both Kubernetes service session affinity and Gateway API session
    /// persistence are both enabled, the route MUST be rejected" (GEP-1619).
    fn sole_persistence(&self, rule: &ParsedRule, used: Used) -> Result<Used, Fault> {
        let Used::Service(BackendUse { service: name, .. }) = &used else { return Ok(used) };
        let has_sessions = rule.session.is_some() || self.resolver.sessions(name).is_some();
        let service = self.resolver.services().service(name).filter(|_| has_sessions);
        match service.is_some_and(super::backend::has_affinity) {
            false => Ok(used),
            true => {
                let whose = if rule.session.is_some() { "" } else { " of the XBackendTrafficPolicy" };
                let message = format!(
                    "sessionPersistence{whose} and sessionAffinity of Service {name} exclude each other: remove one of them"
                );
                Err(Fault::unresolved(Reason::UnsupportedValue, message))
            }
        }
    }

    fn usable(&mut self, rule: &ParsedRule, found: Result<Used, Fault>) -> Result<BackendName, Failure> {
        match found {
            Ok(used) => {
                let name = used.name();
                self.resolved.note(used);
                Ok(name)
            }
            Err(fault) => {
                let failure = self.failure(&fault.message);
                self.faults.push(fault.within(&rule.label()));
                Err(failure)
            }
        }
    }

    /// The backend of requests, as routes of `kind` speak to it.
    fn request_target(&mut self, reference: Referred<'_>, kind: Kind) -> Result<Used, Fault> {
        if Kind::of(reference.group, reference.kind) != Some(Kind::XBackend) {
            return self.target(reference, kind).and_then(Target::for_requests).map(Used::Service);
        }
        in_own_namespace(reference)?;
        let name = ObjectName::new(reference.namespace.clone(), reference.name.clone());
        self.resolved.externals.insert(name.clone());
        let terms = self.resolver.external(&name).ok_or_else(|| {
            Fault::unresolved(Reason::BackendNotFound, format!("XBackend {name} does not exist"))
        })?;
        let terms = terms.map_err(|fault| {
            let message = format!("XBackend {name} is not valid ({})", fault.message);
            let is_denied = fault.reason == Reason::NotAllowed;
            Fault::unresolved(if is_denied { Reason::RefNotPermitted } else { Reason::Invalid }, message)
        })?;
        ExternalUse::of(kind, reference, terms).map(Used::External)
    }

    /// The Service, as routes of `kind` speak to it.
    fn target(&mut self, reference: Referred<'_>, kind: Kind) -> Result<Target, Fault> {
        if Kind::of(reference.group, reference.kind) == Some(Kind::XBackend) {
            let name = ObjectName::new(reference.namespace.clone(), reference.name.clone());
            return Err(not_for(kind, &name));
        }
        self.resolved.services.extend(reference.service());
        services::find(self.kind, reference, kind, self.resolver.services())
    }

    fn failure(&self, reason: &str) -> Failure {
        Failure { status: kind::failure(self.kind), reason: reason.into() }
    }
}

// === impl Filters ===

impl Filters {
    fn add(&mut self, reference: &ExtensionRef, extension: Extension) -> Result<(), Fault> {
        match extension {
            Extension::Path(substitution) => {
                let others = self.list.iter().filter(|it| matches!(it, Filter::Substitution(_)));
                if others.count() == MOST_SUBSTITUTIONS {
                    let message = format!(
                        "more than {MOST_SUBSTITUTIONS} RouteFilters of type PathRewrite: write fewer, each of which does \
                         more"
                    );
                    return Err(Fault::unresolved(Reason::LimitExceeded, message));
                }
                self.list.push(Filter::Substitution(substitution));
            }
            Extension::RequestHeaders(templates) => self.list.push(Filter::RequestTemplates(templates)),
            Extension::ResponseHeaders(templates) => self.list.push(Filter::ResponseTemplates(templates)),
            Extension::Response(response) => {
                if self.response.is_none() && !reference.is_behind_redirect {
                    self.response = Some(response);
                }
            }
        }
        Ok(())
    }
}

// === impl ResolvedRoute ===

impl ResolvedRoute {
    fn note(&mut self, used: Used) {
        match used {
            Used::Service(used) => drop(self.backends.insert(used)),
            Used::External(used) => drop(self.external_uses.insert(used)),
        }
    }
}

// === impl Used ===

impl Used {
    fn name(&self) -> BackendName {
        match self {
            Self::Service(used) => used.name(),
            Self::External(used) => used.name(),
        }
    }
}

fn l4_rule(rule: &ParsedRule, backends: Vec<L4Backend>) -> L4Rule {
    let action = match rule.faults.first() {
        Some(fault) => L4Action::Refuse(fault.message.as_str().into()),
        None => Split::new(backends)
            .map_or_else(|| L4Action::Refuse(without_backends(rule).into()), L4Action::Forward),
    };
    L4Rule { id: Some(rule.id.clone()), action }
}

/// The reason why nothing is forwarded by a rule that has no backend with a share.
fn without_backends(rule: &ParsedRule) -> &'static str {
    if rule.backend_refs.is_empty() {
        "the rule has no backendRefs"
    } else {
        "all backendRefs of the rule have weight 0"
    }
}
