//! What every route kind has around its rules: metadata, hostnames, parent references.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::{HostPattern, ObjectName, RouteOrigin, RuleId};

use super::{ParsedRoute, ParsedRule, RouteSource};
use crate::api::shared::ParentReference;
use crate::{Fault, GATEWAY_GROUP, Kind, ObjectKey, created, generation};

pub(super) struct Envelope<'r> {
    pub(super) kind: Kind,
    pub(super) metadata: &'r ObjectMeta,
    pub(super) hostnames: &'r [String],
    pub(super) parent_refs: &'r [ParentReference],
}

impl Envelope<'_> {
    /// The route with what `rule` makes of each of `rules`.
    pub(super) fn fill<R>(
        &self,
        source: RouteSource,
        rules: &[R],
        rule: impl Fn(&R, Arc<RuleId>) -> ParsedRule,
        name_of: impl Fn(&R) -> Option<&str>,
    ) -> ParsedRoute {
        let name = Arc::new(self.name());
        let (hostnames, problems) = hostnames(self.hostnames);
        let id = |index: usize, raw: &R| RuleId {
            kind: self.kind.as_str(),
            route: name.clone(),
            index,
            name: name_of(raw).map(Arc::from),
            parent: None,
        };
        let rules = if problems.is_empty() { rules } else { &[] }.iter().enumerate();
        let parent_refs = self.parent_refs.iter();
        ParsedRoute {
            key: ObjectKey::new(self.kind, ObjectName::clone(&name)),
            generation: generation(self.metadata),
            origin: RouteOrigin { created: created(self.metadata), name: name.clone() },
            source,
            hostnames,
            parent_refs: parent_refs.map(|reference| completed(reference, &name.namespace)).collect(),
            names_namespace: self.naming_a_namespace(),
            rules: rules.map(|(index, raw)| rule(raw, Arc::new(id(index, raw)))).collect(),
            problems,
        }
    }

    /// Which parentRefs do.
    fn naming_a_namespace(&self) -> Vec<usize> {
        let all = self.parent_refs.iter().enumerate();
        all.filter(|(_, reference)| reference.namespace.is_some()).map(|(index, _)| index).collect()
    }

    fn name(&self) -> ObjectName {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        ObjectName::new(namespace, self.metadata.name.as_deref().unwrap_or_default())
    }
}

/// A name that is none makes the route unusable: leaving it out could widen "this host" to "any host".
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
