//! The backend for what comes next by a rule.

use std::fmt::Display;

use portcullis_model::{BackendName, L4Action, L4Rule, L4Target};

use crate::core::ending::Ending;

/// The backend, or why there is none.
pub(crate) fn target(rule: &L4Rule) -> Result<&BackendName, &str> {
    match &rule.action {
        L4Action::Refuse(why) => Err(why),
        L4Action::Forward(split) => match &split.pick(fastrand::u64(..)).target {
            L4Target::Known(name) => Ok(name),
            L4Target::Refuse(why) => Err(why),
        },
    }
}

/// The end of what the rule itself refuses.
pub(crate) fn refusal(rule: &L4Rule) -> Ending {
    if rule.id.is_some() { Ending::Rule } else { Ending::NoRoute }
}

pub(crate) fn log_refusal(rule: &L4Rule, why: &dyn Display) {
    let rule = rule.id.as_deref().map(tracing::field::display);
    tracing::debug!(rule, %why, "refused");
}
