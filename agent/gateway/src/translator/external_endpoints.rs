//! Stage: the addresses of hosts outside the cluster, and of these the ones that may be sent to.
//! Where a name leads is up to its owner, so each address is judged whenever a name was looked up
//! again, and whenever addresses of the cluster change hands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portcullis_model::{Backend, BackendProtocol, Encryption, ObjectName, Snapshot};

use super::backends::is_frontend;
use super::counts::Counts;
use super::externals::Externals;
use super::frontends::ChangedFrontends;
use super::gateways::{ChangedGateways, Gateways};
use super::owners::{ChangedOwners, Owner, Owners};
use super::snapshot::NextSnapshot;
use crate::external::ExternalHost;
use crate::feedback::Observations;
use crate::route::{ExternalUse, ProtocolSource};
use crate::special_address::{is_special, is_tunnel, meant};
use crate::{Fault, Reason, Settings};

/// Addresses that one message names; others are counted.
const IN_ONE_MESSAGE: usize = 8;

/// XBackends of one namespace that have addresses. Each may have others every few seconds, at every
/// agent: those of one tenant must leave the DNS servers and the agents to the others.
const OF_NAMESPACE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct ExternalEndpoints {
    /// Those in the snapshot.
    live: BTreeSet<ExternalUse>,
    /// By XBackend, the addresses of its name that are not used, and why.
    refused: BTreeMap<ObjectName, BTreeMap<IpAddr, &'static str>>,
    /// The names that are to be looked up.
    names: BTreeSet<Arc<str>>,
    /// XBackends that have no addresses: older ones of the namespace are as many as it may have.
    left_out: BTreeSet<ObjectName>,
    /// Names are looked up at all.
    are_looked_up: bool,
}

#[derive(Debug, Default)]
pub(super) struct ChangedExternals {
    /// XBackends with another status, as far as this stage knows.
    pub(super) backends: BTreeSet<ObjectName>,
    /// The names that are to be looked up, if they are others than before.
    pub(super) names: Option<BTreeSet<Arc<str>>>,
}

/// The changes that endpoints follow from.
pub(super) struct Changes<'c> {
    /// XBackends that changed, or that came into use or went out of use.
    pub(super) backends: BTreeSet<ObjectName>,
    /// Names that have other addresses.
    pub(super) names: BTreeSet<Arc<str>>,
    pub(super) owners: &'c ChangedOwners,
    pub(super) gateways: &'c ChangedGateways,
    pub(super) frontends: &'c ChangedFrontends,
}

/// The state that endpoints follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) externals: &'s Externals,
    pub(super) uses: &'s Counts<ExternalUse>,
    pub(super) owners: &'s Owners,
    pub(super) gateways: &'s Gateways,
    pub(super) observations: &'s Observations,
    pub(super) settings: &'s Settings,
}

// === impl ExternalEndpoints ===

impl ExternalEndpoints {
    /// Puts those in use into the snapshot, with the addresses that may be sent to.
    pub(super) fn update(
        &mut self,
        changes: Changes<'_>,
        sources: Sources<'_>,
        next: &mut NextSnapshot,
    ) -> ChangedExternals {
        let Changes { backends: mut affected, names, owners, gateways, frontends } = changes;
        let with_names = names.iter().flat_map(|name| sources.externals.with_host(name));
        affected.extend(with_names.filter(|backend| self.is_live(backend)).cloned());
        let are_looked_up = sources.observations.are_names_looked_up();
        if are_looked_up != self.are_looked_up {
            self.are_looked_up = are_looked_up;
            affected.extend(self.live.iter().map(|used| used.backend.clone()));
        }
        let is_other_owner = !owners.is_empty() || !owners.foreign().is_empty();
        if is_other_owner || !gateways.addresses.is_empty() || !frontends.addresses.is_empty() {
            let concerns = |address: &IpAddr| {
                owners.concerns(address)
                    || owners.foreign().contains(address)
                    || gateways.addresses.contains(address)
                    || frontends.addresses.contains(address)
            };
            affected.extend(self.with_addresses(concerns, sources));
        }
        if affected.is_empty() {
            return ChangedExternals::default();
        }
        for backend in &affected {
            self.update_uses(backend, sources);
        }
        let (names, left_out) = looked_up(&self.live, sources.externals);
        affected.extend(left_out.symmetric_difference(&self.left_out).cloned());
        self.left_out = left_out;
        for backend in &affected {
            self.serve(backend, sources, next);
        }
        let is_same = names == self.names;
        self.names = names;
        ChangedExternals { backends: affected, names: (!is_same).then(|| self.names.clone()) }
    }

