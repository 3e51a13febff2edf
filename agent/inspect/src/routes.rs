//! Every alternative of every rule, in the order in which it is matched, and every rule for
//! connections and datagrams; and the terms on which listeners let clients in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use portcullis_model::{
    Action, Admission, BackendTarget, Entry, HostPattern, L4Action, L4Protocol, L4Rule, L4Target, Listener,
    ObjectName, Port, PortKey, RuleId, Snapshot, Split, Weighted,
};
use serde::{Deserialize, Serialize};

use crate::table::{Look, Table};
use crate::text::{
    action_text, budget_text, clients_of_level, l4_action_text, limits_text, listed_texts, log_text,
    match_text, open_text, proxies_text, response_text,
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
    /// The Gateway on whose addresses the listener is served.
    pub gateway: String,
    /// `443`, or `53/udp`.
    pub port: String,
    pub listener: String,
    pub host: String,
    /// `GET PathPrefix /a`, or the protocol of connections.
    pub r#match: String,
    pub rule: String,
    pub action: String,
    /// The name by which its requests are counted: `HTTPRoute shop/cart`.
    pub route: String,
    /// Of an action that forwards.
    pub backends: Vec<BackendShare>,
    /// Those of the route, and of its parents if it has some.
    pub namespaces: Vec<String>,
}

/// A part of a rule's traffic: `weight` of `of`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendShare {
    pub weight: u32,
    pub of: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The answer that stands in for a backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
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
    let mut all = Routes::default();
    for ServedPort { port, .. } in ports(snapshot) {
        for listener in port.listeners.sorted() {
            all.terms.extend(terms_of(port.key, listener));
            all.routes.extend(rows(port, listener, |_| true));
        }
    }
    all
}

/// A port with the addresses that share it.
pub(crate) struct ServedPort<'s> {
    pub port: &'s Port,
    pub addresses: Vec<IpAddr>,
}

/// Each port once.
pub(crate) fn ports(snapshot: &Snapshot) -> Vec<ServedPort<'_>> {
    let mut ports: Vec<ServedPort<'_>> = Vec::new();
    let mut seen = HashMap::new();
    for (frontend, port) in &snapshot.frontends {
        let at = *seen.entry(Arc::as_ptr(port)).or_insert(ports.len());
        match ports.get_mut(at) {
            Some(known) => known.addresses.push(frontend.address),
            None => ports.push(ServedPort { port, addresses: vec![frontend.address] }),
        }
    }
    ports
}

/// The rules of a listener, at those hosts that are wanted.
pub(crate) fn rows(port: &Port, listener: &Listener, wanted: impl Fn(&HostPattern) -> bool) -> Vec<RouteRow> {
    let mut rows = Vec::new();
    for (host, paths) in listener.serves.routes().into_iter().flat_map(|routes| routes.hosts()) {
        if wanted(&host) {
            rows.extend(paths.entries().into_iter().map(|entry| row(port, listener, &host, entry)));
        }
    }
    for (name, rule) in listener.serves.server_names().into_iter().flat_map(|names| names.sorted()) {
        if wanted(&name) {
            rows.extend(l4_row(port, listener, &name, rule));
        }
    }
    if let Some(rule) = listener.serves.only_rule().filter(|_| wanted(&HostPattern::Any)) {
        rows.extend(l4_row(port, listener, &HostPattern::Any, rule));
    }
    rows
}

/// The hosts of a listener, each with the number of its rules' alternatives.
pub(crate) fn hosts(listener: &Listener) -> Vec<(HostPattern, usize)> {
    let tables = listener.serves.routes().into_iter().flat_map(|routes| routes.hosts());
    let of_tables = tables.map(|(host, paths)| (host, paths.entries().len()));
    let names = listener.serves.server_names().into_iter().flat_map(|names| names.sorted());
    let of_names = names.filter(|(_, rule)| rule.id.is_some()).map(|(name, _)| (name, 1));
    let only = listener.serves.only_rule().filter(|rule| rule.id.is_some());
    of_tables.chain(of_names).chain(only.map(|_| (HostPattern::Any, 1))).collect()
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
            let RouteRow { port, listener, host, r#match, rule, action, .. } = row;
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

fn row(port: &Port, listener: &Listener, host: &HostPattern, entry: &Entry) -> RouteRow {
    RouteRow {
        gateway: port.gateway.name.to_string(),
        port: number(port.key),
        listener: listener.id.to_string(),
        host: host.to_string(),
        r#match: match_text(&entry.matches),
        rule: entry.rule.id.to_string(),
        action: action_text(&entry.rule),
        route: route_name(&entry.rule.id),
        backends: match &entry.rule.action {
            Action::Forward(split) => shares(split, |backend| match &backend.target {
                BackendTarget::Known(name) => Ok(name.to_string()),
                BackendTarget::Respond(response) => Err(response_text(response)),
                BackendTarget::Invalid(failure) => Err(failure.to_string()),
            }),
            Action::Redirect(_) | Action::Respond(_) | Action::Fail(_) => Vec::new(),
        },
        namespaces: namespaces(&entry.rule.id),
    }
}

/// `None` if there is no route.
fn l4_row(port: &Port, listener: &Listener, name: &HostPattern, rule: &L4Rule) -> Option<RouteRow> {
    let id = rule.id.as_ref()?;
    Some(RouteRow {
        gateway: port.gateway.name.to_string(),
        port: number(port.key),
        listener: listener.id.to_string(),
        host: name.to_string(),
        r#match: listener.serves.protocol().to_owned(),
        rule: id.to_string(),
        action: l4_action_text(rule),
        route: route_name(id),
        backends: match &rule.action {
            L4Action::Forward(split) => shares(split, |backend| match &backend.target {
                L4Target::Known(name) => Ok(name.to_string()),
                L4Target::Refuse(reason) => Err(format!("refused: {reason}")),
            }),
            L4Action::Refuse(_) => Vec::new(),
        },
        namespaces: namespaces(id),
    })
}

/// `target` is the name of a backend, or else the answer in its place.
fn shares<B: Weighted>(split: &Split<B>, target: impl Fn(&B) -> Result<String, String>) -> Vec<BackendShare> {
    let share = |backend: &B| {
        let (weight, of) = (backend.weight(), split.total());
        match target(backend) {
            Ok(name) => BackendShare { weight, of, backend: Some(name), answer: None },
            Err(answer) => BackendShare { weight, of, backend: None, answer: Some(answer) },
        }
    };
    split.backends().iter().map(share).collect()
}

/// `HTTPRoute shop/cart`, and for one that is included, by which route.
fn route_name(id: &RuleId) -> String {
    named_route(id.kind, &id.route, id.parent.as_ref().map(|parent| &*parent.route))
}

pub(crate) fn named_route(kind: &str, route: &ObjectName, parent: Option<&ObjectName>) -> String {
    let parent = parent.map(|parent| format!(" of {parent}")).unwrap_or_default();
    format!("{kind} {route}{parent}")
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
