//! The addresses of this node's Gateways: made local, kept so, and in a cluster taken out of connection tracking. Who listens on
//! them is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portcullis_model::FrontendKey;
use portcullis_node::vips::addresses::{self as vip, Changes, Problem, Unlisted};
use portcullis_node::{Sharing, connections, notrack};

/// Whether the node's connection tracking sees connections to VIPs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tracking {
    On,
    Off,
}

pub(crate) struct Vips {
    tracking: Tracking,
    /// How long connections may keep an address that is not wanted any more.
    drain: Duration,
    /// All that are wanted and local. `None`: not known yet, an earlier agent may have left some.
    local: Option<BTreeSet<IpAddr>>,
    /// Those on which nobody else lives.
    ours: BTreeSet<IpAddr>,
    /// Others may still be local, because they were wanted before; until then, if connections to them are open.
    leaving: Option<Instant>,
    untracked: Option<BTreeSet<IpAddr>>,
    /// What was said last about tracking.
    complaint: Option<String>,
    /// What was said last about what somebody else changed; nothing since all was in place.
    disturbance: Option<String>,
}

impl Vips {
    /// Outside of a cluster several agents may share a node: one that never had a VIP leaves those of others in peace.
    pub(crate) fn new(tracking: Tracking, drain: Duration) -> Self {
        Self {
            tracking,
            drain,
            local: (tracking == Tracking::On).then(BTreeSet::new),
            ours: BTreeSet::new(),
            leaving: None,
            untracked: None,
            complaint: None,
            disturbance: None,
        }
    }

    /// Adds what is missing. Returns the frontends that have no address, and why. Nothing happens while the addresses stay the same.
    pub(crate) fn add(&mut self, frontends: &BTreeSet<FrontendKey>) -> BTreeMap<FrontendKey, String> {
        let addresses = frontends.iter().map(|frontend| frontend.address);
        let wanted: BTreeSet<_> = addresses.filter(|address| !address.is_unspecified()).collect();
        if self.local.as_ref() == Some(&wanted) {
            return BTreeMap::new();
        }
        let missing = match vip::make_local(&wanted) {
            Ok(changes) => self.take(wanted, changes),
            Err(error) => self.unknown(wanted, &error),
        };
        let missing = frontends.iter().filter_map(|it| Some((*it, missing.get(&it.address)?.clone())));
        missing.collect()
    }

    /// Takes away what is not wanted any more, when the data plane serves what is and open connections have ended.
    pub(crate) fn remove_others(&mut self) {
        let (Some(local), Some(deadline)) = (&self.local, self.leaving) else { return };
        let busy =
            if Instant::now() < deadline { connections::local_addresses() } else { Ok(BTreeSet::new()) };
        let kept = match vip::retain(&(local | &busy.unwrap_or_default())) {
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

    /// Puts back what somebody else took away.
    pub(crate) fn restore(&mut self) {
        let Some(local) = self.local.as_ref().filter(|local| !local.is_empty()) else { return };
        let addresses = match vip::make_local(local) {
            Ok(changes) => {
                self.ours.clone_from(&changes.ours);
                restored(&changes)
            }
            Err(error) => Some(error.to_string()),
        };
        let rules = self.retrack();
        let disturbance = addresses.into_iter().chain(rules).reduce(|one, other| format!("{one}; {other}"));
        if let Some(said) = disturbance.as_ref().filter(|it| self.disturbance.as_ref() != Some(it)) {
            tracing::warn!("somebody else changes what Gateways need on this node: {said}");
        }
        self.disturbance = disturbance;
    }

    /// How the packet guard is to treat each.
    pub(crate) fn sharing(&self) -> impl Iterator<Item = (IpAddr, Sharing)> {
        let sharing = |vip| if self.ours.contains(vip) { Sharing::Exclusive } else { Sharing::Shared };
        self.local.iter().flatten().map(move |vip| (*vip, sharing(vip)))
    }

    /// Returns what is wanted and not local, and why.
    fn take(&mut self, mut wanted: BTreeSet<IpAddr>, changes: Changes) -> BTreeMap<IpAddr, String> {
        let missing = missing(&changes.problems);
        wanted.retain(|address| !missing.contains_key(address));
        self.local = Some(wanted);
        self.ours = changes.ours;
        self.leaving = Some(Instant::now() + self.drain);
        let before = self.untracked.iter().flatten();
        self.untrack(before.chain(&self.ours).copied().collect());
        missing
    }

    /// What was local before still is, as far as anybody knows.
    fn unknown(&self, mut wanted: BTreeSet<IpAddr>, error: &Unlisted) -> BTreeMap<IpAddr, String> {
        wanted.retain(|address| !self.local.as_ref().is_some_and(|local| local.contains(address)));
        wanted.into_iter().map(|address| (address, format!("VIP {address}: {error}"))).collect()
    }

    /// Without it, most works; what does not is said once.
    fn untrack(&mut self, vips: BTreeSet<IpAddr>) {
        if self.tracking == Tracking::On || self.untracked.as_ref() == Some(&vips) {
            return;
        }
        match notrack::set(&vips) {
            Ok(()) => self.untracked = Some(vips),
            Err(error) if self.complaint.as_ref() != Some(&error.to_string()) => {
                tracing::warn!(
                    "connections to VIPs are tracked, because nftables cannot be used ({error}): where kube-proxy runs in \
                     nftables mode, the node itself does not reach its Gateways; pods and other clients do"
                );
                self.complaint = Some(error.to_string());
            }
            Err(_) => {}
        }
    }

    /// Sets rules that could not be set before, or that are not there any more. Returns what is to be said of these.
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

fn missing(problems: &[Problem]) -> BTreeMap<IpAddr, String> {
    let reasons = problems.iter().filter_map(|problem| match problem {
        Problem::Add { address, .. } => Some((*address, problem.to_string())),
        Problem::Remove { .. } => None,
    });
    reasons.collect()
}

fn restored(Changes { added, problems, .. }: &Changes) -> Option<String> {
    let added = added.iter().map(|address| format!("VIP {address} was removed from lo, and is added again"));
    let lines: Vec<_> = added.chain(problems.iter().map(ToString::to_string)).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests {
    use std::io;

    use portcullis_model::L4Protocol;

    use super::*;

    fn vips(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn nothing_is_believed_local_while_the_addresses_cannot_be_listed() {
        let mut kept = Vips::new(Tracking::On, Duration::ZERO);
        kept.take(vips(&["10.0.0.1"]), Changes { ours: vips(&["10.0.0.1"]), ..Changes::default() });
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
        let mut new = Vips::new(Tracking::On, Duration::ZERO);
        let address: IpAddr = "10.0.0.2".parse().unwrap();
        let problem = Problem::Add { address, source: io::ErrorKind::PermissionDenied.into() };
        let refused = new
            .take(vips(&["10.0.0.1", "10.0.0.2"]), Changes { problems: vec![problem], ..Changes::default() });
        assert!(refused[&address].contains("10.0.0.2"), "{refused:?}");
        assert_eq!(new.local, Some(vips(&["10.0.0.1"])));
    }

    /// Whatever else happens, an agent without addresses of its own asks nobody.
    #[test]
    fn the_unspecified_address_is_no_vip() {
        let everywhere = FrontendKey { protocol: L4Protocol::Tcp, address: [0; 4].into(), port: 80 };
        let mut vips = Vips::new(Tracking::On, Duration::ZERO);
        assert!(vips.add(&BTreeSet::from([everywhere])).is_empty());
        assert!(vips.leaving.is_none());
    }
}
