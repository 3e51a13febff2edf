//! The key sets that TrafficPolicies have fetched: where they are, and which policies have to be
//! read again when that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_api::types::trafficpolicies::{
    TrafficPolicyJwt, TrafficPolicyJwtProvidersRemoteJwks, TrafficPolicyJwtProvidersRemoteJwksBackendRef,
};
use portcullis_model::{Encryption, ObjectName, RemoteKeySet};

use super::changes::ChangedObjects;
use super::known_services::{ChangedUses, KnownServices};
use super::policies::ChangedPolicies;
use super::relation::Relation;
use crate::policy::credentials;
use crate::policy::remote_key_set::remote_key_set;
use crate::route::{BackendUse, Referred, Services, find_for_requests};

/// Key sets that agents fetch for the policies of a namespace: a set of 64 keys takes most of a
/// megabyte, and what each asks for is its owner's to choose.
pub(super) const MOST_OF_NAMESPACE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct RemoteKeySets {
    /// By policy that has some fetched.
    by_policy: BTreeMap<ObjectName, Fetching>,
    /// Policies by Service, found or not.
    by_service: Relation<ObjectName, ObjectName>,
    /// Of these, those with effect, and those that come next: no request needs the sets of others.
    in_line: BTreeSet<ObjectName>,
    /// Policies with sets beyond those of their namespace.
    beyond: BTreeSet<ObjectName>,
}

/// The policies with effect, compared with those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InLine {
    Same,
    Others,
}

#[derive(Debug, Default, PartialEq)]
struct Fetching {
    services: BTreeSet<ObjectName>,
    used: Vec<BackendUse>,
    sets: BTreeSet<Arc<RemoteKeySet>>,
}

// === impl RemoteKeySets ===

impl RemoteKeySets {
    /// The policies whose sets may be found now, or not any more, or in another way.
    pub(super) fn affected(
        &self,
        changed: &ChangedObjects,
        targeted: &ChangedPolicies,
        services: KnownServices<'_>,
    ) -> BTreeSet<ObjectName> {
        if targeted.all {
            return self.by_policy.keys().cloned().collect();
        }
        let mut affected = BTreeSet::new();
        for service in changed.of(Kind::Service).chain(&targeted.services) {
            affected.extend(self.by_service.of(service).cloned());
        }
        // Their authorities may be others, and are to be read.
        for service in targeted.policies.iter().flat_map(|policy| services.policies.services(policy)) {
            affected.extend(self.by_service.of(&service).cloned());
        }
        for namespace in changed.granting_namespaces() {
            affected.extend(self.by_service.in_namespace(&namespace).cloned());
        }
        affected
    }

    /// Looks up the sets of a policy, in place of those that it had before. `are_others` becomes
    /// true if they are not the same.
    pub(super) fn replace(
        &mut self,
        policy: &ObjectName,
        jwt: Option<&TrafficPolicyJwt>,
        services: KnownServices<'_>,
        (changed, are_others): (&mut ChangedUses, &mut bool),
    ) -> credentials::RemoteKeySets {
        let (mut now, mut found) = (Fetching::default(), credentials::RemoteKeySets::new());
        for provider in jwt.iter().flat_map(|jwt| &jwt.providers) {
            let Some(written) = &provider.remote_jwks else { continue };
            let set = now.look_up(policy, written, services).map_err(|why| format!("remoteJwks: {why}"));
            found.insert(provider.name.as_str().into(), set);
        }
        let before = self.by_policy.remove(policy).unwrap_or_default();
        self.by_service.update(policy, &before.services, &now.services);
        changed.used.extend(now.used.iter().cloned());
        changed.unused.extend(before.used.iter().cloned());
        *are_others |= before.sets != now.sets;
        if now != Fetching::default() {
            self.by_policy.insert(policy.clone(), now);
        }
        found
    }

    /// The policies that have some fetched, if they have effect.
    pub(super) fn policies(&self) -> impl Iterator<Item = &ObjectName> {
        self.by_policy.keys()
    }

    /// Takes note of the policies that have effect, or come next.
    pub(super) fn put_in_line(&mut self, policies: BTreeSet<ObjectName>) -> InLine {
        if self.in_line == policies {
            return InLine::Same;
        }
        self.in_line = policies;
        InLine::Others
    }

