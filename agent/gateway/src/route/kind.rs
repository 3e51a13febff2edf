//! The part that is the same for every kind of route: metadata, hostnames, parent references. A
//! kind is an implementation of [`RouteKind`], in a file of its own, and a line in [`with_route`];
//! attachment, backends, grants, tables and statuses work on the [`ParsedRoute`] that it becomes.
//! They must not ask for the kind, but where the specification makes a difference.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::{HostPattern, ObjectName, RouteOrigin, RuleId};

use super::{ParsedRoute, ParsedRule};
use crate::api::shared::ParentReference;
use crate::{Fault, GATEWAY_GROUP, Kind, Object, ObjectKey, created, generation};

/// A kind of route as its CRD has it.
pub(crate) trait RouteKind {
    const KIND: Kind;

    /// An element of `spec.rules`.
    type Rule: Clone;

    fn metadata(&self) -> &ObjectMeta;

    /// `spec.hostnames`; none for a kind that has no such field.
    fn hostnames(&self) -> &[String];

    fn parent_refs(&self) -> &[ParentReference];

    /// The rules, with the CRD's default if there are none.
    fn rules(&self) -> Cow<'_, [Self::Rule]>;

    /// `name` of a rule.
    fn rule_name(rule: &Self::Rule) -> Option<&str>;

    fn parse_rule(rule: &Self::Rule, id: Arc<RuleId>) -> ParsedRule;
}

/// Evaluates an expression for the route that an object is, whatever its kind; `None` for an object
/// that is none.
macro_rules! with_route {
    ($object:expr, $route:ident => $value:expr) => {
        match $object {
            Object::HttpRoute(packed) => {
                let $route = packed.unpack();
                Some($value)
            }
            Object::GrpcRoute(packed) => {
                let $route = packed.unpack();
                Some($value)
            }
            _ => None,
        }
    };
}

/// Everything that a route says by itself; `None` for an object that is no route.
pub fn parse(object: &Object) -> Option<ParsedRoute> {
    with_route!(object, route => parsed(&route, object))
}

/// A parentRef as its owner wrote it.
pub(super) fn written_parent_ref(object: &Object, index: usize) -> Option<ParentReference> {
    with_route!(object, route => RouteKind::parent_refs(&route).get(index).cloned())?
}

fn parsed<R: RouteKind>(route: &R, source: &Object) -> ParsedRoute {
    let metadata = route.metadata();
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let name = Arc::new(ObjectName::new(namespace, metadata.name.as_deref().unwrap_or_default()));
    let (hostnames, problems) = hostnames(route.hostnames());
    let id = |index: usize, rule: &R::Rule| RuleId {
        kind: R::KIND.as_str(),
        route: name.clone(),
        index,
        name: R::rule_name(rule).map(Arc::from),
        parent: None,
    };
    let rules = if problems.is_empty() { route.rules() } else { Cow::Borrowed(&[] as &[R::Rule]) };
    let rules = rules.iter().enumerate();
    let parent_refs = route.parent_refs().iter();
    let names_namespace = parent_refs.clone().enumerate().filter(|(_, it)| it.namespace.is_some());
    ParsedRoute {
        key: ObjectKey::new(R::KIND, ObjectName::clone(&name)),
        generation: generation(metadata),
        origin: RouteOrigin { created: created(metadata), name: name.clone() },
        source: source.clone(),
        hostnames,
        names_namespace: names_namespace.map(|(index, _)| index).collect(),
        parent_refs: parent_refs.map(|reference| completed(reference, &name.namespace)).collect(),
        rules: rules.map(|(index, rule)| R::parse_rule(rule, Arc::new(id(index, rule)))).collect(),
        problems,
    }
}

/// A name that is none makes the route unusable: leaving it out could widen "this host" to "any
/// host".
fn hostnames(names: &[String]) -> (Vec<HostPattern>, Vec<Fault>) {
    if names.is_empty() {
        return (vec![HostPattern::Any], Vec::new());
    }
    let mut patterns = Vec::new();
    let mut problems = Vec::new();
    for name in names {
        match HostPattern::parse(name) {
            Ok(pattern) if patterns.contains(&pattern) => {}
            Ok(pattern) => patterns.push(pattern),
            Err(error) => problems.push(Fault::unsupported(error.to_string())),
        }
    }
    if problems.is_empty() { (patterns, problems) } else { (Vec::new(), problems) }
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
                "spec": {"parentRefs": [{"name": "web"}]}});
            let route = parse(&Object::from_json(manifest).unwrap().unwrap());
            let route = route.unwrap_or_else(|| panic!("{kind} is missing in with_route"));
            assert_eq!(route.key.kind, kind);
            assert_eq!(route.parent_refs[0].kind.as_deref(), Some("Gateway"));
        }
    }
}
