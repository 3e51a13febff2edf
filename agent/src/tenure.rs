//! The time in which this agent serves its node.

/// The part of it that this agent is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenure {
    /// Not begun, and no other agent serves.
    Due,
    /// Not begun: another agent serves until this one can.
    Awaited,
    Held,
    /// Only what is open is served still.
    Over,
}

impl Tenure {
    pub(crate) fn has_begun(self) -> bool {
        match self {
            Self::Due | Self::Awaited => false,
            Self::Held | Self::Over => true,
        }
    }
}
