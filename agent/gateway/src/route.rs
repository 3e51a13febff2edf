//! From a route object to compiled rules. Parsing looks at the route alone; resolving looks up what
//! it refers to; tables are made by the translator, which knows the listeners. Every kind becomes
//! the same [`ParsedRoute`], and so does the route that delegation computes (`delegate`), so that
//! attachment, backends and tables exist once. Nothing here knows about parents, listeners or
//! statuses beyond the reasons it reports.

mod backend;
mod draft;
mod extension;
mod external;
pub(crate) mod external_auth;
mod filter;
mod grpc;
mod http;
mod kind;
mod locality;
mod matches;
pub(crate) mod pattern;
mod reference;
mod resolve;
mod service_reference;
mod services;
mod session;
mod stream;
mod table;
mod tcp;
mod tls;
mod udp;

use std::sync::Arc;

use portcullis_api::types::shared::ParentReference;
use portcullis_api::{GATEWAY_GROUP, Kind, Object, ObjectKey};
use portcullis_model::{
    HostPattern, ObjectName, Retry, RouteMatch, RouteOrigin, RuleId, SessionPersistence, Timeouts,
};

use crate::Fault;
use crate::default_scope::DefaultScope;

pub use crate::duration::{DurationError, parse_duration};
pub use backend::{BackendUse, ProtocolSource, backend};
pub use extension::Extension;
pub use external::{ExternalTerms, ExternalUse};
pub use filter::{ExtensionRef, ParsedMirror, RuleFilters};
pub use kind::parse;
pub use reference::{ChildReference, Delegation, ParsedBackendRef};
pub use resolve::{ResolvedRoute, ResolvedRule, Resolver, resolve};
pub use services::Services;
pub use table::table_entries;

pub(crate) use draft::{Draft, DraftMatch, Inherited};
pub(crate) use extension::{CompiledFilter, compile};
pub(crate) use filter::{carried_extension, carried_from};
pub(crate) use kind::{carried_by, drafts, failure, is_about_streams, parse_draft, print_draft};
pub(crate) use pattern::compiling_once;
pub(crate) use resolve::{ResolvedFilters, resolve_filters};
pub(crate) use service_reference::Referred;
pub(crate) use services::{find_for_requests, not_permitted};
pub(crate) use session::check as check_sessions;

/// A route as far as it can be understood without looking at any other object.
#[derive(Clone, Debug)]
pub struct ParsedRoute {
    pub key: ObjectKey,
    pub generation: i64,
    pub origin: RouteOrigin,
    /// The object it was parsed from.
    pub source: Object,
    /// Never "no hostnames means any": a route for any name says [`HostPattern::Any`], an empty
    /// list matches nothing.
    pub hostnames: Vec<HostPattern>,
    /// In the order of `spec.parentRefs`, with group, kind and namespace filled in; behind these,
    /// those to default Gateways (GEP-3793).
    pub parent_refs: Vec<ParentReference>,
    /// The number of parentRefs that the route has itself.
    pub named: usize,
    /// `spec.useDefaultGateways`.
    pub default_scope: DefaultScope,
    /// The indices of the parentRefs that name a namespace themselves.
    pub names_namespace: Vec<usize>,
    pub rules: Vec<ParsedRule>,
    /// Position of the first rule; 0, but for the parts of an ephemeral route, which counts as one
    /// route.
    pub first_rule: usize,
    /// Faults that make the whole route unacceptable; then there are no rules.
    pub faults: Vec<Fault>,
    /// Fields that it is served without.
    pub ignored: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ParsedRule {
    pub id: Arc<RuleId>,
    /// Rules of other child routes that were joined with this one (GEP-1058).
    pub joined: Vec<Arc<RuleId>>,
    /// The alternatives that are valid. Of an invalid rule they own their traffic still, and fail
    /// it. None of a rule for connections or datagrams.
    pub matches: Vec<Arc<RouteMatch>>,
    pub filters: RuleFilters,
    pub backend_refs: Vec<ParsedBackendRef>,
    /// Set if other routes supply this rule's backends (GEP-1058).
    pub delegation: Option<Delegation>,
    pub timeouts: Timeouts,
    pub retry: Option<Box<Retry>>,
    pub session: Option<Box<SessionPersistence>>,
    /// Faults that make the rule invalid; its traffic is answered with an error.
    pub faults: Vec<Fault>,
}

// === impl ParsedRoute ===

impl ParsedRoute {
    /// The fault for which no parent accepts the route: one of the whole, or no rule that is valid.
    pub fn refusal(&self) -> Option<Fault> {
        let whole = Fault::summary(self.faults.iter().cloned());
        let all_invalid = !self.rules.is_empty() && self.rules.iter().all(ParsedRule::is_unacceptable);
        whole.or_else(|| all_invalid.then(|| self.rule_faults())?)
    }

