//! The terms of listeners: on which clients are let in before anything is spent on them (from which
//! addresses, and how many connections), who says whose request one is, how large requests may be,
//! and what is logged.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Serialize;

use crate::{
    AccessLog, ClientRules, ListedClients, ListenerLimits, LogTerms, ObjectName, ParentKind, ProxyProtocol,
};

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
    /// The proxies that list the clients of requests, and the clients that are permitted then.
    /// `None` if clients are those of connections, or as the agent is started.
    pub listed: Option<Arc<ListedClients>>,
    /// Connections at a time, in the order of budgets: each of them holds.
    pub open: Vec<OpenLimit>,
    /// Beside those of the Gateway.
    pub limits: Option<Box<ListenerLimits>>,
    /// `None` if policies do not say.
    pub log: Option<LogTerms>,
}

/// New connections that an agent takes for an object, however many listeners and cores it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub owner: BudgetOwner,
    pub per_second: NonZeroU32,
    /// As many may come at once.
    pub burst: NonZeroU32,
}

/// Connections that an agent has open for an object, however many listeners and cores it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLimit {
    pub owner: BudgetOwner,
    pub most: NonZeroU32,
}

/// The object, or the listener of one, whose connections share a budget. As long as it is the same,
/// what has been taken is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetOwner {
    pub kind: ParentKind,
    pub name: ObjectName,
    pub listener: Option<Arc<str>>,
}

// === impl Admission ===

impl Admission {
    /// The access log of a listener whose Gateway has this one by its parameters.
    pub fn access_log(&self, parameters: Option<AccessLog>) -> Option<AccessLog> {
        self.log.as_ref().map_or(parameters, |terms| terms.log(parameters))
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
