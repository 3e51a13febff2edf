//! The ephemeral route as objects to apply: HTTPRoutes (GRPCRoutes), and the ReferenceGrants that
//! they need where a child's backends stay in the child's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::assemble::Item;
use super::{Ephemeral, Family};
use crate::GATEWAY_GROUP;
use crate::route::ParsedRoute;
use crate::{Kind, ObjectKey};

/// Names the source of every rule, one line each.
pub const SOURCES_ANNOTATION: &str = "portcullis.dev/sources";

// === impl Family ===

impl Family {
    /// Routes that serve the same as the family when they are applied in its place.
    pub fn objects(&self) -> Vec<Value> {
        self.ephemeral.iter().map(|part| part.object(&self.parent)).collect()
    }

    /// Within the family a child refers to its own Services; a route of the parent's namespace
    /// needs permission to.
    pub fn grants(&self) -> Vec<Value> {
        let own = &self.parent.key.name.namespace;
        let backends =
            self.ephemeral.iter().flat_map(|part| &part.route.rules).flat_map(|rule| &rule.backend_refs);
        // Where the child needs a grant itself, it is not ours to make one up.
        let foreign = backends.filter(|to| to.owner != *own && to.owner == to.namespace);
        let mut services = BTreeMap::<_, BTreeSet<_>>::new();
        for to in foreign.filter(|to| to.group.is_empty() && &*to.kind == "Service") {
            services.entry(&to.namespace).or_default().insert(&*to.name);
        }
        services.into_iter().map(|(namespace, names)| grant(&self.parent.key, namespace, &names)).collect()
    }
}

fn grant(parent: &ObjectKey, namespace: &str, services: &BTreeSet<&str>) -> Value {
    let from =
        json!({"group": GATEWAY_GROUP, "kind": parent.kind.as_str(), "namespace": &*parent.name.namespace});
    let to: Vec<_> =
        services.iter().map(|name| json!({"group": "", "kind": "Service", "name": name})).collect();
    json!({
        "apiVersion": Kind::ReferenceGrant.api_version(),
        "kind": Kind::ReferenceGrant.as_str(),
        "metadata": {"name": format!("{}-{}", parent.name.namespace, parent.name.name), "namespace": namespace},
        "spec": {"from": [from], "to": to},
    })
}

// === impl Ephemeral ===

impl Ephemeral {
    fn object(&self, parent: &ParsedRoute) -> Value {
        let key = &self.route.key;
        json!({
            "apiVersion": key.kind.api_version(),
            "kind": key.kind.as_str(),
            "metadata": self.metadata(parent),
            "spec": self.spec(parent),
        })
    }

    fn metadata(&self, parent: &ParsedRoute) -> Value {
        let (name, sources) = (&self.route.key.name, self.sources());
        let mut metadata = json!({
            "name": &*name.name,
            "namespace": &*name.namespace,
            "annotations": {SOURCES_ANNOTATION: sources},
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
        let line = |(at, item): (usize, &Arc<Item>)| {
            let further: String = item.further.iter().map(|id| format!(" + {id}")).collect();
            format!("rules[{at}]: {}{further}\n", item.rule.id)
        };
        self.items.iter().enumerate().map(line).collect()
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
        let rules: Vec<_> = match self.route.key.kind {
            Kind::GrpcRoute => self.items.iter().map(|item| json!(item.draft.to_grpc())).collect(),
            _ => self.items.iter().map(|item| json!(item.draft.to_http())).collect(),
        };
        spec.insert("rules".to_owned(), Value::Array(rules));
        Value::Object(spec)
    }
}