    fn is_live(&self, backend: &ObjectName) -> bool {
        uses_of(backend).iter().any(|used| self.live.contains(used))
    }

    /// The XBackends in use some of whose addresses, or what these stand for, are such.
    fn with_addresses(
        &self,
        are_such: impl Fn(&IpAddr) -> bool,
        sources: Sources<'_>,
    ) -> BTreeSet<ObjectName> {
        let backends: BTreeSet<_> = self.live.iter().map(|used| &used.backend).collect();
        let answer = |backend| sources.observations.name(&sources.externals.host(backend)?.name);
        let of_such = backends.into_iter().filter(|backend| {
            let mut addresses = answer(backend).into_iter().flat_map(|answer| &answer.addresses);
            addresses.any(|address| are_such(address) || are_such(&meant(address)))
        });
        of_such.cloned().collect()
    }

    fn update_uses(&mut self, backend: &ObjectName, sources: Sources<'_>) {
        let has_host = sources.externals.host(backend).is_some();
        for used in uses_of(backend) {
            if has_host && sources.uses.contains(&used) {
                self.live.insert(used);
            } else {
                self.live.remove(&used);
            }
        }
    }

    fn serve(&mut self, backend: &ObjectName, sources: Sources<'_>, next: &mut NextSnapshot) {
        let host = sources.externals.host(backend).filter(|_| self.is_live(backend));
        let mut refused = BTreeMap::new();
        let endpoints = match host {
            Some(host) if !self.left_out.contains(backend) => {
                sources.endpoints(host, next.get(), &mut refused)
            }
            _ => Vec::new(),
        };
        self.refused.remove(backend);
        if !refused.is_empty() {
            self.refused.insert(backend.clone(), refused);
        }
        for used in uses_of(backend) {
            let name = used.name();
            let before = next.get().backends.get(name.as_str());
            match host.filter(|_| self.live.contains(&used)) {
                Some(host) => {
                    let now = backend_of(&used, host, &endpoints);
                    if before.is_none_or(|before| **before != now) {
                        next.edit().backends.insert(name.0, Arc::new(now));
                    }
                }
                None if before.is_some() => drop(next.edit().backends.remove(name.as_str())),
                None => {}
            }
        }
    }

    /// The fault of a name that leads nowhere, or to what may not be sent to.
    pub(super) fn name_fault(
        &self,
        backend: &ObjectName,
        externals: &Externals,
        observations: &Observations,
    ) -> Option<Fault> {
        let name = &externals.host(backend)?.name;
        if !self.is_live(backend) || !observations.are_names_looked_up() {
            return None;
        }
        if self.left_out.contains(backend) {
            let message = format!(
                "of a namespace, the {OF_NAMESPACE} oldest XBackends that routes use are looked up; {name} is not, and \
                 requests are answered 503: use fewer of them"
            );
            return Some(Fault::unresolved(Reason::LimitExceeded, message));
        }
        let Some(answer) = observations.name(name) else {
            let message = format!("the addresses of {name} are being looked up; until then, nothing is sent");
            return Some(Fault::unresolved(Reason::Pending, message));
        };
        if let Some(refused) = self.refused.get(backend) {
            let mut reasons: Vec<_> =
                refused.iter().map(|(address, why)| format!("{address} is {why}")).collect();
            let left_out = reasons.split_off(reasons.len().min(IN_ONE_MESSAGE)).len();
            if left_out > 0 {
                reasons.push(format!("and {left_out} more"));
            }
            let message = format!(
                "addresses of {name} are not used: {}; the agents' operator can allow addresses that are not public, but \
                 none of the cluster's, with --external-ranges",
                reasons.join(", ")
            );
            return Some(Fault::unresolved(Reason::RefNotPermitted, message));
        }
        let why = answer.failure.as_deref().unwrap_or("the answer holds none");
        let message = format!("{name} has no address: {why}; requests are answered 503");
        answer.addresses.is_empty().then(|| Fault::unresolved(Reason::NameNotResolved, message))
    }
}

