//! The second input of translation beside the objects: what became of what it handed out. The data
//! plane reports what it does not serve, the cluster which addresses it assigned and what it did
//! not give; frontends and statuses follow from objects and feedback alike. Nothing here knows the
//! observers, or when they observe.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use portcullis_api::{Kind, Objects};
use portcullis_model::{Certificate, ListenerId, ObjectName, PortKey, Snapshot, Unserved};

use crate::Fault;
use crate::infra::AssignedAddresses;

/// An observation. Each replaces the earlier one of its kind, or of its kind and Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// The part of the snapshot that the data plane cannot serve; it serves the rest.
    Unserved(Unserved),
    /// The Gateways that could not get what is generated for them; all others have it.
    Unprovisioned(BTreeMap<ObjectName, Fault>),
    /// The addresses that the cluster assigned to these Gateways. From the first such observation
    /// on, no Gateway is served on an address that it was not assigned.
    Assigned(BTreeMap<ObjectName, AssignedAddresses>),
    /// By Secret that holds none that can be served any more, the certificate that it held last.
    /// They are remembered by those who read Secrets, for as long as they may.
    KeptCertificates(BTreeMap<ObjectName, Certificate>),
    /// The kinds of which nothing could be read so far: there may be objects, and nothing is known
    /// of them.
    Unread(BTreeSet<Kind>),
    /// The addresses at which clients reach the node; in a cluster, the nodes that have a ready
    /// agent. They are published for Gateways that are served on all of a node's addresses.
    NodeAddresses(Vec<IpAddr>),
    /// The addresses of the agent's network namespace, those of Gateways left out: no object that
    /// the agent reads need list them.
    OwnAddresses(BTreeSet<IpAddr>),
    /// The addresses of the API server, and what may keep the agent from it.
    ApiServer(ApiServer),
    /// The agents of nodes that are ready; `None` as long as they are not known.
    Agents(Option<NonZeroU32>),
    /// By name that an outcome asked for, what is known of its addresses; of others, nothing yet.
    Names(BTreeMap<Arc<str>, NameAnswer>),
}

/// The addresses of a name, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameAnswer {
    /// Those of the last answer, as long as they may be used.
    pub addresses: BTreeSet<IpAddr>,
    /// The reason why there is no answer, or no address in it; addresses are older then.
    pub failure: Option<Box<str>>,
}

/// The API server as the agent reaches it, or does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServer {
    /// The addresses by which it is reached; no Gateway has them.
    pub addresses: BTreeSet<IpAddr>,
    /// Published addresses that no Gateway has for the time being: there was no answer since they
    /// were made local.
    pub suspects: BTreeSet<IpAddr>,
}

/// No address.
static UNASSIGNED: AssignedAddresses =
    AssignedAddresses { all: Vec::new(), cluster: Vec::new(), balanced: None, published: Vec::new() };

/// The newest observations, and the Gateways that they concern.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    unserved: Unserved,
    unprovisioned: BTreeMap<ObjectName, Fault>,
    /// By Gateway, the addresses that it was assigned; `None` without a cluster.
    assigned: Option<BTreeMap<ObjectName, AssignedAddresses>>,
    /// The traffic that is not served, by the Gateway that the snapshot has for the frontend.
    by_gateway: BTreeMap<ObjectName, Unserved>,
    /// Gateways of which something else was observed since [`Self::assign`].
    changed: BTreeSet<ObjectName>,
    /// Gateways that were assigned other addresses since [`Self::readdressed`].
    readdressed: BTreeSet<ObjectName>,
    /// By Secret.
    certificates: BTreeMap<ObjectName, Certificate>,
    /// Secrets of which another certificate is kept since [`Self::recertified`].
    recertified: BTreeSet<ObjectName>,
    unread: BTreeSet<Kind>,
    /// Empty: not known.
    node_addresses: Vec<IpAddr>,
    own_addresses: BTreeSet<IpAddr>,
    agents: Option<NonZeroU32>,
    api_server: Option<ApiServer>,
    /// `None` where no names are looked up.
    names: Option<BTreeMap<Arc<str>, NameAnswer>>,
    /// Names with another answer since [`Self::renamed`].
    renamed: BTreeSet<Arc<str>>,
}

