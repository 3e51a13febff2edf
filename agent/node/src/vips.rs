//! The addresses of this node's Gateways: made local, kept so, and in a cluster taken out of
//! connection tracking. Which listeners they have is not known here.

pub mod addresses;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portcullis_log::LastLogged;
use portcullis_model::FrontendKey;

use crate::error::RefusedFrontends;
use crate::netlink::sockets;
use crate::notrack;
use crate::plan::desired::Sharing;
use addresses::{AddressError, Changes, Unlisted};

/// Time between looks at whether addresses and rules are still what they should be.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(10);

/// Connection tracking of VIP traffic on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    On,
    Off,
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

    /// Only a node of a cluster has a service proxy that drops what it does not serve itself.
    pub fn tracking(self) -> Tracking {
        match self {
            Self::ClusterNode => Tracking::Off,
            Self::Pod | Self::Machine => Tracking::On,
        }
    }
}

pub(crate) struct Vips {
    tracking: Tracking,
    /// Time for connections to end on an address that is not wanted any more.
    drain: Duration,
    /// All that are wanted and local. `None`: not known yet, an earlier agent may have left some.
    local: Option<BTreeSet<IpAddr>>,
    /// Those that are local because of us: they are used by Gateways only.
    ours: BTreeSet<IpAddr>,
    /// Set while addresses may be local that were wanted before; until then they stay if
    /// connections to them are open.
    leaving: Option<Instant>,
    untracked: Option<BTreeSet<IpAddr>>,
    next_comparison: Instant,
    tracking_problem: LastLogged,
    disturbance: LastLogged,
}

impl Vips {
    /// Outside of a cluster several agents may share a node: one that never had a VIP leaves those
    /// of others alone.
    pub(crate) fn new(tracking: Tracking, drain: Duration, now: Instant) -> Self {
        Self {
            tracking,
            drain,
            local: (tracking == Tracking::On).then(BTreeSet::new),
            ours: BTreeSet::new(),
            leaving: None,
            untracked: None,
            next_comparison: now,
            tracking_problem: LastLogged::default(),
            disturbance: LastLogged::default(),
        }
    }

