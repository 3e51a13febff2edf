//! Rules for connections and datagrams that are forwarded as they are: those of TLSRoutes,
//! TCPRoutes and UDPRoutes. Nothing of them is looked at beyond the server name that found the
//! rule.

use std::sync::Arc;

use crate::{BackendName, HostMap, RuleId, Split, Weighted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L4Rule {
    /// `None`: there is no route, and all that comes is refused.
    pub id: Option<Arc<RuleId>>,
    pub action: L4Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L4Action {
    Forward(Split<L4Backend>),
    /// The rule owns its traffic and has no backend for it: connections are closed, datagrams
    /// dropped. With the reason for the log.
    Refuse(Arc<str>),
}

/// A backend of a rule. It has no filters: they are HTTP's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L4Backend {
    pub weight: u32,
    pub target: L4Target,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L4Target {
    Known(BackendName),
    /// An invalid reference takes its share of the traffic, which is refused as by
    /// [`L4Action::Refuse`].
    Refuse(Arc<str>),
}

/// Rules by server name.
pub type ServerNames = HostMap<Arc<L4Rule>>;

impl Weighted for L4Backend {
    fn weight(&self) -> u32 {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_of_connections_is_that_of_requests() {
        let backend = |weight| L4Backend { weight, target: L4Target::Refuse("invalid".into()) };
        let split = Split::new(vec![backend(1), backend(0), backend(3)]).unwrap();
        let picked = (0..4).map(|random| split.pick(random).weight).collect::<Vec<_>>();
        assert_eq!(picked, [1, 3, 3, 3]);
    }
}
