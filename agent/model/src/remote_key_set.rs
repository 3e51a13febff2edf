//! Key sets that issuers serve, and that agents fetch: where, and for how long one is good.

use std::fmt;
use std::time::Duration;

use crate::BackendName;

/// A place that has a JSON Web Key Set. Policies that name the same place share what is fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteKeySet {
    pub backend: BackendName,
    /// `Host` of the request: the name that its certificate is to have, or else the Service's.
    pub host: Box<str>,
    /// With a query, if there is one.
    pub path: Box<str>,
    /// The time after which it is fetched again.
    pub lifetime: Duration,
}

// === impl RemoteKeySet ===

impl RemoteKeySet {
    /// The path without a query, which may have a credential in it: for logs, dumps and metrics.
    pub fn shown_path(&self) -> &str {
        self.path.split_once('?').map_or(&*self.path, |(path, _)| path)
    }
}

/// `auth/login:80/realms/shop/certs`
impl fmt::Display for RemoteKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.backend, self.shown_path())
    }
}
