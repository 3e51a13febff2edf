//! Regular expressions of tenants, for `tests/fuzz` alone: compiled by the code that serves, or
//! not.

use portcullis_model::{PathMatch, ValueMatch};

use crate::route::pattern;

pub fn path_match(pattern: &str) -> Option<PathMatch> {
    pattern::text(pattern).ok().map(PathMatch::Regex)
}

pub fn value_match(pattern: &str) -> Option<ValueMatch> {
    pattern::octets(pattern).ok().map(ValueMatch::Regex)
}

/// An expression with groups, for the path that it takes the place of.
pub fn path_with_groups(pattern: &str) -> Option<regex::bytes::Regex> {
    pattern::whole_path(pattern).ok().map(|(regex, _)| regex)
}
