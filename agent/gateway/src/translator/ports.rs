//! Stage: accepted listeners become what the data plane runs, grouped by the port they share; and
//! so do those that lack only a certificate, to keep their names from less specific neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_model::{
    Admission, ClientAddress, ClientList, ClientRules, Gateway, Listener, ListenerId, ObjectName, Port,
    PortKey, PortListeners, Serves, TlsTermination,
};

use super::admissions::{Admissions, ChangedAdmissions};
use super::gateways::{ChangedGateways, Gateways};
use super::hierarchy::{ChangedHierarchy, Hierarchy};
use super::listener_filters::{ChangedFilters, ListenerFilters};
use super::listeners::{ChangedListeners, Listeners};
use super::tables::{ChangedTables, Tables};
use super::traffic_policies::{ChangedTraffic, TrafficPolicies};
use crate::listener::ListenerKey;
use crate::protocol::Protocol;

#[derive(Debug, Default)]
pub(super) struct Ports {
    listeners: BTreeMap<ListenerKey, Served>,
    ports: BTreeMap<ObjectName, BTreeMap<PortKey, Arc<Port>>>,
    /// Listeners that their port cannot hold beside the others, though merging accepted them: their
    /// statuses say so.
    mismatched: BTreeMap<ListenerId, String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Served {
    port: PortKey,
    listener: Arc<Listener>,
}

/// Changes by Gateway and port.
type PortChanges = BTreeMap<ObjectName, BTreeMap<PortKey, PortChange>>;

/// The listeners that leave a port, and those that join it.
#[derive(Default)]
struct PortChange {
    gone: Vec<Arc<Listener>>,
    new: Vec<Arc<Listener>>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedPorts {
    /// The Gateways with another port, or another listener on one.
    pub(super) gateways: BTreeSet<ObjectName>,
    /// Those with a port of which policies on its listeners say something else: whether it is
    /// disputed who a client is, and how many streams connections without TLS have.
    pub(super) retold: BTreeSet<ObjectName>,
}

/// The state that served listeners follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) listeners: &'s Listeners,
    pub(super) hierarchy: &'s Hierarchy,
    pub(super) gateways: &'s Gateways,
    pub(super) admissions: &'s Admissions,
    pub(super) traffic: &'s TrafficPolicies,
    pub(super) filters: &'s ListenerFilters,
    pub(super) tables: &'s Tables,
}

/// The changes of the stages before.
#[derive(Clone, Copy)]
pub(super) struct Changes<'c> {
    pub(super) listeners: &'c ChangedListeners,
    pub(super) hierarchy: &'c ChangedHierarchy,
    pub(super) gateways: &'c ChangedGateways,
    pub(super) admissions: &'c ChangedAdmissions,
    pub(super) traffic: &'c ChangedTraffic,
    pub(super) filters: &'c ChangedFilters,
    pub(super) tables: &'c ChangedTables,
}

// === impl Ports ===

impl Ports {
    /// The ports of a Gateway that have listeners.
    pub(super) fn of(&self, gateway: &ObjectName) -> impl Iterator<Item = PortKey> {
        self.ports.get(gateway).into_iter().flat_map(BTreeMap::keys).copied()
    }

    pub(super) fn get(&self, gateway: &ObjectName, key: PortKey) -> Option<&Arc<Port>> {
        self.ports.get(gateway)?.get(&key)
    }

    /// True if no connection is taken at the port, since its listeners do not agree on who says
    /// which client one is for.
    pub(super) fn is_disputed(&self, gateway: &ObjectName, key: PortKey) -> bool {
        self.get(gateway, key).is_some_and(|port| port.client_address == ClientAddress::Disputed)
    }

    /// The part of a port that policies on its listeners speak of.
    fn told(&self, gateway: &ObjectName, key: PortKey) -> (bool, Option<u32>) {
        let streams = self.get(gateway, key).and_then(|port| port.streams_without_tls());
        (self.is_disputed(gateway, key), streams)
    }

    /// The reason why an accepted listener is missing on its port.
    pub(super) fn mismatch(&self, listener: &ListenerId) -> Option<&str> {
        self.mismatched.get(listener).map(String::as_str)
    }

