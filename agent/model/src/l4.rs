//! Rules for connections and datagrams that are forwarded as they are: those of TLSRoutes,
//! TCPRoutes and UDPRoutes. Nothing of them is looked at beyond the server name that found the
//! rule.

use std::sync::Arc;

use crate::{HostMap, RuleId, Split};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L4Rule {
    pub id: RuleId,
    pub action: L4Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L4Action {
    Forward(Split),
    /// The rule owns its traffic and has no backend for it: connections are closed, datagrams
    /// dropped. With the reason for the log.
    Refuse(Arc<str>),
}

/// Rules by server name.
pub type ServerNames = HostMap<Arc<L4Rule>>;
