//! Resolved rules as entries of a route table.

use portcullis_model::{Entry, Precedence, RouteOrigin};

use super::ResolvedRule;

/// One entry per alternative of each rule; the same for every host pattern the route is attached
/// under.
pub fn table_entries(origin: &RouteOrigin, rules: &[ResolvedRule]) -> Vec<Entry> {
    let alternatives = rules.iter().enumerate().flat_map(|(at, resolved)| {
        resolved
            .matches
            .iter()
            .enumerate()
            .map(move |(alternative, matches)| (at, alternative, resolved, matches))
    });
    alternatives
        .map(|(at, alternative, resolved, matches)| Entry {
            precedence: Precedence::of(matches, origin, at, alternative),
            matches: matches.clone(),
            rule: resolved.rule.clone(),
        })
        .collect()
}
