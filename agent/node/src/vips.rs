//! The addresses of this node's Gateways: made local, kept so, and in a cluster taken out of
//! connection tracking and kept from neighbours. Which listeners they have is not known here.

pub mod addresses;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use portcullis_log::LastLogged;
use portcullis_model::FrontendKey;

use crate::error::RefusedFrontends;
use crate::neighbours::{self, Silence};
use crate::netlink::sockets;
use crate::notrack::{self, Untracked};
use crate::plan::desired::Sharing;
use addresses::{AddressError, Changes, Unlisted};
use rules::Rules;

/// Time between looks at whether addresses and rules are still what they should be.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(10);

/// Connection tracking of VIP traffic on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    On,
    Off,
}

/// ARP for the VIPs that the agent has put on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arp {
    /// Another program announces them.
    Ignored,
    /// Each node answers, as Linux does by itself.
    Answered,
    /// As [`Arp::Answered`], and rules that others have set stay.
    Untouched,
}

/// The addresses that the unspecified one stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Everywhere {
    /// All that are local, loopback included.
    All,
    /// The addresses of the node, without loopback and those of dummies.
    Interfaces,
}

/// The network namespace that an agent serves from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// A node of a cluster.
    ClusterNode,
    /// A pod of one Gateway.
    Pod,
    /// A machine that is no part of a cluster.
    Machine,
}

impl Host {
    /// On a node of a cluster other programs than ours are reached on loopback.
    pub fn everywhere(self) -> Everywhere {
        match self {
            Self::ClusterNode => Everywhere::Interfaces,
            Self::Pod | Self::Machine => Everywhere::All,
        }
    }

    /// In a cluster all nodes have the same VIPs, so that one that answered would take them from
    /// the others.
    pub fn arp(self) -> Arp {
        match self {
            Self::ClusterNode => Arp::Ignored,
            Self::Pod | Self::Machine => Arp::Untouched,
        }
    }

    /// Only a node of a cluster has a service proxy that drops what it does not serve itself.
    pub fn tracking(self) -> Tracking {
        match self {
            Self::ClusterNode => Tracking::Off,
            Self::Pod | Self::Machine => Tracking::On,
        }
    }
}

pub(crate) struct Vips {
    arp: Arp,
    /// Time for connections to end on an address that is not wanted any more.
    drain: Duration,
    wanted: Wanted,
    /// All that are wanted and local. `None`: not known yet, an earlier agent may have left some.
    local: Option<BTreeSet<IpAddr>>,
    /// Those that are local because of us alone.
    ours: BTreeSet<IpAddr>,
    /// Those that are local because of us and not wanted any more.
    lingering: BTreeSet<IpAddr>,
    /// Those among the lingering that Services of others had, too, when they were wanted last.
    parted: BTreeSet<IpAddr>,
    /// By index, an address of each interface of the node.
    interfaces: BTreeMap<u32, Ipv4Addr>,
    /// Set while addresses may be local that were wanted before; until then they stay if
    /// connections to them are open.
    leaving: Option<Instant>,
    /// `None` where connections are tracked.
    untracked: Option<Rules<Untracked>>,
    /// `None` where ARP is left as it is.
    silence: Option<Rules<Silence>>,
    next_comparison: Instant,
    disturbance: LastLogged,
}

/// The frontends on addresses of Gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    addresses: BTreeSet<IpAddr>,
    /// Those among the addresses that Services of others have, too.
    shared: BTreeSet<IpAddr>,
    /// The frontends on these.
    on_shared: BTreeSet<FrontendKey>,
}

impl Vips {
    /// Outside of a cluster several agents may share a node: one that never had a VIP leaves those
    /// of others alone.
    pub(crate) fn new(tracking: Tracking, arp: Arp, drain: Duration, now: Instant) -> Self {
        let untracked = || {
            let consequence = "connections to VIPs are tracked (where kube-proxy runs in nftables mode, the node \
                               itself does not reach its Gateways; pods and other clients do)";
            Rules::new(notrack::set, notrack::is_in_force, consequence)
        };
        let silence = || {
            let consequence =
                "every node answers ARP for VIPs (a load balancer that announces them by ARP is passed by)";
            Rules::new(neighbours::set, neighbours::is_in_force, consequence)
        };
        Self {
            arp,
            drain,
            wanted: Wanted::default(),
            local: (tracking == Tracking::On).then(BTreeSet::new),
            ours: BTreeSet::new(),
            lingering: BTreeSet::new(),
            parted: BTreeSet::new(),
            interfaces: BTreeMap::new(),
            leaving: None,
            untracked: (tracking == Tracking::Off).then(untracked),
            silence: (arp != Arp::Untouched).then(silence),
            next_comparison: now,
            disturbance: LastLogged::default(),
        }
    }

