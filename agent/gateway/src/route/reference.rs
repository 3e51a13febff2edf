//! The references of a rule: backends, and with delegation other routes.

use std::sync::Arc;

use portcullis_api::types::httproutes::HttpBackendReference;
use portcullis_api::types::shared::AllowedRoutes;
use portcullis_api::{GATEWAY_GROUP, Kind};
use portcullis_model::RuleId;

use super::filter::{ParsedMirror, RuleFilters};
use super::service_reference::Referred;
use crate::Fault;

/// A backendRef with its defaults filled in.
#[derive(Clone, Debug)]
pub struct ParsedBackendRef {
    pub group: Box<str>,
    pub kind: Box<str>,
    /// The namespace of the route that wrote it: its permissions count.
    pub owner: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub port: Option<u16>,
    pub weight: u32,
    pub filters: RuleFilters,
    /// A filter that leads nowhere: "requests that would have been processed by that filter MUST
    /// receive a HTTP error response", and those are the backend's share.
    pub fault: Option<Box<Fault>>,
}

/// The routes that may supply a rule's backends.
#[derive(Clone, Debug, PartialEq)]
pub enum Delegation {
    /// `allowedRoutes`: routes that name this one as their parent (GEP-1058).
    Allowed(Box<AllowedRoutes>),
    /// `backendRefs` of the route's own kind: the form that the stock CRDs allow.
    Listed(Vec<ChildReference>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ChildReference {
    pub namespace: Arc<str>,
    /// `None`: `*`, every route of the namespace that agrees.
    pub name: Option<Arc<str>>,
    pub weight: u32,
    /// Of the reference: for what the child brings.
    pub mirrors: Vec<ParsedMirror>,
}

const GREATEST_WEIGHT: u32 = 1_000_000;

// === impl ParsedBackendRef ===

impl ParsedBackendRef {
    /// The backendRefs of a rule.
    pub(super) fn parse_all(
        references: &[HttpBackendReference],
        rule: &RuleId,
        faults: &mut Vec<Fault>,
    ) -> Vec<Self> {
        let mut parsed = Vec::with_capacity(references.len());
        for (at, reference) in references.iter().enumerate() {
            let mut found = Vec::new();
            let backend = Self::parse(reference, rule, &mut found);
            let found = found.into_iter().map(|fault| fault.within(&format!("backendRefs[{at}]")));
            let (unacceptable, unresolved): (Vec<_>, Vec<_>) = found.partition(Fault::is_unacceptable);
            faults.extend(unacceptable);
            parsed.push(Self { fault: Fault::summary(unresolved).map(Box::new), ..backend });
        }
        parsed
    }

    fn parse(reference: &HttpBackendReference, rule: &RuleId, faults: &mut Vec<Fault>) -> Self {
        let namespace = &rule.route.namespace;
        let filters = RuleFilters::parse(reference.filters.as_deref().unwrap_or_default(), rule, faults);
        if filters.redirect.is_some() {
            faults.push(Fault::unsupported(
                "a RequestRedirect filter on a backendRef is not supported: put it on the rule",
            ));
        }
        Self {
            group: reference.group.as_deref().unwrap_or_default().into(),
            kind: reference.kind.as_deref().unwrap_or("Service").into(),
            owner: namespace.clone(),
            namespace: reference.namespace.as_deref().map_or_else(|| namespace.clone(), Arc::from),
            name: reference.name.as_str().into(),
            port: reference.port.and_then(|port| port_number(port, faults)),
            weight: weight(reference.weight, faults),
            filters,
            fault: None,
        }
    }

    pub(crate) fn referred(&self) -> Referred<'_> {
        let Self { group, kind, owner, namespace, name, port, .. } = self;
        Referred { group, kind, owner, namespace, name, port: *port }
    }

    /// The backend of a mirror, which has nothing but its name.
    pub(crate) fn of_mirror(mirror: &ParsedMirror) -> Self {
        let ParsedMirror { owner, to, .. } = mirror;
        Self {
            group: to.group.as_deref().unwrap_or_default().into(),
            kind: to.kind.as_deref().unwrap_or("Service").into(),
            owner: owner.clone(),
            namespace: to.namespace.as_deref().map_or_else(|| owner.clone(), Arc::from),
            name: to.name.as_str().into(),
            port: to.port.and_then(|port| u16::try_from(port).ok()),
            weight: 1,
            filters: RuleFilters::default(),
            fault: None,
        }
    }

    fn is_route(&self, kind: Kind) -> bool {
        &*self.group == GATEWAY_GROUP && &*self.kind == kind.as_str()
    }

    fn as_child(&self) -> ChildReference {
        let name = (&*self.name != "*").then(|| self.name.clone());
        let mirrors = self.filters.mirrors.clone();
        ChildReference { namespace: self.namespace.clone(), name, weight: self.weight, mirrors }
    }
}

fn port_number(port: i32, faults: &mut Vec<Fault>) -> Option<u16> {
    let number = u16::try_from(port).ok().filter(|port| *port > 0);
    if number.is_none() {
        faults.push(Fault::unsupported(format!("port {port} is not between 1 and 65535")));
    }
    number
}

fn weight(weight: Option<i32>, faults: &mut Vec<Fault>) -> u32 {
    let number = u32::try_from(weight.unwrap_or(1)).ok().filter(|weight| *weight <= GREATEST_WEIGHT);
    number.unwrap_or_else(|| {
        faults.push(Fault::unsupported(format!(
            "weight {} is not between 0 and {GREATEST_WEIGHT}",
            weight.unwrap_or_default()
        )));
        0
    })
}

// === impl Delegation ===

impl Delegation {
    /// Takes references to routes out of `backend_refs`: they name children, not backends.
    pub(super) fn take(
        kind: Kind,
        allowed: Option<&AllowedRoutes>,
        backend_refs: &mut Vec<ParsedBackendRef>,
        faults: &mut Vec<Fault>,
    ) -> Option<Self> {
        // In place: most rules name backends only, and there are tens of thousands of rules.
        let children: Vec<_> = backend_refs.extract_if(.., |reference| reference.is_route(kind)).collect();
        // What children bring gets the filters, and fails its part; here the rule's owner is told.
        faults.extend(children.iter().filter_map(|child| child.fault.as_deref().cloned()));
        if allowed.is_some() && !(children.is_empty() && backend_refs.is_empty()) {
            faults.push(Fault::unsupported(
                "a rule has either allowedRoutes or backendRefs, not both (GEP-1058)",
            ));
        }
        if !children.is_empty() && !backend_refs.is_empty() {
            faults.push(Fault::unsupported(format!(
                "backendRefs of kind {kind} and of other kinds cannot be mixed in a rule"
            )));
        }
        match allowed {
            Some(allowed) => Some(Self::Allowed(Box::new(allowed.clone()))),
            None if children.is_empty() => None,
            None => Some(Self::Listed(children.iter().map(ParsedBackendRef::as_child).collect())),
        }
    }
}
