//! Statuses of parents and children (GEP-1058, "Route status"). Both sides get the same condition types; a child's entries
//! hold the verdict of each of its grandparents, since the same child may fit one Gateway and not another.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portcullis_model::HostPattern;

use super::{Attempt, Cause, ChildReport, Family, Refusal};
use crate::api::shared::{GrandparentStatus, ParentReference, RouteParentStatus};
use crate::reason::{ConditionType, Reason, condition};
use crate::route::{ParsedRoute, Problem};

/// What a Gateway or ListenerSet that the parent attaches to says about a child.
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

/// The child's hostnames match none of the listeners that the parent attaches to. Only what the child's owner may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Those of parent and child together, or the child's own.
    pub hostnames: Vec<HostPattern>,
    /// Of the listeners.
    pub listeners: Vec<HostPattern>,
}

// === a child's entries ===

impl ChildReport {
    /// Why it is not bound, if that is the parent owner's business: all parentRefs that both agreed on share one fate.
    fn refusal(&self) -> Option<&Refusal> {
        let mut refusals = self.attempts.iter().filter_map(|attempt| attempt.result.as_ref().err());
        refusals.find(|refusal| refusal.concerns_parent())
    }

    /// The status entries for this parent. `unresolved` is what the child's own references lack.
    pub fn entries(
        &self,
        controller: &str,
        grandparents: &[Grandparent],
        unresolved: Option<&Problem>,
    ) -> Vec<RouteParentStatus> {
        let entry = |attempt: &Attempt| RouteParentStatus {
            controller_name: controller.to_owned(),
            parent_ref: attempt.reference.clone(),
            conditions: self.conditions(attempt, grandparents, unresolved),
            grandparents: attempt.result.is_ok().then(|| self.grandparents(controller, grandparents)),
        };
        self.attempts.iter().map(entry).collect()
    }

