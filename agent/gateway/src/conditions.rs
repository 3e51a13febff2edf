//! Conditions of one thing, as faults make them: the way from a [`Fault`] to a status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{ConditionStatus, ConditionType, Fault, Reason, condition};

/// The conditions of one thing, all with the same observed generation.
pub(crate) struct Conditions {
    generation: i64,
    pub(crate) list: Vec<Condition>,
}

/// The policies of one kind that apply to an object, as its owner may read it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Affected {
    pub(crate) r#type: ConditionType,
    pub(crate) policies: String,
}

/// Says a fault that is none of the whole, where the condition that it is of reports none.
pub(crate) fn make_partial(conditions: &mut [Condition], fault: &Fault) {
    let (r#type, good) = (fault.condition.as_str(), fault.condition.good_reason().as_str());
    let of_type = conditions.iter_mut().filter(|condition| condition.type_ == r#type);
    for condition in of_type.filter(|condition| condition.reason == good) {
        condition.reason = fault.reason.as_str().to_owned();
        condition.message.clone_from(&fault.message);
    }
}

/// Adds words to what a condition says that reports no fault of the whole.
pub(crate) fn remark(conditions: &mut [Condition], r#type: ConditionType, words: &str) {
    let (name, good) = (r#type.as_str(), r#type.good_status().as_str());
    let of_type = conditions.iter_mut().filter(|condition| condition.type_ == name);
    for condition in of_type.filter(|condition| condition.status == good) {
        if condition.message == r#type.good_message() {
            words.clone_into(&mut condition.message);
        } else {
            condition.message = format!("{}; {words}", condition.message);
        }
    }
}

// === impl Conditions ===

impl Conditions {
    pub(crate) fn new(generation: i64) -> Self {
        Self { generation, list: Vec::with_capacity(4) }
    }

    /// Adds the condition that reports a fault, or that there is none.
    pub(crate) fn check(&mut self, r#type: ConditionType, fault: Option<&Fault>) {
        self.check_or(r#type, fault, r#type.good_message());
    }

    /// The same, with a message if there is no fault.
    pub(crate) fn check_or(&mut self, r#type: ConditionType, fault: Option<&Fault>, good: impl Into<String>) {
        match fault {
            Some(fault) => self.bad(r#type, fault),
            None => self.push(r#type, r#type.good_status(), r#type.good_reason(), good),
        }
    }

    /// The good status of the type, with a fault that is none of the whole.
    pub(crate) fn partial(&mut self, r#type: ConditionType, fault: &Fault) {
        self.push(r#type, r#type.good_status(), fault.reason, fault.message.as_str());
    }

    pub(crate) fn bad(&mut self, r#type: ConditionType, fault: &Fault) {
        self.push(r#type, r#type.bad_status(), fault.reason, fault.message.as_str());
    }

    /// Says that policies apply, if they do.
    pub(crate) fn affected(&mut self, by: &[Affected]) {
        for Affected { r#type, policies } in by {
            self.push(*r#type, ConditionStatus::True, Reason::PolicyAffected, policies.as_str());
        }
    }

    pub(crate) fn push(
        &mut self,
        r#type: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl Into<String>,
    ) {
        self.list.push(condition(r#type, status, reason, message, self.generation));
    }
}