    /// Adds what is missing. Returns the frontends that have no address. Nothing happens while
    /// what is wanted stays the same.
    pub(crate) fn add(
        &mut self,
        frontends: &BTreeSet<FrontendKey>,
        shared: &BTreeSet<IpAddr>,
        now: Instant,
    ) -> RefusedFrontends {
        let addresses = frontends.iter().map(|frontend| frontend.address);
        let addresses: BTreeSet<_> = addresses.filter(|address| !address.is_unspecified()).collect();
        let on_shared = frontends.iter().filter(|frontend| shared.contains(&frontend.address));
        let wanted =
            Wanted { on_shared: on_shared.copied().collect(), shared: shared & &addresses, addresses };
        if self.wanted == wanted && self.local.as_ref() == Some(&wanted.addresses) {
            return BTreeMap::new();
        }
        self.want(wanted);
        let missing = match addresses::make_local(&self.wanted.addresses) {
            Ok(changes) => self.take(changes, now),
            Err(error) => self.unknown(&error),
        };
        let missing = frontends.iter().filter_map(|it| Some((*it, missing.get(&it.address)?.clone())));
        missing.collect()
    }

    fn want(&mut self, wanted: Wanted) {
        self.parted = &(&self.parted | &self.wanted.shared) - &wanted.addresses;
        self.wanted = wanted;
    }

    /// Takes away what is not wanted any more, when the data plane serves what is, and open
    /// connections have ended.
    pub(crate) fn remove_others(&mut self, now: Instant) {
        let (Some(local), Some(deadline)) = (&self.local, self.leaving) else { return };
        let busy = if now < deadline { sockets::local_addresses() } else { Ok(BTreeSet::new()) };
        // Without knowing which addresses have connections, all are given their time.
        let kept = busy.and_then(|busy| addresses::retain(&(local | &busy)).map_err(io::Error::other));
        let kept = match kept {
            Ok(Changes { ours, problems, .. }) => {
                problems.iter().for_each(|problem| tracing::warn!("{problem}"));
                ours
            }
            // It is tried again soon.
            Err(error) => return tracing::debug!("{error}"),
        };
        self.lingering = &kept - local;
        self.parted = &self.parted & &self.lingering;
        self.leaving = (!self.lingering.is_empty()).then_some(deadline);
        self.keep_rules();
    }

    /// The recurring chores: takes away what is not in use any more and, less often, puts back what
    /// is missing.
    pub(crate) fn tend(&mut self, now: Instant) {
        self.remove_others(now);
        if now >= self.next_comparison {
            self.next_comparison = now + COMPARISON_INTERVAL;
            self.restore();
        }
    }

    /// Another agent may have changed addresses and rules: they are looked at with the next chores.
    pub(crate) fn doubt(&mut self, now: Instant) {
        self.next_comparison = now;
        if let Some(rules) = &mut self.untracked {
            rules.doubt();
        }
        if let Some(rules) = &mut self.silence {
            rules.doubt();
        }
    }

    /// The kernel programs' treatment of each. One that lingers is local still, and no more than
    /// before it is to be the way to what else listens on the node.
    pub(crate) fn sharing(&self) -> impl Iterator<Item = (IpAddr, Sharing)> {
        let shared = self.shared();
        self.local.iter().flatten().chain(&self.lingering).map(move |vip| {
            let is_ours = self.ours.contains(vip) || self.lingering.contains(vip);
            let is_exclusive = is_ours && !shared.contains(vip);
            (*vip, if is_exclusive { Sharing::Exclusive } else { Sharing::Shared })
        })
    }

    /// Those that Services of others have, too.
    fn shared(&self) -> BTreeSet<IpAddr> {
        &self.wanted.shared | &self.parted
    }

    /// True if the address is local without us: processes of the node may listen on it.
    pub(crate) fn is_nodes(&self, address: &IpAddr) -> bool {
        self.local.as_ref().is_some_and(|local| local.contains(address)) && !self.ours.contains(address)
    }