    /// All sets that are to be fetched, in order. Returns them with the policies of which it is not
    /// the same as before whether all of theirs are.
    pub(super) fn fetched(&mut self) -> (Arc<[Arc<RemoteKeySet>]>, BTreeSet<ObjectName>) {
        let (mut all, mut beyond) = (BTreeSet::new(), BTreeSet::new());
        let mut of_namespace: BTreeMap<&str, BTreeSet<&RemoteKeySet>> = BTreeMap::new();
        for (policy, fetching) in self.by_policy.iter().filter(|(policy, _)| self.in_line.contains(policy)) {
            let counted = of_namespace.entry(&policy.namespace).or_default();
            for set in &fetching.sets {
                if counted.contains(&**set) || counted.len() < MOST_OF_NAMESPACE {
                    counted.insert(set);
                    all.insert(set.clone());
                } else {
                    beyond.insert(policy.clone());
                }
            }
        }
        let turned = beyond.symmetric_difference(&self.beyond).cloned().collect();
        self.beyond = beyond;
        (all.into_iter().collect(), turned)
    }

    /// True if not all of a policy's sets are fetched: there are too many in its namespace.
    pub(super) fn is_beyond(&self, policy: &ObjectName) -> bool {
        self.beyond.contains(policy)
    }

    /// The policies that have sets fetched from a Service, found or not.
    pub(super) fn fetching_from(&self, service: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.by_service.of(service)
    }

    /// The Services that a policy has sets fetched from, found or not.
    pub(super) fn services(&self, policy: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.by_policy.get(policy).into_iter().flat_map(|fetching| &fetching.services)
    }
}

// === impl Fetching ===

impl Fetching {
    fn look_up(
        &mut self,
        policy: &ObjectName,
        written: &TrafficPolicyJwtProvidersRemoteJwks,
        services: KnownServices<'_>,
    ) -> Result<Arc<RemoteKeySet>, String> {
        let TrafficPolicyJwtProvidersRemoteJwksBackendRef { group, kind, namespace, name, port } =
            &written.backend_ref;
        let number = u16::try_from(*port).ok().filter(|port| *port > 0);
        let number = number.ok_or_else(|| format!("backendRef: port {port} is not between 1 and 65535"))?;
        let namespace = namespace.as_deref().map_or_else(|| policy.namespace.clone(), Arc::from);
        let referred = Referred {
            group: group.as_deref().unwrap_or_default(),
            kind: kind.as_deref().unwrap_or("Service"),
            owner: &policy.namespace,
            namespace: &namespace,
            name: &name.as_str().into(),
            port: Some(number),
        };
        self.services.extend(referred.service());
        let used =
            find_for_requests(Kind::TrafficPolicy, referred, &services).map_err(|fault| fault.message)?;
        let set = remote_key_set(written, used.name(), &host(&used, services))?;
        self.used.push(used);
        let set = Arc::new(set);
        self.sets.insert(set.clone());
        Ok(set)
    }
}

