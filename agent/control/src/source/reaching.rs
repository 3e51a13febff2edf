//! The way to the API server: its addresses, which no Gateway has, and published addresses that may
//! be in the way. An address that is made local takes its owner's traffic away; where the owner is
//! the API server, or a router or proxy on the way to it, the agent could not learn of anything
//! that would put it right.
//!
//! An address is proved by an answer to a request that was made when it was local. If there is no
//! answer for a while, those that are not proved are withheld, all at once. If one comes then, they
//! stay so, for ever longer; else they were not the reason, and are served again. The cluster's own
//! addresses are left alone: the API server allocates them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use portcullis_api::ObjectKey;
use portcullis_gateway::{ApiServer, ChangedNeeds, Feedback};
use portcullis_model::ObjectName;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Source, Update};
use crate::kube::Contact;
use crate::kube::backoff::sleep_until;

/// Time without an answer before anything is withheld: an API server that is only started again is
/// back by then.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which an answer has to come without what is withheld, beyond the one that connections
/// have to end.
const TRIAL: Duration = Duration::from_secs(10);
/// Time between an update and its addresses being local.
const SETTLING: Duration = Duration::from_secs(2);
/// Time for which an address is withheld when an answer came without it; twice as long each time.
const PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// A source whose updates say how its API server is reached, and what may be in the way.
pub struct Reaching<S> {
    source: S,
    contact: watch::Receiver<Contact>,
    addresses: watch::Receiver<BTreeSet<IpAddr>>,
    /// By Gateway.
    published: BTreeMap<ObjectName, Vec<IpAddr>>,
    suspicion: Suspicion,
    last: ApiServer,
    /// There was an update, which is the source's to begin with.
    has_begun: bool,
    /// The last update was a draft: nothing is to be served before the next that is none.
    is_draft: bool,
}

/// The published addresses, and what is known against them.
#[derive(Debug)]
struct Suspicion {
    trial: Duration,
    pause: Duration,
    published: BTreeSet<IpAddr>,
    /// Those that are not withheld, with the time from which on they are local.
    local: BTreeMap<IpAddr, Instant>,
    withheld: Option<Withheld>,
    /// Those without which there was an answer, and until when they are withheld.
    convicted: BTreeMap<IpAddr, Instant>,
    /// None of those that are local is the reason why there is no answer.
    is_over: bool,
}

/// Addresses withheld on trial.
#[derive(Debug)]
struct Withheld {
    addresses: BTreeSet<IpAddr>,
    since: Instant,
}

// === impl Reaching ===

impl<S: Source> Reaching<S> {
    /// `addresses` are those known of the API server, and `drain` is the time that connections have
    /// to end at an address before it is taken away.
    pub fn new(
        source: S,
        contact: watch::Receiver<Contact>,
        mut addresses: watch::Receiver<BTreeSet<IpAddr>>,
        drain: Duration,
    ) -> Self {
        let last = ApiServer { addresses: addresses.borrow_and_update().clone(), ..ApiServer::default() };
        let (published, suspicion) = (BTreeMap::new(), Suspicion::new(drain + TRIAL));
        Self { source, contact, addresses, published, suspicion, last, has_begun: false, is_draft: false }
    }

    fn note(&mut self, update: &Update) {
        (self.has_begun, self.is_draft) = (true, update.is_draft);
        for feedback in &update.observed {
            let Feedback::Assigned(assigned) = feedback else { continue };
            for (gateway, assigned) in assigned {
                self.published.insert(gateway.clone(), assigned.published().to_vec());
            }
        }
        self.published.retain(|_, addresses| !addresses.is_empty());
        self.suspicion.published = self.published.values().flatten().copied().collect();
        self.suspicion.note_local(Instant::now());
    }

    /// A new state of the API server, if there is one, and the time to look again.
    fn look(&mut self) -> (Option<ApiServer>, Option<Instant>) {
        let contact = *self.contact.borrow_and_update();
        let again = self.suspicion.look(Instant::now(), contact);
        let addresses = self.addresses.borrow_and_update().clone();
        let now = ApiServer { addresses, suspects: self.suspicion.suspects().collect() };
        ((now != self.last).then_some(now), again)
    }
}