    /// Puts back what another program took away.
    fn restore(&mut self) {
        let Some(local) = self.local.as_ref().filter(|local| !local.is_empty()) else { return };
        let addresses = match addresses::make_local(local) {
            Ok(changes) => {
                self.ours.clone_from(&changes.ours);
                self.interfaces.clone_from(&changes.interfaces);
                restored(&changes)
            }
            Err(error) => Some(error.to_string()),
        };
        let rules = self.restore_rules();
        let disturbance = addresses.into_iter().chain(rules).reduce(|one, other| format!("{one}; {other}"));
        if let Some(message) = self.disturbance.update((), disturbance) {
            tracing::warn!("another program changes what Gateways need on this node: {message}");
        }
    }

    /// Returns what is wanted and not local, and why.
    fn take(&mut self, changes: Changes, now: Instant) -> BTreeMap<IpAddr, String> {
        let missing: BTreeMap<_, _> = changes
            .problems
            .iter()
            .filter_map(|problem| match problem {
                AddressError::Add { address, .. } => Some((*address, problem.to_string())),
                AddressError::Remove { .. } => None,
            })
            .collect();
        if self.arp == Arp::Ignored {
            changes.near.iter().for_each(|(vip, own)| log_near(vip, own));
        }
        let mut local = self.wanted.addresses.clone();
        local.retain(|address| !missing.contains_key(address));
        self.lingering = &(&self.lingering | &self.ours) - &local;
        self.local = Some(local);
        self.ours = changes.ours;
        self.interfaces = changes.interfaces;
        self.leaving = Some(now + self.drain);
        self.keep_rules();
        missing
    }

    /// Assumes that all addresses that were local still are.
    fn unknown(&self, error: &Unlisted) -> BTreeMap<IpAddr, String> {
        let mut wanted = self.wanted.addresses.clone();
        wanted.retain(|address| !self.local.as_ref().is_some_and(|local| local.contains(address)));
        wanted.into_iter().map(|address| (address, format!("VIP {address}: {error}"))).collect()
    }

    fn keep_rules(&mut self) {
        let (untracked, silence) = (self.untracked(), self.silence());
        if let Some(rules) = &mut self.untracked {
            rules.keep(untracked);
        }
        if let Some(rules) = &mut self.silence {
            rules.keep(silence);
        }
    }

    /// Returns what to log, if another program had flushed rules.
    fn restore_rules(&mut self) -> Option<String> {
        let (untracked, silence) = (self.untracked(), self.silence());
        let untracked = self.untracked.as_mut().is_some_and(|rules| rules.restore(untracked));
        let silence = self.silence.as_mut().is_some_and(|rules| rules.restore(silence));
        (untracked || silence)
            .then(|| "the nftables rules for VIPs were flushed, and are set again".to_owned())
    }

    /// Connections to other Services on a shared address have to be tracked.
    fn untracked(&self) -> Untracked {
        let (shared, ours) = (self.shared(), &self.ours);
        let frontends = self.wanted.on_shared.iter().filter(|frontend| ours.contains(&frontend.address));
        Untracked { addresses: &(&self.lingering | ours) - &shared, frontends: frontends.copied().collect() }
    }

    fn silence(&self) -> Silence {
        if self.arp != Arp::Ignored {
            return Silence::default();
        }
        let vips = self.lingering.union(&self.ours).filter_map(|vip| match vip {
            IpAddr::V4(vip) => Some(*vip),
            IpAddr::V6(_) => None,
        });
        Silence { vips: vips.collect(), interfaces: self.interfaces.clone() }
    }
}

/// For an operator who takes an address of the node's own network, and has no load balancer.
fn log_near(vip: &IpAddr, own: &IpAddr) {
    tracing::info!(
        "VIP {vip} lies in the network of the node's address {own}, where hosts ask for it by ARP, and nodes do not \
         answer: have a load balancer announce it, route it to the nodes, or run the agents with --vip-arp answer \
         if this is the only node"
    );
}

