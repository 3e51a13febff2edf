//! Families of parent and child routes that are served before another route for their age, or for
//! their name, only: an order that printed manifests do not carry, since an object that is created
//! anew is the youngest.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::ObjectKey;
use portcullis_model::{Entry, HostPattern, ObjectName, RouteTable, RuleId, Snapshot, Step};

/// Of a path and a hostname, the entries that no step before the age tells apart: by path, method,
/// and the numbers of conditions.
type Alike<'t> = BTreeMap<(String, Option<&'t str>, usize, usize), Vec<&'t Entry>>;

/// A line for each family of `parents` and each other route that it is before by age only.
pub fn decided_by_age<'p>(
    snapshot: &Snapshot,
    parents: impl IntoIterator<Item = &'p ObjectKey>,
) -> Vec<String> {
    let parents: BTreeSet<_> = parents.into_iter().map(|key| (key.kind.as_str(), &key.name)).collect();
    let mut lines = BTreeMap::new();
    for port in snapshot.frontends.values() {
        for routes in port.listeners.sorted().into_iter().filter_map(|listener| listener.serves.routes()) {
            note_all(routes, &parents, &mut lines);
        }
    }
    lines.into_values().collect()
}

fn note_all<'t>(
    routes: &'t RouteTable,
    parents: &BTreeSet<(&'static str, &ObjectName)>,
    lines: &mut BTreeMap<(Route<'t>, Route<'t>), String>,
) {
    for (host, paths) in routes.hosts() {
        let mut alike = Alike::new();
        for entry in paths.entries() {
            let of = &entry.matches;
            let method = of.method.as_ref().map(|method| method.as_str());
            let key = (of.path.to_string(), method, of.headers.len(), of.query.len());
            alike.entry(key).or_default().push(entry);
        }
        for entries in alike.values().filter(|entries| entries.len() > 1) {
            let mut families: BTreeMap<Route<'t>, &Entry> = BTreeMap::new();
            for entry in entries {
                let route = route_of(&entry.rule.id);
                for (family, first) in &families {
                    let by_age = first.precedence.decided_by(&entry.precedence) == Some(Step::Route);
                    if *family != route && by_age {
                        let line = lines.entry((*family, route));
                        line.or_insert_with(|| line_of(*family, route, &host, entry));
                    }
                }
                if parents.contains(&route) {
                    families.entry(route).or_insert(entry);
                }
            }
        }
    }
}

type Route<'t> = (&'static str, &'t ObjectName);

/// The route that a rule counts as one of: with delegation, the parent.
fn route_of(id: &RuleId) -> Route<'_> {
    let outer = id.parent.as_deref().unwrap_or(id);
    (outer.kind, &outer.route)
}

fn line_of(family: Route<'_>, other: Route<'_>, host: &HostPattern, entry: &Entry) -> String {
    format!(
        "{} {} is before {} {} only because it is older or first by name (at host {host}, {}): in a cluster, where what \
         is printed here is younger, the other takes these requests",
        family.0, family.1, other.0, other.1, entry.matches.path
    )
}
