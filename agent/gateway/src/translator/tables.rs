//! Stage: route tables. A table is built for one host pattern of one listener; its neighbours are shared with the table
//! before.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_model::{HostPattern, PathTable, RouteTable};

use super::Translator;
use super::dirty::ListenerKey;
use super::unit::Attached;

impl Translator {
    pub(super) fn build_tables(&mut self) {
        let mut by_listener: BTreeMap<ListenerKey, Vec<HostPattern>> = BTreeMap::new();
        for (listener, hostname) in std::mem::take(&mut self.dirty.tables) {
            by_listener.entry(listener).or_default().push(hostname);
        }
        for (listener, hostnames) in by_listener {
            self.build_table(&listener, &hostnames);
            self.dirty.listeners.insert(listener);
        }
    }

    fn build_table(&mut self, listener: &ListenerKey, hostnames: &[HostPattern]) {
        let Some(attached) = self.attached(listener) else { return };
        let mut table = RouteTable::clone(&attached.table);
        for hostname in hostnames {
            match self.path_table(attached, listener, hostname) {
                Some(paths) => table.insert(hostname, Arc::new(paths)),
                None => table.remove(hostname),
            }
        }
        let table = Arc::new(table);
        let Some(unit) = self.units.get_mut(&listener.0) else { return };
        if let Some(attached) = unit.attached.get_mut(&listener.1) {
            attached.table = table;
        }
        if unit.attached.get(&listener.1).is_some_and(Attached::is_empty) {
            unit.attached.remove(&listener.1);
        }
    }

    fn attached(&self, listener: &ListenerKey) -> Option<&Attached> {
        self.units.get(&listener.0)?.attached.get(&listener.1)
    }

    /// `None` if no route is attached under the host pattern.
    fn path_table(
        &self,
        attached: &Attached,
        listener: &ListenerKey,
        hostname: &HostPattern,
    ) -> Option<PathTable> {
        let mut routes = attached.served(hostname).peekable();
        routes.peek()?;
        let units = routes.filter_map(|route| self.routes.get(route));
        let entries = units.flat_map(|unit| unit.entries(listener, hostname));
        Some(PathTable::new(entries.collect()))
    }
}