    /// The fault that the `PartiallyInvalid` condition reports; its message has to start with
    /// "Dropped Rule".
    pub fn partly_invalid(&self) -> Option<Fault> {
        if self.refusal().is_some() {
            return None;
        }
        let fault = self.rule_faults()?;
        Some(fault.within("Dropped Rule"))
    }

    /// True if a rule takes child routes.
    pub fn is_parent(&self) -> bool {
        self.rules.iter().any(|rule| rule.delegation.is_some())
    }

    /// The parent references that name a route of the same kind: those that make this a child
    /// route, if its kind has such.
    pub fn parent_routes(&self) -> impl Iterator<Item = (usize, &ParentReference)> {
        let is_child = !is_about_streams(self.key.kind);
        self.parent_refs.iter().enumerate().filter(move |(_, reference)| {
            is_child
                && reference.group.as_deref() == Some(self.key.kind.group())
                && reference.kind.as_deref() == Some(self.key.kind.as_str())
        })
    }

    /// A parentRef as its owner wrote it, for the status entry that answers it.
    pub fn written_parent_ref(&self, index: usize) -> Option<ParentReference> {
        kind::written_parent_ref(&self.source, index)
    }

    /// A parentRef for a status, which has to repeat it as its owner wrote it.
    pub(crate) fn as_written(&self, index: usize) -> Option<ParentReference> {
        let reference = self.parent_refs.get(index)?;
        let namespace = reference.namespace.clone().filter(|_| self.names_namespace.contains(&index));
        Some(ParentReference { namespace, ..reference.clone() })
    }

    /// The index of a parentRef that a status repeats; behind all others, if the route has no such.
    pub(crate) fn position_of(&self, written: &ParentReference) -> usize {
        let count = self.parent_refs.len();
        (0..count).find(|index| self.as_written(*index).as_ref() == Some(written)).unwrap_or(count)
    }

    /// With a reference to each default Gateway, if it asks for them: "all other characteristics of
    /// a defaulted Route MUST behave the same as if all default Gateways were explicitly specified
    /// in parentRefs". One that it names in the same way it has already.
    pub(crate) fn with_default_gateways(&self, gateways: &[ObjectName]) -> Self {
        let mut route = self.clone();
        route.parent_refs.truncate(route.named);
        route.names_namespace.retain(|index| *index < route.named);
        if route.default_scope == DefaultScope::All {
            for gateway in gateways {
                let reference = to_gateway(gateway);
                if !route.parent_refs.contains(&reference) {
                    route.names_namespace.push(route.parent_refs.len());
                    route.parent_refs.push(reference);
                }
            }
        }
        route
    }

    /// True for a parentRef to a default Gateway, which the route does not have itself.
    pub(crate) fn is_by_default(&self, reference: usize) -> bool {
        reference >= self.named
    }

    fn rule_faults(&self) -> Option<Fault> {
        Fault::summary(self.rules.iter().flat_map(|rule| {
            rule.faults
                .iter()
                .filter(|fault| fault.is_unacceptable())
                .map(|fault| fault.clone().within(&rule.label()))
        }))
    }
}

fn to_gateway(gateway: &ObjectName) -> ParentReference {
    ParentReference {
        group: Some(GATEWAY_GROUP.to_owned()),
        kind: Some(Kind::Gateway.as_str().to_owned()),
        namespace: Some(gateway.namespace.to_string()),
        name: gateway.name.to_string(),
        ..ParentReference::default()
    }
}

// === impl ParsedRule ===

impl ParsedRule {
    /// `rule 2 (checkout)`, as messages to the route's owner name it.
    pub fn label(&self) -> String {
        match &self.id.name {
            Some(name) => format!("rule {} ({name})", self.id.index),
            None => format!("rule {}", self.id.index),
        }
    }

    /// Every reference to a backend, those of filters included.
    pub(crate) fn references(&self) -> impl Iterator<Item = Referred<'_>> {
        let of_backends = self.backend_refs.iter().flat_map(|to| to.filters.services());
        let backends = self.backend_refs.iter().map(ParsedBackendRef::referred);
        self.filters.services().chain(backends).chain(of_backends)
    }

    fn is_unacceptable(&self) -> bool {
        self.faults.iter().any(Fault::is_unacceptable)
    }
}
