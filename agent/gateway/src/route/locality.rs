//! Endpoints near the agent: those that hints of EndpointSlices give to its node and zone, and
//! those that its Service prefers for where they are (`trafficDistribution`). Read as kube-proxy
//! reads them; one that is preferred and not available is the data plane's to pass over.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::Endpoint;
use portcullis_model::{Distance, Locality};

use crate::AgentPlace;

/// The distance that a Service prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preferred {
    Any,
    Zone,
    /// The zone's are next.
    Node,
}

/// The addresses in the order of their preference, and the distances of them.
pub(super) fn ordered(
    endpoints: Vec<(SocketAddr, &Endpoint)>,
    service: Option<&Service>,
    own: &AgentPlace,
) -> (Vec<SocketAddr>, Option<Arc<Locality>>) {
    let is_placed = |(_, it): &(SocketAddr, &Endpoint)| it.node_name.is_some() || it.zone.is_some();
    if own.is_unknown() || !endpoints.iter().any(is_placed) {
        let mut addresses: Vec<_> = endpoints.into_iter().map(|(address, _)| address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        return (addresses, None);
    }
    let preferred = Preferred::of(service);
    // "All" or none: hints that are being written are not followed, for one endpoint would have
    // all of the traffic.
    let are_hinted_by_node = endpoints.iter().all(|(_, it)| nodes(it).next().is_some());
    let are_hinted_by_zone = endpoints.iter().all(|(_, it)| zones(it).next().is_some());
    let mut ranks = BTreeMap::new();
    for (address, endpoint) in endpoints {
        let place = own.distance(endpoint);
        let is_nodes = match are_hinted_by_node {
            true => nodes(endpoint).any(|node| own.node.as_deref() == Some(node)),
            false => preferred == Preferred::Node && place == Distance::Node,
        };
        let is_zones = match are_hinted_by_zone {
            true => zones(endpoint).any(|zone| own.zone.as_deref() == Some(zone)),
            false => preferred != Preferred::Any && own.zone.is_some() && place <= Distance::Zone,
        };
        let rank = if is_nodes {
            0
        } else if is_zones {
            1
        } else {
            2
        };
        let best = ranks.entry(address).or_insert((rank, place));
        *best = (*best).min((rank, place));
    }
    let mut ordered: Vec<_> =
        ranks.into_iter().map(|(address, (rank, place))| (rank, address, place)).collect();
    ordered.sort_unstable();
    let ends = [0, 1].map(|last| ordered.iter().take_while(|(rank, ..)| *rank <= last).count());
    let mut groups: Vec<_> = ends.into_iter().filter(|end| (1..ordered.len()).contains(end)).collect();
    groups.dedup();
    let places = ordered.iter().map(|(_, _, place)| *place).collect();
    let locality = Locality { places, preferred: groups.into() };
    (ordered.into_iter().map(|(_, address, _)| address).collect(), Some(Arc::new(locality)))
}

fn nodes(endpoint: &Endpoint) -> impl Iterator<Item = &str> {
    let hints = endpoint.hints.iter().flat_map(|hints| hints.for_nodes.iter().flatten());
    hints.map(|hint| hint.name.as_str())
}

fn zones(endpoint: &Endpoint) -> impl Iterator<Item = &str> {
    let hints = endpoint.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten());
    hints.map(|hint| hint.name.as_str())
}

// === impl Preferred ===

impl Preferred {
    /// "If unset or set to an unrecognised value" there is no preference (ServiceSpec).
    fn of(service: Option<&Service>) -> Self {
        let spec = service.and_then(|service| service.spec.as_ref());
        match spec.and_then(|spec| spec.traffic_distribution.as_deref()) {
            Some("PreferSameNode") => Self::Node,
            Some("PreferSameZone" | "PreferClose") => Self::Zone,
            _ => Self::Any,
        }
    }
}

// === impl AgentPlace ===

impl AgentPlace {
    fn distance(&self, endpoint: &Endpoint) -> Distance {
        let is_own = |own: &Option<Arc<str>>, stated: &Option<String>| {
            own.as_deref().is_some_and(|own| stated.as_deref() == Some(own))
        };
        if is_own(&self.node, &endpoint.node_name) {
            Distance::Node
        } else if is_own(&self.zone, &endpoint.zone) {
            Distance::Zone
        } else {
            Distance::Elsewhere
        }
    }
}

#[cfg(test)]
#[path = "locality_tests.rs"]
mod tests;
