//! Pseudonyms of Gateways, by which an agent recognises what it forwarded itself. They name nothing
//! of what is configured: backends see them, and those may be other tenants'.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use http::HeaderValue;
use portcullis_model::ObjectName;

pub(crate) const PREFIX: &str = "portcullis-";

/// The agent, as it calls itself from its start to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgentId(u64);

// === impl AgentId ===

impl AgentId {
    pub(crate) fn random() -> Self {
        Self(fastrand::u64(..))
    }

    /// Of a Gateway, the same on every core. A token, as RFC 8586 wants it.
    pub(crate) fn pseudonym(self, gateway: &ObjectName) -> HeaderValue {
        let text = format!("{PREFIX}{:016x}", FixedState::with_seed(self.0).hash_one(gateway));
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(PREFIX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gateway_of_each_agent_has_one() {
        let (one, other) = (AgentId(1), AgentId(2));
        let [web, api] = ["web", "api"].map(|name| ObjectName::new("infra", name));
        assert_eq!(one.pseudonym(&web), one.pseudonym(&web));
        assert_ne!(one.pseudonym(&web), one.pseudonym(&api));
        assert_ne!(one.pseudonym(&web), other.pseudonym(&web));
    }
}
