//! Stage: accepted listeners become what the data plane runs, grouped by the port they share.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_model::{
    Gateway, Listener, ListenerGroup, ListenerId, ListenerProtocol, ObjectName, RouteTable, Snapshot,
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
    pub(super) groups: BTreeMap<GroupKey, Arc<ListenerGroup>>,
    pub(super) claims: Claims,
    /// The table of listeners without routes: the same for all.
    no_routes: Arc<RouteTable>,
}

/// A Gateway and one of its ports.
pub(super) type GroupKey = (ObjectName, u16);

#[derive(Clone, Debug, PartialEq)]
struct Served {
    port: u16,
    listener: Arc<Listener>,
}

/// What leaves and what joins a group.
#[derive(Default)]
struct GroupChange {
    gone: Vec<Arc<Listener>>,
    new: Vec<Arc<Listener>>,
}

impl Translator {
    pub(super) fn serve(&mut self, next: &mut Option<Snapshot>) {
        let mut changes: BTreeMap<GroupKey, GroupChange> = BTreeMap::new();
        for key in std::mem::take(&mut self.dirty.listeners) {
            self.refresh(&key, &mut changes);
        }
        for name in std::mem::take(&mut self.dirty.served) {
            let groups = self.serving.groups.range((name.clone(), 0)..=(name, u16::MAX));
            groups.for_each(|(group, _)| {
                changes.entry(group.clone()).or_default();
            });
        }
        for (group, change) in changes {
            self.change_group(&group, change);
            self.dirty.frontends.insert(group.0);
        }
        self.update_frontends(next);
    }

    fn refresh(&mut self, key: &ListenerKey, changes: &mut BTreeMap<GroupKey, GroupChange>) {
        let now = self.served(key);
        if self.serving.listeners.get(key) == now.as_ref() {
            return;
        }
        if let Some(now) = &now {
            changes.entry(now.group()).or_default().new.push(now.listener.clone());
        }
        let before = match now {
            Some(now) => self.serving.listeners.insert(key.clone(), now),
            None => self.serving.listeners.remove(key),
        };
        if let Some(before) = before {
            changes.entry(before.group()).or_default().gone.push(before.listener);
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
        let protocol = match listener.protocol {
            Protocol::Http => ListenerProtocol::Http,
            Protocol::Https => {
                ListenerProtocol::Https(TlsTermination { certificates: listener.certificates.clone() })
            }
            Protocol::Tls | Protocol::Tcp | Protocol::Udp | Protocol::Unknown => return None,
        };
        let routes = self.table_of(unit, name);
        let model = Listener { id, hostname: listener.hostname.clone(), protocol, routes };
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
    fn change_group(&mut self, key: &GroupKey, change: GroupChange) {
        let before = self.serving.groups.get(key);
        let mut listeners = before.map(|group| group.listeners.clone()).unwrap_or_default();
        for gone in change.gone {
            listeners.remove(&gone.hostname);
        }
        for new in change.new {
            listeners.insert(&new.hostname.clone(), new);
        }
        let Some(any) = listeners.values().next() else {
            self.serving.groups.remove(key);
            return;
        };
        let tls = matches!(any.protocol, ListenerProtocol::Https(_));
        let gateway = self.gateway(&key.0, before.map(|group| &group.gateway));
        let group = ListenerGroup { gateway, port: key.1, tls, listeners };
        self.serving.groups.insert(key.clone(), Arc::new(group));
    }
}

impl Served {
    fn group(&self) -> GroupKey {
        (self.listener.id.gateway.clone(), self.port)
    }
}
