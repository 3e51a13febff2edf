//! The parts of an agent that know what is asked at the admin endpoints.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use portcullis_control::applier::State;
use portcullis_control::status::DigestedStatuses;
use portcullis_inspect::{OutEndpoints, Problem, Progress, served_frontends};
use tokio::sync::{Semaphore, watch};

use crate::cluster::Membership;
use crate::plane::Plane;
use crate::watch_limits::MAX_WATCHES;

/// Answers about everything that is configured that are made at a time.
const MAX_WALKS: usize = 2;

/// The sources of all answers.
#[derive(Clone)]
pub(crate) struct Admin {
    pub state: watch::Receiver<State>,
    pub plane: Plane,
    pub status_dir: PathBuf,
    /// The reason for which some statuses could not be written there.
    status_fault: Option<watch::Receiver<Option<String>>>,
    /// The problems of each status file, once they were asked for.
    pub status_problems: Arc<Mutex<DigestedStatuses<Vec<Problem>>>>,
    /// Of an agent in a cluster.
    pub membership: Option<Membership>,
    /// Operators who may wait for requests at a time.
    pub watches: Arc<Semaphore>,
    walks: Arc<Semaphore>,
}

impl Admin {
    /// `membership` is of an agent in a cluster.
    pub(crate) fn new(
        state: watch::Receiver<State>,
        plane: Plane,
        status_dir: PathBuf,
        status_fault: Option<watch::Receiver<Option<String>>>,
        membership: Option<Membership>,
    ) -> Self {
        let watches = Arc::new(Semaphore::new(MAX_WATCHES));
        let walks = Arc::new(Semaphore::new(MAX_WALKS));
        let status_problems = Arc::default();
        Self { state, plane, status_dir, status_fault, status_problems, membership, watches, walks }
    }

    /// Makes an answer that may walk everything that is configured. Probes and the control plane do
    /// not wait for it: what else this thread would do goes to another one.
    pub(super) async fn walk<T>(&self, make: impl FnOnce() -> T) -> T {
        // The semaphore is never closed; without a turn it would be made all the same.
        let _turn = self.walks.acquire().await;
        tokio::task::block_in_place(make)
    }

    pub(super) fn unwritten_statuses(&self) -> Option<String> {
        self.status_fault.as_ref()?.borrow().clone()
    }

    /// A line for either case.
    pub(crate) fn readiness(&self, state: &State) -> Result<String, String> {
        let membership = self.membership.as_ref();
        let progress = Progress {
            applied: state.applied,
            served: served_frontends(&state.snapshot, &state.refused),
            is_current: membership.is_none_or(|membership| *membership.current.borrow()),
            needs_gateway: membership.is_none_or(|membership| membership.has_one_gateway),
        };
        progress.readiness()
    }

    /// Endpoints that are asked only if there is no other.
    pub(crate) async fn out_endpoints(&self) -> OutEndpoints {
        let backends = self.plane.stats().await.backends.into_iter();
        let out = backends.map(|(name, backend)| {
            let out = backend.out.into_iter().map(|(address, why)| (address.to_string(), why));
            (name.to_string(), out.collect::<BTreeMap<_, _>>())
        });
        out.filter(|(_, out)| !out.is_empty()).collect()
    }
}
