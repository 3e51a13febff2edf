//! Route tables: from a request to its rule at a cost that does not grow with the number of routes.
//!
//! A listener has one [`RouteTable`]: host pattern → [`PathTable`]. In a path table an exact path
//! is one hash look-up, a prefix one look-up per path element (never more than the deepest prefix
//! has), regular expressions are tried in order. Entries that share a path are ordered by
//! [`Precedence`]; so the first one that matches is the one that the specification wants.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;

use crate::{HostMap, HostPattern, PathMatch, Precedence, RequestHead, RouteMatch, Rule, RuleId};

#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    hosts: HostMap<Arc<PathTable>>,
}

/// The rules for one host pattern.
#[derive(Debug, Default)]
pub struct PathTable {
    exact: ByPath,
    regex: Vec<Entry>,
    prefix: ByPath,
    /// The greatest number of elements of a prefix.
    depth: usize,
}

type ByPath = HashMap<Box<str>, Vec<Entry>, RandomState>;

/// One alternative of one rule.
#[derive(Clone, Debug)]
pub struct Entry {
    pub precedence: Precedence,
    pub matches: Arc<RouteMatch>,
    pub rule: Arc<Rule>,
}

/// The entry that takes a request.
#[derive(Clone, Copy, Debug)]
pub struct Found<'t> {
    pub rule: &'t Arc<Rule>,
    /// The path prefix that matched (for `ReplacePrefixMatch`); empty for the root and for other
    /// kinds of path match.
    pub prefix: &'t str,
}

// === impl RouteTable ===

impl RouteTable {
    /// The rule that takes the request: of the most specific host pattern that has a matching rule.
    pub fn find(&self, request: &impl RequestHead) -> Option<Found<'_>> {
        let host = request.host();
        self.hosts.matching(host).find_map(|paths| paths.find(request))
    }

    /// The match by which a rule takes the request, if it does; to say so, not to find the rule.
    pub fn matched(&self, request: &impl RequestHead, rule: &RuleId) -> Option<&RouteMatch> {
        let mut entries = self.hosts.matching(request.host()).flat_map(|paths| paths.entries());
        let entry = entries.find(|Entry { matches, rule: its, .. }| {
            *its.id == *rule && matches.path.matches(request.path()) && matches.matches_beyond_path(request)
        });
        entry.map(|entry| &*entry.matches)
    }

    /// The rules of a host pattern; replaces what was there.
    pub fn insert(&mut self, host: &HostPattern, paths: Arc<PathTable>) {
        self.hosts.insert(host, paths);
    }

    pub fn remove(&mut self, host: &HostPattern) {
        self.hosts.remove(host);
    }

    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// All rules, in no order; one with several matches comes several times.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.hosts.values().flat_map(|paths| paths.unordered()).map(|entry| &entry.rule)
    }

    /// Host patterns with their tables, the most specific first.
    pub fn hosts(&self) -> Vec<(HostPattern, &Arc<PathTable>)> {
        self.hosts.sorted()
    }
}

// === impl PathTable ===

impl PathTable {
    pub fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_by(|a, b| a.precedence.cmp(&b.precedence));
        let mut table = Self::default();
        for entry in entries {
            table.push(entry);
        }
        table.shrink();
        table
    }

    /// All entries in order of precedence.
    pub fn entries(&self) -> Vec<&Entry> {
        let mut entries: Vec<_> = self.unordered().collect();
        entries.sort_by(|a, b| a.precedence.cmp(&b.precedence));
        entries
    }

    fn unordered(&self) -> impl Iterator<Item = &Entry> {
        self.exact.values().chain(self.prefix.values()).flatten().chain(&self.regex)
    }

    fn push(&mut self, entry: Entry) {
        match &entry.matches.path {
            PathMatch::Exact(path) => self.exact.entry(path.clone()).or_default().push(entry),
            PathMatch::Regex(_) => self.regex.push(entry),
            PathMatch::Prefix(prefix) => {
                self.depth = self.depth.max(elements(prefix));
                self.prefix.entry(prefix.clone()).or_default().push(entry);
            }
        }
    }

    /// Most paths have one entry, and room for four is what a list begins with.
    fn shrink(&mut self) {
        self.exact.values_mut().chain(self.prefix.values_mut()).for_each(Vec::shrink_to_fit);
    }

    fn find(&self, request: &impl RequestHead) -> Option<Found<'_>> {
        let path = request.path();
        self.exact
            .get(path)
            .and_then(|entries| first_match(entries, request))
            .or_else(|| self.find_regex(path, request))
            .or_else(|| self.find_prefix(path, request))
    }

    fn find_regex(&self, path: &str, request: &impl RequestHead) -> Option<Found<'_>> {
        let entry = self.regex.iter().find(|entry| {
            request.may_search(path.len())
                && entry.matches.path.matches(path)
                && entry.matches.matches_beyond_path(request)
        })?;
        Some(Found { rule: &entry.rule, prefix: "" })
    }

    fn find_prefix(&self, path: &str, request: &impl RequestHead) -> Option<Found<'_>> {
        if self.prefix.is_empty() {
            return None;
        }
        prefixes(path, self.depth).find_map(|prefix| {
            let (prefix, entries) = self.prefix.get_key_value(prefix)?;
            first_match(entries, request).map(|found| Found { prefix, ..found })
        })
    }
}

fn first_match<'t>(entries: &'t [Entry], request: &impl RequestHead) -> Option<Found<'t>> {
    let entry = entries.iter().find(|entry| entry.matches.matches_beyond_path(request))?;
    Some(Found { rule: &entry.rule, prefix: "" })
}

fn elements(prefix: &str) -> usize {
    prefix.bytes().filter(|b| *b == b'/').count()
}

/// The element-wise prefixes of a path with at most `depth` elements, longest first, down to the
/// empty one.
fn prefixes(path: &str, depth: usize) -> impl Iterator<Item = &str> {
    let mut ends = path.bytes().enumerate().filter(|(at, b)| *b == b'/' && *at > 0).map(|(at, _)| at);
    let longest = match ends.nth(depth.saturating_sub(1)) {
        _ if depth == 0 => "",
        Some(end) => &path[..end],
        None => path,
    };
    std::iter::successors(Some(longest), |prefix| prefix.rfind('/').map(|end| &prefix[..end]))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
