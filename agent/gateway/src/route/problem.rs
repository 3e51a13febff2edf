//! What is wrong with a route, as one condition will tell it.

use crate::{ConditionType, Reason};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `Accepted` (the configuration cannot be served) or `ResolvedRefs` (a reference leads nowhere).
    pub condition: ConditionType,
    pub reason: Reason,
    pub message: String,
}

/// More problems than this in one condition help nobody, and messages are limited in length (32 KiB).
const IN_ONE_MESSAGE: usize = 8;

// === impl Problem ===

impl Problem {
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { condition: ConditionType::Accepted, reason: Reason::UnsupportedValue, message: message.into() }
    }

    pub fn incompatible(message: impl Into<String>) -> Self {
        Self { reason: Reason::IncompatibleFilters, ..Self::unsupported(message) }
    }

    pub fn unresolved(reason: Reason, message: impl Into<String>) -> Self {
        Self { condition: ConditionType::ResolvedRefs, reason, message: message.into() }
    }

    /// The same problem, said from further out.
    pub fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    pub fn is_unacceptable(&self) -> bool {
        self.condition == ConditionType::Accepted
    }

    /// All problems as one: the reason is the first one's, each message is told once.
    pub fn summary(problems: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut problems = problems.into_iter();
        let mut all = problems.next()?;
        let mut messages = vec![std::mem::take(&mut all.message)];
        let mut left_out = 0;
        for problem in problems.filter(|problem| problem.condition == all.condition) {
            match messages.len() {
                _ if messages.contains(&problem.message) => {}
                ..IN_ONE_MESSAGE => messages.push(problem.message),
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
