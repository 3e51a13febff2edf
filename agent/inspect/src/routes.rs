//! Every alternative of every rule, in the order in which it is matched, and every rule for
//! connections and datagrams; and the terms on which listeners let clients in.

use std::sync::Arc;

use portcullis_model::{Admission, Entry, HostPattern, L4Protocol, L4Rule, Listener, PortKey, Snapshot};

use crate::table::Table;
use crate::text::{
    action_text, budget_text, clients_of_level, l4_action_text, limits_text, listed_texts, log_text,
    match_text, open_text, proxies_text,
};

/// A row for each alternative, and after those one for each of the terms, aligned.
pub fn routes(snapshot: &Snapshot) -> String {
    let mut seen = Vec::new();
    let (mut rows, mut terms) = (Vec::new(), Vec::new());
    for port in snapshot.frontends.values() {
        // Several addresses of a Gateway share a port.
        if seen.contains(&Arc::as_ptr(port)) {
            continue;
        }
        seen.push(Arc::as_ptr(port));
        for listener in port.listeners.sorted() {
            terms.extend(terms_of(port.key, listener));
            for (host, paths) in listener.serves.routes().into_iter().flat_map(|routes| routes.hosts()) {
                let entries = paths.entries().into_iter();
                rows.extend(entries.map(|entry| row(port.key, listener, &host, entry)));
            }
            for (name, rule) in listener.serves.server_names().into_iter().flat_map(|names| names.sorted()) {
                rows.extend(l4_row(port.key, listener, &name, rule));
            }
            if let Some(rule) = listener.serves.only_rule() {
                rows.extend(l4_row(port.key, listener, &HostPattern::Any, rule));
            }
        }
    }
    let mut text = Table::new(&["PORT", "LISTENER", "HOST", "MATCH", "RULE", "ACTION"], rows).to_string();
    if !terms.is_empty() {
        text.push('\n');
        text += &Table::new(&["PORT", "LISTENER", "TERM", "LETS IN"], terms).to_string();
    }
    text
}

/// All of them hold, whichever object they come from.
fn terms_of(port: PortKey, listener: &Listener) -> Vec<Vec<String>> {
    let Admission { budgets, clients, proxies, listed, open, limits, log } = &*listener.admission;
    let levels = clients.iter().flat_map(|clients| clients.levels());
    let levels = levels.map(|level| ("clients", clients_of_level(level)));
    let budgets = budgets.iter().map(|budget| ("budget", budget_text(budget)));
    let row =
        |(term, text): (&str, String)| vec![number(port), listener.id.to_string(), term.to_owned(), text];
    let proxies = proxies.iter().map(|proxies| ("proxies", proxies_text(proxies)));
    let listed = listed.iter().flat_map(|listed| listed_texts(listed)).map(|text| ("requests", text));
    let open = open.iter().map(|limit| ("open", open_text(limit)));
    let limits = limits.iter().map(|limits| ("limits", limits_text(limits)));
    let log = log.iter().map(|terms| ("log", log_text(terms)));
    let terms = levels.chain(budgets).chain(proxies).chain(listed);
    terms.chain(open).chain(limits).chain(log).map(row).collect()
}

fn row(port: PortKey, listener: &Listener, host: &HostPattern, entry: &Entry) -> Vec<String> {
    vec![
        number(port),
        listener.id.to_string(),
        host.to_string(),
        match_text(&entry.matches),
        entry.rule.id.to_string(),
        action_text(&entry.rule),
    ]
}

/// `None` if there is no route.
fn l4_row(port: PortKey, listener: &Listener, name: &HostPattern, rule: &L4Rule) -> Option<Vec<String>> {
    let id = rule.id.as_ref()?;
    Some(vec![
        number(port),
        listener.id.to_string(),
        name.to_string(),
        listener.serves.protocol().to_owned(),
        id.to_string(),
        l4_action_text(rule),
    ])
}

/// `443`, or `53/udp`.
pub(crate) fn number(port: PortKey) -> String {
    match port.protocol {
        L4Protocol::Tcp => port.number.to_string(),
        L4Protocol::Udp => format!("{}/udp", port.number),
    }
}
