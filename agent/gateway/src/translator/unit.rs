//! What is remembered of each object between changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portcullis_model::{HostPattern, ObjectName, ParentKind, PortKey, RouteTable};

use super::dirty::ListenerKey;
use super::family::{Bound, Part};
use crate::address::Addresses;
use crate::infra::Parameters;
use crate::listener::{Declared, ParentKey};
use crate::merge::Verdict;
use crate::route::{BackendUse, ParsedRoute, ResolvedRule};
use crate::status::ParentVerdict;
use crate::{Fault, Kind, ObjectKey};

/// Children of a Gateway in order of precedence.
pub(super) type Rank = (i64, String, ParentKind);

/// A Gateway or a ListenerSet.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) declared: Arc<Declared>,
    /// The Gateway it asks to be a child of.
    pub(super) parent: Option<ObjectName>,
    pub(super) place: Place,
    pub(super) rank: Rank,
    /// One per listener, if it is placed.
    pub(super) verdicts: Vec<Verdict>,
    /// Listeners with names that another listener of the port has, too.
    pub(super) overlapping: Vec<Arc<str>>,
    /// By listener name; kept as long as routes are attached.
    pub(super) attached: BTreeMap<Arc<str>, Attached>,
}

/// Where an object stands in the hierarchy.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// A Gateway with addresses of its own.
    Root,
    /// A child of the Gateway.
    Child(ObjectName),
    /// It asks to be a child, but may not.
    Refused(Fault),
    /// Its parent is not ours.
    Foreign,
}

/// The routes of one listener: those that count as attached, and those that are served, be it with errors.
#[derive(Debug, Default)]
pub(super) struct Attached {
    pub(super) routes: BTreeSet<ObjectKey>,
    hosts: BTreeMap<HostPattern, BTreeSet<ObjectKey>>,
    /// How many entries of `hosts` are GRPCRoutes, and how many are not.
    kinds: (usize, usize),
    /// Routes that are not served, because one of another kind has their names.
    pub(super) losers: BTreeSet<ObjectKey>,
    pub(super) table: Arc<RouteTable>,
}

/// A Gateway with addresses of its own, as a whole.
#[derive(Debug, Default)]
pub(super) struct Root {
    pub(super) members: BTreeMap<Rank, ParentKey>,
    pub(super) addresses: Addresses,
    /// How it is provided, if it is accepted.
    pub(super) parameters: Parameters,
    /// Why it is not accepted.
    pub(super) refusal: Option<Fault>,
    pub(super) summary: Summary,
    /// Addresses by port that an older Gateway has.
    pub(super) lost: BTreeMap<PortKey, BTreeSet<IpAddr>>,
}

/// What the merged listeners amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) valid_anywhere: bool,
    pub(super) invalid_below: bool,
    pub(super) attached_sets: usize,
    pub(super) attached_gateways: usize,
}

#[derive(Debug)]
pub(super) struct RouteUnit {
    pub(super) parsed: Arc<ParsedRoute>,
    pub(super) rules: Box<[ResolvedRule]>,
    /// What `ResolvedRefs=False` says.
    pub(super) unresolved: Option<Box<Fault>>,
    pub(super) references: References,
    pub(super) attached: Places,
    pub(super) verdicts: Box<[ParentVerdict]>,
    /// With its children, if it has or wants any; `parts` are then served in the route's place.
    pub(super) bound: Option<Arc<Bound>>,
    pub(super) parts: Box<[Part]>,
}

/// What a route refers to. Ordered lists rather than sets: most have one element, and there are tens of thousands of them.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) parents: Box<[ParentKey]>,
    pub(super) backends: Box<[BackendUse]>,
    pub(super) services: Box<[ObjectName]>,
}

/// The listeners that a route is attached to, in order, and for which names there.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Places(Box<[(ListenerKey, Box<[HostPattern]>)]>);

// === impl Places ===

impl Places {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ListenerKey, &[HostPattern])> {
        self.0.iter().map(|(listener, hostnames)| (listener, &**hostnames))
    }

    pub(super) fn get(&self, listener: &ListenerKey) -> Option<&[HostPattern]> {
        let at = self.0.binary_search_by(|(key, _)| key.cmp(listener)).ok()?;
        Some(&self.0[at].1)
    }
}

impl From<BTreeMap<ListenerKey, BTreeSet<HostPattern>>> for Places {
    fn from(attached: BTreeMap<ListenerKey, BTreeSet<HostPattern>>) -> Self {
        Self(attached.into_iter().map(|(key, hostnames)| (key, hostnames.into_iter().collect())).collect())
    }
}

// === impl Attached ===

impl Attached {
    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.hosts.is_empty()
    }

    pub(super) fn add(&mut self, route: &ObjectKey, hostname: &HostPattern) {
        if self.hosts.entry(hostname.clone()).or_default().insert(route.clone()) {
            *self.count_of(route) += 1;
        }
    }

    pub(super) fn take(&mut self, route: &ObjectKey, hostname: &HostPattern) {
        let Some(routes) = self.hosts.get_mut(hostname) else { return };
        let is_gone = routes.remove(route);
        if routes.is_empty() {
            self.hosts.remove(hostname);
        }
        if is_gone {
            *self.count_of(route) -= 1;
        }
    }

    /// The routes that are to be served under a host pattern.
    pub(super) fn served(&self, hostname: &HostPattern) -> impl Iterator<Item = &ObjectKey> {
        let routes = self.hosts.get(hostname).into_iter().flatten();
        routes.filter(|route| !self.losers.contains(*route))
    }

    /// All routes, those that lost included.
    pub(super) fn everybody(&self) -> BTreeSet<&ObjectKey> {
        self.hosts.values().flatten().collect()
    }

    /// "Routes with any other value for the Accepted condition MUST NOT be included" (attachedRoutes).
    pub(super) fn accepted(&self) -> usize {
        self.routes.len() - self.losers.intersection(&self.routes).count()
    }

    pub(super) fn has_both_kinds(&self) -> bool {
        self.kinds.0 > 0 && self.kinds.1 > 0
    }

    fn count_of(&mut self, route: &ObjectKey) -> &mut usize {
        if route.kind == Kind::GrpcRoute { &mut self.kinds.0 } else { &mut self.kinds.1 }
    }
}

// === impl Unit ===

impl Unit {
    /// The Gateway it is merged into, itself included.
    pub(super) fn root(&self) -> Option<&ObjectName> {
        match &self.place {
            Place::Root => Some(&self.declared.key.name),
            Place::Child(root) => Some(root),
            Place::Refused(_) | Place::Foreign => None,
        }
    }

    pub(super) fn listener_keys(&self) -> impl Iterator<Item = ListenerKey> {
        let parent = &self.declared.key;
        self.declared.listeners.iter().map(|listener| (parent.clone(), listener.name.clone()))
    }
}
