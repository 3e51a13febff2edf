//! The terms on which clients are let in, before anything is spent on them: from which addresses,
//! and how many connections a second.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Serialize;

use crate::{Access, ClientList, ClientRanges, ObjectName, ParentKind, ProxyProtocol};

/// The terms of a listener. Those of wider scope hold as well: each protects what its owner has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// A new connection takes from each of them: the listener's own first, then those that it has
    /// in common with others.
    pub budgets: Vec<Budget>,
    /// The addresses that may connect; `None` if all may.
    pub clients: Option<Arc<ClientRules>>,
    /// The proxies that say who the client is. It counts for a port as a whole: see
    /// [`ClientAddress`](crate::ClientAddress).
    pub proxies: Option<Arc<ProxyProtocol>>,
}

/// New connections that an agent takes for an object, however many listeners and cores it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub owner: BudgetOwner,
    pub per_second: NonZeroU32,
    /// As many may come at once.
    pub burst: NonZeroU32,
}

/// The object, or the listener of one, whose connections share a budget. As long as it is the same,
/// what has been taken is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetOwner {
    pub kind: ParentKind,
    pub name: ObjectName,
    pub listener: Option<Arc<str>>,
}

/// The addresses that may connect: those that each level permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    levels: Vec<ClientList>,
    /// The same.
    ranges: Arc<ClientRanges>,
}

// === impl ClientRules ===

impl ClientRules {
    pub fn new(levels: Vec<ClientList>) -> Self {
        let ranges = Arc::new(ClientRanges::of_levels(&levels));
        Self { levels, ranges }
    }

    pub fn levels(&self) -> &[ClientList] {
        &self.levels
    }

    pub fn ranges(&self) -> &Arc<ClientRanges> {
        &self.ranges
    }

    /// The address is one of IPv4 or IPv6, not one mapped into the other.
    pub fn access(&self, client: &IpAddr) -> Access {
        self.ranges.access(client)
    }
}

// === impl BudgetOwner ===

/// `ListenerSet shop/web listener https`, or without the listener.
impl fmt::Display for BudgetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)?;
        self.listener.iter().try_for_each(|listener| write!(f, " listener {listener}"))
    }
}

impl Serialize for BudgetOwner {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(allow: &[&str], deny: &[&str]) -> ClientList {
        let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        ClientList { allow: ranges(allow), deny: ranges(deny) }
    }

    #[test]
    fn every_level_has_to_permit() {
        let rules = ClientRules::new(vec![
            list(&["10.0.0.0/8", "fd00::/8"], &["10.1.0.0/16"]),
            list(&[], &["10.2.0.0/16"]),
        ]);
        for (client, expected) in [
            ("10.0.0.1", Access::Permitted),
            ("10.1.0.1", Access::Denied),
            ("10.2.0.1", Access::Denied),
            ("192.0.2.1", Access::Denied),
            ("fd00::1", Access::Permitted),
            ("2001:db8::1", Access::Denied),
        ] {
            assert_eq!(rules.access(&client.parse().unwrap()), expected, "{client}");
        }
        let open = ClientRules::new(Vec::new());
        assert_eq!(open.access(&"192.0.2.1".parse().unwrap()), Access::Permitted);
        assert_eq!(open.ranges().iter().len(), 2);
    }
}
