//! The decisions of the agent's operator, as opposed to what Gateway API objects say.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portcullis_model::{AddressRange, ObjectName};

use crate::{AgentPlace, ExternalRule, infra};

/// The controller that GatewayClasses name.
pub const CONTROLLER_NAME: &str = "portcullis.dev/gateway";

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// GatewayClasses with this `controllerName` are ours; route statuses are written under it.
    pub controller_name: String,
    /// The addresses of Gateways without usable `spec.addresses`. The unspecified address stands
    /// for every address of the node.
    pub default_addresses: Vec<IpAddr>,
    /// The parameters of Gateways that say nothing about them.
    pub generated: infra::Parameters,
    /// The addresses that load balancers may give to Gateways. No others are made local.
    pub load_balancers: Vec<AddressRange>,
    /// The addresses by which this agent reaches the API server, never a Gateway's.
    pub api_server: BTreeSet<IpAddr>,
    pub endpoints: EndpointRule,
    pub external: ExternalRule,
    /// The Gateways that may be served on the nodes' own addresses, and on which ports.
    pub host_ports: infra::HostPortRights,
    pub role: AgentRole,
    pub place: AgentPlace,
}

/// The addresses that EndpointSlices may have. An agent on a node forwards from the node's network,
/// where kubelets, the API server and everything on loopback take it for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EndpointRule {
    /// All, as without a cluster: who writes the slices is the machine's operator.
    #[default]
    Any,
    /// Not those of nodes, of Services and Gateways, loopback or link-local ones, but in slices of
    /// these namespaces.
    Foreign { allowed: BTreeSet<String> },
}

/// The place of an agent, which decides on the Gateways that its snapshot has. Statuses are planned
/// for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AgentRole {
    /// An agent on a node: all but those that have pods of their own.
    #[default]
    Node,
    /// A pod of this one, on all addresses that it has.
    Dedicated(ObjectName),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            controller_name: CONTROLLER_NAME.to_owned(),
            default_addresses: Vec::new(),
            generated: infra::Parameters::default(),
            load_balancers: Vec::new(),
            api_server: BTreeSet::new(),
            endpoints: EndpointRule::default(),
            external: ExternalRule::default(),
            host_ports: infra::HostPortRights::default(),
            role: AgentRole::default(),
            place: AgentPlace::default(),
        }
    }
}
