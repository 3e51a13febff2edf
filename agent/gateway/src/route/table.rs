//! Resolved rules as entries of a route table.

use portcullis_model::{Entry, Precedence};

use super::{ParsedRoute, ResolvedRule};

/// One entry per alternative of each rule of a route, whose `rules` are resolved; the same for
/// every host pattern the route is attached under.
pub fn table_entries(route: &ParsedRoute, rules: &[ResolvedRule]) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(rules.iter().map(|resolved| resolved.matches.len()).sum());
    for (at, resolved) in rules.iter().enumerate() {
        for (alternative, matches) in resolved.matches.iter().enumerate() {
            entries.push(Entry {
                precedence: Precedence::of(matches, &route.origin, route.first_rule + at, alternative),
                matches: matches.clone(),
                rule: resolved.rule.clone(),
            });
        }
    }
    entries
}
