//! The common part of own policies (`targetRefs`): what they target, and which of several on a
//! target goes first. A policy targets objects of its own namespace, or sections of them. What it
//! says is its kind's, in a file of its own. Nothing here knows whether targets exist.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_api::types::shared::PolicyTargetReference;
use portcullis_api::{Kind, ObjectKey, created, generation};
use portcullis_model::ObjectName;

use crate::{Fault, Reason};

/// An object, or a section of it: a listener, a rule of a route, a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) object: ObjectKey,
    /// `None` for all of the object.
    pub(crate) section: Option<Arc<str>>,
}

/// A policy as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared<T> {
    pub(crate) generation: i64,
    /// Older ones take precedence.
    pub(crate) created: i64,
    pub(crate) targets: Box<[Target]>,
    /// The faults of `targetRefs` that are none.
    pub(crate) misnamed: Vec<Fault>,
    /// Its say on the targets; with a fault, that which protects them all the same.
    pub(crate) terms: T,
    /// The fault for which it cannot be followed as it is written.
    pub(crate) fault: Option<Fault>,
}

// === impl Target ===

impl Target {
    pub(crate) fn whole(object: ObjectKey) -> Self {
        Self { object, section: None }
    }
}

// === impl Declared ===

impl<T> Declared<T> {
    /// `targetable` are the kinds that may be targets; `closed` holds in place of terms that cannot
    /// be meant.
    pub(crate) fn new(
        metadata: &ObjectMeta,
        name: &ObjectName,
        references: &[PolicyTargetReference],
        targetable: &[Kind],
        terms: Result<T, Fault>,
        closed: impl FnOnce() -> T,
    ) -> Self {
        let (mut targets, mut misnamed) = (Vec::new(), Vec::new());
        for reference in references {
            match target(&name.namespace, reference, targetable) {
                Ok(target) if targets.contains(&target) => {}
                Ok(target) => targets.push(target),
                Err(fault) => misnamed.push(fault),
            }
        }
        let (terms, fault) = match terms {
            Ok(terms) => (terms, None),
            Err(fault) => (closed(), Some(fault)),
        };
        Self {
            generation: generation(metadata),
            created: created(metadata),
            targets: targets.into(),
            misnamed,
            terms,
            fault,
        }
    }
}

/// The fault of a reference to another kind than those that may be targets.
pub(crate) fn no_target(reference: &PolicyTargetReference, targetable: &[Kind]) -> Fault {
    let PolicyTargetReference { group, kind, .. } = reference;
    let kinds: Vec<_> = targetable.iter().map(|kind| format!("a {kind}")).collect();
    let own = targetable.first().map_or("", |kind| kind.group());
    let message = format!(
        "targetRefs: {kind:?} of group {group:?} is no target: name {} of group {own:?}",
        kinds.join(" or ")
    );
    Fault::not_accepted(Reason::TargetNotFound, message)
}

fn target(
    namespace: &Arc<str>,
    reference: &PolicyTargetReference,
    targetable: &[Kind],
) -> Result<Target, Fault> {
    let PolicyTargetReference { group, kind, name, section_name } = reference;
    let Some(kind) = Kind::of(group, kind).filter(|kind| targetable.contains(kind)) else {
        return Err(no_target(reference, targetable));
    };
    let name = ObjectName::new(namespace.clone(), name.as_str());
    let section = section_name.as_deref().filter(|section| !section.is_empty()).map(Arc::from);
    Ok(Target { object: ObjectKey { kind, name }, section })
}