fn uses_of(backend: &ObjectName) -> [ExternalUse; 2] {
    [ProtocolSource::Service, ProtocolSource::RouteKind]
        .map(|protocol| ExternalUse { backend: backend.clone(), protocol })
}

fn backend_of(used: &ExternalUse, host: &ExternalHost, endpoints: &[SocketAddr]) -> Backend {
    let inferred = match (used.protocol, &host.encryption) {
        (ProtocolSource::RouteKind, _) => BackendProtocol::H2c,
        (ProtocolSource::Service, Encryption::Tls(_)) => BackendProtocol::Negotiated,
        (ProtocolSource::Service, Encryption::None | Encryption::Unavailable) => BackendProtocol::Http1,
    };
    Backend {
        protocol: host.protocol.unwrap_or(inferred),
        encryption: host.encryption.clone(),
        ..Backend::new(used.name(), endpoints.to_vec())
    }
}

/// The names of XBackends in use, and those of these that are not looked up.
fn looked_up(
    live: &BTreeSet<ExternalUse>,
    externals: &Externals,
) -> (BTreeSet<Arc<str>>, BTreeSet<ObjectName>) {
    let backends: BTreeSet<_> = live.iter().map(|used| &used.backend).collect();
    let mut by_age: Vec<_> = backends
        .into_iter()
        .filter_map(|backend| Some((externals.get(backend)?.created, backend, externals.host(backend)?)))
        .collect();
    by_age.sort_by_key(|(created, backend, _)| (*created, *backend));
    let mut of_namespaces = BTreeMap::<&str, usize>::new();
    let (mut names, mut left_out) = (BTreeSet::new(), BTreeSet::new());
    for (_, backend, host) in by_age {
        let count = of_namespaces.entry(&backend.namespace).or_default();
        *count += 1;
        if *count <= OF_NAMESPACE {
            names.insert(host.name.clone());
        } else {
            left_out.insert(backend.clone());
        }
    }
    (names, left_out)
}

// === impl Sources ===

