//! The agents of a cluster, by their pods: who serves on which node, and at which addresses. The
//! state of a pod is kubelet's to say, and, of a node that is gone, the control plane's: no agent
//! has to speak for itself, least of all one that is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use portcullis_model::ObjectName;

use super::address::MOST_PUBLISHED;
use super::object::name_of;
use crate::special_address::is_special;

/// By the name of its node, what the agents there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agents(BTreeMap<Arc<str>, NodeAgent>);

/// The pod of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    node: Arc<str>,
    agent: NodeAgent,
}

/// The agent of a node; while one follows another there, both of them as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAgent {
    /// Of the node: agents are in its network.
    pub(super) addresses: BTreeSet<IpAddr>,
    pub(super) state: AgentState,
    /// The one whose state it is.
    pub(super) pod: PodName,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodName {
    pub(super) name: ObjectName,
    pub(super) uid: Option<Arc<str>>,
}

/// The state that an endpoint tells of its agent, the best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AgentState {
    /// It is to end, and is not ready any more.
    Ended,
    NotReady,
    /// It is to end, and serves still.
    Leaving,
    Ready,
}

// === impl AgentPod ===

impl AgentPod {
    /// `None` if it runs nowhere: it has no node or no address yet, or is over.
    pub fn of(pod: &Pod) -> Option<Self> {
        let node = pod.spec.as_ref()?.node_name.as_deref()?;
        let status = pod.status.as_ref()?;
        let addresses = addresses(status);
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        if is_over || addresses.is_empty() {
            return None;
        }
        let ready = status.conditions.iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True");
        let state = match (ready, pod.metadata.deletion_timestamp.is_some()) {
            (true, false) => AgentState::Ready,
            (true, true) => AgentState::Leaving,
            (false, false) => AgentState::NotReady,
            (false, true) => AgentState::Ended,
        };
        let uid = pod.metadata.uid.as_deref().map(Arc::from);
        let pod = PodName { name: name_of(&pod.metadata), uid };
        Some(Self { node: node.into(), agent: NodeAgent { addresses, state, pod } })
    }
}

/// Those that an endpoint may have; a slice with another is refused as a whole.
fn addresses(status: &PodStatus) -> BTreeSet<IpAddr> {
    let all = status.host_ips.iter().flatten().map(|it| it.ip.as_str());
    let addresses: BTreeSet<_> =
        all.chain(status.host_ip.as_deref()).filter_map(|it| it.parse().ok()).collect();
    addresses.into_iter().filter(|address| !is_special(address)).collect()
}

// === impl Agents ===

impl Agents {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &NodeAgent)> {
        self.0.iter()
    }

    /// The number of nodes whose agent is ready.
    pub fn ready(&self) -> usize {
        self.0.values().filter(|agent| agent.state == AgentState::Ready).count()
    }

    /// The addresses of nodes whose agent is ready, as many as a status has room for.
    pub fn ready_addresses(&self) -> Vec<IpAddr> {
        let ready = self.0.values().filter(|agent| agent.state == AgentState::Ready);
        ready.flat_map(|agent| agent.addresses.iter().copied()).take(MOST_PUBLISHED).collect()
    }
}

/// One for each node: an agent that follows another is there before that has ended.
impl<'p> FromIterator<&'p AgentPod> for Agents {
    fn from_iter<I: IntoIterator<Item = &'p AgentPod>>(pods: I) -> Self {
        let mut agents = BTreeMap::<Arc<str>, NodeAgent>::new();
        for AgentPod { node, agent } in pods {
            agents
                .entry(Arc::clone(node))
                .and_modify(|there| {
                    there.addresses.extend(&agent.addresses);
                    if there.state < agent.state {
                        there.state = agent.state;
                        there.pod = agent.pod.clone();
                    }
                })
                .or_insert_with(|| agent.clone());
        }
        Self(agents)
    }
}