    pub(super) fn update(&mut self, changed: Changes<'_>, sources: Sources<'_>) -> ChangedPorts {
        let mut changes = PortChanges::new();
        let listeners = changed.listeners.listeners.union(&changed.tables.listeners);
        let mut listeners: BTreeSet<_> = listeners.cloned().collect();
        let parents = changed.hierarchy.moved.union(&changed.gateways.acceptances);
        let parents = parents.chain(&changed.admissions.parents).chain(&changed.traffic.parents);
        for parent in parents.chain(&changed.filters.parents) {
            listeners.extend(sources.listeners.keys_of(parent));
        }
        for listener in listeners {
            self.refresh(listener, sources, &mut changes);
        }
        for gateway in &changed.gateways.limits {
            for port in self.of(gateway) {
                changes.entry(gateway.clone()).or_default().entry(port).or_default();
            }
        }
        let mut changed = ChangedPorts::default();
        for (gateway, ports) in changes {
            for (port, change) in ports {
                let before = self.told(&gateway, port);
                self.change_port(&gateway, port, change, sources.gateways);
                if self.told(&gateway, port) != before {
                    changed.retold.insert(gateway.clone());
                }
            }
            changed.gateways.insert(gateway);
        }
        changed
    }

    fn refresh(&mut self, key: ListenerKey, sources: Sources<'_>, changes: &mut PortChanges) {
        let now = sources.served(&key);
        if self.listeners.get(&key) == now.as_ref() {
            return;
        }
        if let Some(now) = &now {
            now.change(changes).new.push(now.listener.clone());
        }
        let before = match now {
            Some(now) => self.listeners.insert(key, now),
            None => self.listeners.remove(&key),
        };
        if let Some(before) = before {
            before.change(changes).gone.push(before.listener.clone());
        }
    }

    /// Removals come first: a hostname may pass from one listener to another.
    fn change_port(&mut self, gateway: &ObjectName, key: PortKey, change: PortChange, gateways: &Gateways) {
        let before = self.get(gateway, key).cloned();
        let mut listeners = before.as_ref().map(|port| port.listeners.clone());
        for gone in change.gone {
            if self.mismatched.remove(&gone.id).is_none() {
                listeners = listeners.and_then(|listeners| listeners.without(&gone));
            }
        }
        for new in change.new {
            let Some(there) = &mut listeners else {
                listeners = Some(PortListeners::of(new));
                continue;
            };
            let id = new.id.clone();
            if let Err(mismatch) = there.add(new) {
                self.mismatched.insert(id, mismatch.to_string());
            }
        }
        let port = listeners.map(|listeners| {
            let gateway = served_gateway(gateway, gateways, before.as_ref().map(|port| &port.gateway));
            Arc::new(Port::new(gateway, key, listeners))
        });
        self.set(gateway, key, port);
    }

    fn set(&mut self, gateway: &ObjectName, key: PortKey, port: Option<Arc<Port>>) {
        if let Some(port) = port {
            self.ports.entry(gateway.clone()).or_default().insert(key, port);
        } else if let Some(ports) = self.ports.get_mut(gateway) {
            ports.remove(&key);
            if ports.is_empty() {
                self.ports.remove(gateway);
            }
        }
    }
}

/// The same as before, if it is.
fn served_gateway(name: &ObjectName, gateways: &Gateways, before: Option<&Arc<Gateway>>) -> Arc<Gateway> {
    let now = gateways.get(name).map(|merged| merged.parameters.served(name));
    let now = now.unwrap_or_else(|| Gateway::new(name.clone()));
    before.filter(|before| ***before == now).cloned().unwrap_or_else(|| Arc::new(now))
}

/// The terms with further lists of clients, which hold beside those that are there.
fn narrowed(admission: Arc<Admission>, lists: Vec<ClientList>) -> Arc<Admission> {
    if lists.is_empty() {
        return admission;
    }
    let present = admission.clients.iter().flat_map(|clients| clients.levels());
    let lists = present.cloned().chain(lists).collect();
    let clients = Some(Arc::new(ClientRules::new(lists)));
    Arc::new(Admission { clients, ..Arc::unwrap_or_clone(admission) })
}

