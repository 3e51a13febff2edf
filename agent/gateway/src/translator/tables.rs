//! Stage: route tables. A table is built for one host pattern of one listener; its neighbours are
//! shared with the table before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_model::{HostPattern, PathTable, RouteTable};

use super::attachments::ListenerHostnames;
use super::conflicts::{ChangedConflicts, KindConflicts};
use super::routes::Routes;
use crate::listener::ListenerKey;

#[derive(Debug, Default)]
pub(super) struct Tables {
    by_listener: BTreeMap<ListenerKey, Arc<RouteTable>>,
    /// The table of listeners without routes: the same for all.
    empty: Arc<RouteTable>,
}

/// The listeners with another table.
pub(super) type ChangedTables = BTreeSet<ListenerKey>;

// === impl Tables ===

impl Tables {
    pub(super) fn of(&self, listener: &ListenerKey) -> &Arc<RouteTable> {
        self.by_listener.get(listener).unwrap_or(&self.empty)
    }

    pub(super) fn update(
        &mut self,
        mut listeners: ListenerHostnames,
        turned: &ChangedConflicts,
        routes: &Routes,
        conflicts: &KindConflicts,
    ) -> ChangedTables {
        for (listener, hostnames) in &turned.listeners {
            listeners.entry(listener.clone()).or_default().extend(hostnames.iter().cloned());
        }
        for (listener, hostnames) in &listeners {
            match routes.at_listener(listener) {
                Some(_) => {
                    let mut table = RouteTable::clone(self.of(listener));
                    for hostname in hostnames {
                        match path_table(listener, hostname, routes, conflicts) {
                            Some(paths) => table.insert(hostname, Arc::new(paths)),
                            None => table.remove(hostname),
                        }
                    }
                    self.by_listener.insert(listener.clone(), Arc::new(table));
                }
                None => drop(self.by_listener.remove(listener)),
            }
        }
        listeners.into_keys().collect()
    }
}

/// `None` if no route is attached under the host pattern.
fn path_table(
    listener: &ListenerKey,
    hostname: &HostPattern,
    routes: &Routes,
    conflicts: &KindConflicts,
) -> Option<PathTable> {
    let conflicted = conflicts.at(listener);
    let attached = routes.at_listener(listener)?.at(hostname);
    let mut served = attached.filter(|route| !conflicted.contains_key(*route)).peekable();
    served.peek()?;
    let states = served.filter_map(|route| routes.get(route));
    Some(PathTable::new(states.flat_map(|state| state.entries(listener, hostname)).collect()))
}
