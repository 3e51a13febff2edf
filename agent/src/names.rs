//! Listeners as the kernel programs know them: their server names, and the terms on which
//! connections are let in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_model::{ClientAddress, ClientRanges, FrontendKey, PortListeners, Snapshot, SpeaksFirst};
use portcullis_node::NameTable;

/// A table for each port whose listeners are found by server name.
pub(crate) fn names(snapshot: &Snapshot) -> Vec<NameTable> {
    let mut tables = BTreeMap::<_, NameTable>::new();
    for (frontend, port) in &snapshot.frontends {
        let PortListeners::Tls(listeners) = &port.listeners else { continue };
        // A header comes before the hello, and says who the client is.
        if port.client_address != ClientAddress::OfPeer {
            continue;
        }
        let table = tables.entry(Arc::as_ptr(port)).or_insert_with(|| NameTable {
            names: listeners.values().map(|it| (it.hostname.clone(), it.admission.clone())).collect(),
            ..NameTable::default()
        });
        table.frontends.insert(*frontend);
    }
    let mut tables: Vec<_> = tables.into_values().collect();
    // Not by where they lie in memory: where there is no room for all, the same are left out.
    tables.sort_by(|a, b| a.frontends.cmp(&b.frontends));
    tables
}

/// Those of ports whose clients speak first.
pub(crate) fn clients_speak(snapshot: &Snapshot) -> BTreeSet<FrontendKey> {
    let ports = snapshot.frontends.iter();
    let clients_speak = ports.filter(|(_, port)| port.listeners.speaks_first() == SpeaksFirst::Client);
    clients_speak.map(|(frontend, _)| *frontend).collect()
}

/// The addresses that may connect, of ports where not all may. Where proxies say who the client is,
/// the kernel sees the proxies.
pub(crate) fn clients(snapshot: &Snapshot) -> BTreeMap<FrontendKey, Arc<ClientRanges>> {
    let ports = snapshot.frontends.iter();
    let ports = ports.filter(|(_, port)| port.client_address == ClientAddress::OfPeer);
    ports.filter_map(|(frontend, port)| Some((*frontend, port.clients.clone()?))).collect()
}
