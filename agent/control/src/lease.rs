//! Leader election: the agent that holds the Lease writes. The algorithm is that of Kubernetes' own
//! controllers: every write carries the version it is based on, so that of two candidates one
//! loses; and whether a holder is alive is judged by when *we* last saw it move, so that clocks
//! need not agree. Losing the Lease makes a follower that campaigns again, and has no other effect.
//!
//! The leader, which alone watches all agents, writes on it how many are ready: every other looks
//! at the Lease all the time.

use std::num::NonZeroU32;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use portcullis_gateway::infra::Agents;
use portcullis_log::LastLogged;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::kube::backoff::jittered;
use crate::kube::{code, is_unanswered, problem, wording};

/// The number of agents that are ready, as the leader knows it.
const READY_AGENTS: &str = "portcullis.dev/ready-agents";

/// Times by which a Lease is kept. A leader that cannot renew steps down after `renew_within`,
/// before another may think it dead after `valid_for`.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub valid_for: Duration,
    pub renew_within: Duration,
    pub retry_every: Duration,
}

pub struct Elector {
    api: Api<Lease>,
    name: String,
    identity: String,
    timing: Timing,
    seen: Option<Seen>,
    leading: watch::Sender<bool>,
    /// All agents, as far as this one knows them.
    agents: Option<watch::Receiver<Option<Agents>>>,
    ready: watch::Sender<Option<NonZeroU32>>,
    /// The problem that keeps it from campaigning.
    problem: LastLogged,
}

/// The Lease as last read, and since when it is so by our clock.
struct Seen {
    lease: Lease,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Holds,
    /// Another does.
    Follows,
    Unanswered,
}

// === impl Timing ===

impl Default for Timing {
    /// As Kubernetes' own controllers.
    fn default() -> Self {
        Self {
            valid_for: Duration::from_secs(15),
            renew_within: Duration::from_secs(10),
            retry_every: Duration::from_secs(2),
        }
    }
}

// === impl Elector ===

