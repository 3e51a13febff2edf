//! Every alternative of every rule, in the order in which it is matched.

use std::sync::Arc;

use portcullis_model::{Entry, HostPattern, Listener, Snapshot};

use crate::table::table;
use crate::text::{action_text, match_text};

/// A row for each alternative, aligned.
pub fn routes(snapshot: &Snapshot) -> String {
    let mut seen = Vec::new();
    let mut rows = Vec::new();
    for port in snapshot.frontends.values() {
        // Several addresses of a Gateway share a port.
        if seen.contains(&Arc::as_ptr(port)) {
            continue;
        }
        seen.push(Arc::as_ptr(port));
        for listener in port.listeners.sorted() {
            for (host, paths) in listener.serves.routes().into_iter().flat_map(|routes| routes.hosts()) {
                let entries = paths.entries().into_iter();
                rows.extend(entries.map(|entry| row(port.key.number, listener, &host, entry)));
            }
        }
    }
    table(&["PORT", "LISTENER", "HOST", "MATCH", "RULE", "ACTION"], &rows)
}

fn row(port: u16, listener: &Listener, host: &HostPattern, entry: &Entry) -> Vec<String> {
    vec![
        port.to_string(),
        listener.id.to_string(),
        host.to_string(),
        match_text(&entry.matches),
        entry.rule.id.to_string(),
        action_text(&entry.rule),
    ]
}
