//! Statuses of parents and children (GEP-1058, "Route status"). Both sides get the same condition
//! types; a child's entries hold the verdict of each of its grandparents, since the same child may
//! fit one Gateway and not another.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portcullis_api::types::shared::{GrandparentStatus, ParentReference, RouteParentStatus};
use portcullis_model::HostPattern;

use super::{Attempt, ChildReport, Family};
use crate::route::ParsedRoute;
use crate::{ConditionStatus, ConditionType, Fault, Reason, condition};

/// The verdict on a child of a Gateway or ListenerSet that the parent attaches to.
#[derive(Clone, Debug, PartialEq)]
pub struct Grandparent {
    /// As in the parent's own status.
    pub reference: ParentReference,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// It does not accept the parent; the parent's status says why.
    ParentRefused(Reason),
    HostnameMismatch(Mismatch),
}

/// The child's hostnames match none of the listeners that the parent attaches to. Only what the
/// child's owner may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Those of parent and child together, or the child's own.
    pub hostnames: Vec<HostPattern>,
    /// Of the listeners.
    pub listeners: Vec<HostPattern>,
}

// === a child's entries ===

impl ChildReport {
    /// The fault for which it is not bound, if that is the parent owner's business: all parentRefs
    /// that both agreed on share one fate.
    fn refusal(&self) -> Option<&Fault> {
        let mut refusals = self.attempts.iter().filter_map(|attempt| attempt.result.as_ref().err());
        refusals.find(|refusal| refusal.public_message().is_some())
    }

    /// The status entries for this parent. `unresolved` is what the child's own references lack.
    pub fn entries(
        &self,
        controller: &str,
        grandparents: &[Grandparent],
        unresolved: Option<&Fault>,
    ) -> Vec<RouteParentStatus> {
        let attempts = self.attempts.iter();
        let entries = attempts.map(|attempt| RouteParentStatus {
            controller_name: controller.to_owned(),
            parent_ref: attempt.reference.clone(),
            conditions: self.conditions(attempt, grandparents, unresolved),
            grandparents: attempt.result.is_ok().then(|| self.grandparents(controller, grandparents)),
        });
        entries.collect()
    }

    fn conditions(
        &self,
        attempt: &Attempt,
        grandparents: &[Grandparent],
        unresolved: Option<&Fault>,
    ) -> Vec<Condition> {
        let generation = self.generation;
        let refusal = attempt.result.as_ref().err();
        let not_accepted = refusal.cloned().map(|mut refusal| {
            if let Some(instead) = &self.instead {
                refusal.message = format!("{}; {instead}", refusal.message);
            }
            refusal
        });
        let mut conditions = vec![
            accepted(not_accepted.as_ref(), grandparents, generation),
            condition_for(ConditionType::Attached, refusal, || self.attached_to(attempt), generation),
        ];
        conditions.extend(of_both_sides(refusal, generation));
        conditions.push(resolved_refs(unresolved, generation));
        if let (Some(fault), None) = (&self.partly_invalid, refusal) {
            conditions.push(bad(ConditionType::PartiallyInvalid, fault, generation));
        }
        conditions
    }

    fn attached_to(&self, attempt: &Attempt) -> String {
        let mut message = match (&attempt.reference.section_name, &attempt.result) {
            (Some(section), _) => format!("Successfully attached to `{section}` section."),
            (None, Ok(rules)) if *rules != 1 => format!("Successfully attached to {rules} rules."),
            _ => "Successfully attached to 1 rule.".to_owned(),
        };
        if !self.hints.is_empty() {
            message += &format!(" To be checked: {}.", self.hints.join("; "));
        }
        message
    }

    fn grandparents(&self, controller: &str, grandparents: &[Grandparent]) -> Vec<GrandparentStatus> {
        let statuses = grandparents.iter().map(|grandparent| GrandparentStatus {
            controller_name: Some(controller.to_owned()),
            parent_ref: grandparent.reference.clone(),
            conditions: Some(vec![self.verdict(grandparent)]),
        });
        statuses.collect()
    }

