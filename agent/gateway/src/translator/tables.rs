//! Stage: what listeners serve. For requests a route table: it is built for one host pattern of one
//! listener, and its neighbours are shared with the table before. For connections and datagrams a
//! rule under each host pattern, which for TCP and UDP is any: that of the oldest route, since
//! nothing tells the traffic of two of them apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey};
use portcullis_model::{HostPattern, L4Action, L4Rule, ObjectName, PathTable, RouteTable, ServerNames};

use super::attachments::ListenerHostnames;
use super::conflicts::{ChangedConflicts, KindConflicts};
use super::listeners::{ChangedListeners, Listeners};
use super::routes::Routes;
use crate::listener::ListenerKey;
use crate::route::is_about_streams;

#[derive(Debug)]
pub(super) struct Tables {
    requests: BTreeMap<ListenerKey, Arc<RouteTable>>,
    streams: BTreeMap<ListenerKey, Arc<ServerNames>>,
    /// The tables of listeners without routes: the same for all.
    no_requests: Arc<RouteTable>,
    no_streams: Arc<ServerNames>,
    /// The rule of listeners whose routes have no names, as long as there is none.
    no_route: Arc<L4Rule>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedTables {
    /// The listeners with another table.
    pub(super) listeners: BTreeSet<ListenerKey>,
    /// Routes that were the oldest under a host pattern, or are now.
    pub(super) oldest: BTreeSet<ObjectKey>,
}

/// The state that tables follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) listeners: &'s Listeners,
    pub(super) routes: &'s Routes,
    pub(super) conflicts: &'s KindConflicts,
}

// === impl Tables ===

impl Default for Tables {
    fn default() -> Self {
        let action = L4Action::Refuse("no route is attached to the listener".into());
        Self {
            requests: BTreeMap::new(),
            streams: BTreeMap::new(),
            no_requests: Arc::default(),
            no_streams: Arc::default(),
            no_route: Arc::new(L4Rule { id: None, action }),
        }
    }
}

impl Tables {
    pub(super) fn of(&self, listener: &ListenerKey) -> &Arc<RouteTable> {
        self.requests.get(listener).unwrap_or(&self.no_requests)
    }

    /// The rules for connections, by server name.
    pub(super) fn server_names(&self, listener: &ListenerKey) -> &Arc<ServerNames> {
        self.streams.get(listener).unwrap_or(&self.no_streams)
    }

    /// The rule for all connections, or datagrams, of a listener.
    pub(super) fn only_rule(&self, listener: &ListenerKey) -> &Arc<L4Rule> {
        self.server_names(listener).get(&HostPattern::Any).unwrap_or(&self.no_route)
    }

    /// The route that serves the connections, or datagrams, of a listener under a host pattern.
    pub(super) fn oldest(&self, listener: &ListenerKey, hostname: &HostPattern) -> Option<ObjectKey> {
        owner(self.server_names(listener).get(hostname)?)
    }

    pub(super) fn update(
        &mut self,
        mut reattached: ListenerHostnames,
        turned: &ChangedConflicts,
        judged: &ChangedListeners,
        sources: Sources<'_>,
    ) -> ChangedTables {
        for (listener, hostnames) in &turned.listeners {
            reattached.entry(listener.clone()).or_default().extend(hostnames.iter().cloned());
        }
        // With another tls.mode, other rules are served.
        for listener in judged.listeners.iter().filter(|listener| self.streams.contains_key(listener)) {
            let attached = sources.routes.at_listener(listener);
            let hostnames = attached.into_iter().flat_map(|attached| attached.hostnames());
            reattached.entry(listener.clone()).or_default().extend(hostnames.cloned());
        }
        let mut changed = ChangedTables::default();
        for (listener, hostnames) in reattached {
            self.update_requests(&listener, &hostnames, sources);
            self.update_streams(&listener, &hostnames, sources, &mut changed);
            changed.listeners.insert(listener);
        }
        changed
    }

    fn update_requests(
        &mut self,
        listener: &ListenerKey,
        hostnames: &BTreeSet<HostPattern>,
        sources: Sources<'_>,
    ) {
        let mut table = RouteTable::clone(self.of(listener));
        for hostname in hostnames {
            match sources.path_table(listener, hostname) {
                Some(paths) => table.insert(hostname, Arc::new(paths)),
                None => table.remove(hostname),
            }
        }
        if table.is_empty() {
            self.requests.remove(listener);
        } else {
            self.requests.insert(listener.clone(), Arc::new(table));
        }
    }

    /// A table in which nothing is other than before stays.
    fn update_streams(
        &mut self,
        listener: &ListenerKey,
        hostnames: &BTreeSet<HostPattern>,
        sources: Sources<'_>,
        changed: &mut ChangedTables,
    ) {
        let mut different = Vec::new();
        for hostname in hostnames {
            let now = sources.oldest_rule(listener, hostname);
            let before = self.server_names(listener).get(hostname);
            if before == now.as_ref() {
                continue;
            }
            let owners = [before, now.as_ref()].map(|rule| rule.and_then(|rule| owner(rule)));
            if owners[0] != owners[1] {
                changed.oldest.extend(owners.into_iter().flatten());
            }
            different.push((hostname, now));
        }
        if different.is_empty() {
            return;
        }
        let mut names = ServerNames::clone(self.server_names(listener));
        for (hostname, now) in different {
            match now {
                Some(rule) => drop(names.insert(hostname, rule)),
                None => drop(names.remove(hostname)),
            }
        }
        if names.is_empty() {
            self.streams.remove(listener);
        } else {
            self.streams.insert(listener.clone(), Arc::new(names));
        }
    }
}

fn owner(rule: &L4Rule) -> Option<ObjectKey> {
    let id = rule.id.as_ref()?;
    Some(ObjectKey { kind: Kind::of(GATEWAY_GROUP, id.kind)?, name: ObjectName::clone(&id.route) })
}

// === impl Sources ===

impl Sources<'_> {
    /// `None` if no route with rules for requests is attached under the host pattern.
    fn path_table(self, listener: &ListenerKey, hostname: &HostPattern) -> Option<PathTable> {
        let conflicted = self.conflicts.at(listener);
        let attached = self.routes.at_listener(listener)?.at(hostname);
        let served = attached.filter(|route| !conflicted.contains_key(*route));
        let mut states = served.filter(|route| !is_about_streams(route.kind)).peekable();
        states.peek()?;
        let states = states.filter_map(|route| self.routes.get(route));
        Some(PathTable::new(states.flat_map(|state| state.entries(listener, hostname)).collect()))
    }

    /// The rule of the oldest route that is accepted under the host pattern.
    fn oldest_rule(self, listener: &ListenerKey, hostname: &HostPattern) -> Option<Arc<L4Rule>> {
        let attached = self.routes.at_listener(listener)?.at(hostname);
        let streams = attached.filter(|route| is_about_streams(route.kind));
        let states = streams.filter_map(|route| self.routes.get(route));
        let accepted = states.filter(|state| state.parsed.refusal().is_none());
        let oldest = accepted.min_by(|a, b| a.parsed.origin.cmp(&b.parsed.origin))?;
        oldest.stream_rule(self.listeners.tls(listener))
    }
}
