//! GEP-1058: routes that take their backends from other routes. A parent route and the child routes
//! that attach to its rules are flattened while translating, so that the data plane sees ordinary
//! rules and needs one look-up.
//!
//! [`bind`] is pure: a parent, the routes that may become its children, and two questions about the
//! surroundings in; a [`Family`] out. Its ephemeral routes are [`ParsedRoute`]s like any other, and
//! print as HTTPRoutes which, applied in place of the family, serve the same: that is the
//! specification's own test of a valid combination. `docs/delegation.md` has the rules, and the
//! choices that the specification left.

mod assemble;
mod bind;
mod combine;
mod consent;
mod fields;
mod limits;
mod names;
mod pair;
mod print;
mod report;
mod sides;
mod weigh;

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_api::types::shared::ParentReference;
use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{HostPattern, ObjectName};

use crate::Fault;
use crate::route::{Extension, ParsedRoute};
use crate::selector::NamespaceRule;

pub use bind::bind;
pub use limits::{MOST_CHILDREN_OF_A_RULE, MOST_COMBINATIONS, MOST_COMBINATIONS_IN_VAIN};
pub use names::Names;
pub use print::{SOURCES_ANNOTATION, copied_filters};
pub use report::{Grandparent, foreign_parent_conditions, missing_parent_conditions};

use assemble::Item;
use pair::Pair;

/// The questions that binding asks beyond the routes.
pub trait Surroundings {
    /// True if `rule`, written in namespace `parent`, admits routes of namespace `child`.
    fn admits(&self, rule: &NamespaceRule, parent: &str, child: &str) -> bool;
    /// True if a ReferenceGrant allows routes of `kind` in `namespace` to refer to the route `to`
    /// of the same kind.
    fn permits(&self, kind: Kind, namespace: &str, to: &ObjectName) -> bool;
    /// The RouteFilter of that name, if it is there and accepted.
    fn route_filter(&self, name: &ObjectName) -> Option<&Extension>;
    /// Another number whenever one of these answers may be another for parents and children of
    /// these namespaces.
    fn version(&self, parent: &str, child: &str) -> u64;
}

/// A parent with the children that bound to it.
#[derive(Debug)]
pub struct Family {
    pub parent: Arc<ParsedRoute>,
    /// The routes served in place of the parent, in order of precedence: one route, or several when
    /// children have hostnames of their own or there is more than an HTTPRoute can have. Together
    /// they count as one, of the parent's age and name.
    pub ephemeral: Vec<Arc<Ephemeral>>,
    /// In the order they were bound.
    pub children: Vec<Arc<ChildReport>>,
    /// References of the parent to child routes that lead nowhere.
    pub unresolved: Vec<Fault>,
    /// Rules for children that have none: they fail their requests.
    childless: Vec<usize>,
    /// All candidates, for the next binding to go on from.
    pairs: Vec<Arc<Pair>>,
    /// By rule of the parent: what it is without children; nothing, if it takes no requests then.
    own: Vec<Option<Arc<Item>>>,
}

/// A part of the ephemeral route that can be written as one object.
#[derive(Debug)]
pub struct Ephemeral {
    pub route: Arc<ParsedRoute>,
    items: Vec<Arc<Item>>,
}

/// The outcome of binding for one child.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReport {
    pub child: ObjectKey,
    pub generation: i64,
    /// Of parent and child together; empty unless bound.
    pub hostnames: Vec<HostPattern>,
    /// By parentRef to this parent; one without index if only the parent named the child.
    pub attempts: Vec<Attempt>,
    pub partly_invalid: Option<Fault>,
    /// If an attempt failed: the answer that requests get which the child asks for.
    pub instead: Option<String>,
    /// Notes on paths that are valid and seldom meant.
    pub hints: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Index in the child's `spec.parentRefs`; `None` if the child does not name the parent.
    pub index: Option<usize>,
    /// As the child wrote it, or would have.
    pub reference: ParentReference,
    /// The number of rules attached to.
    pub result: Result<usize, Fault>,
}

// === impl Family ===

impl Family {
    /// All routes whose rules are served in place of the parent's.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<ParsedRoute>> {
        self.ephemeral.iter().map(|part| &part.route)
    }

    /// The RouteFilters that binding has looked at, there or not.
    pub fn route_filters(&self) -> impl Iterator<Item = &ObjectName> {
        self.pairs.iter().flat_map(|pair| pair.route_filters.keys())
    }

    pub fn report(&self, child: &ObjectKey) -> Option<&ChildReport> {
        self.children.iter().find(|report| report.child == *child).map(|report| &**report)
    }

    /// Children that fare differently in the other family.
    pub fn different_from<'f>(&'f self, other: &'f Self) -> impl Iterator<Item = &'f ObjectKey> {
        let reports =
            |family: &'f Self| family.children.iter().map(|report| (Arc::as_ptr(report), &report.child));
        let (ours, theirs): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (reports(self).collect(), reports(other).collect());
        let only_ours = reports(self).filter(move |(report, _)| !theirs.contains_key(report));
        let only_theirs = reports(other).filter(move |(report, _)| !ours.contains_key(report));
        only_ours.chain(only_theirs).map(|(_, child)| child)
    }
}

impl ChildReport {
    pub fn is_bound(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.result.is_ok())
    }
}

#[cfg(test)]
mod consent_tests;

#[cfg(test)]
mod family_tests;

#[cfg(test)]
mod limits_tests;

#[cfg(test)]
mod print_tests;

#[cfg(test)]
mod property_tests;

#[cfg(test)]
mod weigh_tests;
