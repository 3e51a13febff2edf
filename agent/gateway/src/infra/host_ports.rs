//! The right to serve ports on the nodes' own addresses. A node's ports are no tenant's to take:
//! only the operator of the agents gives it, by GatewayClass, namespace and ports. What is asked
//! for without it is refused with a reason; ports that a cluster needs for itself no Gateway gets.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use portcullis_model::PortKey;

/// Ports of Kubernetes' own processes, which listen on every node, or may: a process that restarts
/// must find its port free.
const SYSTEM: &[(RangeInclusive<u16>, &str)] = &[
    (2379..=2380, "etcd's"),
    (6443..=6443, "the API server's"),
    (10248..=10259, "kubelet's, kube-proxy's or the control plane's"),
];

/// The decisions of the agents' operator about the nodes' own ports. By default no Gateway gets
/// any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPortRights {
    pub grants: Vec<HostPortGrant>,
    /// As the API server's `--service-node-port-range`.
    pub node_ports: PortRange,
    /// Of the agents' own admin endpoints.
    pub admin_port: Option<u16>,
    /// Of the agents' metrics, for scrapers on other machines.
    pub metrics_port: Option<u16>,
}

/// The Gateways of a class in a namespace, and the ports they may have: `CLASS/NAMESPACE:PORTS`,
/// where `*` stands for all classes or all namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPortGrant {
    /// `None`: all.
    class: Option<Arc<str>>,
    /// `None`: all.
    namespace: Option<Arc<str>>,
    ports: PortRange,
}

/// `80`, or `8000-8999`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange(RangeInclusive<u16>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostPortSyntax {
    #[error("write CLASS/NAMESPACE:PORTS, such as portcullis/infra:80 or portcullis/*:8000-8999")]
    Grant,
    #[error("write a port, or the first and last of a range: 80, or 8000-8999")]
    Ports,
}

// === impl HostPortRights ===

impl HostPortRights {
    /// The reason why Gateways of a class in a namespace do not get a port of the nodes.
    pub(crate) fn refusal(&self, class: &str, namespace: &str, port: PortKey) -> Option<String> {
        let number = port.number;
        if let Some(owner) = self.owner(number) {
            return Some(format!(
                "port {number} of the nodes' own addresses is {owner}, and no Gateway's: use another port, or leave \
                 hostPorts out"
            ));
        }
        let granted = self.grants.iter().any(|grant| grant.covers(class, namespace, number));
        (!granted).then(|| {
            format!(
                "port {number} of the nodes' own addresses (hostPorts) is not granted to Gateways of class {class} \
                 in namespace {namespace}: the agents' operator does, with --host-ports \
                 {class}/{namespace}:{number}; on its own addresses the Gateway is served"
            )
        })
    }

    /// The owner of a port that no Gateway gets.
    fn owner(&self, port: u16) -> Option<&'static str> {
        let system = SYSTEM.iter().find(|(ports, _)| ports.contains(&port)).map(|(_, owner)| *owner);
        let admin = (self.admin_port == Some(port)).then_some("the agents' admin port");
        let metrics = (self.metrics_port == Some(port)).then_some("the agents' metrics port");
        let node_port = self.node_ports.0.contains(&port).then_some("in the range of Services' node ports");
        system.or(admin).or(metrics).or(node_port)
    }
}

impl Default for HostPortRights {
    fn default() -> Self {
        Self {
            grants: Vec::new(),
            node_ports: PortRange(30000..=32767),
            admin_port: None,
            metrics_port: None,
        }
    }
}

// === impl HostPortGrant ===

impl HostPortGrant {
    fn covers(&self, class: &str, namespace: &str, port: u16) -> bool {
        self.class.as_deref().is_none_or(|granted| granted == class)
            && self.namespace.as_deref().is_none_or(|granted| granted == namespace)
            && self.ports.0.contains(&port)
    }
}

impl FromStr for HostPortGrant {
    type Err = HostPortSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (gateways, ports) = text.rsplit_once(':').ok_or(HostPortSyntax::Grant)?;
        let (class, namespace) = gateways.split_once('/').ok_or(HostPortSyntax::Grant)?;
        if class.is_empty() || namespace.is_empty() || namespace.contains('/') {
            return Err(HostPortSyntax::Grant);
        }
        let named = |name: &str| (name != "*").then(|| name.into());
        Ok(Self { class: named(class), namespace: named(namespace), ports: ports.parse()? })
    }
}

// === impl PortRange ===

impl FromStr for PortRange {
    type Err = HostPortSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
        range.map(|(first, last)| Self(first..=last)).ok_or(HostPortSyntax::Ports)
    }
}

/// As it is read.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(grants: &[&str], class: &str, namespace: &str, port: u16) -> bool {
        let grants = grants.iter().map(|grant| grant.parse().unwrap()).collect();
        let (admin_port, metrics_port) = (Some(9270), Some(9271));
        let rights = HostPortRights { grants, admin_port, metrics_port, ..HostPortRights::default() };
        rights.refusal(class, namespace, PortKey::tcp(port)).is_none()
    }

    #[test]
    fn a_grant_is_for_a_class_a_namespace_and_ports() {
        let grant = ["edge/infra:8000-8099"];
        assert!(granted(&grant, "edge", "infra", 8000) && granted(&grant, "edge", "infra", 8099));
        assert!(!granted(&grant, "edge", "infra", 8100) && !granted(&grant, "edge", "infra", 7999));
        assert!(!granted(&grant, "other", "infra", 8000) && !granted(&grant, "edge", "shop", 8000));
        assert!(
            granted(&["*/infra:80"], "other", "infra", 80) && granted(&["edge/*:80"], "edge", "shop", 80)
        );
        assert!(!granted(&[], "edge", "infra", 80), "not without one");
    }

    #[test]
    fn what_a_cluster_needs_is_granted_to_no_gateway() {
        for port in [2379, 2380, 6443, 9270, 9271, 10250, 10256, 10257, 10259, 30000, 32767] {
            assert!(!granted(&["*/*:1-65535"], "edge", "infra", port), "{port}");
        }
        for port in [80, 443, 2378, 10247, 10260, 29999, 32768, 65535] {
            assert!(granted(&["*/*:1-65535"], "edge", "infra", port), "{port}");
        }
    }

    #[test]
    fn what_is_no_grant_says_what_is() {
        for text in ["", "80", "infra:80", "edge/infra", "/infra:80", "edge/:80", "a/b/c:80"] {
            assert_eq!(text.parse::<HostPortGrant>(), Err(HostPortSyntax::Grant), "{text}");
        }
        for text in
            ["edge/infra:", "edge/infra:0", "edge/infra:90-80", "edge/infra:http", "edge/infra:80-99999"]
        {
            assert_eq!(text.parse::<HostPortGrant>(), Err(HostPortSyntax::Ports), "{text}");
        }
    }
}
