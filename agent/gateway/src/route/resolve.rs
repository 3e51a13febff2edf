//! From a parsed route to runnable rules: references are looked up, and what cannot be served gets
//! an answer that says why.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use portcullis_api::Kind;
use portcullis_model::{
    Action, BackendTarget, Failure, ObjectName, RouteMatch, Rule, Split, WeightedBackend,
};

use super::reference::ParsedBackendRef;
use super::{BackendUse, ParsedRoute, ParsedRule, kind};
use crate::policy::backend_tls::{self, BackendTls};
use crate::{Fault, Reason};

/// The objects that references are looked up in.
pub trait Resolver {
    fn service(&self, name: &ObjectName) -> Option<&Service>;
    /// The Gateway whose agents answer at the Service themselves.
    fn served_gateway(&self, service: &Service) -> Option<ObjectName>;
    /// True if routes of `kind` in `namespace` may refer to the Service: always within a namespace,
    /// else by ReferenceGrant.
    fn permits(&self, kind: Kind, namespace: &str, service: &ObjectName) -> bool;
    /// Tells whether the port of that name has to be spoken to in TLS.
    fn backend_tls<'r>(&'r self, service: &'r ObjectName, port: Option<&str>) -> BackendTls<'r>;
}

#[derive(Clone, Debug, Default)]
pub struct ResolvedRoute {
    pub rules: Vec<ResolvedRule>,
    /// The fault that `ResolvedRefs=False` reports.
    pub fault: Option<Fault>,
    /// The backends that rules forward to.
    pub backends: BTreeSet<BackendUse>,
    /// Every Service referred to, found or not: when one of them changes, the route has to be
    /// resolved again.
    pub services: BTreeSet<ObjectName>,
}

#[derive(Clone, Debug)]
pub struct ResolvedRule {
    pub matches: Vec<Arc<RouteMatch>>,
    pub rule: Arc<Rule>,
}

impl ResolvedRule {
    /// True if requests fare the same with both, and as the same alternatives.
    pub(crate) fn serves_same(&self, other: &Self) -> bool {
        self.rule == other.rule
            && self.matches.len() == other.matches.len()
            && self.matches.iter().zip(&other.matches).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

pub fn resolve(route: &ParsedRoute, resolver: &(impl Resolver + ?Sized)) -> ResolvedRoute {
    let mut resolution =
        Resolution { kind: route.key.kind, resolver, faults: Vec::new(), resolved: ResolvedRoute::default() };
    for rule in &route.rules {
        let resolved = resolution.rule(rule);
        resolution.resolved.rules.push(resolved);
    }
    resolution.resolved.fault = Fault::summary(resolution.faults);
    resolution.resolved
}

struct Resolution<'r, R: ?Sized> {
    kind: Kind,
    resolver: &'r R,
    faults: Vec<Fault>,
    resolved: ResolvedRoute,
}

impl<R: Resolver + ?Sized> Resolution<'_, R> {
    fn rule(&mut self, rule: &ParsedRule) -> ResolvedRule {
        let unresolved = rule.faults.iter().filter(|fault| !fault.is_unacceptable());
        self.faults.extend(unresolved.map(|fault| fault.clone().within(&rule.label())));
        // Looked up for an invalid rule, too: its broken references are worth reporting.
        let backends = rule.backend_refs.iter().map(|reference| self.weighted(rule, reference)).collect();
        let compiled = Rule {
            id: rule.id.clone(),
            filters: rule.filters.filters.clone(),
            action: self.action(rule, backends),
            timeouts: rule.timeouts,
        };
        ResolvedRule { matches: rule.matches.clone(), rule: Arc::new(compiled) }
    }

