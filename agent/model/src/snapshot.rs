//! Everything the data plane needs at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::{Backend, Certificate, FrontendKey, HealthCheck, ObjectName, Port, RemoteKeySet, ShardMap};

/// Immutable; the next one shares whatever did not change.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counts translations; the data plane acknowledges it once it serves the snapshot.
    pub generation: u64,
    pub frontends: BTreeMap<FrontendKey, Arc<Port>>,
    /// Addresses of frontends that Services of others have as well: their other ports are not the
    /// Gateways' to refuse.
    pub shared_addresses: BTreeSet<IpAddr>,
    /// By [`crate::BackendName`].
    pub backends: ShardMap<Arc<Backend>>,
    /// The certificates by which Gateways show backends who they are, where these are spoken to in
    /// TLS; for an attached Gateway without one of its own, its parent's.
    pub client_certificates: BTreeMap<ObjectName, Certificate>,
    /// Those that policies refer to, in order: to be fetched, and kept.
    pub key_sets: Arc<[Arc<RemoteKeySet>]>,
    /// By TCP port, on all addresses of the node.
    pub health_checks: BTreeMap<u16, HealthCheck>,
    /// The agents that share limits of scope Cluster, this one among them. `None`: it knows of no
    /// other.
    pub agents: Option<NonZeroU32>,
}

// === impl Snapshot ===

impl Snapshot {
    /// A copy with other frontends.
    #[must_use]
    pub fn with_frontends(
        self: Arc<Self>,
        edit: impl FnOnce(&mut BTreeMap<FrontendKey, Arc<Port>>),
    ) -> Arc<Self> {
        let mut edited = Arc::unwrap_or_clone(self);
        edit(&mut edited.frontends);
        Arc::new(edited)
    }
}
