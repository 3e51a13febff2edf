//! Route precedence, the one place that decides which of several matching rules takes a request.
//!
//! HTTPRoute's documentation orders matches by: hostname (more specific first; [`crate::HostMap`] walks in that order), then
//! exact path, then longest prefix, then method, then the number of header matches, then the number of query parameter
//! matches; ties go to the oldest route, then to `namespace/name`, then to the first rule. Where regular expressions stand
//! is left to implementations: here between exact paths and prefixes, longer expressions first.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::{ObjectName, PathMatch, RouteMatch};

/// Smaller comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    path: (u8, Reverse<u32>),
    without_method: bool,
    headers: Reverse<u32>,
    queries: Reverse<u32>,
    origin: RouteOrigin,
    rule: u32,
    alternative: u32,
}

/// Who wrote a rule, as far as precedence cares: the oldest route first, then by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteOrigin {
    /// `metadata.creationTimestamp`, Unix seconds.
    pub created: i64,
    pub name: Arc<ObjectName>,
}

// === impl Precedence ===

impl Precedence {
    /// The rank of alternative `alternative` (index in `matches`) of rule `rule` (index in `rules`).
    pub fn of(matched: &RouteMatch, origin: &RouteOrigin, rule: usize, alternative: usize) -> Self {
        Self {
            path: path_rank(&matched.path),
            without_method: matched.method.is_none(),
            headers: Reverse(count(matched.headers.len())),
            queries: Reverse(count(matched.query.len())),
            origin: origin.clone(),
            rule: count(rule),
            alternative: count(alternative),
        }
    }
}

// === impl RouteOrigin ===

impl Ord for RouteOrigin {
    /// By the text `namespace/name`, as the API says: `a-b/x` comes before `a/x`.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.created.cmp(&other.created).then_with(|| text(&self.name).cmp(text(&other.name)))
    }
}

impl PartialOrd for RouteOrigin {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn text(name: &ObjectName) -> impl Iterator<Item = u8> {
    name.namespace.bytes().chain(std::iter::once(b'/')).chain(name.name.bytes())
}

fn path_rank(path: &PathMatch) -> (u8, Reverse<u32>) {
    match path {
        PathMatch::Exact(path) => (0, Reverse(count(path.len()))),
        PathMatch::Regex(regex) => (1, Reverse(count(regex.as_str().len()))),
        PathMatch::Prefix(prefix) => (2, Reverse(count(prefix.len()))),
    }
}

/// Half the memory of a `usize`, and more than any object can hold.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equally_old_routes_go_by_their_written_name() {
        let origin = |namespace: &str, name: &str| RouteOrigin {
            created: 0,
            name: Arc::new(ObjectName::new(namespace, name)),
        };
        assert!(origin("a-b", "x") < origin("a", "x"));
        assert!(origin("a", "b") < origin("a", "c"));
    }
}
