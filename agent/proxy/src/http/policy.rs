//! TrafficPolicies, as far as they can be judged by the head of a request: the levels that it has
//! to pass, and the reason for which it does not. Nothing here waits.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::header;
use portcullis_model::{Access, Believer, PolicyState, Protection, RateKey, TrafficPolicy};

use crate::core::head::{Fields, joined};
use crate::core::reason::Reason;
use crate::http::rate_limit::{Exhausted, RateLimits};
use crate::http::sender::Sender;

/// All that requests are judged by, apart from their heads.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'r> {
    pub sender: Sender<'r>,
    pub limits: &'r Rc<RateLimits>,
    /// The host that the request is for.
    pub host: &'r str,
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
    Judge { sender, limits, host }: Judge<'_>,
    fields: &impl Fields,
) -> Result<(), Refused> {
    for (believer, level) in policy.believers() {
        let Protection { state, clients, .. } = &*level.protection;
        if *state == PolicyState::Closed {
            tracing::debug!(%level, "the policy is not valid: see its status");
            return Err(Refused::By(Reason::PolicyInvalid));
        }
        let Some(clients) = clients else { continue };
        let address = sender.address(believer, fields).map(|address| address.to_canonical());
        if address.is_none_or(|address| clients.access(&address) == Access::Denied) {
            tracing::debug!(%level, client = ?address, "the policy does not permit the client");
            return Err(Refused::By(Reason::ClientAddress));
        }
    }
    if !policy.is_limiting {
        return Ok(());
    }
    let key = |believer: Believer, key: &RateKey| match key {
        // Those by claim are taken when that is known.
        RateKey::All | RateKey::Claim(_) => Vec::new(),
        RateKey::ClientAddress => sender.address(believer, fields).map(network).unwrap_or_default(),
        // The field is one of the places where a host is named; HTTP/2 has another.
        RateKey::Header(header::HOST) => host.as_bytes().to_vec(),
        RateKey::Header(name) => joined(fields, name).unwrap_or_default().into_owned(),
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
