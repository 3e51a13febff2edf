//! The part that is the same for every kind of route: metadata, hostnames, parent references. A
//! kind is a row of the table of kinds and an implementation of [`RouteKind`] in a file of its own;
//! attachment, backends, grants, tables and statuses work on the [`ParsedRoute`] that it becomes.
//! They must not ask for the kind: where the specification makes a difference, it is said there.

use std::borrow::Cow;
use std::sync::Arc;

use http::StatusCode;
use portcullis_api::types::httproutes::HttpRoute;
use portcullis_api::types::shared::ParentReference;
use portcullis_api::{
    GATEWAY_GROUP, Kind, Object, ObjectKey, ObjectType, created, generation, with_route_type,
};
use portcullis_model::{BackendProtocol, HostPattern, L4Protocol, ObjectName, RouteOrigin, RuleId};
use serde::Serialize;
use serde_json::{Value, json};

use super::draft::Draft;
use super::pattern::compiling_once;
use super::{ParsedRoute, ParsedRule};
use crate::Fault;
use crate::default_scope::DefaultScope;
use crate::protocol::Protocol;

/// The traffic that routes of a kind are about.
#[derive(Clone, Copy)]
pub(crate) enum Traffic {
    /// HTTP requests. Delegation is for these kinds: "parent and child routes" are HTTPRoutes, or
    /// GRPCRoutes (GEP-1058).
    Requests {
        /// Answer to requests that a rule takes and no backend can.
        failure: StatusCode,
        /// The protocol to speak to a Service that says nothing about its own.
        backend_protocol: BackendProtocol,
    },
    /// Connections, or datagrams, that are passed on as they are. One route takes all of them under
    /// a name: the oldest.
    Streams(L4Protocol),
}

/// A kind of route as its CRD has it.
pub(crate) trait RouteKind: ObjectType {
    /// An element of `spec.rules`.
    type Rule: Clone + Serialize;

    /// The protocols of the listeners that can carry it.
    const PROTOCOLS: &'static [Protocol];

    const TRAFFIC: Traffic;

    /// `spec.hostnames`; none for a kind that has no such field.
    fn hostnames(&self) -> &[String];

    fn parent_refs(&self) -> &[ParentReference];

    /// The rules, with the CRD's default if there are none.
    fn rules(&self) -> Cow<'_, [Self::Rule]>;

    /// `name` of a rule.
    fn rule_name(rule: &Self::Rule) -> Option<&str>;

    fn parse_rule(rule: &Self::Rule, id: Arc<RuleId>) -> ParsedRule;

    /// The fields of a rule that are read and without effect.
    fn ignored_fields(_: &Self::Rule) -> Vec<&'static str> {
        Vec::new()
    }

    /// `spec.useDefaultGateways`.
    fn default_gateways(&self) -> Option<&str>;

    /// The rule as delegation combines it; `None` for a kind whose routes have no parents and
    /// children.
    fn draft(_: &Self::Rule) -> Option<Draft> {
        None
    }

    /// The rule that a draft is, as objects have it.
    fn written(_: &Draft) -> Option<Self::Rule> {
        None
    }
}

/// Everything that a route says by itself; `None` for an object that is no route.
pub fn parse(object: &Object) -> Option<ParsedRoute> {
    with_route_type!(object.kind(), Route => Route::of(object).map(|route| parsed(&*route, object)))?
}

/// A parentRef as its owner wrote it.
pub(super) fn written_parent_ref(object: &Object, index: usize) -> Option<ParentReference> {
    with_route_type!(object.kind(), Route => Route::of(object)?.parent_refs().get(index).cloned())?
}

/// The kinds of routes that a listener of the protocol can carry; none, if we do not serve it.
pub(crate) fn carried_by(protocol: Protocol) -> Vec<Kind> {
    let protocols = |kind: Kind| with_route_type!(kind, Route => Route::PROTOCOLS).unwrap_or_default();
    Kind::routes().filter(|kind| protocols(*kind).contains(&protocol)).collect()
}

/// The traffic that routes of a kind are about; that of HTTPRoutes for a kind that is none.
pub(super) fn traffic(kind: Kind) -> Traffic {
    with_route_type!(kind, Route => Route::TRAFFIC).unwrap_or(HttpRoute::TRAFFIC)
}