impl Sources<'_> {
    fn endpoints(
        self,
        host: &ExternalHost,
        snapshot: &Snapshot,
        refused: &mut BTreeMap<IpAddr, &'static str>,
    ) -> Vec<SocketAddr> {
        let answer = self.observations.name(&host.name);
        let mut endpoints = Vec::new();
        for address in answer.into_iter().flat_map(|answer| &answer.addresses) {
            match self.objection(address, snapshot) {
                Some(why) => drop(refused.insert(*address, why)),
                None => endpoints.push(SocketAddr::new(*address, host.port)),
            }
        }
        endpoints
    }

    /// The reason why an address is sent nothing. Of one that stands for another, both count.
    fn objection(self, address: &IpAddr, snapshot: &Snapshot) -> Option<&'static str> {
        let meant = meant(address);
        if is_special(address) || is_special(&meant) || is_tunnel(address) {
            return Some("loopback, link-local or otherwise no single host's");
        }
        if !self.settings.external.allows_address(address) {
            return Some("not public");
        }
        [*address, meant].iter().find_map(|address| {
            let owner = self.owners.of(address).map(|owner| match owner {
                Owner::ApiServer => "the API server's",
                Owner::Service(_) => "a Service's",
                Owner::Node => "a node's",
                Owner::Bridge | Owner::Pods => "of the pods' network",
            });
            let is_gateways = self.gateways.have(address) || is_frontend(address, snapshot);
            let is_nodes =
                self.owners.is_own(address) || self.observations.node_addresses().contains(address);
            owner
                .or_else(|| self.owners.is_foreign(address).then_some("a Service's"))
                .or_else(|| is_gateways.then_some("a Gateway's"))
                .or_else(|| is_nodes.then_some("a node's"))
                .or_else(|| {
                    self.owners.are_nodes_unread().then_some("perhaps a node's (Nodes cannot be read)")
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Kind, Object, ObjectKey};
    use serde_json::{Value, json};

    use super::*;
    use crate::{Feedback, NameAnswer, Status, Translator, dump_status};

    fn set(version: &str, kind: &str, name: &str, created: usize, spec: Value) -> Change {
        let manifest = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop",
            "creationTimestamp": format!("2026-01-01T00:{:02}:{:02}Z", created / 60, created % 60)}, "spec": spec});
        Change::Set(Object::from_json(manifest).unwrap().unwrap())
    }

    fn backend(at: usize) -> Change {
        let spec = json!({"type": "ExternalHostname", "port": {"number": 80},
            "externalHostname": {"hostname": format!("h{at}.example")}});
        // The later in order, the older.
        let created = OF_NAMESPACE * 2 - at;
        set("gateway.networking.x-k8s.io/v1alpha1", "XBackend", &format!("b{at}"), created, spec)
    }

    /// A route with a rule for each of so many hosts.
    fn site(hosts: usize) -> Vec<Change> {
        let version = "gateway.networking.k8s.io/v1";
        let references = (0..hosts).map(
            |at| json!({"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": format!("b{at}")}),
        );
        let rules: Vec<_> = references.map(|reference| json!({"backendRefs": [reference]})).collect();
        let mut changes = vec![
            set(version, "GatewayClass", "ours", 0, json!({"controllerName": "c"})),
            set(
                version,
                "Gateway",
                "web",
                0,
                json!({"gatewayClassName": "ours", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}),
            ),
            set(version, "HTTPRoute", "all", 0, json!({"parentRefs": [{"name": "web"}], "rules": rules})),
        ];
        changes.extend((0..hosts).map(backend));
        changes
    }

    fn translator() -> Translator {
        Translator::new(Settings { controller_name: "c".to_owned(), ..Settings::default() })
    }

    #[test]
    fn that_names_are_looked_up_may_be_known_late() {
        let (mut late, mut early) = (translator(), translator());
        late.apply(site(1));
        late.observe(Feedback::Names(BTreeMap::new()));
        late.apply(Vec::new());
        early.observe(Feedback::Names(BTreeMap::new()));
        early.apply(site(1));
        for (kind, name) in [(Kind::XBackend, "b0"), (Kind::HttpRoute, "all")] {
            let key = ObjectKey::new(kind, ObjectName::new("shop", name));
            assert!(early.status_of(&key).is_some());
            assert_eq!(late.status_of(&key), early.status_of(&key), "{key}");
        }
    }

    #[test]
    fn the_hosts_of_a_namespace_are_limited_in_all() {
        let mut translator = translator();
        translator.observe(Feedback::Names(BTreeMap::new()));
        let names = translator.apply(site(OF_NAMESPACE + 2)).names.unwrap();
        assert_eq!(names.len(), OF_NAMESPACE);
        assert!(!names.contains("h0.example") && !names.contains("h1.example"));
        let key = |at: usize| ObjectKey::new(Kind::XBackend, ObjectName::new("shop", format!("b{at}")));
        let told = |status: Option<&Status>| dump_status(status.unwrap()).to_string();
        assert!(told(translator.status_of(&key(1)).as_ref()).contains("LimitExceeded"));
        assert!(told(translator.status_of(&key(2)).as_ref()).contains("Pending"));

        // Addresses that are known because of another's XBackend are none of theirs.
        let answer = |at: usize| {
            let addresses = ["1.1.1.1".parse().unwrap()].into();
            (format!("h{at}.example").into(), NameAnswer { addresses, failure: None })
        };
        translator.observe(Feedback::Names([1, 2].map(answer).into()));
        let snapshot = translator.apply(Vec::new()).snapshot;
        let endpoints =
            |at: usize| snapshot.backends.get(&format!("shop/b{at}/external")).unwrap().endpoints.len();
        assert_eq!([1, 2].map(endpoints), [0, 1]);

        // The oldest of the others follows one that goes.
        let outcome = translator.apply(vec![Change::Delete(key(7))]);
        let names = outcome.names.unwrap();
        assert!(!names.contains("h0.example") && names.contains("h1.example"));
        assert!(!told(outcome.statuses.get(&key(1))).contains("LimitExceeded"));
        assert_eq!(outcome.snapshot.backends.get("shop/b1/external").unwrap().endpoints.len(), 1);
    }
}
