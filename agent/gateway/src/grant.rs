//! ReferenceGrants: may an object of one namespace refer to an object of another? The owner of the
//! referred object says so, in its own namespace. Nothing is inherited: a grant for Gateways is
//! none for ListenerSets, and the other way round (GEP-1713, "ReferenceGrant Semantics").

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use portcullis_api::types::referencegrants::{ReferenceGrant, ReferenceGrantFrom, ReferenceGrantTo};
use portcullis_api::{Kind, Objects};
use portcullis_model::ObjectName;

/// Proof that a reference was checked; only [`Grants`] makes it. Whatever needs the referred object
/// takes this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<T>(T);

/// All ReferenceGrants.
#[derive(Clone, Copy, Debug)]
pub struct Grants<'o> {
    by_name: &'o BTreeMap<ObjectName, Arc<ReferenceGrant>>,
}

impl<'o> Grants<'o> {
    pub fn new(objects: &'o Objects) -> Self {
        Self { by_name: &objects.reference_grants }
    }

    /// True if an object of a kind and namespace may refer to another object. Within a namespace
    /// everything may.
    pub fn permits(
        &self,
        from_kind: Kind,
        from_namespace: &str,
        to_kind: Kind,
        to_namespace: &str,
        to_name: &str,
    ) -> bool {
        from_namespace == to_namespace
            || self.in_namespace(to_namespace).any(|grant| {
                grant.spec.from.iter().any(|from| names_referrer(from, from_kind, from_namespace))
                    && grant.spec.to.iter().any(|to| names_target(to, to_kind, to_name))
            })
    }

    /// The name of the object referred to, if that is permitted.
    pub fn check(
        &self,
        from_kind: Kind,
        from_namespace: &str,
        to_kind: Kind,
        to: ObjectName,
    ) -> Option<Granted<ObjectName>> {
        self.permits(from_kind, from_namespace, to_kind, &to.namespace, &to.name).then_some(Granted(to))
    }

    fn in_namespace<'n>(&self, namespace: &'n str) -> impl Iterator<Item = &'o ReferenceGrant> + use<'o, 'n> {
        let first = ObjectName::new(namespace, "");
        self.by_name
            .range(first..)
            .take_while(move |(name, _)| *name.namespace == *namespace)
            .map(|(_, grant)| &**grant)
    }
}

impl<T> Deref for Granted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

fn names_referrer(from: &ReferenceGrantFrom, kind: Kind, namespace: &str) -> bool {
    from.group == kind.group() && from.kind == kind.as_str() && from.namespace == namespace
}

/// Without a name, a grant is for all objects of the kind in its namespace.
fn names_target(to: &ReferenceGrantTo, kind: Kind, name: &str) -> bool {
    let any_name = to.name.as_deref().is_none_or(|only| only.is_empty() || only == name);
    to.group == kind.group() && to.kind == kind.as_str() && any_name
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Object};
    use serde_json::json;

    use super::*;

    fn objects(to: serde_json::Value) -> Objects {
        let mut objects = Objects::default();
        let grant = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
            "metadata": {"name": "g", "namespace": "certs"},
            "spec": {"from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra"}],
                "to": [to]}});
        objects.apply(Change::Set(Object::from_json(grant).unwrap().unwrap()));
        objects
    }

    #[test]
    fn a_grant_is_for_its_kinds_namespaces_and_name_only() {
        let objects = objects(json!({"group": "", "kind": "Secret", "name": "web"}));
        let grants = Grants::new(&objects);
        for (from, namespace, to, target, permitted) in [
            (Kind::Gateway, "infra", Kind::Secret, "certs/web", true),
            (Kind::Gateway, "infra", Kind::Secret, "certs/other", false),
            (Kind::Gateway, "infra", Kind::ConfigMap, "certs/web", false),
            (Kind::Gateway, "apps", Kind::Secret, "certs/web", false),
            (Kind::ListenerSet, "infra", Kind::Secret, "certs/web", false),
            (Kind::Gateway, "infra", Kind::Secret, "elsewhere/web", false),
            (Kind::ListenerSet, "certs", Kind::Secret, "certs/web", true),
        ] {
            let (to_namespace, name) = target.split_once('/').unwrap();
            assert_eq!(grants.permits(from, namespace, to, to_namespace, name), permitted, "{from} {target}");
        }
    }

    #[test]
    fn a_grant_without_a_name_is_for_the_whole_namespace() {
        let objects = objects(json!({"group": "", "kind": "Secret"}));
        let web = ObjectName::new("certs", "web");
        let granted = Grants::new(&objects).check(Kind::Gateway, "infra", Kind::Secret, web.clone());
        assert_eq!(granted.as_deref(), Some(&web));
    }
}
