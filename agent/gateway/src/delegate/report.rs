//! Statuses of parents and children (GEP-1058, "Route status"). Both sides get the same condition
//! types; a child's entries say of each of its grandparents if it accepts the child, since the same
//! child may fit one Gateway and not another.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portcullis_api::types::shared::{GrandparentStatus, ParentReference, RouteParentStatus};

use super::consent::not_admitted;
use super::{Attempt, ChildReport, Family};
use crate::conditions::Conditions;
use crate::route::{ParsedRoute, is_about_streams};
use crate::{ConditionStatus, ConditionType, Fault, Reason};

/// A Gateway or ListenerSet that the parent attaches to.
#[derive(Clone, Debug, PartialEq)]
pub struct Grandparent {
    /// As in the parent's own status.
    pub reference: ParentReference,
    /// The fault for which it does not accept the child, in words that the child's owner may read.
    pub refusal: Option<Fault>,
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
        let mut conditions = Conditions::new(self.generation);
        let refusal = attempt.result.as_ref().err();
        let not_accepted = refusal.cloned().map(|mut refusal| {
            if let Some(instead) = &self.instead {
                refusal.message = format!("{}; {instead}", refusal.message);
            }
            refusal
        });
        accept(&mut conditions, not_accepted.as_ref(), grandparents);
        conditions.check_or(ConditionType::Attached, refusal, self.attached_to(attempt));
        both_sides(&mut conditions, refusal, refusal);
        resolved_refs(&mut conditions, unresolved);
        if let (Some(fault), None) = (&self.partly_invalid, refusal) {
            conditions.bad(ConditionType::PartiallyInvalid, fault);
        }
        conditions.list
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
        let mut statuses = Vec::with_capacity(grandparents.len());
        for Grandparent { reference, refusal } in grandparents {
            let mut conditions = Conditions::new(self.generation);
            let good = "Route successfully attached to parent and gateway.";
            conditions.check_or(ConditionType::Accepted, refusal.as_ref(), good);
            statuses.push(GrandparentStatus {
                controller_name: Some(controller.to_owned()),
                parent_ref: reference.clone(),
                conditions: Some(conditions.list),
            });
        }
        statuses
    }
}

/// True with GrandparentConfigError when bound but not everywhere, as in the specification's
/// examples.
fn accept(conditions: &mut Conditions, refusal: Option<&Fault>, grandparents: &[Grandparent]) {
    let everywhere = grandparents.iter().all(|grandparent| grandparent.refusal.is_none());
    if refusal.is_some() || everywhere {
        return conditions.check_or(ConditionType::Accepted, refusal, "Route is accepted.");
    }
    let message =
        "Some configuration was not accepted in the attachment process. See grandparents for more details.";
    conditions.push(ConditionType::Accepted, ConditionStatus::True, Reason::GrandparentConfigError, message);
}

/// Conflicted and NotSupported, which both sides have, by the fault of each.
fn both_sides(conditions: &mut Conditions, conflict: Option<&Fault>, unsupported: Option<&Fault>) {
    let conflict = conflict.filter(|fault| fault.condition == ConditionType::Conflicted);
    conditions.check_or(ConditionType::Conflicted, conflict, "No conflicts.");
    let unsupported = unsupported.filter(|fault| fault.condition == ConditionType::NotSupported);
    conditions.check_or(ConditionType::NotSupported, unsupported, "All attachments are supported.");
}

fn resolved_refs(conditions: &mut Conditions, unresolved: Option<&Fault>) {
    conditions.check_or(ConditionType::ResolvedRefs, unresolved, "All references are resolved.");
}

impl ChildReport {
    /// True if the parent, of another namespace, does not admit the child at all.
    pub fn is_strangers(&self, child: &ParsedRoute) -> bool {
        let refusal = |reference: &ParentReference| not_admitted(child, reference);
        self.attempts.iter().all(|attempt| attempt.result.as_ref() == Err(&refusal(&attempt.reference)))
    }
}

// === a parent's conditions ===

impl Family {
    /// The conditions added to the parent's entry for one Gateway or ListenerSet. `fits` is
    /// true if a bound child's hostnames have a listener there.
    pub fn parent_conditions(&self, fits: impl Fn(&ChildReport) -> bool) -> Vec<Condition> {
        let mut conditions = Conditions::new(self.parent.generation);
        let (mut attached, mut failures) = (0, Vec::new());
        for child in &self.children {
            if child.is_bound() && fits(child) {
                attached += 1;
            } else {
                failures.extend(self.failure(child));
            }
        }
        self.attach(&mut conditions, attached, &failures);
        let conflict = self.as_reported_to_parent(ConditionType::Conflicted);
        let unsupported = self.as_reported_to_parent(ConditionType::NotSupported);
        both_sides(&mut conditions, conflict.as_ref(), unsupported.as_ref());
        conditions.list
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

    fn attach(&self, conditions: &mut Conditions, attached: usize, failures: &[String]) {
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
        conditions.push(ConditionType::Attached, status, reason, message);
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

/// For a parentRef that names a route which does not exist; `own` is what the child's references
/// lack besides. Of another namespace's routes it is not said which there are.
pub fn missing_parent_conditions(
    child: &ParsedRoute,
    reference: &ParentReference,
    own: Option<&Fault>,
) -> Vec<Condition> {
    let kind = child.key.kind;
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    if namespace != &*child.key.name.namespace {
        return refused(child, &not_admitted(child, reference), own);
    }
    let message = format!("{kind} {namespace}/{}, which the parentRef names, does not exist", reference.name);
    let unresolved = Fault::unresolved(Reason::ParentNotFound, message);
    refused(child, &unresolved.clone().under(ConditionType::Attached), Some(&unresolved))
}

/// For a parentRef to a route of another kind: "A child HTTPRoute can not point to a parent
/// TCPRoute." Or of the same, if it is one that delegation is not for.
pub fn foreign_parent_conditions(child: &ParsedRoute, reference: &ParentReference) -> Vec<Condition> {
    let (own, other) = (child.key.kind, reference.kind.as_deref().unwrap_or_default());
    let message = if is_about_streams(own) {
        format!("{own}s have no parent routes: name a Gateway or a ListenerSet, not a {other}")
    } else {
        format!("a parent route must be of the same kind: {own} cannot be a child of {other}")
    };
    refused(child, &Fault::new(ConditionType::NotSupported, Reason::NotSupported, message), None)
}

fn refused(child: &ParsedRoute, refusal: &Fault, unresolved: Option<&Fault>) -> Vec<Condition> {
    let mut conditions = Conditions::new(child.generation);
    accept(&mut conditions, Some(refusal), &[]);
    conditions.bad(ConditionType::Attached, refusal);
    both_sides(&mut conditions, Some(refusal), Some(refusal));
    resolved_refs(&mut conditions, unresolved);
    conditions.list
}