/// The name that a Service is asked by: the one that its certificate is to have, or else its own.
fn host(used: &BackendUse, services: KnownServices<'_>) -> String {
    let service = services.service(&used.service);
    let encryption = services.policies.encryption(&used.service, service.and_then(|it| used.port_name(it)));
    let (host, default) = match &encryption {
        Encryption::Tls(tls) => (tls.server_name.to_string(), 443),
        Encryption::None | Encryption::Unavailable => {
            (format!("{}.{}.svc", used.service.name, used.service.namespace), 80)
        }
    };
    match used.port.number {
        port if port == default => host,
        port => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portcullis_api::{Change, Object, ObjectKey};
    use portcullis_model::BackendName;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Settings, Translator};

    fn set(path: usize) -> Arc<RemoteKeySet> {
        let backend = BackendName("auth/login:80".into());
        let (host, path) = ("login.auth.svc".into(), format!("/{path:03}").into());
        Arc::new(RemoteKeySet { backend, host, path, lifetime: Duration::from_secs(300) })
    }

    fn with(sets: &mut RemoteKeySets, policy: (&str, &str), paths: std::ops::Range<usize>) {
        let fetching = Fetching { sets: paths.map(set).collect(), ..Fetching::default() };
        let policy = ObjectName::new(policy.0, policy.1);
        sets.in_line.insert(policy.clone());
        sets.by_policy.insert(policy, fetching);
    }

    /// They are fetched as long as a policy that names them is in force for something of ours, or
    /// comes next there.
    #[test]
    fn sets_of_policies_without_effect_are_not_fetched() {
        let set = |version: &str, kind: &str, name: &str, spec: Value| {
            let manifest = json!({"apiVersion": version, "kind": kind,
                "metadata": {"name": name, "namespace": "edge"}, "spec": spec});
            Change::Set(Object::from_json(manifest).unwrap().unwrap())
        };
        let stable = "gateway.networking.k8s.io/v1";
        let policy = |name: &str, kind: &str, section: &str| {
            let target = json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": "a",
                "sectionName": section});
            let keys = json!({"backendRef": {"name": "login", "port": 80}, "path": format!("/of-{name}")});
            let jwt = json!({"providers": [{"name": "a", "issuer": "a", "remoteJwks": keys}]});
            let spec = json!({"targetRefs": [target], "jwt": jwt});
            set("portcullis.dev/v1alpha1", "TrafficPolicy", name, spec)
        };
        let gateway = |class: &str| {
            let listeners = json!([{"name": "l", "port": 80, "protocol": "HTTP"}]);
            set(stable, "Gateway", "a", json!({"gatewayClassName": class, "listeners": listeners}))
        };
        let route =
            set(stable, "HTTPRoute", "a", json!({"parentRefs": [{"name": "a"}], "rules": [{"name": "r"}]}));
        let delete = |kind, name: &str| Change::Delete(ObjectKey::new(kind, ObjectName::new("edge", name)));
        let mut translator =
            Translator::new(Settings { controller_name: "c".to_owned(), ..Settings::default() });
        translator.apply(vec![
            set(stable, "GatewayClass", "ours", json!({"controllerName": "c"})),
            set(stable, "GatewayClass", "theirs", json!({"controllerName": "d"})),
            set("v1", "Service", "login", json!({"ports": [{"port": 80}]})),
        ]);
        for (change, expected) in [
            (policy("p", "Gateway", "l"), ""),
            (gateway("theirs"), ""),
            (gateway("ours"), "/of-p"),
            (policy("q", "Gateway", "l"), "/of-p /of-q"),
            (policy("r", "Gateway", "l"), "/of-p /of-q"),
            (delete(Kind::TrafficPolicy, "p"), "/of-q /of-r"),
            (policy("q", "Gateway", "other"), "/of-r"),
            (policy("r", "HTTPRoute", "r"), ""),
            (route, "/of-r"),
            (gateway("theirs"), ""),
            (gateway("ours"), "/of-r"),
            (delete(Kind::HttpRoute, "a"), ""),
        ] {
            let snapshot = translator.apply(vec![change]).snapshot;
            let fetched: Vec<_> = snapshot.key_sets.iter().map(|set| &*set.path).collect();
            assert_eq!(fetched.join(" "), expected);
        }
    }

    #[test]
    fn a_namespace_that_wants_many_sets_takes_none_from_others() {
        let mut sets = RemoteKeySets::default();
        with(&mut sets, ("greedy", "a"), 0..60);
        with(&mut sets, ("greedy", "b"), 56..64);
        with(&mut sets, ("modest", "a"), 500..502);
        let (fetched, turned) = sets.fetched();
        assert_eq!((fetched.len(), turned.len()), (66, 0));
        // One more: the last policies by name are beyond, but for what is fetched anyway.
        with(&mut sets, ("greedy", "c"), 60..65);
        with(&mut sets, ("greedy", "d"), 0..60);
        let (fetched, turned) = sets.fetched();
        let c = ObjectName::new("greedy", "c");
        assert_eq!((fetched.len(), turned), (66, BTreeSet::from([c.clone()])));
        assert!(sets.is_beyond(&c));
        with(&mut sets, ("greedy", "c"), 60..64);
        let (fetched, turned) = sets.fetched();
        assert_eq!((fetched.len(), turned), (66, BTreeSet::from([c.clone()])));
        assert!(!sets.is_beyond(&c));
    }
}