fn restored(Changes { added, problems, .. }: &Changes) -> Option<String> {
    let added = added.iter().map(|address| format!("VIP {address} was removed from lo, and is added again"));
    let lines: Vec<_> = added.chain(problems.iter().map(ToString::to_string)).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests {
    use std::io;

    use portcullis_model::PortKey;

    use super::*;

    fn vips(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn nothing_is_believed_local_while_the_addresses_cannot_be_listed() {
        let mut kept = Vips::new(Tracking::On, Arp::Untouched, Duration::ZERO, Instant::now());
        let ours = Changes { ours: vips(&["10.0.0.1"]), ..Changes::default() };
        kept.wanted.addresses = vips(&["10.0.0.1"]);
        kept.take(ours, Instant::now());
        kept.wanted.addresses = vips(&["10.0.0.1", "10.0.0.2"]);
        let refused = kept.unknown(&Unlisted::from(io::Error::other("no memory")));
        assert_eq!(refused.keys().copied().collect::<BTreeSet<_>>(), vips(&["10.0.0.2"]));
        assert!(
            refused.values().all(|why| why.contains("10.0.0.2") && why.contains("no memory")),
            "{refused:?}"
        );
        assert_eq!(kept.local, Some(vips(&["10.0.0.1"])), "the next look begins where this one began");
    }

    #[test]
    fn an_address_that_cannot_be_added_is_not_local() {
        let mut new = Vips::new(Tracking::On, Arp::Untouched, Duration::ZERO, Instant::now());
        let address: IpAddr = "10.0.0.2".parse().unwrap();
        let problem = AddressError::Add { address, source: io::ErrorKind::PermissionDenied.into() };
        let changes = Changes { problems: vec![problem], ..Changes::default() };
        new.wanted.addresses = vips(&["10.0.0.1", "10.0.0.2"]);
        let refused = new.take(changes, Instant::now());
        assert!(refused[&address].contains("10.0.0.2"), "{refused:?}");
        assert_eq!(new.local, Some(vips(&["10.0.0.1"])));
    }

    /// An agent without addresses of its own does not ask the kernel for any.
    #[test]
    fn the_unspecified_address_is_no_vip() {
        let everywhere = FrontendKey::new([0; 4].into(), PortKey::tcp(80));
        let mut vips = Vips::new(Tracking::On, Arp::Untouched, Duration::ZERO, Instant::now());
        assert!(vips.add(&BTreeSet::from([everywhere]), &BTreeSet::new(), Instant::now()).is_empty());
        assert!(vips.leaving.is_none());
    }

    #[test]
    fn an_address_of_another_service_too_is_not_the_gateways_alone() {
        let on = |address: &str, port| FrontendKey::new(address.parse().unwrap(), PortKey::tcp(port));
        let mut kept = Vips::new(Tracking::Off, Arp::Ignored, Duration::ZERO, Instant::now());
        kept.local = Some(vips(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
        kept.ours = vips(&["10.0.0.1", "10.0.0.2"]);
        kept.wanted = Wanted {
            addresses: vips(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
            shared: vips(&["10.0.0.2", "10.0.0.3"]),
            on_shared: [on("10.0.0.2", 80), on("10.0.0.3", 80)].into(),
        };
        let exclusive = kept.sharing().filter(|(_, sharing)| *sharing == Sharing::Exclusive);
        assert_eq!(exclusive.map(|(vip, _)| vip).collect::<BTreeSet<_>>(), vips(&["10.0.0.1"]));
        let expected = Untracked { addresses: vips(&["10.0.0.1"]), frontends: [on("10.0.0.2", 80)].into() };
        assert_eq!(kept.untracked(), expected);
        assert_eq!(kept.silence().vips.len(), 2, "both are on loopback");
        assert!(kept.is_nodes(&"10.0.0.3".parse().unwrap()) && !kept.is_nodes(&"10.0.0.2".parse().unwrap()));
    }

    /// Until the last connection ends there, at most for the drain time.
    #[test]
    fn an_address_that_goes_is_shared_with_whom_it_was() {
        let now = Instant::now();
        let mut kept = Vips::new(Tracking::Off, Arp::Ignored, Duration::from_secs(30), now);
        kept.local = Some(vips(&["10.0.0.1", "10.0.0.2"]));
        kept.ours = vips(&["10.0.0.1", "10.0.0.2"]);
        kept.wanted =
            Wanted { addresses: kept.ours.clone(), shared: vips(&["10.0.0.2"]), on_shared: BTreeSet::new() };
        kept.want(Wanted::default());
        kept.take(Changes::default(), now);
        let expected = ["10.0.0.1", "10.0.0.2"].map(|vip| vip.parse().unwrap());
        let expected = expected.into_iter().zip([Sharing::Exclusive, Sharing::Shared]);
        assert_eq!(kept.sharing().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        assert_eq!(kept.untracked().addresses, vips(&["10.0.0.1"]), "kube-proxy translates the other");
    }
}
