//! Status of own policies: one entry per target (GEP-713). No more can be in `targetRefs` than in
//! `status.ancestors`.

use portcullis_api::types::shared::{ParentReference, PolicyAncestorStatus, PolicyStatus};

use crate::conditions::Conditions;
use crate::policy::declared::Target;
use crate::{ConditionType, Fault, Reason};

/// A target with what became of the policy there.
pub(crate) struct TargetVerdict<'t> {
    pub(crate) target: &'t Target,
    pub(crate) refusal: Option<Fault>,
    pub(crate) effect: Effect,
}

/// The effect of a policy that is accepted at a target.
pub(crate) enum Effect {
    /// All of it, with the places where.
    Enforced(&'static str),
    /// All of it but what is named.
    Partly { places: &'static str, without: String },
    /// None: it cannot hold there, and is not accepted.
    Unfit(Fault),
    /// Nothing that it covers is served, so that there is nothing to enforce.
    Nothing(Fault),
}

pub(crate) fn targeted_status(
    generation: i64,
    verdicts: &[TargetVerdict<'_>],
    controller_name: &str,
) -> PolicyStatus {
    let ancestors = verdicts.iter().map(|verdict| {
        let Target { object, section } = verdict.target;
        PolicyAncestorStatus {
            ancestor_ref: ParentReference {
                group: Some(object.kind.group().to_owned()),
                kind: Some(object.kind.to_string()),
                namespace: Some(object.name.namespace.to_string()),
                name: object.name.name.to_string(),
                section_name: section.as_deref().map(str::to_owned),
                ..ParentReference::default()
            },
            controller_name: controller_name.to_owned(),
            conditions: verdict.conditions(generation).list,
        }
    });
    PolicyStatus { ancestors: ancestors.collect() }
}

// === impl Effect ===

impl Effect {
    /// `covered` names what there is none of.
    pub(crate) fn nothing(covered: &str) -> Self {
        let message =
            format!("no {covered} is programmed, so that there is nothing to enforce: see their conditions");
        Self::Nothing(Fault::not_programmed(Reason::NoListener, message))
    }

    pub(crate) fn unattached() -> Self {
        let message = "no parent accepts the route, so that there is nothing to enforce: see its conditions";
        Self::Nothing(Fault::not_programmed(Reason::NoListener, message))
    }
}

// === impl TargetVerdict ===

impl TargetVerdict<'_> {
    fn conditions(&self, generation: i64) -> Conditions {
        let mut conditions = Conditions::new(generation);
        let refusal = match &self.effect {
            Effect::Unfit(fault) => self.refusal.as_ref().or(Some(fault)),
            Effect::Enforced(_) | Effect::Partly { .. } | Effect::Nothing(_) => self.refusal.as_ref(),
        };
        conditions.check(ConditionType::Accepted, refusal);
        if refusal.is_none() {
            match &self.effect {
                Effect::Enforced(places) => conditions.check_or(ConditionType::Programmed, None, *places),
                Effect::Partly { places, without } => {
                    conditions.check_or(ConditionType::Programmed, None, format!("{places}; {without}"));
                }
                Effect::Nothing(fault) | Effect::Unfit(fault) => {
                    conditions.bad(ConditionType::Programmed, fault);
                }
            }
        }
        conditions
    }
}