impl Elector {
    /// `identity` must be the agent's own: its node's name, for instance.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str, timing: Timing) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            timing,
            seen: None,
            leading: watch::Sender::new(false),
            agents: None,
            ready: watch::Sender::default(),
            problem: LastLogged::default(),
        }
    }

    /// Has the leader say on the Lease how many of these are ready.
    #[must_use]
    pub fn counting(self, agents: watch::Receiver<Option<Agents>>) -> Self {
        Self { agents: Some(agents), ..self }
    }

    /// The number of agents that are ready, as the Lease says.
    pub fn ready_agents(&self) -> watch::Receiver<Option<NonZeroU32>> {
        self.ready.subscribe()
    }

    /// Tells whether this agent leads now.
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// Campaigns until `stop` completes, then gives the Lease up so that another agent takes it at
    /// once.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut renewed = Instant::now();
        loop {
            let began = Instant::now();
            let attempt = self.attempt(renewed).await;
            if attempt == Attempt::Holds {
                renewed = began;
                self.lead();
            } else if renewed.elapsed() >= self.timing.renew_within || !self.may_hold() {
                self.follow();
            }
            tokio::select! {
                () = &mut stop => break,
                () = tokio::time::sleep(self.pause(attempt, renewed)) => {}
            }
        }
        self.follow();
        self.give_up().await;
    }

    /// Without an answer it tries more often: writing should go on soon after the API server is
    /// back. A leader that cannot renew must step down in time, and a follower takes over as soon
    /// as it may, however long the pause would be.
    fn pause(&self, attempt: Attempt, renewed: Instant) -> Duration {
        let pause = jittered(match attempt {
            Attempt::Unanswered => self.timing.retry_every / 2,
            Attempt::Holds | Attempt::Follows => self.timing.retry_every,
        });
        let until = match &self.seen {
            _ if self.leads() => renewed + self.timing.renew_within,
            Some(seen) if attempt == Attempt::Follows => seen.since + self.trusted(seen),
            _ => return pause,
        };
        let left = until.saturating_duration_since(Instant::now());
        pause.min(left.max(Duration::from_millis(10)))
    }

    /// Takes or renews the Lease, if the API server answers in time: of a leader, before it must
    /// step down.
    async fn attempt(&mut self, renewed: Instant) -> Attempt {
        let whole = Instant::now() + self.timing.renew_within / 2;
        let mut limit = whole;
        if self.leads() {
            limit = limit.min(renewed + self.timing.renew_within);
        }
        match timeout_at(limit, self.take_or_renew()).await {
            Ok(Ok(holds)) => {
                self.problem.clear(&());
                if holds { Attempt::Holds } else { Attempt::Follows }
            }
            Ok(Err(error)) => {
                // That nothing is answered is in the log already.
                if !is_unanswered(&error) {
                    self.log(&problem(&error));
                }
                Attempt::Unanswered
            }
            Err(_) => {
                // A leader that is about to step down may have left it no time at all.
                if limit == whole {
                    self.log("the API server does not answer in time");
                }
                Attempt::Unanswered
            }
        }
    }

    fn log(&mut self, problem: &str) {
        if self.problem.update((), Some(wording(problem))).is_some() {
            tracing::warn!(
                "Lease {}: cannot campaign: {problem}; this agent serves, and writes no statuses until it can. It needs get, create \
                 and update on leases in namespace {}",
                self.name,
                self.api.namespace().unwrap_or_default()
            );
        }
    }

    async fn take_or_renew(&mut self) -> kube::Result<bool> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            // Of another leader, which does not know yet, and will make it again.
            if self.seen.as_ref().is_some_and(|seen| !self.is_mine(&seen.lease) && !self.is_free(seen)) {
                return Ok(false);
            }
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let now = MicroTime(Timestamp::now());
            let lease = Lease { metadata, spec: Some(self.spec(now.clone(), now, 0)) };
            let created = self.api.create(&PostParams::default(), &lease).await;
            return self.outcome(created);
        };
        self.see(lease);
        let Some(seen) = self.seen.as_ref().filter(|seen| self.is_mine(&seen.lease) || self.is_free(seen))
        else {
            return Ok(false);
        };
        let lease = self.renewal(&seen.lease);
        let replaced = self.api.replace(&self.name, &PostParams::default(), &lease).await;
        self.outcome(replaced)
    }

    /// Another candidate was faster: no error, but not ours either.
    fn outcome(&mut self, written: kube::Result<Lease>) -> kube::Result<bool> {
        match written {
            Ok(lease) => {
                self.see(lease);
                Ok(true)
            }
            Err(error) if code(&error) == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn see(&mut self, lease: Lease) {
        // What cannot be read is no news.
        if let Some(ready) = ready_agents(&lease) {
            self.ready.send_if_modified(|known| known.replace(ready) != Some(ready));
        }
        if self.seen.as_ref().is_none_or(|seen| seen.lease.spec != lease.spec) {
            self.seen = Some(Seen { lease, since: Instant::now() });
        } else if let Some(seen) = &mut self.seen {
            // Its version may have moved without its holder.
            seen.lease = lease;
        }
    }

    fn is_mine(&self, lease: &Lease) -> bool {
        holder(lease) == Some(&self.identity)
    }

    /// As far as we know, no other candidate has taken it.
    fn may_hold(&self) -> bool {
        self.seen.as_ref().is_none_or(|seen| self.is_mine(&seen.lease))
    }

    fn is_free(&self, seen: &Seen) -> bool {
        holder(&seen.lease).is_none() || seen.since.elapsed() >= self.trusted(seen)
    }

    /// Time for which a holder is thought alive after it was seen to move: longer than the holder
    /// leads without being able to move again. A candidate that looks once per pause saw it move
    /// within a pause, so another leads within the time that the Lease is valid for.
    fn trusted(&self, seen: &Seen) -> Duration {
        let seconds = seen.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let valid_for = seconds.map_or(self.timing.valid_for, Duration::from_secs);
        valid_for.saturating_sub(self.timing.retry_every)
    }

    fn renewal(&self, lease: &Lease) -> Lease {
        let before = lease.spec.clone().unwrap_or_default();
        let now = MicroTime(Timestamp::now());
        let transitions = before.lease_transitions.unwrap_or_default();
        let spec = match before.acquire_time.filter(|_| self.is_mine(lease)) {
            Some(acquired) => self.spec(acquired, now, transitions),
            None => self.spec(now.clone(), now, transitions + 1),
        };
        let mut metadata = lease.metadata.clone();
        let known = self.agents.as_ref().and_then(|agents| agents.borrow().as_ref().map(Agents::ready));
        // This one is there, ready or not.
        if let Some(ready) = known.filter(|_| self.leads()) {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(READY_AGENTS.to_owned(), ready.max(1).to_string());
        }
        Lease { metadata, spec: Some(spec) }
    }

    fn spec(&self, acquired: MicroTime, now: MicroTime, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            // The API knows whole seconds, at least one.
            lease_duration_seconds: i32::try_from(self.timing.valid_for.as_secs().max(1)).ok(),
            acquire_time: Some(acquired),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Best effort: without it, the next leader waits until the Lease is out of date.
    async fn give_up(&self) {
        let Some(mut lease) =
            self.seen.as_ref().map(|seen| seen.lease.clone()).filter(|lease| self.is_mine(lease))
        else {
            return;
        };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        let parameters = PostParams::default();
        let replaced = self.api.replace(&self.name, &parameters, &lease);
        let _ = timeout(Duration::from_secs(1), replaced).await;
    }

    fn leads(&self) -> bool {
        *self.leading.borrow()
    }

    fn lead(&self) {
        if self.leading.send_if_modified(|leads| !std::mem::replace(leads, true)) {
            tracing::info!(lease = %self.name, "leading: this agent writes statuses");
        }
    }

    fn follow(&self) {
        if self.leading.send_if_modified(|leads| std::mem::replace(leads, false)) {
            tracing::info!(lease = %self.name, "not leading any more: another agent writes statuses; traffic goes on");
        }
    }
}

fn ready_agents(lease: &Lease) -> Option<NonZeroU32> {
    lease.metadata.annotations.as_ref()?.get(READY_AGENTS)?.parse().ok()
}

fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
