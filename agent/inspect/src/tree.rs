//! The configuration as a tree that is asked for piece by piece: Gateways, their listeners, hosts,
//! rules, backends and endpoints. Each piece is found by the names of those above it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use portcullis_model::{Backend, Encryption, HostPattern, Listener, Port, Snapshot};
use serde::{Deserialize, Serialize};

use crate::paging::{Page, Query, QueryError, Words};
use crate::routes::{RouteRow, ServedPort, hosts, number, ports, rows};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayNode {
    pub gateway: String,
    pub addresses: Vec<IpAddr>,
    pub listeners: usize,
    /// Alternatives of rules.
    pub rules: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerNode {
    pub gateway: String,
    /// `443`, or `53/udp`.
    pub port: String,
    /// `Gateway infra/web listener https`
    pub listener: String,
    /// The namespace of the object that defines it.
    pub tenant: String,
    pub protocol: String,
    pub hostname: String,
    pub hosts: usize,
    pub rules: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostNode {
    pub gateway: String,
    pub port: String,
    pub listener: String,
    pub host: String,
    pub rules: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendNode {
    pub backend: String,
    pub protocol: String,
    /// `none`, `tls`, or `unavailable`: nothing is sent.
    pub encryption: String,
    /// Endpoints that are ready.
    pub endpoints: usize,
    /// Of those, asked only if there is no other.
    pub out: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointNode {
    pub address: SocketAddr,
    /// The reason for which it is asked only if there is no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
}

/// Endpoints that are asked only if there is no other, and why, by backend.
pub type OutEndpoints = BTreeMap<String, BTreeMap<String, &'static str>>;

/// The part of the tree that is asked about.
struct Scope<'q> {
    gateway: Option<&'q str>,
    port: Option<&'q str>,
    listener: Option<&'q str>,
    host: Option<&'q str>,
    namespace: Option<&'q str>,
    words: Words,
}

/// # Errors
/// When the question makes no sense, as for all that follow.
pub fn gateways(snapshot: &Snapshot, query: &Query) -> Result<Page<GatewayNode>, QueryError> {
    let window = query.window()?;
    let scope = Scope::of(query);
    let mut gateways = BTreeMap::<String, GatewayNode>::new();
    for ServedPort { port, addresses } in ports(snapshot) {
        let name = port.gateway.name.to_string();
        for listener in port.listeners.sorted() {
            let Some((_, rules)) = scope.size(port, listener) else { continue };
            let node = gateways.entry(name.clone()).or_insert_with(|| GatewayNode {
                gateway: name.clone(),
                addresses: Vec::new(),
                listeners: 0,
                rules: 0,
            });
            node.listeners += 1;
            node.rules += rules;
            for address in &addresses {
                if !node.addresses.contains(address) {
                    node.addresses.push(*address);
                }
            }
        }
    }
    Ok(window.of(gateways.into_values()))
}

pub fn listeners(snapshot: &Snapshot, query: &Query) -> Result<Page<ListenerNode>, QueryError> {
    let window = query.window()?;
    let scope = Scope::of(query);
    let ports = ports(snapshot);
    let nodes = ports.iter().flat_map(|ServedPort { port, .. }| {
        port.listeners.sorted().into_iter().filter_map(|listener| {
            let (hosts, rules) = scope.size(port, listener)?;
            Some(ListenerNode {
                gateway: port.gateway.name.to_string(),
                port: number(port.key),
                listener: listener.id.to_string(),
                tenant: listener.id.parent.namespace.to_string(),
                protocol: listener.serves.protocol().to_owned(),
                hostname: listener.hostname.to_string(),
                hosts,
                rules,
            })
        })
    });
    Ok(window.of(nodes))
}

/// Those of one listener, as a rule: a host may have rules at several.
pub fn host_nodes(snapshot: &Snapshot, query: &Query) -> Result<Page<HostNode>, QueryError> {
    let window = query.window()?;
    let scope = Scope::of(query);
    let mut nodes = Vec::new();
    for ServedPort { port, .. } in ports(snapshot) {
        for listener in port.listeners.sorted().into_iter().filter(|it| scope.has_listener(port, it)) {
            let found = if scope.is_of_all_rules() {
                hosts(listener).into_iter().map(|(host, rules)| (host.to_string(), rules)).collect()
            } else {
                by_host(&scope.rows(port, listener))
            };
            nodes.extend(found.into_iter().map(|(host, rules)| HostNode {
                gateway: port.gateway.name.to_string(),
                port: number(port.key),
                listener: listener.id.to_string(),
                host,
                rules,
            }));
        }
    }
    Ok(window.of(nodes))
}

/// Rules in the order in which they are matched.
pub fn route_rows(snapshot: &Snapshot, query: &Query) -> Result<Page<RouteRow>, QueryError> {
    let window = query.window()?;
    let scope = Scope::of(query);
    let ports = ports(snapshot);
    let rows = ports.iter().flat_map(|ServedPort { port, .. }| {
        let listeners = port.listeners.sorted().into_iter().filter(|it| scope.has_listener(port, it));
        listeners.flat_map(|listener| scope.rows(port, listener))
    });
    Ok(window.of(rows))
}

pub fn backends(
    snapshot: &Snapshot,
    out: &OutEndpoints,
    query: &Query,
) -> Result<Page<BackendNode>, QueryError> {
    let window = query.window()?;
    let (name, words) = (query.get("backend"), query.words());
    let all = snapshot.backends.sorted().into_iter().filter(|(its, _)| {
        name.is_none_or(|name| name == &***its) && (words.is_empty() || words.are_in(&[its]))
    });
    Ok(window.of(all.map(|(_, backend)| backend_node(backend, out))))
}

fn backend_node(backend: &Backend, out: &OutEndpoints) -> BackendNode {
    BackendNode {
        backend: backend.name.to_string(),
        protocol: format!("{:?}", backend.protocol),
        encryption: match backend.encryption {
            Encryption::None => "none",
            Encryption::Tls(_) => "tls",
            Encryption::Unavailable => "unavailable",
        }
        .to_owned(),
        endpoints: backend.endpoints.len(),
        out: out.get(backend.name.as_str()).map_or(0, BTreeMap::len),
    }
}

/// Those of the backend that is asked about; none of one that is not there.
pub fn endpoints(
    snapshot: &Snapshot,
    out: &OutEndpoints,
    query: &Query,
) -> Result<Page<EndpointNode>, QueryError> {
    let window = query.window()?;
    let name = query.get("backend").ok_or(QueryError::Missing("backend"))?;
    let endpoints = snapshot.backends.get(name).map(|backend| backend.endpoints.iter());
    let out = out.get(name);
    let nodes = endpoints.into_iter().flatten().map(|address| EndpointNode {
        address: *address,
        out: out.and_then(|out| out.get(&address.to_string())).map(|why| (*why).to_owned()),
    });
    Ok(window.of(nodes))
}

/// In the order of the rows.
fn by_host(rows: &[RouteRow]) -> Vec<(String, usize)> {
    let mut hosts: Vec<(String, usize)> = Vec::new();
    for row in rows {
        match hosts.last_mut() {
            Some((host, rules)) if *host == row.host => *rules += 1,
            _ => hosts.push((row.host.clone(), 1)),
        }
    }
    hosts
}

// === impl Scope ===

impl<'q> Scope<'q> {
    fn of(query: &'q Query) -> Self {
        Self {
            gateway: query.get("gateway"),
            port: query.get("port"),
            listener: query.get("listener"),
            host: query.get("host"),
            namespace: query.get("namespace"),
            words: query.words(),
        }
    }

    fn has_listener(&self, port: &Port, listener: &Listener) -> bool {
        let is = |wanted: Option<&str>, name: &dyn Fn() -> String| wanted.is_none_or(|it| it == name());
        is(self.gateway, &|| port.gateway.name.to_string())
            && is(self.port, &|| number(port.key))
            && is(self.listener, &|| listener.id.to_string())
    }

    /// True if the listeners, if anything, are all that is asked for.
    fn is_of_all_rules(&self) -> bool {
        self.host.is_none() && self.namespace.is_none() && self.words.is_empty()
    }

    /// Hosts and rules of a listener that are asked for; `None` if it is not, for itself or for one
    /// of them.
    fn size(&self, port: &Port, listener: &Listener) -> Option<(usize, usize)> {
        if !self.has_listener(port, listener) {
            return None;
        }
        if self.is_of_all_rules() {
            let hosts = hosts(listener);
            return Some((hosts.len(), hosts.iter().map(|(_, rules)| rules).sum()));
        }
        let rows = self.rows(port, listener);
        let has_none = self.host.is_none()
            && self.namespace.is_none_or(|it| it == &*listener.id.parent.namespace)
            && self.words.are_in(&[&port.gateway.name.to_string(), &listener.id.to_string()]);
        (!rows.is_empty() || has_none).then(|| (by_host(&rows).len(), rows.len()))
    }

    fn rows(&self, port: &Port, listener: &Listener) -> Vec<RouteRow> {
        let is_wanted = |host: &HostPattern| self.host.is_none_or(|wanted| wanted == host.to_string());
        let mut rows = rows(port, listener, is_wanted);
        rows.retain(|row| {
            let of_namespace = |it| row.namespaces.iter().any(|its| its == it);
            self.namespace.is_none_or(of_namespace) && self.words.are_in(&texts(row))
        });
        rows
    }
}

fn texts(row: &RouteRow) -> [&str; 6] {
    [&row.gateway, &row.listener, &row.host, &row.r#match, &row.rule, &row.action]
}
