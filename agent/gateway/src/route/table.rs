//! Resolved rules as entries of a route table.

use portcullis_model::{Entry, Precedence};

use super::{ParsedRoute, ResolvedRule};

/// One entry per alternative of each rule of a route, whose `rules` are resolved; the same for
/// every host pattern the route is attached under. Rules for connections have none.
pub fn table_entries(route: &ParsedRoute, rules: &[ResolvedRule]) -> Vec<Entry> {
    let requests = rules.iter().map(|resolved| match resolved {
        ResolvedRule::Requests { matches, rule } => Some((matches, rule)),
        ResolvedRule::Streams { .. } => None,
    });
    let alternatives = requests.clone().flatten().map(|(matches, _)| matches.len()).sum();
    let mut entries = Vec::with_capacity(alternatives);
    for (at, (matches, rule)) in requests.flatten().enumerate() {
        for (alternative, matches) in matches.iter().enumerate() {
            entries.push(Entry {
                precedence: Precedence::of(matches, &route.origin, route.first_rule + at, alternative),
                matches: matches.clone(),
                rule: rule.clone(),
            });
        }
    }
    entries
}
