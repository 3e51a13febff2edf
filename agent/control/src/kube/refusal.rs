//! What the status of a Gateway says when the objects that are generated for it cannot be had.

use portcullis_gateway::Reason;
use serde_json::{Value, json};

/// Why a Gateway did not get what is generated for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
}

impl Refusal {
    /// Somebody else's object has the name, so there is no address.
    pub(super) fn name_taken(message: String) -> Self {
        Self { reason: Reason::AddressNotAssigned, message }
    }

    /// The API server does not like what is asked for, which is an address.
    pub(super) fn not_usable(message: String) -> Self {
        Self { reason: Reason::AddressNotUsable, message }
    }

    /// The API server does not like what is asked for otherwise.
    pub(super) fn invalid(message: String) -> Self {
        Self { reason: Reason::Invalid, message }
    }

    /// Nobody serves it yet, or any more.
    pub(super) fn not_ready(message: String) -> Self {
        Self { reason: Reason::Pending, message }
    }

    /// What a ListenerSet of such a Gateway is told: that, not why. "Programmed ... only reflects the listeners in that
    /// ListenerSet", except when those of "the parent Gateway ... transition to False" (GEP-1713).
    pub(super) fn of_parent() -> Self {
        let message = "the Gateway attached to is not programmed".to_owned();
        Self { reason: Reason::ParentNotProgrammed, message }
    }

    /// Turns a planned status, as JSON text, into what holds. What is not programmed for another reason stays so, but for an
    /// address that is missing: this is why.
    pub(super) fn amend(&self, planned: &str) -> Box<str> {
        let Ok(mut status) = serde_json::from_str::<Value>(planned) else { return planned.into() };
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        let missing = Reason::AddressNotAssigned.as_str();
        let concerns =
            |c: &&mut Value| c["type"] == "Programmed" && (c["status"] == "True" || c["reason"] == missing);
        if let Some(condition) = conditions.into_iter().flatten().find(concerns) {
            condition["status"] = json!("False");
            condition["reason"] = json!(self.reason.as_str());
            condition["message"] = json!(self.message);
        }
        status.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amended(status: &str, reason: &str) -> Value {
        let planned = json!({"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted"},
            {"type": "Programmed", "status": status, "reason": reason, "message": "m"}]});
        let refusal = Refusal::not_usable("10.0.0.1 is allocated".to_owned());
        let amended: Value = serde_json::from_str(&refusal.amend(&planned.to_string())).unwrap();
        assert_eq!(amended["conditions"][0], planned["conditions"][0]);
        amended["conditions"][1].clone()
    }

    #[test]
    fn only_what_depends_on_the_objects_is_turned() {
        let turned = json!({"type": "Programmed", "status": "False", "reason": "AddressNotUsable", "message": "10.0.0.1 is allocated"});
        assert_eq!(amended("True", "Programmed"), turned);
        assert_eq!(amended("False", "AddressNotAssigned"), turned);
        assert_eq!(amended("False", "Invalid")["message"], "m");
    }
}
