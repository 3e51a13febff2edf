//! The frontends that the kernel programs steer: which are served, which are closing, and until
//! when.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use portcullis_log::LastLogged;
use portcullis_model::FrontendKey;

use crate::datapath::Datapath;
use crate::error::RefusedFrontends;
use crate::plan::desired::{Desired, Wanted};
use crate::vips::Vips;

pub(crate) struct Steering {
    pub(crate) datapath: Datapath,
    /// Last given to the programs by this agent, successfully.
    served: BTreeSet<FrontendKey>,
    /// Last wanted, without frontends.
    terms: Wanted,
    unknown_names: Option<NonZeroU32>,
    closing: Closing,
    next_guarding: Instant,
    /// The error for which terms are left to user space.
    unwritten: LastLogged,
}

/// Time between looks at the interfaces that should have the packet guard.
const GUARDING_INTERVAL: Duration = Duration::from_secs(10);

/// Frontends that are no longer wanted, and until when their open connections may end.
struct Closing {
    until: BTreeMap<FrontendKey, Instant>,
    drain: Duration,
}

impl Steering {
    pub(crate) fn new(datapath: Datapath, drain: Duration, unknown_names: Option<NonZeroU32>) -> Self {
        let closing = Closing { until: BTreeMap::new(), drain };
        let (served, terms) = (BTreeSet::new(), Wanted::default());
        let unwritten = LastLogged::default();
        Self { datapath, served, terms, unknown_names, closing, next_guarding: Instant::now(), unwritten }
    }

    /// Writes only what differs from the maps. Those of the frontends that are `taken` are left to
    /// the processes that have them.
    pub(crate) fn apply(
        &mut self,
        mut terms: Wanted,
        taken: RefusedFrontends,
        vips: &Vips,
        now: Instant,
    ) -> RefusedFrontends {
        let (mut refused, mut wanted) = (taken, std::mem::take(&mut terms.frontends));
        wanted.retain(|frontend| !refused.contains_key(frontend));
        let mut desired = Desired::new(wanted.iter().copied(), vips.sharing());
        self.closing.update(&self.served, &desired, now);
        desired.leaving = self.closing.until.keys().copied().collect();
        desired.unknown_names = self.unknown_names;
        desired.clients.clone_from(&terms.clients);
        desired.clients_speak.clone_from(&terms.clients_speak);
        desired.names.clone_from(&terms.names);
        desired.names.iter_mut().for_each(|table| table.frontends.retain(|it| wanted.contains(it)));
        self.terms = terms;
        match self.datapath.apply(&desired) {
            Ok(_) => {
                self.unwritten.clear(&());
                self.served = wanted;
            }
            Err(error) => {
                let (served, missing) = wanted.into_iter().partition(|it| self.datapath.steers(it));
                self.served = served;
                let missing: BTreeSet<_> = missing;
                // Those that are missing have it in their statuses.
                let unwritten = missing.is_empty().then(|| error.to_string());
                if let Some(error) = self.unwritten.update((), unwritten) {
                    tracing::warn!(
                        "some terms of listeners are left to user space, which keeps to all of them: {error}"
                    );
                }
                refused.extend(missing.into_iter().map(|frontend| (frontend, error.to_string())));
            }
        }
        refused
    }

    /// Closes for good what has had its time, guards what could not be guarded, and follows the
    /// node's addresses: one that another program has as well is not refused on.
    pub(crate) fn settle(&mut self, vips: &Vips, now: Instant) {
        if now >= self.next_guarding {
            self.next_guarding = now + GUARDING_INTERVAL;
            self.datapath.renew_guards();
        }
        if self.closing.is_due(now) || !self.datapath.holds(vips.sharing()) {
            // What is served is not refused, and a failed write is tried again with the next
            // snapshot.
            let wanted = Wanted { frontends: self.served.clone(), ..std::mem::take(&mut self.terms) };
            self.apply(wanted, RefusedFrontends::new(), vips, now);
        }
    }
}

impl Closing {
    /// Takes up what was served and is not desired any more: the guard would drop the packets of
    /// its open connections. The guard ignores a VIP that goes as a whole.
    fn update(&mut self, served: &BTreeSet<FrontendKey>, desired: &Desired, now: Instant) {
        let gone = served.difference(&desired.frontends).map(|frontend| (*frontend, now + self.drain));
        self.until.extend(gone);
        self.until.retain(|frontend, until| {
            now < *until
                && desired.vips.contains_key(&frontend.address)
                && !desired.frontends.contains(frontend)
        });
    }

    fn is_due(&self, now: Instant) -> bool {
        self.until.values().any(|until| *until <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use portcullis_model::PortKey;

    use super::*;
    use crate::plan::desired::Sharing;

    const DRAIN: Duration = Duration::from_secs(30);
    const VIP: [u8; 4] = [10, 50, 0, 1];

    fn frontend(port: u16) -> FrontendKey {
        FrontendKey::new(VIP.into(), PortKey::tcp(port))
    }

    fn desired(ports: &[u16]) -> Desired {
        let vip = (IpAddr::from(VIP), Sharing::Exclusive);
        Desired::new(ports.iter().map(|port| frontend(*port)), [vip])
    }

    fn closing() -> Closing {
        Closing { until: BTreeMap::new(), drain: DRAIN }
    }

    #[test]
    fn a_port_that_goes_is_closing_for_the_drain_time() {
        let (mut closing, start) = (closing(), Instant::now());
        let served = desired(&[80, 81]).frontends;
        closing.update(&served, &desired(&[80]), start);
        assert_eq!(closing.until, BTreeMap::from([(frontend(81), start + DRAIN)]));
        assert!(!closing.is_due(start + DRAIN / 2) && closing.is_due(start + DRAIN));

        let later = start + DRAIN / 2;
        closing.update(&desired(&[80]).frontends, &desired(&[80]), later);
        assert_eq!(closing.until[&frontend(81)], start + DRAIN, "another change gives it no more time");
        closing.update(&desired(&[80]).frontends, &desired(&[80]), start + DRAIN);
        assert!(closing.until.is_empty());
    }

    #[test]
    fn a_port_that_comes_back_is_not_closing() {
        let (mut closing, now) = (closing(), Instant::now());
        closing.update(&desired(&[80]).frontends, &desired(&[]), now);
        closing.update(&BTreeSet::new(), &desired(&[80]), now);
        assert!(closing.until.is_empty());
    }

    #[test]
    fn ports_of_a_vip_that_goes_are_not_closing() {
        let (mut closing, now) = (closing(), Instant::now());
        closing.update(&desired(&[80]).frontends, &Desired::default(), now);
        assert!(closing.until.is_empty());
    }
}
