//! Rules of routes, compiled: the conditions of a match, the changes to the request, and its
//! destination.

use std::fmt;
use std::sync::Arc;

use http::{HeaderName, Method, StatusCode};
use regex::Regex;
use regex::bytes::Regex as BytesRegex;

use crate::{
    BackendName, DirectResponse, Filter, KeptSessions, ObjectName, Redirect, RequestHead, Retry, Timeouts,
    TrafficPolicy,
};

/// One alternative of a rule's `matches`; all parts must hold.
#[derive(Clone, Debug)]
pub struct RouteMatch {
    pub path: PathMatch,
    pub method: Option<Method>,
    /// Each name at most once.
    pub headers: Vec<(HeaderName, ValueMatch)>,
    pub query: Vec<(Box<str>, ValueMatch)>,
}

#[derive(Clone, Debug)]
pub enum PathMatch {
    Exact(Box<str>),
    /// By path elements: `/foo` matches `/foo`, `/foo/` and `/foo/bar`, not `/foobar`. Stored
    /// without trailing slash; the root is the empty string.
    Prefix(Box<str>),
    Regex(Pattern<Regex>),
}

#[derive(Clone, Debug)]
pub enum ValueMatch {
    Exact(Box<str>),
    Regex(Pattern<BytesRegex>),
}

/// A regular expression for all of a text.
#[derive(Clone, Debug)]
pub struct Pattern<R> {
    /// As its user wrote it: what is compiled is longer, by anchors and by classes written out.
    pub written: Arc<str>,
    /// Anchored at both ends.
    pub regex: R,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub id: Arc<RuleId>,
    pub filters: Vec<Filter>,
    pub action: Action,
    /// With the defaults of the rule's policies, as the retries.
    pub timeouts: Timeouts,
    /// Boxed: few rules have retries. `None`: neither the rule nor a policy of it says.
    pub retry: Option<Box<Retry>>,
    /// Boxed: few rules have sessions.
    pub session: Option<Box<SessionPersistence>>,
    /// Holds beside that of the listener.
    pub policy: Option<Arc<TrafficPolicy>>,
}

/// Session persistence (GEP-1619): a client's further requests go to the endpoint that answered its
/// first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPersistence {
    /// The rule, by name: "route rules referencing the same service MUST NOT share persistent
    /// sessions", "even if the session persistence is attached to the service".
    pub scope: Box<str>,
    pub kept: KeptSessions,
    /// Backends with weight 0. They take no new sessions; those they have stay, "even if the weight
    /// is set to 0".
    pub drained: Vec<WeightedBackend>,
}

/// Origin of a rule, for logs, metrics and `explain`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// `HTTPRoute` or another route kind.
    pub kind: &'static str,
    pub route: Arc<ObjectName>,
    /// Index in `spec.rules`.
    pub index: usize,
    /// `spec.rules[].name`.
    pub name: Option<Arc<str>>,
    /// With delegation, the rule of the parent route that this rule was included by.
    pub parent: Option<Arc<RuleId>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Forward(Split<WeightedBackend>),
    /// Boxed: few rules redirect, and there are tens of thousands of rules.
    Redirect(Box<Redirect>),
    /// The response of a RouteFilter.
    Respond(Arc<DirectResponse>),
    /// The rule is valid enough to own its traffic, but cannot serve it.
    Fail(Failure),
}

/// An answer of our own, with the reason for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: StatusCode,
    pub reason: Arc<str>,
}

/// Backends by weight. Only positive weights; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split<B> {
    backends: Vec<B>,
    total: u64,
}

/// A backend with a share of a split.
pub trait Weighted {
    fn weight(&self) -> u32;
}

/// A backend of an HTTP rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedBackend {
    pub weight: u32,
    pub target: BackendTarget,
    pub filters: Vec<Filter>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendTarget {
    Known(BackendName),
    /// Its share of requests gets the response of a RouteFilter.
    Respond(Arc<DirectResponse>),
    /// An invalid reference takes its share of requests and answers for it (HTTPRoute: 500).
    Invalid(Failure),
}

// === impl RouteMatch ===

