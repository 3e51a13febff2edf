//! What has to be computed again.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_model::{HostPattern, ObjectName};

use crate::ObjectKey;
use crate::listener::ParentKey;

/// A listener by the object that defines it and its name there.
pub(super) type ListenerKey = (ParentKey, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// Gateways and ListenerSets whose listeners have to be judged.
    pub(super) declared: BTreeSet<ParentKey>,
    /// Gateways and ListenerSets whose place in the hierarchy may be another one.
    pub(super) places: BTreeSet<ParentKey>,
    /// Gateways whose listeners have to be merged.
    pub(super) roots: BTreeSet<ObjectName>,
    pub(super) routes: BTreeSet<ObjectKey>,
    /// Listeners where routes of different kinds may be about the same names.
    pub(super) contests: BTreeSet<ListenerKey>,
    pub(super) tables: BTreeSet<(ListenerKey, HostPattern)>,
    pub(super) listeners: BTreeSet<ListenerKey>,
    /// Gateways with other limits, or another access log.
    pub(super) served: BTreeSet<ObjectName>,
    /// Gateways whose ports or addresses may be others.
    pub(super) frontends: BTreeSet<ObjectName>,
    /// Gateways for which something else may have to be generated.
    pub(super) generated: BTreeSet<ObjectName>,
    /// Services whose backends may be others.
    pub(super) services: BTreeSet<ObjectName>,
    pub(super) statuses: BTreeSet<ObjectKey>,
    /// Parent routes whose ephemeral route may be another.
    pub(super) families: BTreeSet<ObjectKey>,
}
