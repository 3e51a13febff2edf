//! The data plane's reservations about a snapshot: the traffic of it that is not served, and why.

use std::collections::BTreeMap;

use crate::{FrontendKey, ListenerId};

/// Everything else of the snapshot is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unserved {
    /// Frontends, with all of their listeners.
    pub frontends: BTreeMap<FrontendKey, String>,
    /// Single listeners of a frontend; its other listeners are served.
    pub listeners: BTreeMap<(FrontendKey, ListenerId), String>,
}

// === impl Unserved ===

impl Unserved {
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.listeners.is_empty()
    }

    /// With other frontends and reasons. Reasons of frontends that then are the same are joined.
    #[must_use]
    pub fn map(self, replace: impl Fn(FrontendKey, String) -> (FrontendKey, String)) -> Self {
        let mut mapped = Self::default();
        for (frontend, why) in self.frontends {
            let (frontend, why) = replace(frontend, why);
            join(mapped.frontends.entry(frontend).or_default(), &why);
        }
        for ((frontend, listener), why) in self.listeners {
            let (frontend, why) = replace(frontend, why);
            join(mapped.listeners.entry((frontend, listener)).or_default(), &why);
        }
        mapped
    }

    /// Adds what another part of the data plane does not serve.
    pub fn extend(&mut self, other: Self) {
        self.frontends.extend(other.frontends);
        self.listeners.extend(other.listeners);
    }

    /// Every reason, with the frontend where it applies.
    pub fn reasons(&self) -> impl Iterator<Item = (&FrontendKey, &str)> {
        let frontends = self.frontends.iter().map(|(frontend, why)| (frontend, why.as_str()));
        frontends.chain(self.listeners.iter().map(|((frontend, _), why)| (frontend, why.as_str())))
    }
}

fn join(reasons: &mut String, why: &str) {
    if !reasons.is_empty() {
        reasons.push_str("; ");
    }
    reasons.push_str(why);
}