impl RouteMatch {
    /// Everything but the path, which [`crate::PathTable`] has looked up already.
    pub fn matches_beyond_path(&self, request: &impl RequestHead) -> bool {
        self.method.as_ref().is_none_or(|method| method == request.method())
            && self.headers.iter().all(|(name, value)| {
                request.header(name).is_some_and(|actual| value.is_met(&actual, request))
            })
            && self.query.iter().all(|(name, value)| {
                request.query_param(name).is_some_and(|actual| value.is_met(actual.as_bytes(), request))
            })
    }
}

impl Default for RouteMatch {
    fn default() -> Self {
        Self { path: PathMatch::Prefix("".into()), method: None, headers: Vec::new(), query: Vec::new() }
    }
}

// === impl PathMatch ===

impl PathMatch {
    /// A PathPrefix as users write it: trailing slashes do not count.
    pub fn prefix(path: &str) -> Self {
        Self::Prefix(path.trim_end_matches('/').into())
    }

    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *path,
            Self::Prefix(prefix) => {
                path.strip_prefix(&**prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Self::Regex(pattern) => pattern.regex.is_match(path),
        }
    }
}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => write!(f, "Exact {path}"),
            Self::Prefix(prefix) if prefix.is_empty() => f.write_str("PathPrefix /"),
            Self::Prefix(prefix) => write!(f, "PathPrefix {prefix}"),
            Self::Regex(pattern) => write!(f, "RegularExpression {}", pattern.written),
        }
    }
}

// === impl ValueMatch ===

impl ValueMatch {
    fn is_met(&self, value: &[u8], request: &impl RequestHead) -> bool {
        let may_match = match self {
            Self::Exact(_) => true,
            Self::Regex(_) => request.may_search(value.len()),
        };
        may_match && self.matches(value)
    }

    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == value,
            Self::Regex(pattern) => pattern.regex.is_match(value),
        }
    }
}

// === impl Failure ===

/// `500: the rule has no backendRefs`
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.as_str(), self.reason)
    }
}

// === impl Split ===

impl<B: Weighted> Split<B> {
    /// `None` if no backend has a positive weight.
    pub fn new(backends: Vec<B>) -> Option<Self> {
        let backends: Vec<_> = backends.into_iter().filter(|backend| backend.weight() > 0).collect();
        let total = backends.iter().map(|backend| u64::from(backend.weight())).sum();
        (total > 0).then_some(Self { backends, total })
    }

    pub fn backends(&self) -> &[B] {
        &self.backends
    }

    /// Sum of all weights.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The backend for a uniformly random number.
    pub fn pick(&self, random: u64) -> &B {
        if let [only] = self.backends.as_slice() {
            return only;
        }
        let mut left = random % self.total;
        for backend in &self.backends {
            match left.checked_sub(u64::from(backend.weight())) {
                Some(rest) => left = rest,
                None => return backend,
            }
        }
        &self.backends[0]
    }
}

impl Weighted for WeightedBackend {
    fn weight(&self) -> u32 {
        self.weight
    }
}

// === impl RuleId ===

/// `HTTPRoute ns/name rule 2 (checkout)`, as logs and `explain` name it.
impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = &self.parent {
            write!(f, "{parent} > ")?;
        }
        write!(f, "{} {} rule {}", self.kind, self.route, self.index)?;
        self.name.iter().try_for_each(|name| write!(f, " ({name})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(name: &str, weight: u32) -> WeightedBackend {
        WeightedBackend {
            weight,
            target: BackendTarget::Known(BackendName(name.into())),
            filters: Vec::new(),
        }
    }

    #[test]
    fn a_split_follows_its_weights_exactly() {
        let split = Split::new(vec![backend("a", 1), backend("none", 0), backend("b", 3)]).unwrap();
        let picked = (0..8).map(|random| split.pick(random).weight).collect::<Vec<_>>();
        assert_eq!(picked, [1, 3, 3, 3, 1, 3, 3, 3]);
        assert_eq!(Split::new(vec![backend("a", 0)]), None);
    }

    #[test]
    fn prefixes_match_whole_path_elements() {
        let prefix = PathMatch::prefix("/foo/");
        for (path, hit) in
            [("/foo", true), ("/foo/", true), ("/foo/bar", true), ("/foobar", false), ("/", false)]
        {
            assert_eq!(prefix.matches(path), hit, "{path}");
        }
        assert!(PathMatch::prefix("/").matches("/anything"));
    }
}
