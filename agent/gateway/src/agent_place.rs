//! The place of the agent, by which it knows what is near.

use std::sync::Arc;

/// The place of the agent, as far as it is known. Only what it serves depends on it, no status
/// does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlace {
    pub node: Option<Arc<str>>,
    /// `None` in settings: as the Node's label says.
    pub zone: Option<Arc<str>>,
}

// === impl AgentPlace ===

impl AgentPlace {
    pub(crate) fn is_unknown(&self) -> bool {
        self.node.is_none() && self.zone.is_none()
    }
}