impl Sources<'_> {
    /// The listener as it is to be served; `None` if it is not accepted, and keeps no name either.
    fn served(self, key: &ListenerKey) -> Option<Served> {
        let (parent, name) = key;
        let declared = self.listeners.get(parent)?;
        let gateway = self.hierarchy.gateway_of(parent)?;
        let at = declared.listeners.iter().position(|listener| listener.name == *name)?;
        let acceptance = self.gateways.acceptances(parent).get(at).filter(|it| it.is_distinct())?;
        let listener = &declared.listeners[at];
        let id = ListenerId {
            gateway: gateway.clone(),
            kind: parent.kind,
            parent: parent.name.clone(),
            name: name.clone(),
        };
        let tables = self.tables;
        let clients = || self.gateways.clients(key).map(|clients| clients.certificates.clone());
        let tls = || TlsTermination {
            certificates: listener.certificates.clone(),
            clients: clients().unwrap_or_default(),
            options: listener.tls_options.clone(),
        };
        let serves = match listener.protocol {
            _ if !acceptance.is_accepted() => Serves::NoCertificate,
            Protocol::Http => Serves::Http(tables.of(key).clone()),
            Protocol::Https => Serves::Https { tls: tls(), routes: tables.of(key).clone() },
            Protocol::TlsTerminated => {
                Serves::TlsTerminated { tls: tls(), rules: tables.server_names(key).clone() }
            }
            Protocol::TlsPassthrough => Serves::TlsPassthrough(tables.server_names(key).clone()),
            Protocol::Tcp => Serves::Tcp(tables.only_rule(key).clone()),
            Protocol::Udp => Serves::Udp(tables.only_rule(key).clone()),
            Protocol::Unknown => return None,
        };
        let (hostname, filters) = (listener.hostname.clone(), self.filters.of(key).clone());
        let admission = self.admissions.of(key, listener.protocol);
        let (admission, policy) = match listener.protocol.has_requests() {
            true => (admission, self.traffic.of_listener(key, gateway)),
            false => (narrowed(admission, self.traffic.clients_without_requests(key, gateway)), None),
        };
        let model = Listener { id, hostname, serves, admission, filters, policy };
        Some(Served { port: listener.port, listener: Arc::new(model) })
    }
}

impl Served {
    fn change<'c>(&self, changes: &'c mut PortChanges) -> &'c mut PortChange {
        let gateway = self.listener.id.gateway.clone();
        changes.entry(gateway).or_default().entry(self.port).or_default()
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::{HostPattern, ParentKind};

    use super::*;

    fn listener(name: &str, serves: Serves) -> Arc<Listener> {
        let gateway = ObjectName::new("infra", "web");
        let id =
            ListenerId { parent: gateway.clone(), gateway, kind: ParentKind::Gateway, name: name.into() };
        Arc::new(Listener {
            id,
            hostname: HostPattern::Any,
            serves,
            admission: Arc::default(),
            filters: Arc::default(),
            policy: None,
        })
    }

    #[test]
    fn a_listener_that_its_port_cannot_hold_is_not_forgotten() {
        let http = listener("http", Serves::Http(Arc::default()));
        let https =
            listener("https", Serves::Https { tls: TlsTermination::default(), routes: Arc::default() });
        let (gateway, key) = (http.id.gateway.clone(), PortKey::tcp(80));
        let mut ports = Ports::default();
        let mut change = |gone: &[&Arc<Listener>], new: &[&Arc<Listener>]| {
            let [gone, new] = [gone, new].map(|all| all.iter().copied().cloned().collect());
            ports.change_port(&gateway, key, PortChange { gone, new }, &Gateways::default());
            let held = ports.get(&gateway, key).map(|port| port.listeners.to_string());
            (held.unwrap_or_default(), ports.mismatch(&https.id).map(str::to_owned))
        };
        let why = "Gateway infra/web listener https has protocol HTTPS, its port HTTP";
        assert_eq!(change(&[], &[&http, &https]), ("HTTP".to_owned(), Some(why.to_owned())));
        assert_eq!(change(&[&https], &[]), ("HTTP".to_owned(), None), "and does not take another along");
    }
}