    fn verdict(&self, grandparent: &Grandparent) -> Condition {
        let generation = self.generation;
        let kind = grandparent.reference.kind.as_deref().unwrap_or("Gateway");
        match &grandparent.verdict {
            Verdict::Accepted => {
                let message = "Route successfully attached to parent and gateway.";
                condition(
                    ConditionType::Accepted,
                    ConditionStatus::True,
                    Reason::Accepted,
                    message,
                    generation,
                )
            }
            Verdict::ParentRefused(reason) => {
                let message =
                    format!("The {kind} does not accept the parent route: see the parent route's status.");
                condition(ConditionType::Accepted, ConditionStatus::False, *reason, message, generation)
            }
            Verdict::HostnameMismatch(names) => {
                let message = self.mismatch(names);
                condition(
                    ConditionType::Accepted,
                    ConditionStatus::False,
                    Reason::HostnameMismatch,
                    message,
                    generation,
                )
            }
        }
    }

    fn mismatch(&self, names: &Mismatch) -> String {
        let quoted = |names: &[HostPattern]| {
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let others = match names.listeners.as_slice() {
            [] => "the hostnames of the listeners that the parent route attaches to".to_owned(),
            known => quoted(known),
        };
        let narrowed = if names.hostnames == self.hostnames {
            ""
        } else {
            ", together with the parent route's hostnames,"
        };
        let own = quoted(&names.hostnames);
        format!(
            "The route could not be accepted because of a hostname mismatch - {own}{narrowed} does not match {others}."
        )
    }
}

/// True with GrandparentConfigError when bound but not everywhere, as in the specification's
/// examples.
fn accepted(refusal: Option<&Fault>, grandparents: &[Grandparent], generation: i64) -> Condition {
    let everywhere = grandparents.iter().all(|grandparent| grandparent.verdict == Verdict::Accepted);
    if refusal.is_some() || everywhere {
        return condition_for(
            ConditionType::Accepted,
            refusal,
            || "Route is accepted.".to_owned(),
            generation,
        );
    }
    let message =
        "Some configuration was not accepted in the attachment process. See grandparents for more details.";
    let status = ConditionStatus::True;
    condition(ConditionType::Accepted, status, Reason::GrandparentConfigError, message, generation)
}

/// The condition that reports a fault, or that there is none.
fn condition_for(
    r#type: ConditionType,
    fault: Option<&Fault>,
    good: impl FnOnce() -> String,
    generation: i64,
) -> Condition {
    match fault {
        Some(fault) => bad(r#type, fault, generation),
        None => condition(r#type, r#type.good_status(), r#type.good_reason(), good(), generation),
    }
}

fn bad(r#type: ConditionType, fault: &Fault, generation: i64) -> Condition {
    condition(r#type, r#type.bad_status(), fault.reason, fault.message.as_str(), generation)
}

/// Conflicted and NotSupported, which both sides have.
fn of_both_sides(fault: Option<&Fault>, generation: i64) -> [Condition; 2] {
    let of = |r#type| fault.filter(|fault| fault.condition == r#type);
    [
        conflicted(of(ConditionType::Conflicted), generation),
        not_supported(of(ConditionType::NotSupported), generation),
    ]
}

fn conflicted(fault: Option<&Fault>, generation: i64) -> Condition {
    condition_for(ConditionType::Conflicted, fault, || "No conflicts.".to_owned(), generation)
}

fn not_supported(fault: Option<&Fault>, generation: i64) -> Condition {
    condition_for(
        ConditionType::NotSupported,
        fault,
        || "All attachments are supported.".to_owned(),
        generation,
    )
}

fn resolved_refs(unresolved: Option<&Fault>, generation: i64) -> Condition {
    condition_for(
        ConditionType::ResolvedRefs,
        unresolved,
        || "All references are resolved.".to_owned(),
        generation,
    )
}

// === a parent's conditions ===

impl Family {
    /// The conditions added to the parent's entry for one Gateway or ListenerSet. `fits` is
    /// true if a bound child's hostnames have a listener there.
    pub fn parent_conditions(&self, fits: impl Fn(&ChildReport) -> bool) -> Vec<Condition> {
        let generation = self.parent.generation;
        let is_attached = |child: &&Arc<ChildReport>| child.is_bound() && fits(child);
        let (attached, others): (Vec<_>, Vec<_>) = self.children.iter().partition(is_attached);
        let (attached, failures) =
            (attached.len(), others.into_iter().filter_map(|child| self.failure(child)));
        let failures: Vec<_> = failures.collect();
        vec![
            self.attached_condition(attached, &failures),
            conflicted(self.as_reported_to_parent(ConditionType::Conflicted).as_ref(), generation),
            not_supported(self.as_reported_to_parent(ConditionType::NotSupported).as_ref(), generation),
        ]
    }

    /// The children's faults of this condition as one, in the words that the parent's owner may
    /// read.
    fn as_reported_to_parent(&self, condition: ConditionType) -> Option<Fault> {
        let refusals = self.children.iter().filter_map(|child| child.refusal());
        let refusals: Vec<_> = refusals.filter(|refusal| refusal.condition == condition).collect();
        let mut messages: Vec<_> = refusals.iter().filter_map(|refusal| refusal.public_message()).collect();
        messages.dedup();
        let messages: Vec<_> = messages.into_iter().map(str::to_owned).collect();
        Some(Fault::new(condition, refusals.first()?.reason, summary(&messages)))
    }

    fn attached_condition(&self, attached: usize, failures: &[String]) -> Condition {
        let mut message = format!("{attached} child route{} attached", if attached == 1 { "" } else { "s" });
        if !failures.is_empty() {
            message += &format!(", {} not: {}", failures.len(), summary(failures));
        }
        let childless: Vec<_> = self.childless.iter().map(|rule| self.parent.rules[*rule].label()).collect();
        if !childless.is_empty() {
            message += &format!("; without a child route, and failing its requests: {}", summary(&childless));
        }
        message.push('.');
        let reason = match (attached, failures.is_empty()) {
            (0, _) => Reason::NotAttached,
            (_, true) => Reason::Attached,
            (_, false) => Reason::PartiallyAttached,
        };
        let status = if attached > 0 { ConditionStatus::True } else { ConditionStatus::False };
        condition(ConditionType::Attached, status, reason, message, self.parent.generation)
    }

    /// `None`: the parent did not agree to the child, which is no fault of its own.
    fn failure(&self, child: &ChildReport) -> Option<String> {
        if child.is_bound() {
            return Some(format!(
                "the hostnames of {} match no listener that this route attaches to here",
                child.child
            ));
        }
        child.refusal().and_then(Fault::public_message).map(str::to_owned)
    }
}

fn summary(failures: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = failures.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    if failures.len() > SHOWN { format!("{shown}; and {} more", failures.len() - SHOWN) } else { shown }
}

// === children without a family ===

/// For a parentRef that names a route which does not exist.
pub fn missing_parent_conditions(child: &ParsedRoute, reference: &ParentReference) -> Vec<Condition> {
    let kind = child.key.kind;
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let message = format!("{kind} {namespace}/{}, which the parentRef names, does not exist", reference.name);
    let unresolved = Fault::unresolved(Reason::ParentNotFound, message);
    refused(child, &unresolved.clone().under(ConditionType::Attached), Some(&unresolved))
}

/// For a parentRef to a route of another kind: "A child HTTPRoute can not point to a parent
/// TCPRoute."
pub fn foreign_parent_conditions(child: &ParsedRoute, reference: &ParentReference) -> Vec<Condition> {
    let message = format!(
        "a parent route must be of the same kind: {} cannot be a child of {}",
        child.key.kind,
        reference.kind.as_deref().unwrap_or_default()
    );
    refused(child, &Fault::new(ConditionType::NotSupported, Reason::NotSupported, message), None)
}

fn refused(child: &ParsedRoute, refusal: &Fault, unresolved: Option<&Fault>) -> Vec<Condition> {
    let generation = child.generation;
    let mut conditions =
        vec![accepted(Some(refusal), &[], generation), bad(ConditionType::Attached, refusal, generation)];
    conditions.extend(of_both_sides(Some(refusal), generation));
    conditions.push(resolved_refs(unresolved, generation));
    conditions
}
