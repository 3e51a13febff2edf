//! The ephemeral route as objects to apply: HTTPRoutes (GRPCRoutes), and the ReferenceGrants that
//! they need where a child's backends stay in the child's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey};
use serde_json::{Map, Value, json};

use super::{Ephemeral, Family, Names};
use crate::route::{ParsedRoute, print_draft};

/// By the CRD, of a ReferenceGrant.
const TARGETS_OF_A_GRANT: usize = 16;

/// Names the source of every rule, one line each.
pub const SOURCES_ANNOTATION: &str = "portcullis.dev/sources";

// === impl Family ===

impl Family {
    /// Routes that serve the same as the family when they are applied in its place. None for a
    /// parent that no Gateway accepts.
    pub fn objects(&self, names: &mut Names) -> Vec<Value> {
        let parts = self.printed();
        let names = names.parts(&self.parent.key, parts.len());
        parts.iter().zip(names).map(|(part, name)| part.object(&self.parent, &name)).collect()
    }

    /// Within the family a child refers to its own Services; a route of the parent's namespace
    /// needs permission to.
    pub fn grants(&self, names: &mut Names) -> Vec<Value> {
        let own = &self.parent.key.name.namespace;
        let backends =
            self.printed().iter().flat_map(|part| &part.route.rules).flat_map(|rule| &rule.backend_refs);
        // Where the child needs a grant itself, it is not ours to make one up.
        let foreign = backends.filter(|to| to.owner != *own && to.owner == to.namespace);
        let mut services = BTreeMap::<_, BTreeSet<_>>::new();
        for to in foreign.filter(|to| Kind::of(&to.group, &to.kind) == Some(Kind::Service)) {
            services.entry(&to.namespace).or_default().insert(&*to.name);
        }
        let mut grants = Vec::new();
        for (namespace, services) in services {
            let services: Vec<_> = services.into_iter().collect();
            for services in services.chunks(TARGETS_OF_A_GRANT) {
                let name = names.grant(&self.parent.key, namespace);
                grants.push(grant(&self.parent.key, &name, namespace, services));
            }
        }
        grants
    }

    fn printed(&self) -> &[Arc<Ephemeral>] {
        if self.parent.refusal().is_none() { &self.ephemeral } else { &[] }
    }
}

fn grant(parent: &ObjectKey, name: &str, namespace: &str, services: &[&str]) -> Value {
    let from =
        json!({"group": GATEWAY_GROUP, "kind": parent.kind.as_str(), "namespace": &*parent.name.namespace});
    let to: Vec<_> = services
        .iter()
        .map(|name| json!({"group": Kind::Service.group(), "kind": Kind::Service.as_str(), "name": name}))
        .collect();
    json!({
        "apiVersion": Kind::ReferenceGrant.api_version(),
        "kind": Kind::ReferenceGrant.as_str(),
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"from": [from], "to": to},
    })
}

// === impl Ephemeral ===

impl Ephemeral {
    fn object(&self, parent: &ParsedRoute, name: &str) -> Value {
        let key = &self.route.key;
        json!({
            "apiVersion": key.kind.api_version(),
            "kind": key.kind.as_str(),
            "metadata": self.metadata(parent, name),
            "spec": self.spec(parent),
        })
    }

    fn metadata(&self, parent: &ParsedRoute, name: &str) -> Value {
        let mut metadata = json!({
            "name": name,
            "namespace": &*parent.key.name.namespace,
            "annotations": {SOURCES_ANNOTATION: self.sources()},
        });
        // Age decides between routes with equal matches.
        if let (Some(created), Some(fields)) =
            (parent.source.metadata().creation_timestamp.clone(), metadata.as_object_mut())
        {
            fields.insert("creationTimestamp".to_owned(), json!(created));
        }
        metadata
    }

    fn sources(&self) -> String {
        let mut lines = String::new();
        for (at, item) in self.items.iter().enumerate() {
            let further: String = item.further.iter().map(|id| format!(" + {id}")).collect();
            lines += &format!("rules[{at}]: {}{further}\n", item.rule.id);
        }
        lines
    }

    fn spec(&self, parent: &ParsedRoute) -> Value {
        let mut spec = Map::new();
        let parent_refs = self.route.parent_refs.iter();
        let written = parent.parent_refs.iter().enumerate();
        let written: Vec<_> = written
            .filter(|(_, reference)| parent_refs.clone().any(|kept| kept == *reference))
            .filter_map(|(index, _)| parent.written_parent_ref(index))
            .collect();
        spec.insert("parentRefs".to_owned(), json!(written));
        let hostnames: Vec<_> =
            self.route.hostnames.iter().map(ToString::to_string).filter(|name| name != "*").collect();
        if !hostnames.is_empty() {
            spec.insert("hostnames".to_owned(), json!(hostnames));
        }
        let kind = self.route.key.kind;
        let rules = self.items.iter().map(|item| print_draft(kind, &item.draft)).collect();
        spec.insert("rules".to_owned(), rules);
        Value::Object(spec)
    }
}
