//! TrafficPolicies as they are in force for the requests of a listener, or of a rule. What protects
//! holds on every level; no level takes back what another one asks for.

use std::fmt;
use std::sync::Arc;

use crate::{
    Authentication, Believer, ClaimLimit, ClientRules, Compression, Defaults, ExternalAuth, GrpcWeb,
    ObjectName, RateKey, RateLimit, Requirement, Share,
};

/// The policies of a listener (its own, those of the object that defines it, and of the Gateway
/// that it is merged into), or of a rule (its own, its route's, and those of the parent route).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficPolicy {
    /// Those that protect, the widest first. Never empty.
    pub levels: Box<[Level]>,
    /// So many of the levels, the first ones, are a Gateway's, at a listener that may be another's.
    gateway_levels: usize,
    /// The length of a request's body: the smallest of all levels.
    pub most_body_bytes: Option<u64>,
    /// True if a level has rate limits by something else than claims.
    pub is_limiting: bool,
    /// The credentials that all levels want. Boxed: few want any.
    pub authentication: Option<Box<Authentication>>,
    /// Services that are asked about requests, each after the one before it.
    pub external_auth: Box<[Arc<ExternalAuth>]>,
    /// The compression of the most specific level that has one.
    pub compression: Option<Arc<Compression>>,
    /// The way of gRPC-Web by the most specific level that says so.
    pub grpc_web: Option<GrpcWeb>,
    /// The share of requests whose traces are recorded, by the most specific level that says one.
    pub tracing: Option<Share>,
    /// Of all levels, each field that of the most specific one that says it. Boxed: few have any.
    pub defaults: Option<Box<Defaults>>,
}

/// A policy in force for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// `Gateway infra/web listener https`, `HTTPRoute shop/cart rule checkout`.
    pub target: Arc<str>,
    pub protection: Arc<Protection>,
}

/// The part of a policy that protects, and its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    pub policy: ObjectName,
    pub state: PolicyState,
    /// The clients whose requests pass; `None` for all.
    pub clients: Option<ClientRules>,
    /// The length of a request's body.
    pub most_body_bytes: Option<u64>,
    /// A request takes from each of them.
    pub rate_limits: Box<[RateLimit]>,
    /// A request meets all of them.
    pub credentials: Box<[Arc<Requirement>]>,
    /// A service that has to let requests pass when their credentials are good.
    pub external_auth: Option<Arc<ExternalAuth>>,
    /// It protects from nothing: a more specific level takes its place.
    pub compression: Option<Arc<Compression>>,
    /// Nor does this.
    pub grpc_web: Option<GrpcWeb>,
    /// Nor does this.
    pub tracing: Option<Share>,
    /// The same, field by field.
    pub defaults: Option<Arc<Defaults>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyState {
    #[default]
    Valid,
    /// It cannot be followed as it is written: no request passes.
    Closed,
}

// === impl TrafficPolicy ===

impl TrafficPolicy {
    /// `None` if there are no levels.
    pub fn of(levels: Vec<Level>) -> Option<Arc<Self>> {
        let most_body_bytes = levels.iter().filter_map(|level| level.protection.most_body_bytes).min();
        let mut limits = levels.iter().flat_map(|level| &level.protection.rate_limits);
        let is_limiting = limits.any(|limit| !limit.key.is_claim());
        let authentication = authentication(&levels).map(Box::new);
        let external_auth =
            levels.iter().filter_map(|level| level.protection.external_auth.clone()).collect();
        let compression = levels.iter().rev().find_map(|level| level.protection.compression.clone());
        let grpc_web = levels.iter().rev().find_map(|level| level.protection.grpc_web);
        let tracing = levels.iter().rev().find_map(|level| level.protection.tracing);
        let defaults = levels.iter().rev().filter_map(|level| level.protection.defaults.as_deref());
        let defaults = defaults.cloned().reduce(|narrow, wide| narrow.over(&wide)).map(Box::new);
        if levels.is_empty() {
            return None;
        }
        let (levels, gateway_levels) = (levels.into(), 0);
        Some(Arc::new(Self {
            levels,
            gateway_levels,
            most_body_bytes,
            is_limiting,
            authentication,
            external_auth,
            compression,
            grpc_web,
            tracing,
            defaults,
        }))
    }

    /// The same of a listener, with the level of the Gateway that it is merged into.
    pub fn below(gateway: Option<Level>, levels: Vec<Level>) -> Option<Arc<Self>> {
        let gateway_levels = usize::from(gateway.is_some());
        let policy = Self::of(gateway.into_iter().chain(levels).collect())?;
        Some(Arc::new(Self { gateway_levels, ..Arc::unwrap_or_clone(policy) }))
    }

    /// The levels, each with the owner whose view of the client it goes by.
    pub fn believers(&self) -> impl DoubleEndedIterator<Item = (Believer, &Level)> {
        let (of_gateway, others) = self.levels.split_at(self.gateway_levels);
        let of_gateway = of_gateway.iter().map(|level| (Believer::Gateway, level));
        of_gateway.chain(others.iter().map(|level| (Believer::Listener, level)))
    }
}

/// The credentials that all levels want, and their limits by claims: of the token that the level
/// itself wants.
fn authentication(levels: &[Level]) -> Option<Authentication> {
    let (mut requirements, mut limits) = (Vec::new(), Vec::new());
    for Level { target, protection } in levels {
        let Protection { policy, rate_limits, credentials, .. } = &**protection;
        let tokens = credentials.iter().position(|it| matches!(**it, Requirement::Jwt(_)));
        for limit in rate_limits {
            if let (RateKey::Claim(claim), Some(at)) = (&limit.key, tokens) {
                limits.push(ClaimLimit {
                    target: target.clone(),
                    policy: policy.clone(),
                    limit: limit.clone(),
                    requirement: requirements.len() + at,
                    claim: claim.clone(),
                });
            }
        }
        requirements.extend(credentials.iter().cloned());
    }
    // What the narrowest level refuses costs the others nothing.
    limits.reverse();
    Authentication::of(requirements, limits.into())
}

// === impl Protection ===

impl Protection {
    /// One that asks for nothing.
    pub fn by(policy: ObjectName) -> Self {
        let state = PolicyState::Valid;
        Self {
            policy,
            state,
            clients: None,
            most_body_bytes: None,
            rate_limits: Box::default(),
            credentials: Box::default(),
            external_auth: None,
            compression: None,
            grpc_web: None,
            tracing: None,
            defaults: None,
        }
    }
}

// === impl Level ===

/// `TrafficPolicy shop/limits on HTTPRoute shop/cart`
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrafficPolicy {} on {}", self.protection.policy, self.target)
    }
}
