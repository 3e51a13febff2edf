//! Route precedence, the one place that decides which of several matching rules takes a request.
//!
//! HTTPRoute's documentation orders matches by: hostname (more specific first; [`crate::HostMap`]
//! walks in that order), then exact path, then longest prefix, then method, then the number of
//! header matches, then the number of query parameter matches; ties go to the oldest route, then to
//! `namespace/name`, then to the first rule. Where regular expressions stand is left to
//! implementations: here between exact paths and prefixes, longer expressions first.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use crate::{ObjectName, PathMatch, RouteMatch};

/// Smaller comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precedence {
    path: (u8, Reverse<u32>),
    without_method: bool,
    headers: Reverse<u32>,
    queries: Reverse<u32>,
    origin: RouteOrigin,
    rule: u32,
    alternative: u32,
}

/// A step of the order, as HTTPRoute's documentation lists them; the first one that tells two
/// matches apart decides. The hostname, which comes before all of them, is not part of a
/// [`Precedence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An exact path, the longer expression, the longer prefix.
    Path,
    /// A method is matched.
    Method,
    /// More headers are matched.
    Headers,
    /// More query parameters are matched.
    QueryParameters,
    /// The route is older, or as old and earlier by name.
    Route,
    /// The rule, or the alternative of a rule, is earlier in its route.
    Position,
}

/// The route that a rule belongs to, as far as precedence cares: the oldest first, then by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteOrigin {
    /// `metadata.creationTimestamp`, Unix seconds.
    pub created: i64,
    pub name: Arc<ObjectName>,
}

// === impl Precedence ===

impl Precedence {
    /// The rank of alternative `alternative` (index in `matches`) of rule `rule` (index in
    /// `rules`).
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

    /// The step that decides between two; `None` between equals.
    pub fn decided_by(&self, other: &Self) -> Option<Step> {
        self.decision(other).map(|(step, _)| step)
    }

    /// The first step that tells two apart, with its order. No table of steps: each comparison is
    /// known where it is made, which is what sorting long lists takes.
    fn decision(&self, other: &Self) -> Option<(Step, Ordering)> {
        let decided = |step, order: Ordering| order.is_ne().then_some((step, order));
        let position = |of: &Self| (of.rule, of.alternative);
        decided(Step::Path, self.path.cmp(&other.path))
            .or_else(|| decided(Step::Method, self.without_method.cmp(&other.without_method)))
            .or_else(|| decided(Step::Headers, self.headers.cmp(&other.headers)))
            .or_else(|| decided(Step::QueryParameters, self.queries.cmp(&other.queries)))
            .or_else(|| decided(Step::Route, self.origin.cmp(&other.origin)))
            .or_else(|| decided(Step::Position, position(self).cmp(&position(other))))
    }
}

impl Ord for Precedence {
    fn cmp(&self, other: &Self) -> Ordering {
        self.decision(other).map_or(Ordering::Equal, |(_, order)| order)
    }
}

impl PartialOrd for Precedence {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

// === impl RouteOrigin ===

impl Ord for RouteOrigin {
    /// By the text `namespace/name`, as the API says: `a-b/x` comes before `a/x`.
    fn cmp(&self, other: &Self) -> Ordering {
        self.created.cmp(&other.created).then_with(|| text(&self.name).cmp(text(&other.name)))
    }
}

impl PartialOrd for RouteOrigin {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn text(name: &ObjectName) -> impl Iterator<Item = u8> {
    name.namespace.bytes().chain(std::iter::once(b'/')).chain(name.name.bytes())
}

fn path_rank(path: &PathMatch) -> (u8, Reverse<u32>) {
    match path {
        PathMatch::Exact(path) => (0, Reverse(count(path.len()))),
        PathMatch::Regex(pattern) => (1, Reverse(count(pattern.written.len()))),
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
    use crate::Pattern;

    #[test]
    fn equally_old_routes_go_by_their_written_name() {
        let origin = |namespace: &str, name: &str| RouteOrigin {
            created: 0,
            name: Arc::new(ObjectName::new(namespace, name)),
        };
        assert!(origin("a-b", "x") < origin("a", "x"));
        assert!(origin("a", "b") < origin("a", "c"));
    }

    /// Classes are compiled as the characters that they have: a short expression is no long one.
    #[test]
    fn expressions_go_by_their_length_as_written() {
        let rank = |written: &str, compiled: &str| {
            let regex = regex::Regex::new(compiled).unwrap();
            path_rank(&PathMatch::Regex(Pattern { written: written.into(), regex }))
        };
        let (short, long) =
            (rank(r"/\w+", "^(?:/[0-9A-Za-z_]+)$"), rank("/admin/panel", "^(?:/admin/panel)$"));
        assert!(long < short);
    }

    /// Each differs from the one before in one step more, and the steps behind would say the
    /// opposite.
    #[test]
    fn the_first_step_that_differs_decides() {
        let of =
            |path: &str, has_method: bool, headers: u32, queries: u32, created: i64, rule: u32| Precedence {
                path: path_rank(&PathMatch::Prefix(path.into())),
                without_method: !has_method,
                headers: Reverse(headers),
                queries: Reverse(queries),
                origin: RouteOrigin { created, name: Arc::new(ObjectName::new("a", "x")) },
                rule,
                alternative: 0,
            };
        let last = of("/a", false, 1, 1, 9, 1);
        for (first, step) in [
            (of("/a/b", false, 0, 0, 10, 2), Step::Path),
            (of("/a", true, 0, 0, 10, 2), Step::Method),
            (of("/a", false, 2, 0, 10, 2), Step::Headers),
            (of("/a", false, 1, 2, 10, 2), Step::QueryParameters),
            (of("/a", false, 1, 1, 8, 2), Step::Route),
            (of("/a", false, 1, 1, 9, 0), Step::Position),
        ] {
            assert!(first < last, "{step:?}");
            assert_eq!((first.decided_by(&last), last.decided_by(&first)), (Some(step), Some(step)));
        }
        assert_eq!(last.decided_by(&last.clone()), None);
    }
}
