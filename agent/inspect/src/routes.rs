//! Every alternative of every rule, in the order in which it is matched, and every rule for
//! connections and datagrams; and the terms on which listeners let clients in.

use std::sync::Arc;

use portcullis_model::{
    Admission, Entry, HostPattern, L4Protocol, L4Rule, Listener, PortKey, RuleId, Snapshot,
};
use serde::{Deserialize, Serialize};

use crate::table::{Look, Table};
use crate::text::{
    action_text, budget_text, clients_of_level, l4_action_text, limits_text, listed_texts, log_text,
    match_text, open_text, proxies_text,
};

/// The routes of a configuration, and the terms of its listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    pub routes: Vec<RouteRow>,
    pub terms: Vec<TermRow>,
}

/// An alternative of a rule, or a rule for connections or datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRow {
    /// `443`, or `53/udp`.
    pub port: String,
    pub listener: String,
    pub host: String,
    /// `GET PathPrefix /a`, or the protocol of connections.
    pub r#match: String,
    pub rule: String,
    pub action: String,
    /// Those of the route, and of its parents if it has some.
    pub namespaces: Vec<String>,
}

/// Something that a listener asks of clients or requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TermRow {
    pub port: String,
    pub listener: String,
    pub term: String,
    pub lets_in: String,
    /// The namespace of the object that defines the listener.
    pub namespace: String,
}

/// A row for each alternative, and after those one for each of the terms.
pub fn routes(snapshot: &Snapshot) -> Routes {
    let mut seen = Vec::new();
    let mut all = Routes::default();
    for port in snapshot.frontends.values() {
        // Several addresses of a Gateway share a port.
        if seen.contains(&Arc::as_ptr(port)) {
            continue;
        }
        seen.push(Arc::as_ptr(port));
        for listener in port.listeners.sorted() {
            all.terms.extend(terms_of(port.key, listener));
            for (host, paths) in listener.serves.routes().into_iter().flat_map(|routes| routes.hosts()) {
                let entries = paths.entries().into_iter();
                all.routes.extend(entries.map(|entry| row(port.key, listener, &host, entry)));
            }
            for (name, rule) in listener.serves.server_names().into_iter().flat_map(|names| names.sorted()) {
                all.routes.extend(l4_row(port.key, listener, &name, rule));
            }
            if let Some(rule) = listener.serves.only_rule() {
                all.routes.extend(l4_row(port.key, listener, &HostPattern::Any, rule));
            }
        }
    }
    all
}

// === impl Routes ===

impl Routes {
    /// Only routes of this namespace, parents of it included, and the terms of its listeners.
    pub fn retain_of_namespace(&mut self, namespace: &str) {
        self.routes.retain(|row| row.namespaces.iter().any(|its| its == namespace));
        self.terms.retain(|row| row.namespace == namespace);
    }

    pub fn text(&self, look: Look) -> String {
        let rows = self.routes.iter().cloned().map(|row| {
            let RouteRow { port, listener, host, r#match, rule, action, namespaces: _ } = row;
            vec![port, listener, host, r#match, rule, action]
        });
        let mut text = Table::new(&["PORT", "LISTENER", "HOST", "MATCH", "RULE", "ACTION"], rows).text(look);
        let terms = self.terms.iter().cloned().map(|row| {
            let TermRow { port, listener, term, lets_in, namespace: _ } = row;
            vec![port, listener, term, lets_in]
        });
        if !self.terms.is_empty() {
            text.push('\n');
            text += &Table::new(&["PORT", "LISTENER", "TERM", "LETS IN"], terms).text(look);
        }
        text
    }
}

/// All of them hold, whichever object they come from.
fn terms_of(port: PortKey, listener: &Listener) -> Vec<TermRow> {
    let Admission { budgets, clients, proxies, listed, open, limits, log } = &*listener.admission;
    let levels = clients.iter().flat_map(|clients| clients.levels());
    let levels = levels.map(|level| ("clients", clients_of_level(level)));
    let budgets = budgets.iter().map(|budget| ("budget", budget_text(budget)));
    let row = |(term, lets_in): (&str, String)| TermRow {
        port: number(port),
        listener: listener.id.to_string(),
        term: term.to_owned(),
        lets_in,
        namespace: listener.id.parent.namespace.to_string(),
    };
    let proxies = proxies.iter().map(|proxies| ("proxies", proxies_text(proxies)));
    let listed = listed.iter().flat_map(|listed| listed_texts(listed)).map(|text| ("requests", text));
    let open = open.iter().map(|limit| ("open", open_text(limit)));
    let limits = limits.iter().map(|limits| ("limits", limits_text(limits)));
    let log = log.iter().map(|terms| ("log", log_text(terms)));
    let terms = levels.chain(budgets).chain(proxies).chain(listed);
    terms.chain(open).chain(limits).chain(log).map(row).collect()
}

fn row(port: PortKey, listener: &Listener, host: &HostPattern, entry: &Entry) -> RouteRow {
    RouteRow {
        port: number(port),
        listener: listener.id.to_string(),
        host: host.to_string(),
        r#match: match_text(&entry.matches),
        rule: entry.rule.id.to_string(),
        action: action_text(&entry.rule),
        namespaces: namespaces(&entry.rule.id),
    }
}

/// `None` if there is no route.
fn l4_row(port: PortKey, listener: &Listener, name: &HostPattern, rule: &L4Rule) -> Option<RouteRow> {
    let id = rule.id.as_ref()?;
    Some(RouteRow {
        port: number(port),
        listener: listener.id.to_string(),
        host: name.to_string(),
        r#match: listener.serves.protocol().to_owned(),
        rule: id.to_string(),
        action: l4_action_text(rule),
        namespaces: namespaces(id),
    })
}

fn namespaces(id: &RuleId) -> Vec<String> {
    let chain = std::iter::successors(Some(id), |id| id.parent.as_deref());
    let mut namespaces: Vec<_> = chain.map(|id| id.route.namespace.to_string()).collect();
    namespaces.dedup();
    namespaces
}

/// `443`, or `53/udp`.
pub(crate) fn number(port: PortKey) -> String {
    match port.protocol {
        L4Protocol::Tcp => port.number.to_string(),
        L4Protocol::Udp => format!("{}/udp", port.number),
    }
}
