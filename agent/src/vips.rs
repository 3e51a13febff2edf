//! The addresses of this node's Gateways: made local, and in a cluster taken out of connection tracking. Who listens on them is
//! not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portcullis_datapath::vip::{self, Changes, Problem};
use portcullis_datapath::{Sharing, notrack};
use portcullis_model::FrontendKey;

/// Whether the node's connection tracking sees connections to VIPs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tracking {
    On,
    Off,
}

pub(crate) struct Vips {
    tracking: Tracking,
    /// All that are wanted and local. `None`: not known yet, an earlier agent may have left some.
    local: Option<BTreeSet<IpAddr>>,
    /// Those on which nobody else lives.
    ours: BTreeSet<IpAddr>,
    /// Others may still be local, because they were wanted before.
    moving: bool,
    untracked: Option<BTreeSet<IpAddr>>,
    /// What was said last about tracking.
    complaint: Option<String>,
}

impl Vips {
    /// Outside of a cluster several agents may share a node: one that never had a VIP leaves those of others in peace.
    pub(crate) fn new(tracking: Tracking) -> Self {
        let local = (tracking == Tracking::On).then(BTreeSet::new);
        Self { tracking, local, ours: BTreeSet::new(), moving: false, untracked: None, complaint: None }
    }

    /// Adds what is missing. Returns the frontends that have no address, and why. Nothing happens while the addresses stay the same.
    pub(crate) fn add(&mut self, frontends: &BTreeSet<FrontendKey>) -> BTreeMap<FrontendKey, String> {
        let addresses = frontends.iter().map(|frontend| frontend.address);
        let wanted: BTreeSet<_> = addresses.filter(|address| !address.is_unspecified()).collect();
        if self.local.as_ref() == Some(&wanted) {
            return BTreeMap::new();
        }
        let Changes { ours, problems, .. } = vip::make_local(&wanted);
        self.ours = ours;
        let refused: BTreeMap<_, _> =
            problems.iter().flat_map(|problem| without_address(problem, frontends)).collect();
        let is_local = |address: &IpAddr| !refused.keys().any(|frontend| frontend.address == *address);
        self.local = Some(wanted.into_iter().filter(is_local).collect());
        self.moving = true;
        let before = self.untracked.iter().flatten();
        self.untrack(before.chain(&self.ours).copied().collect());
        refused
    }

    /// Takes away what is not wanted any more, when the data plane serves what is.
    pub(crate) fn remove_others(&mut self) {
        let Some(local) = self.local.as_ref().filter(|_| self.moving) else { return };
        for problem in vip::retain(local).problems {
            tracing::warn!("{problem}");
        }
        self.moving = false;
        self.untrack(self.ours.clone());
    }

    /// How the packet guard is to treat each.
    pub(crate) fn sharing(&self) -> impl Iterator<Item = (IpAddr, Sharing)> {
        let sharing = |vip| if self.ours.contains(vip) { Sharing::Exclusive } else { Sharing::Shared };
        self.local.iter().flatten().map(move |vip| (*vip, sharing(vip)))
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
}

/// The frontends that an address problem takes down.
fn without_address(problem: &Problem, wanted: &BTreeSet<FrontendKey>) -> Vec<(FrontendKey, String)> {
    match problem {
        Problem::Add { address, .. } => {
            let concerned = wanted.iter().filter(|frontend| frontend.address == *address);
            concerned.map(|frontend| (*frontend, problem.to_string())).collect()
        }
        Problem::List(_) | Problem::Remove { .. } => {
            tracing::warn!("{problem}");
            Vec::new()
        }
    }
}
