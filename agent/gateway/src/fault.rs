//! Faults of objects, as one condition reports each: to the object's owner in full, to the owners
//! of other objects nothing unless it is said what. Nothing here knows where faults come from or
//! how statuses are laid out.

use crate::{ConditionType, Reason};

/// Something wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The condition that reports it first; others may repeat it ([`Fault::under`]).
    pub condition: ConditionType,
    pub reason: Reason,
    /// For the owner of the object only: it may name what others must not see.
    pub message: String,
    /// For the owners of objects that the fault concerns as well, in words that give nothing of the
    /// owner's away.
    public_message: Option<Box<str>>,
}

/// Faults listed in one message. Further ones are counted: messages are limited in length, and have
/// to stay readable.
const IN_ONE_MESSAGE: usize = 8;

// === impl Fault ===

impl Fault {
    /// A fault that only the object's owner learns of.
    pub fn new(condition: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { condition, reason, message: message.into(), public_message: None }
    }

    /// The object, or a part of it, cannot be served.
    pub fn not_accepted(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(ConditionType::Accepted, reason, message)
    }

    /// The object is valid, but not served.
    pub fn not_programmed(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(ConditionType::Programmed, reason, message)
    }

    /// A reference leads nowhere, or to what may not be referred to.
    pub fn unresolved(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(ConditionType::ResolvedRefs, reason, message)
    }

    /// A value that cannot be served.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::not_accepted(Reason::UnsupportedValue, message)
    }

    /// Filters that cannot be used together.
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self::not_accepted(Reason::IncompatibleFilters, message)
    }

    /// GatewayParameters that cannot be followed.
    pub fn invalid_parameters(message: impl Into<String>) -> Self {
        Self::not_accepted(Reason::InvalidParameters, message)
    }

    /// Reports it to the owners of other objects, too; in these words, which must not give away
    /// anything of this one.
    #[must_use]
    pub fn with_public_message(mut self, message: impl Into<Box<str>>) -> Self {
        self.public_message = Some(message.into());
        self
    }

    /// The words that the owners of other objects may read; `None` if it is none of their business.
    pub fn public_message(&self) -> Option<&str> {
        self.public_message.as_deref()
    }

    /// Fields that an object is served without, if there are any.
    pub fn ignored(fields: &[String]) -> Option<Self> {
        let message = || format!("without effect: {}", fields.join("; "));
        (!fields.is_empty()).then(|| Self::not_accepted(Reason::FieldsIgnored, message()))
    }

    /// The same fault, reported by another condition.
    #[must_use]
    pub fn under(self, condition: ConditionType) -> Self {
        Self { condition, ..self }
    }

    /// The same fault with another reason.
    #[must_use]
    pub fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// The same fault, said from further out.
    #[must_use]
    pub fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// True if what has the fault cannot be served, as opposed to being served with an answer in
    /// place of what is missing.
    pub fn is_unacceptable(&self) -> bool {
        self.condition == ConditionType::Accepted
    }

    /// Those of the first one's condition as one: its reason, and each message once.
    pub fn summary(faults: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut faults = faults.into_iter();
        let mut all = faults.next()?;
        let mut messages = vec![std::mem::take(&mut all.message)];
        let mut left_out = 0;
        for fault in faults.filter(|fault| fault.condition == all.condition) {
            match messages.len() {
                _ if messages.contains(&fault.message) => {}
                ..IN_ONE_MESSAGE => messages.push(fault.message),
                _ => left_out += 1,
            }
        }
        all.message = messages.join("; ");
        if left_out > 0 {
            all.message.push_str(&format!("; and {left_out} more"));
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_learn_nothing_unless_it_is_said_what() {
        let fault = Fault::unsupported("value \"secret\" is unknown");
        assert_eq!(fault.public_message(), None);
        assert_eq!(fault.clone().within("rule 0").under(ConditionType::Programmed).public_message(), None);
        assert_eq!(
            fault.with_public_message("the route is not valid").public_message(),
            Some("the route is not valid")
        );
    }

    #[test]
    fn a_summary_says_each_thing_once_and_counts_what_is_too_much() {
        let faults = (0..10).map(|at| Fault::unsupported(format!("{}", at.max(1))));
        let other = std::iter::once(Fault::unresolved(Reason::BackendNotFound, "another condition's"));
        let summary = Fault::summary(faults.chain(other)).unwrap();
        assert_eq!(summary.message, "1; 2; 3; 4; 5; 6; 7; 8; and 1 more");
    }
}