    fn action(&self, rule: &ParsedRule, backends: Vec<WeightedBackend>) -> Action {
        if let Some(fault) = rule.faults.first() {
            return Action::Fail(self.failure(&fault.message));
        }
        if let Some(redirect) = &rule.filters.redirect {
            return Action::Redirect(redirect.clone());
        }
        let reason = match (&rule.delegation, backends.is_empty()) {
            (Some(_), _) => "no child route is bound to the rule",
            (None, true) => "the rule has no backendRefs",
            (None, false) => "all backendRefs of the rule have weight 0",
        };
        Split::new(backends).map_or_else(|| Action::Fail(self.failure(reason)), Action::Forward)
    }

    fn weighted(&mut self, rule: &ParsedRule, reference: &ParsedBackendRef) -> WeightedBackend {
        let target = match self.target(reference) {
            Ok(used) => {
                let name = used.name();
                self.resolved.backends.insert(used);
                BackendTarget::Known(name)
            }
            Err(fault) => {
                let failure = self.failure(&fault.message);
                self.faults.push(fault.within(&rule.label()));
                BackendTarget::Invalid(failure)
            }
        };
        WeightedBackend { weight: reference.weight, target, filters: reference.filters.filters.clone() }
    }

    fn target(&mut self, reference: &ParsedBackendRef) -> Result<BackendUse, Fault> {
        if let Some(fault) = &reference.fault {
            return Err(fault.as_ref().clone());
        }
        if Kind::of(&reference.group, &reference.kind) != Some(Kind::Service) {
            return Err(unknown_kind(reference));
        }
        let name = ObjectName::new(reference.namespace.clone(), reference.name.clone());
        let port = reference.port.ok_or_else(|| {
            Fault::unresolved(
                Reason::BackendNotFound,
                format!("the backendRef to Service {name} names no port: add one"),
            )
        })?;
        self.resolved.services.insert(name.clone());
        // Permission first: without it, not even whether the Service exists is reported.
        if !self.resolver.permits(self.kind, &reference.owner, &name) {
            return Err(not_permitted(self.kind, &reference.owner, &name));
        }
        let service = self.resolver.service(&name);
        let service = service.ok_or_else(|| {
            Fault::unresolved(Reason::BackendNotFound, format!("Service {name} does not exist"))
        })?;
        if let Some(gateway) = self.resolver.served_gateway(service) {
            return Err(leads_back(&name, &gateway));
        }
        let used = BackendUse::of(self.kind, name, service, port)?;
        match self.resolver.backend_tls(&used.service, used.port_name(service)) {
            BackendTls::NotAsked => Ok(used),
            BackendTls::Asked(by) => Err(backend_tls::unserved(by, &used.service, port, &reference.owner)),
            BackendTls::Unknown => Err(backend_tls::unknown(&used.service, port)),
        }
    }

    fn failure(&self, reason: &str) -> Failure {
        Failure { status: kind::failure(self.kind), reason: reason.into() }
    }
}

fn unknown_kind(reference: &ParsedBackendRef) -> Fault {
    let ParsedBackendRef { group, kind, namespace, name, .. } = reference;
    let message = if &**kind == Kind::Service.as_str() {
        format!(
            "backendRef {namespace}/{name} is of group {group:?}, where there is no Service: leave group out"
        )
    } else {
        format!(
            "backendRef {namespace}/{name} is of kind {kind:?} in group {group:?}; only Service is supported"
        )
    };
    Fault::unresolved(Reason::InvalidKind, message)
}

fn leads_back(service: &ObjectName, gateway: &ObjectName) -> Fault {
    let message = format!(
        "Service {service} is Gateway {gateway}'s own, which the agents serve: requests would come back to them; refer to the \
         Services behind it"
    );
    Fault::unresolved(Reason::RefNotPermitted, message)
}

pub(crate) fn not_permitted(kind: Kind, namespace: &str, to: &ObjectName) -> Fault {
    let message = format!(
        "a ReferenceGrant in namespace {} has to allow {kind}s of namespace {namespace} to refer to Service {}",
        to.namespace, to.name
    );
    Fault::unresolved(Reason::RefNotPermitted, message)
}
