//! Stage: accepted listeners become what the data plane runs, grouped by the port they share.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_model::{
    Gateway, Listener, ListenerId, ObjectName, Port, PortKey, PortListeners, RouteTable, Serves, Snapshot,
    TlsTermination,
};

use super::Translator;
use super::dirty::ListenerKey;
use super::frontends::Claims;
use super::unit::Unit;
use crate::listener::Protocol;

#[derive(Debug, Default)]
pub(super) struct Serving {
    listeners: BTreeMap<ListenerKey, Served>,
    ports: BTreeMap<ObjectName, BTreeMap<PortKey, Arc<Port>>>,
    pub(super) claims: Claims,
    /// The table of listeners without routes: the same for all.
    no_routes: Arc<RouteTable>,
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

impl Translator {
    pub(super) fn serve(&mut self, next: &mut Option<Snapshot>) {
        let mut changes = PortChanges::new();
        for key in std::mem::take(&mut self.dirty.listeners) {
            self.refresh(&key, &mut changes);
        }
        for name in std::mem::take(&mut self.dirty.served) {
            for port in self.serving.ports_of(&name) {
                changes.entry(name.clone()).or_default().entry(port).or_default();
            }
        }
        for (gateway, ports) in changes {
            for (port, change) in ports {
                self.change_port(&gateway, port, change);
            }
            self.dirty.frontends.insert(gateway);
        }
        self.update_frontends(next);
    }

    fn refresh(&mut self, key: &ListenerKey, changes: &mut PortChanges) {
        let now = self.served(key);
        if self.serving.listeners.get(key) == now.as_ref() {
            return;
        }
        if let Some(now) = &now {
            now.change(changes).new.push(now.listener.clone());
        }
        let before = match now {
            Some(now) => self.serving.listeners.insert(key.clone(), now),
            None => self.serving.listeners.remove(key),
        };
        if let Some(before) = before {
            before.change(changes).gone.push(before.listener.clone());
        }
    }

    /// What is to be served of a listener; `None` if it is not accepted.
    fn served(&self, (parent, name): &ListenerKey) -> Option<Served> {
        let unit = self.units.get(parent)?;
        let root = unit.root()?;
        let at = unit.declared.listeners.iter().position(|listener| listener.name == *name)?;
        unit.verdicts.get(at).filter(|verdict| verdict.is_accepted())?;
        let listener = &unit.declared.listeners[at];
        let id = ListenerId {
            gateway: root.clone(),
            kind: parent.kind,
            parent: parent.name.clone(),
            name: name.clone(),
        };
        let serves = match listener.protocol {
            Protocol::Http => Serves::Http(self.table_of(unit, name)),
            Protocol::Https => Serves::Https {
                tls: TlsTermination { certificates: listener.certificates.clone() },
                routes: self.table_of(unit, name),
            },
            Protocol::Tls | Protocol::Tcp | Protocol::Udp | Protocol::Unknown => return None,
        };
        let model = Listener { id, hostname: listener.hostname.clone(), serves };
        Some(Served { port: listener.port, listener: Arc::new(model) })
    }

    fn table_of(&self, unit: &Unit, name: &str) -> Arc<RouteTable> {
        unit.attached
            .get(name)
            .map_or_else(|| self.serving.no_routes.clone(), |attached| attached.table.clone())
    }

    /// The same as before, if it is.
    fn gateway(&self, name: &ObjectName, before: Option<&Arc<Gateway>>) -> Arc<Gateway> {
        let now = self.roots.get(name).map(|root| root.parameters.served(name));
        let now = now.unwrap_or_else(|| Gateway::new(name.clone()));
        before.filter(|before| ***before == now).cloned().unwrap_or_else(|| Arc::new(now))
    }

    /// Removals come first: a hostname may pass from one listener to another.
    fn change_port(&mut self, gateway: &ObjectName, key: PortKey, change: PortChange) {
        let before = self.serving.port(gateway, key);
        let mut listeners = before.map(|port| port.listeners.clone());
        for gone in change.gone {
            listeners = listeners.and_then(|listeners| listeners.without(&gone));
        }
        for new in change.new {
            listeners = Some(match listeners {
                Some(listeners) => listeners.with(new),
                None => PortListeners::of(new),
            });
        }
        let port = listeners.map(|listeners| {
            let gateway = self.gateway(gateway, before.map(|port| &port.gateway));
            Arc::new(Port { gateway, key, listeners })
        });
        self.serving.set_port(gateway, key, port);
    }
}

impl Serving {
    /// The ports of a Gateway that have listeners.
    pub(super) fn ports_of(&self, gateway: &ObjectName) -> impl Iterator<Item = PortKey> {
        self.ports.get(gateway).into_iter().flat_map(BTreeMap::keys).copied()
    }

    pub(super) fn port(&self, gateway: &ObjectName, key: PortKey) -> Option<&Arc<Port>> {
        self.ports.get(gateway)?.get(&key)
    }

    fn set_port(&mut self, gateway: &ObjectName, key: PortKey, port: Option<Arc<Port>>) {
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

impl Served {
    fn change<'c>(&self, changes: &'c mut PortChanges) -> &'c mut PortChange {
        let gateway = self.listener.id.gateway.clone();
        changes.entry(gateway).or_default().entry(self.port).or_default()
    }
}
