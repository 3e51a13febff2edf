//! TrafficPolicies, as far as they can be judged by the head of a request: the levels that it has
//! to pass, and the reason for which it does not. Nothing here waits.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use portcullis_model::{Access, PolicyState, Protection, RateKey, TrafficPolicy};

use crate::core::head::Fields;
use crate::core::reason::Reason;
use crate::http::headers;
use crate::http::rate_limit::{Exhausted, RateLimits};

/// The client that a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// `None` if it cannot be told.
    Known(Option<IpAddr>),
    /// The first of so many trusted proxies lists it.
    Listed { peer: IpAddr, trusted_hops: usize },
}

/// All that requests are judged by, apart from their heads.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'r> {
    pub sender: Sender,
    pub limits: &'r Rc<RateLimits>,
}

/// The way in which a policy does not let a request pass.
pub(crate) enum Refused {
    By(Reason),
    Exhausted(Exhausted),
}

/// Takes a request past the levels of a policy, the widest first.
///
/// # Errors
/// The refusal of the first one that does not let it pass.
pub(crate) fn admit(
    policy: &Arc<TrafficPolicy>,
    Judge { sender, limits }: Judge<'_>,
    fields: &impl Fields,
) -> Result<(), Refused> {
    for level in &policy.levels {
        let Protection { state, clients, .. } = &*level.protection;
        if *state == PolicyState::Closed {
            tracing::debug!(%level, "the policy is not valid: see its status");
            return Err(Refused::By(Reason::PolicyInvalid));
        }
        let Some(clients) = clients else { continue };
        let address = sender.address(fields).map(|address| address.to_canonical());
        if address.is_none_or(|address| clients.access(&address) == Access::Denied) {
            tracing::debug!(%level, client = ?address, "the policy does not permit the client");
            return Err(Refused::By(Reason::ClientAddress));
        }
    }
    if !policy.is_limiting {
        return Ok(());
    }
    let key = |key: &RateKey| match key {
        RateKey::All => Vec::new(),
        RateKey::ClientAddress => sender.address(fields).map(network).unwrap_or_default(),
        RateKey::Header(name) => fields.get_all(name).collect::<Vec<_>>().join(&b','),
    };
    limits.take(policy, key).map_err(Refused::Exhausted)
}

/// The part of an address that a client cannot choose.
fn network(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets()[..8].to_vec(),
    }
}

// === impl Sender ===

impl Sender {
    pub(crate) fn new(peer: SocketAddr, trusted_hops: usize) -> Self {
        match trusted_hops {
            0 => Self::Known(Some(peer.ip())),
            _ => Self::Listed { peer: peer.ip(), trusted_hops },
        }
    }

    /// The same, independent of what becomes of the request's fields.
    pub(crate) fn resolved(self, fields: &impl Fields) -> Self {
        Self::Known(self.address(fields))
    }

    fn address(self, fields: &impl Fields) -> Option<IpAddr> {
        match self {
            Self::Known(address) => address,
            Self::Listed { peer, trusted_hops } => match headers::listed_client(fields, trusted_hops) {
                Some(listed) => address(std::str::from_utf8(&listed).ok()?),
                // It came past them.
                None => Some(peer),
            },
        }
    }
}

/// Some proxies list the port, too.
fn address(listed: &str) -> Option<IpAddr> {
    let bare = listed.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(listed);
    let with_port = || listed.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare.parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::Head;
    use crate::core::head::plain::get;

    #[test]
    fn the_client_is_the_one_that_the_first_trusted_proxy_lists() {
        let peer = "192.0.2.9:1234".parse().unwrap();
        for (listed, hops, expected) in [
            ("10.0.0.1, 10.0.0.2", 0, Some("192.0.2.9")),
            ("10.0.0.1, 10.0.0.2", 1, Some("10.0.0.2")),
            ("10.0.0.1, 10.0.0.2", 2, Some("10.0.0.1")),
            ("10.0.0.2", 2, Some("10.0.0.2")),
            ("10.0.0.1:80", 1, Some("10.0.0.1")),
            ("[fd00::1]:80", 1, Some("fd00::1")),
            ("10.0.0.1, unknown", 1, None),
            ("", 1, Some("192.0.2.9")),
        ] {
            let head = get("/", &[("host", "a.com"), ("x-forwarded-for", listed)]);
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(Sender::new(peer, hops).address(head.fields()), expected, "{listed} {hops}");
        }
    }
}