// === impl Observations ===

impl Observations {
    pub(crate) fn observe(&mut self, feedback: Feedback, objects: &Objects) {
        match feedback {
            Feedback::Unserved(now) => self.unserved = now,
            Feedback::Unprovisioned(now) => {
                self.changed.extend(different(&self.unprovisioned, &now));
                self.unprovisioned = now;
            }
            Feedback::KeptCertificates(now) => {
                self.recertified.extend(different(&self.certificates, &now));
                self.certificates = now;
            }
            Feedback::Unread(now) => self.unread = now,
            Feedback::NodeAddresses(now) => {
                if self.node_addresses != now {
                    self.readdressed.extend(objects.gateways.keys().cloned());
                    self.renamed.extend(self.names.iter().flatten().map(|(name, _)| name.clone()));
                    self.node_addresses = now;
                }
            }
            Feedback::OwnAddresses(now) => self.own_addresses = now,
            Feedback::Agents(now) => self.agents = now,
            Feedback::Names(now) => {
                let before = self.names.take().unwrap_or_default();
                self.renamed.extend(different(&before, &now));
                self.names = Some(now);
            }
            Feedback::ApiServer(now) => {
                let before = self.api_server.take().unwrap_or_default().suspects;
                let others: BTreeSet<_> = before.symmetric_difference(&now.suspects).copied().collect();
                let concerned: Vec<_> = self.assigned_where(|it| others.contains(it)).cloned().collect();
                self.readdressed.extend(concerned);
                self.api_server = Some(now);
            }
            Feedback::Assigned(now) => {
                if self.assigned.is_none() {
                    // In a cluster the others are now known to have nothing.
                    self.readdressed.extend(objects.gateways.keys().cloned());
                }
                let assigned = self.assigned.get_or_insert_default();
                for (gateway, now) in now {
                    if assigned.get(&gateway).unwrap_or(&UNASSIGNED) == &now {
                        continue;
                    }
                    self.readdressed.insert(gateway.clone());
                    if now == UNASSIGNED {
                        assigned.remove(&gateway);
                    } else {
                        assigned.insert(gateway, now);
                    }
                }
            }
        }
    }

    /// The same observations, for a translation from scratch.
    pub(crate) fn restart(self) -> Self {
        Self {
            by_gateway: BTreeMap::new(),
            changed: BTreeSet::new(),
            readdressed: BTreeSet::new(),
            recertified: BTreeSet::new(),
            renamed: BTreeSet::new(),
            ..self
        }
    }

    /// Takes the Gateways that were assigned other addresses since the last call.
    pub(crate) fn readdressed(&mut self) -> BTreeSet<ObjectName> {
        std::mem::take(&mut self.readdressed)
    }

    /// Takes the Secrets of which another certificate is kept since the last call.
    pub(crate) fn recertified(&mut self) -> BTreeSet<ObjectName> {
        std::mem::take(&mut self.recertified)
    }

