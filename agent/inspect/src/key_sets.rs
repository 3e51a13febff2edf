//! Key sets that cannot be fetched, as operators are told of them.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingKeySet {
    /// `auth/login:80/certs`
    pub name: String,
    pub why: String,
    /// The time since the one was fetched that tokens are checked with, if there is one.
    pub age: Option<Duration>,
}

// === impl FailingKeySet ===

impl FailingKeySet {
    pub(crate) fn object(&self) -> String {
        format!("key set {}", self.name)
    }

    pub(crate) fn message(&self) -> String {
        let effect = match self.age {
            Some(age) => format!(
                "tokens are checked with the one of {} seconds ago, which is good for a day",
                age.as_secs()
            ),
            None => "no token of its issuer passes".to_owned(),
        };
        format!("cannot be fetched: {}; {effect}", self.why)
    }
}