impl<S: Source> Source for Reaching<S> {
    async fn next(&mut self) -> Update {
        loop {
            let (new, again) = self.look();
            if let Some(new) = new.filter(|_| self.has_begun) {
                self.last = new.clone();
                let observed = vec![Feedback::ApiServer(new)];
                return Update { observed, is_draft: self.is_draft, ..Update::default() };
            }
            tokio::select! {
                update = self.source.next() => {
                    self.note(&update);
                    return update;
                }
                () = changed(&mut self.contact) => {}
                () = changed(&mut self.addresses) => {}
                () = sleep_until(again) => {}
            }
        }
    }

    fn need(&mut self, changed: ChangedNeeds) {
        self.source.need(changed);
    }

    fn need_only(&mut self, needs: BTreeSet<ObjectKey>) {
        self.source.need_only(needs);
    }
}

/// Waits for ever if there will be no change.
async fn changed<T>(watched: &mut watch::Receiver<T>) {
    if watched.changed().await.is_err() {
        std::future::pending().await
    }
}

// === impl Suspicion ===

impl Suspicion {
    fn new(trial: Duration) -> Self {
        Self {
            trial,
            pause: PAUSE,
            published: BTreeSet::new(),
            local: BTreeMap::new(),
            withheld: None,
            convicted: BTreeMap::new(),
            is_over: false,
        }
    }

    fn suspects(&self) -> impl Iterator<Item = IpAddr> {
        let withheld = self.withheld.iter().flat_map(|withheld| &withheld.addresses);
        withheld.chain(self.convicted.keys()).copied()
    }

    /// Returns the time to look again, if there is one.
    fn look(&mut self, now: Instant, contact: Contact) -> Option<Instant> {
        self.is_over &= contact.silent_since.is_some();
        self.convicted.retain(|_, until| *until > now);
        self.judge(now, contact);
        self.note_local(now);
        let unproved = self.unproved(contact);
        if unproved.is_empty() && self.convicted.is_empty() && self.withheld.is_none() {
            self.pause = PAUSE;
        }
        let silent_since = contact.silent_since.filter(|_| !self.is_over && self.withheld.is_none());
        let timeout = silent_since.filter(|_| !unproved.is_empty()).map(|since| since + SILENCE_TIMEOUT);
        if timeout.is_some_and(|end| end <= now) {
            tracing::warn!(
                "the API server has not answered since {} came to be served on this node: not served for {:?}, in case \
                 that is the reason",
                list(&unproved),
                self.trial
            );
            self.withheld = Some(Withheld { addresses: unproved, since: now });
            self.note_local(now);
        }
        let trial = self.withheld.as_ref().map(|withheld| withheld.since + self.trial);
        let waiting = timeout.filter(|end| *end > now);
        [trial, waiting, self.convicted.values().min().copied()].into_iter().flatten().min()
    }

    /// Ends the trial if its outcome is known.
    fn judge(&mut self, now: Instant, contact: Contact) {
        let Some(Withheld { addresses, since }) = &self.withheld else { return };
        if contact.answered > Some(*since) {
            let pause = self.pause;
            tracing::warn!(
                "the API server answers without {}: not served on this node for {pause:?}; make sure that no load \
                 balancer publishes what is the API server's, or on the way to it",
                list(addresses)
            );
            self.convicted.extend(addresses.iter().map(|address| (*address, now + pause)));
            self.pause = (pause * 2).min(LONGEST_PAUSE);
        } else if now >= *since + self.trial {
            tracing::info!("the API server does not answer without {} either: served again", list(addresses));
            self.is_over = true;
        } else {
            return;
        }
        self.withheld = None;
    }

    fn note_local(&mut self, now: Instant) {
        let suspects: BTreeSet<_> = self.suspects().collect();
        let served: BTreeSet<_> = self.published.difference(&suspects).copied().collect();
        self.local.retain(|address, _| served.contains(address));
        for address in served {
            self.local.entry(address).or_insert(now + SETTLING);
        }
    }

    fn unproved(&self, contact: Contact) -> BTreeSet<IpAddr> {
        let unproved = self.local.iter().filter(|(_, since)| contact.answered < Some(**since));
        unproved.map(|(address, _)| *address).collect()
    }
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "reaching_tests.rs"]
mod tests;