    /// Takes the names that have another answer since the last call.
    pub(crate) fn renamed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.renamed)
    }

    /// The last answer for a name; `None` if it was not looked up yet.
    pub(crate) fn name(&self, name: &str) -> Option<&NameAnswer> {
        self.names.as_ref()?.get(name)
    }

    /// False offline: nothing is said of names there.
    pub(crate) fn are_names_looked_up(&self) -> bool {
        self.names.is_some()
    }

    /// The last certificate of a Secret that holds none any more.
    pub(crate) fn kept_certificate(&self, secret: &ObjectName) -> Option<&Certificate> {
        self.certificates.get(secret)
    }

    /// The addresses that the cluster assigned to a Gateway; `None` without a cluster.
    pub(crate) fn assigned(&self, gateway: &ObjectName) -> Option<&AssignedAddresses> {
        self.assigned.as_ref().map(|assigned| assigned.get(gateway).unwrap_or(&UNASSIGNED))
    }

    /// The Gateways with an assigned address for which this holds.
    pub(crate) fn assigned_where(
        &self,
        holds: impl Fn(&IpAddr) -> bool,
    ) -> impl Iterator<Item = &ObjectName> {
        let assigned = self.assigned.iter().flatten();
        assigned.filter(move |(_, it)| it.all.iter().any(&holds)).map(|(gateway, _)| gateway)
    }

    /// The addresses by which the agent reaches the API server; `None` if nothing else is known
    /// than at its start.
    pub(crate) fn api_server(&self) -> Option<&BTreeSet<IpAddr>> {
        self.api_server.as_ref().map(|known| &known.addresses)
    }

    /// True if a published address may keep the agent from its API server.
    pub(crate) fn is_suspect(&self, address: &IpAddr) -> bool {
        self.api_server.as_ref().is_some_and(|known| known.suspects.contains(address))
    }

    /// True if there may be objects of the kind of which nothing is known.
    pub(crate) fn is_unread(&self, kind: Kind) -> bool {
        self.unread.contains(&kind)
    }

    /// The addresses at which clients reach the node, or the nodes; none as long as they are not
    /// known.
    pub(crate) fn node_addresses(&self) -> &[IpAddr] {
        &self.node_addresses
    }

    /// The addresses of the agent's network namespace, as far as they are known.
    pub(crate) fn own_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.own_addresses
    }

    /// The agents of nodes that are ready, as far as they are known.
    pub(crate) fn agents(&self) -> Option<NonZeroU32> {
        self.agents
    }

    /// Assigns what is not served to Gateways. Returns those of which something else is known than
    /// after the last call.
    pub(crate) fn assign(&mut self, snapshot: &Snapshot) -> BTreeSet<ObjectName> {
        let mut by_gateway = BTreeMap::<ObjectName, Unserved>::new();
        for (frontend, why) in &self.unserved.frontends {
            if let Some(port) = snapshot.frontends.get(frontend) {
                let unserved = by_gateway.entry(port.gateway.name.clone()).or_default();
                unserved.frontends.insert(*frontend, why.clone());
            }
        }
        for (refused @ (frontend, _), why) in &self.unserved.listeners {
            if let Some(port) = snapshot.frontends.get(frontend) {
                let unserved = by_gateway.entry(port.gateway.name.clone()).or_default();
                unserved.listeners.insert(refused.clone(), why.clone());
            }
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.extend(different(&self.by_gateway, &by_gateway));
        self.by_gateway = by_gateway;
        changed
    }

    /// One line for each frontend of a Gateway, on some of its ports, that is not served.
    pub(crate) fn unserved_on(
        &self,
        gateway: &ObjectName,
        is_meant: impl Fn(PortKey) -> bool,
    ) -> impl Iterator<Item = String> {
        let unserved = self.by_gateway.get(gateway).into_iter();
        let frontends = unserved.flat_map(|unserved| &unserved.frontends);
        let meant = frontends.filter(move |(frontend, _)| is_meant(frontend.port_key()));
        meant.map(|(frontend, why)| format!("{frontend}: {why}"))
    }

    /// One line for each served frontend at which a listener is not.
    pub(crate) fn unserved_at(&self, listener: &ListenerId) -> impl Iterator<Item = String> {
        let unserved = self.by_gateway.get(&listener.gateway).into_iter();
        let listeners = unserved.flat_map(|unserved| &unserved.listeners);
        let of_it = listeners.filter(move |((_, refused), _)| refused == listener);
        of_it.map(|((frontend, _), why)| format!("{frontend}: {why}"))
    }

    /// The reason why a Gateway did not get what is generated for it.
    pub(crate) fn unprovisioned(&self, gateway: &ObjectName) -> Option<&Fault> {
        self.unprovisioned.get(gateway)
    }
}

/// The keys under which two maps differ.
fn different<'m, K: Ord + Clone, V: PartialEq>(
    before: &'m BTreeMap<K, V>,
    after: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = K> + 'm {
    let keys = before.keys().chain(after.keys());
    keys.filter(|key| before.get(*key) != after.get(*key)).cloned()
}

#[cfg(test)]
#[path = "feedback_tests.rs"]
mod tests;