/// Answer to requests that a rule of such a route takes and no backend can.
pub(crate) fn failure(kind: Kind) -> StatusCode {
    match traffic(kind) {
        Traffic::Requests { failure, .. } => failure,
        Traffic::Streams(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// True for kinds whose routes pass connections or datagrams on as they are.
pub(crate) fn is_about_streams(kind: Kind) -> bool {
    matches!(traffic(kind), Traffic::Streams(_))
}

// === delegation ===

/// The rules of a route, as drafts; none for a kind that delegation is not for.
pub(crate) fn drafts(object: &Object) -> Vec<Draft> {
    let drafts = with_route_type!(object.kind(), Route => {
        Route::of(object).map(|route| route.rules().iter().filter_map(Route::draft).collect())
    });
    drafts.flatten().unwrap_or_default()
}

/// A rule of a route of `kind` that delegation combined; `None` for a kind that it is not for.
pub(crate) fn parse_draft(kind: Kind, draft: &Draft, id: Arc<RuleId>) -> Option<ParsedRule> {
    let parent = id.parent.as_ref().map(|parent| parent.route.namespace.clone());
    let rule =
        with_route_type!(kind, Route => Route::written(draft).map(|rule| Route::parse_rule(&rule, id)))?;
    let mut rule = rule?;
    if let Some(parent) = parent {
        rule.filters.inherit(&draft.filters, draft.inherited.of_rule, &parent);
        for (written, parsed) in draft.backend_refs.iter().zip(&mut rule.backend_refs) {
            let written = written.filters.as_deref().unwrap_or_default();
            parsed.filters.inherit(written, draft.inherited.of_backends, &parent);
        }
    }
    Some(rule)
}

/// The rule as an object of `kind` has it.
pub(crate) fn print_draft(kind: Kind, draft: &Draft) -> Value {
    with_route_type!(kind, Route => json!(Route::written(draft))).unwrap_or_default()
}

fn parsed<R: RouteKind>(route: &R, source: &Object) -> ParsedRoute {
    let metadata = route.metadata();
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let name = Arc::new(ObjectName::new(namespace, metadata.name.as_deref().unwrap_or_default()));
    let (hostnames, faults) = hostnames(route.hostnames());
    let written = if faults.is_empty() { route.rules() } else { Cow::Borrowed(&[] as &[R::Rule]) };
    let mut rules = Vec::with_capacity(written.len());
    let mut ignored = Vec::new();
    compiling_once(|| {
        for (index, rule) in written.iter().enumerate() {
            let fields = R::ignored_fields(rule).into_iter();
            ignored.extend(fields.map(|field| format!("rules[{index}].{field}")));
            let (kind, route) = (R::KIND.as_str(), name.clone());
            let id = RuleId { kind, route, index, name: R::rule_name(rule).map(Arc::from), parent: None };
            rules.push(R::parse_rule(rule, Arc::new(id)));
        }
    });
    let default_scope = DefaultScope::parse(route.default_gateways()).unwrap_or_else(|unknown| {
        ignored.push(format!("useDefaultGateways: {unknown}"));
        DefaultScope::None
    });
    let parent_refs = route.parent_refs().iter();
    let names_namespace = parent_refs.clone().enumerate().filter(|(_, it)| it.namespace.is_some());
    ParsedRoute {
        key: ObjectKey::new(R::KIND, ObjectName::clone(&name)),
        generation: generation(metadata),
        origin: RouteOrigin { created: created(metadata), name: name.clone() },
        source: source.clone(),
        hostnames,
        names_namespace: names_namespace.map(|(index, _)| index).collect(),
        named: parent_refs.len(),
        default_scope,
        parent_refs: parent_refs.map(|reference| completed(reference, &name.namespace)).collect(),
        rules,
        first_rule: 0,
        faults,
        ignored,
    }
}

/// A name that is none makes the route unusable: leaving it out could widen "this host" to "any
/// host".
fn hostnames(names: &[String]) -> (Vec<HostPattern>, Vec<Fault>) {
    if names.is_empty() {
        return (vec![HostPattern::Any], Vec::new());
    }
    let mut patterns = Vec::new();
    let mut faults = Vec::new();
    for name in names {
        match HostPattern::parse(name) {
            Ok(pattern) if patterns.contains(&pattern) => {}
            Ok(pattern) => patterns.push(pattern),
            Err(error) => faults.push(Fault::unsupported(error.to_string())),
        }
    }
    if faults.is_empty() { (patterns, faults) } else { (Vec::new(), faults) }
}

fn completed(reference: &ParentReference, namespace: &str) -> ParentReference {
    let or = |field: &Option<String>, default: &str| Some(field.as_deref().unwrap_or(default).to_owned());
    ParentReference {
        group: or(&reference.group, GATEWAY_GROUP),
        kind: or(&reference.kind, "Gateway"),
        namespace: or(&reference.namespace, namespace),
        ..reference.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_route_in_the_table_of_kinds_is_parsed() {
        for kind in Kind::routes() {
            let manifest = json!({"apiVersion": kind.api_version(), "kind": kind.as_str(),
                "metadata": {"name": "r", "namespace": "shop"},
                "spec": {"parentRefs": [{"name": "web"}], "hostnames": [], "rules": []}});
            let route = parse(&Object::from_json(manifest).unwrap().unwrap());
            let route = route.unwrap_or_else(|| panic!("{kind} has no type"));
            assert_eq!(route.key.kind, kind);
            assert_eq!(route.parent_refs[0].kind.as_deref(), Some("Gateway"));
        }
    }
}