    /// Adds what is missing. Returns the frontends that have no address. Nothing happens while the
    /// addresses stay the same.
    pub(crate) fn add(&mut self, frontends: &BTreeSet<FrontendKey>, now: Instant) -> RefusedFrontends {
        let addresses = frontends.iter().map(|frontend| frontend.address);
        let wanted: BTreeSet<_> = addresses.filter(|address| !address.is_unspecified()).collect();
        if self.local.as_ref() == Some(&wanted) {
            return BTreeMap::new();
        }
        let missing = match addresses::make_local(&wanted) {
            Ok(changes) => self.take(wanted, changes, now),
            Err(error) => self.unknown(wanted, &error),
        };
        let missing = frontends.iter().filter_map(|it| Some((*it, missing.get(&it.address)?.clone())));
        missing.collect()
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
        self.leaving = (!kept.is_subset(local)).then_some(deadline);
        self.untrack(&kept | &self.ours);
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

    /// The packet guard's treatment of each.
    pub(crate) fn sharing(&self) -> impl Iterator<Item = (IpAddr, Sharing)> {
        self.local.iter().flatten().map(|vip| {
            let sharing = if self.ours.contains(vip) { Sharing::Exclusive } else { Sharing::Shared };
            (*vip, sharing)
        })
    }

    /// True if the address is local without us, and may be used by others, too.
    pub(crate) fn is_shared(&self, address: &IpAddr) -> bool {
        self.local.as_ref().is_some_and(|local| local.contains(address)) && !self.ours.contains(address)
    }

    /// Puts back what another program took away.
    fn restore(&mut self) {
        let Some(local) = self.local.as_ref().filter(|local| !local.is_empty()) else { return };
        let addresses = match addresses::make_local(local) {
            Ok(changes) => {
                self.ours.clone_from(&changes.ours);
                restored(&changes)
            }
            Err(error) => Some(error.to_string()),
        };
        let rules = self.retrack();
        let disturbance = addresses.into_iter().chain(rules).reduce(|one, other| format!("{one}; {other}"));
        if let Some(message) = self.disturbance.update((), disturbance) {
            tracing::warn!("another program changes what Gateways need on this node: {message}");
        }
    }

    /// Returns what is wanted and not local, and why.
    fn take(
        &mut self,
        mut wanted: BTreeSet<IpAddr>,
        changes: Changes,
        now: Instant,
    ) -> BTreeMap<IpAddr, String> {
        let missing: BTreeMap<_, _> = changes
            .problems
            .iter()
            .filter_map(|problem| match problem {
                AddressError::Add { address, .. } => Some((*address, problem.to_string())),
                AddressError::Remove { .. } => None,
            })
            .collect();
        wanted.retain(|address| !missing.contains_key(address));
        self.local = Some(wanted);
        self.ours = changes.ours;
        self.leaving = Some(now + self.drain);
        let before = self.untracked.iter().flatten();
        self.untrack(before.chain(&self.ours).copied().collect());
        missing
    }

    /// Assumes that all addresses that were local still are.
    fn unknown(&self, mut wanted: BTreeSet<IpAddr>, error: &Unlisted) -> BTreeMap<IpAddr, String> {
        wanted.retain(|address| !self.local.as_ref().is_some_and(|local| local.contains(address)));
        wanted.into_iter().map(|address| (address, format!("VIP {address}: {error}"))).collect()
    }

    /// Most works without it; what does not is logged once.
    fn untrack(&mut self, vips: BTreeSet<IpAddr>) {
        if self.tracking == Tracking::On || self.untracked.as_ref() == Some(&vips) {
            return;
        }
        match notrack::set(&vips) {
            Ok(()) => self.untracked = Some(vips),
            Err(error) => {
                if let Some(error) = self.tracking_problem.update((), Some(error.to_string())) {
                    tracing::warn!(
                        "connections to VIPs are tracked, because nftables cannot be used ({error}): where kube-proxy \
                         runs in nftables mode, the node itself does not reach its Gateways; pods and other clients do"
                    );
                }
            }
        }
    }

    /// Sets rules that could not be set before, or that are not there any more. Returns what to log
    /// about these.
    fn retrack(&mut self) -> Option<String> {
        let Some(vips) = self.untracked.clone() else {
            self.untrack(self.ours.clone());
            return None;
        };
        if notrack::is_in_force(&vips).ok()? {
            return None;
        }
        self.untracked = None;
        self.untrack(vips);
        Some("the nftables rules for VIPs were flushed, and are set again".to_owned())
    }
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
        let mut kept = Vips::new(Tracking::On, Duration::ZERO, Instant::now());
        let ours = Changes { ours: vips(&["10.0.0.1"]), ..Changes::default() };
        kept.take(vips(&["10.0.0.1"]), ours, Instant::now());
        let refused =
            kept.unknown(vips(&["10.0.0.1", "10.0.0.2"]), &Unlisted::from(io::Error::other("no memory")));
        assert_eq!(refused.keys().copied().collect::<BTreeSet<_>>(), vips(&["10.0.0.2"]));
        assert!(
            refused.values().all(|why| why.contains("10.0.0.2") && why.contains("no memory")),
            "{refused:?}"
        );
        assert_eq!(kept.local, Some(vips(&["10.0.0.1"])), "the next look begins where this one began");
    }

    #[test]
    fn an_address_that_cannot_be_added_is_not_local() {
        let mut new = Vips::new(Tracking::On, Duration::ZERO, Instant::now());
        let address: IpAddr = "10.0.0.2".parse().unwrap();
        let problem = AddressError::Add { address, source: io::ErrorKind::PermissionDenied.into() };
        let changes = Changes { problems: vec![problem], ..Changes::default() };
        let refused = new.take(vips(&["10.0.0.1", "10.0.0.2"]), changes, Instant::now());
        assert!(refused[&address].contains("10.0.0.2"), "{refused:?}");
        assert_eq!(new.local, Some(vips(&["10.0.0.1"])));
    }

    /// An agent without addresses of its own does not ask the kernel for any.
    #[test]
    fn the_unspecified_address_is_no_vip() {
        let everywhere = FrontendKey::new([0; 4].into(), PortKey::tcp(80));
        let mut vips = Vips::new(Tracking::On, Duration::ZERO, Instant::now());
        assert!(vips.add(&BTreeSet::from([everywhere]), Instant::now()).is_empty());
        assert!(vips.leaving.is_none());
    }
}