    fn conditions(
        &self,
        attempt: &Attempt,
        grandparents: &[Grandparent],
        unresolved: Option<&Problem>,
    ) -> Vec<Condition> {
        let generation = self.generation;
        let refusal = attempt.result.as_ref().err();
        let mut conditions = vec![accepted(refusal, grandparents, generation)];
        conditions.push(match refusal {
            Some(refusal) => {
                condition(ConditionType::Attached, false, refusal.reason, &refusal.to_child, generation)
            }
            None => {
                condition(ConditionType::Attached, true, Reason::Attached, attached_to(attempt), generation)
            }
        });
        conditions.extend(sides(refusal.map(|refusal| (refusal, refusal.to_child.clone())), generation));
        conditions.push(resolved_refs(unresolved, generation));
        if let (Some(problem), None) = (&self.partly_invalid, refusal) {
            let r#type = ConditionType::PartiallyInvalid;
            conditions.push(condition(r#type, true, problem.reason, &problem.message, generation));
        }
        conditions
    }

    fn grandparents(&self, controller: &str, grandparents: &[Grandparent]) -> Vec<GrandparentStatus> {
        let status = |grandparent: &Grandparent| GrandparentStatus {
            controller_name: Some(controller.to_owned()),
            parent_ref: grandparent.reference.clone(),
            conditions: Some(vec![self.verdict(grandparent)]),
        };
        grandparents.iter().map(status).collect()
    }

    fn verdict(&self, grandparent: &Grandparent) -> Condition {
        let generation = self.generation;
        let kind = grandparent.reference.kind.as_deref().unwrap_or("Gateway");
        match &grandparent.verdict {
            Verdict::Accepted => {
                let message = "Route successfully attached to parent and gateway.";
                condition(ConditionType::Accepted, true, Reason::Accepted, message, generation)
            }
            Verdict::ParentRefused(reason) => {
                let message =
                    format!("The {kind} does not accept the parent route: see the parent route's status.");
                condition(ConditionType::Accepted, false, *reason, message, generation)
            }
            Verdict::HostnameMismatch(names) => {
                let message = self.mismatch(names);
                condition(ConditionType::Accepted, false, Reason::HostnameMismatch, message, generation)
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

/// True with GrandparentConfigError when bound but not everywhere, as in the specification's examples.
fn accepted(refusal: Option<&Refusal>, grandparents: &[Grandparent], generation: i64) -> Condition {
    if let Some(refusal) = refusal {
        return condition(ConditionType::Accepted, false, refusal.reason, &refusal.to_child, generation);
    }
    let everywhere = grandparents.iter().all(|grandparent| grandparent.verdict == Verdict::Accepted);
    let (reason, message) = if everywhere {
        (Reason::Accepted, "Route is accepted.")
    } else {
        (
            Reason::GrandparentConfigError,
            "Some configuration was not accepted in the attachment process. See grandparents for more details.",
        )
    };
    condition(ConditionType::Accepted, true, reason, message, generation)
}

fn attached_to(attempt: &Attempt) -> String {
    match (&attempt.reference.section_name, &attempt.result) {
        (Some(section), _) => format!("Successfully attached to `{section}` section."),
        (None, Ok(rules)) if *rules != 1 => format!("Successfully attached to {rules} rules."),
        _ => "Successfully attached to 1 rule.".to_owned(),
    }
}

/// Conflicted and NotSupported, which both sides have.
fn sides(refusal: Option<(&Refusal, String)>, generation: i64) -> [Condition; 2] {
    let with = |cause: Cause| refusal.as_ref().filter(|(refusal, _)| refusal.cause == cause);
    [
        match with(Cause::Conflict) {
            Some((refusal, message)) => {
                condition(ConditionType::Conflicted, true, refusal.reason, message, generation)
            }
            None => {
                condition(ConditionType::Conflicted, false, Reason::NoConflicts, "No conflicts.", generation)
            }
        },
        match with(Cause::Unsupported) {
            Some((refusal, message)) => {
                condition(ConditionType::NotSupported, true, refusal.reason, message, generation)
            }
            None => condition(
                ConditionType::NotSupported,
                false,
                Reason::Supported,
                "All attachments are supported.",
                generation,
            ),
        },
    ]
}

fn resolved_refs(unresolved: Option<&Problem>, generation: i64) -> Condition {
    let r#type = ConditionType::ResolvedRefs;
    match unresolved {
        Some(problem) => condition(r#type, false, problem.reason, &problem.message, generation),
        None => condition(r#type, true, Reason::ResolvedRefs, "All references are resolved.", generation),
    }
}

// === a parent's conditions ===

impl Family {
    /// What is added to the parent's entry for one Gateway or ListenerSet. `fits` tells whether a bound child's hostnames
    /// have a listener there.
    pub fn parent_conditions(&self, fits: impl Fn(&ChildReport) -> bool) -> Vec<Condition> {
        let generation = self.parent.generation;
        let is_attached = |child: &&Arc<ChildReport>| child.is_bound() && fits(child);
        let (attached, others): (Vec<_>, Vec<_>) = self.children.iter().partition(is_attached);
        let (attached, failures) =
            (attached.len(), others.into_iter().filter_map(|child| self.failure(child)));
        let failures: Vec<_> = failures.collect();
        let mut conditions = vec![self.attached_condition(attached, &failures)];
        let [conflicted, _] = sides(self.refusals(Cause::Conflict), generation);
        let [_, unsupported] = sides(self.refusals(Cause::Unsupported), generation);
        conditions.extend([conflicted, unsupported]);
        conditions
    }

    /// The first refusal for this cause, and what all together tell the parent's owner.
    fn refusals(&self, cause: Cause) -> Option<(&Refusal, String)> {
        let refusals = self.children.iter().filter_map(|child| child.refusal());
        let refusals: Vec<_> = refusals.filter(|refusal| refusal.cause == cause).collect();
        let mut messages: Vec<_> = refusals.iter().map(|refusal| refusal.to_parent.clone()).collect();
        messages.dedup();
        Some((refusals.first().copied()?, summary(&messages)))
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
        condition(ConditionType::Attached, attached > 0, reason, message, self.parent.generation)
    }

    /// `None`: the parent did not agree to the child, which is no trouble of its own.
    fn failure(&self, child: &ChildReport) -> Option<String> {
        if child.is_bound() {
            let same = child.child.name.namespace == self.parent.key.name.namespace;
            let who =
                if same { child.child.to_string() } else { "a child route of another namespace".to_owned() };
            return Some(format!(
                "the hostnames of {who} match no listener that this route attaches to here"
            ));
        }
        child.refusal().map(|refusal| refusal.to_parent.clone())
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
    let refusal = Refusal {
        cause: Cause::Invalid,
        reason: Reason::ParentNotFound,
        to_child: message.clone(),
        to_parent: String::new(),
    };
    refused(child, &refusal, Some(&Problem::unresolved(Reason::ParentNotFound, message)))
}

/// For a parentRef to a route of another kind: "A child HTTPRoute can not point to a parent TCPRoute."
pub fn foreign_parent_conditions(child: &ParsedRoute, reference: &ParentReference) -> Vec<Condition> {
    let refusal = Refusal {
        cause: Cause::Unsupported,
        reason: Reason::NotSupported,
        to_child: format!(
            "a parent route must be of the same kind: {} cannot be a child of {}",
            child.key.kind,
            reference.kind.as_deref().unwrap_or_default()
        ),
        to_parent: String::new(),
    };
    refused(child, &refusal, None)
}

fn refused(child: &ParsedRoute, refusal: &Refusal, unresolved: Option<&Problem>) -> Vec<Condition> {
    let generation = child.generation;
    let mut conditions = vec![
        accepted(Some(refusal), &[], generation),
        condition(ConditionType::Attached, false, refusal.reason, &refusal.to_child, generation),
    ];
    conditions.extend(sides(Some((refusal, refusal.to_child.clone())), generation));
    conditions.push(resolved_refs(unresolved, generation));
    conditions
}
