//! A node for those who look at it: what its agent counts of connections and packets, and what is
//! served by another way than the best one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metrics::Metrics;
use crate::paging::{Page, Query, QueryError};
use crate::served::{NodeStatus, ServedListener};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The kernel programs, or why there are none.
    pub datapath: String,
    pub guard: String,
    pub names: String,
    pub forwarding: String,
    /// Packets and connections by the kernel programs' verdict.
    pub verdicts: BTreeMap<String, u64>,
    pub connections: NodeConnections,
    /// Answers of the agent's own, by reason.
    pub own_answers: BTreeMap<String, u64>,
    /// TLS handshakes that failed, by cause.
    pub handshake_failures: BTreeMap<String, u64>,
    pub fallbacks: Vec<Fallback>,
    pub listeners: Page<ServedListener>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeConnections {
    pub accepted: u64,
    pub accept_errors: u64,
    /// Client connections open now, by Gateway.
    pub open: BTreeMap<String, u64>,
    /// Connections, tunnels and sessions of UDP that each core has now.
    pub cores: Vec<usize>,
    /// Connections and clients of UDP that the kernel forwards.
    pub kernel_flows: u64,
}

/// Something that is not done in the best way, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    pub what: String,
    pub why: String,
}

/// # Errors
/// When the question makes no sense.
pub fn node_report(status: NodeStatus, metrics: &Metrics, query: &Query) -> Result<NodeReport, QueryError> {
    let window = query.window()?;
    let (gateway, words) = (query.get("gateway"), query.words());
    let NodeStatus { datapath, guard, names, forwarding, mut listeners } = status;
    listeners.retain(|it| {
        gateway.is_none_or(|wanted| wanted == it.gateway)
            && words.are_in(&[&it.gateway, &it.name(), &it.port, &it.served_by.by, &it.steered_by.by])
    });
    let traffic = &metrics.traffic;
    let counts = |counts: &[(&'static str, u64)]| {
        counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    let open = traffic.gateways.iter().map(|(name, gateway)| (name.to_string(), gateway.open));
    let fallbacks = fallbacks(metrics, &datapath);
    Ok(NodeReport {
        datapath,
        guard,
        names,
        forwarding,
        verdicts: counts(&metrics.verdicts),
        connections: NodeConnections {
            accepted: traffic.accepted,
            accept_errors: traffic.accept_errors,
            open: open.collect(),
            cores: traffic.cores.clone(),
            kernel_flows: metrics.forwarding.flows,
        },
        own_answers: counts(&traffic.own_answers),
        handshake_failures: counts(&traffic.handshake_failures),
        fallbacks,
        listeners: window.of(listeners),
    })
}

/// `datapath` says why there are no kernel programs.
fn fallbacks(metrics: &Metrics, datapath: &str) -> Vec<Fallback> {
    let fallback = |what: String, why: &str| Fallback { what, why: why.replace(['_', '-'], " ") };
    let programs = metrics.agent.without_programs.map(|_| Fallback {
        what: "connections find their listener by sockets of user space, not by kernel programs".to_owned(),
        why: datapath.to_owned(),
    });
    let unguarded = metrics
        .unguarded
        .iter()
        .map(|(interface, why)| fallback(format!("no packet guard on interface {interface}"), why));
    let unread = metrics
        .unread
        .iter()
        .map(|(interface, why)| fallback(format!("no server names are read on interface {interface}"), why));
    let forwarding = metrics.forwarding.userspace.iter().map(|(why, frontends)| {
        fallback(format!("{frontends} TCP or UDP frontends are forwarded by user space"), why)
    });
    let library = by_library(metrics.traffic.http1_by_library);
    programs.into_iter().chain(unguarded).chain(unread).chain(forwarding).chain(library).collect()
}

fn by_library(requests: u64) -> Option<Fallback> {
    (requests > 0).then(|| Fallback {
        what: format!("{requests} requests were read by the HTTP library"),
        why: "they are unusual, or --http1 says so".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_named_as_they_are_written() {
        assert_eq!(by_library(0), None);
        assert_eq!(by_library(7).unwrap().why, "they are unusual, or --http1 says so");
    }
}
