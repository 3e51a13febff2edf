//! Stage: names at listeners that routes of several namespaces share. "Precedence must be given to
//! rules from the HTTPRoute with the largest number of: Characters in a matching non-wildcard
//! hostname", in whichever namespace (HTTPRouteSpec.hostnames): a route with a name below another
//! namespace's wildcard takes its requests, and its status says so. One that comes later changes no
//! status of those before it.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::ObjectKey;
use portcullis_model::{HostMap, HostPattern, RouteOrigin};

use super::attachments::{ListenerHostnames, ListenerRoutes};
use super::conflicts::{ChangedConflicts, KindConflicts};
use super::routes::Routes;
use crate::listener::ListenerKey;

#[derive(Debug, Default)]
pub(super) struct SharedNames {
    /// By listener with routes of several namespaces, and by wildcard there; `*` is one.
    wide: BTreeMap<ListenerKey, HostMap<Oldest>>,
}

/// The oldest route under a host pattern, and the oldest of any other namespace.
#[derive(Clone, Debug, PartialEq)]
struct Oldest {
    first: RouteOrigin,
    elsewhere: Option<RouteOrigin>,
}

// === impl SharedNames ===

impl SharedNames {
    /// True if the names of a pattern, and more, are an older route's of another namespace, too.
    pub(super) fn takes(&self, listener: &ListenerKey, pattern: &HostPattern, route: &RouteOrigin) -> bool {
        let Some(wide) = self.wide.get(listener) else { return false };
        wider(wide, pattern).any(|oldest| oldest.is_before(route))
    }

    /// Returns the routes that may take other names now.
    pub(super) fn update(
        &mut self,
        reattached: &ListenerHostnames,
        turned: &ChangedConflicts,
        routes: &Routes,
        conflicts: &KindConflicts,
    ) -> BTreeSet<ObjectKey> {
        let mut affected = BTreeSet::new();
        for (listener, hostnames) in reattached.iter().chain(&turned.listeners) {
            let Some(attached) = routes.at_listener(listener) else {
                self.wide.remove(listener);
                continue;
            };
            if !attached.has_several_namespaces() {
                if self.wide.remove(listener).is_some() {
                    affected.extend(attached.all().into_iter().cloned());
                }
                continue;
            }
            let oldest = |pattern: &HostPattern| Oldest::of(attached, pattern, listener, routes, conflicts);
            let turned = match self.wide.get_mut(listener) {
                Some(wide) => replace(wide, hostnames.iter(), oldest),
                None => {
                    let wide = self.wide.entry(listener.clone()).or_default();
                    replace(wide, attached.hostnames(), oldest)
                }
            };
            if !turned.is_empty() {
                let below = attached.hostnames().filter(|pattern| wider(&turned, pattern).next().is_some());
                affected.extend(below.flat_map(|pattern| attached.at(pattern)).cloned());
            }
        }
        affected
    }
}

/// Returns those of the patterns that have other oldest routes than before.
fn replace<'p>(
    wide: &mut HostMap<Oldest>,
    patterns: impl Iterator<Item = &'p HostPattern>,
    oldest: impl Fn(&HostPattern) -> Option<Oldest>,
) -> HostMap<()> {
    let mut turned = HostMap::default();
    for pattern in patterns.filter(|pattern| !matches!(pattern, HostPattern::Exact(_))) {
        let now = oldest(pattern);
        if wide.get(pattern) == now.as_ref() {
            continue;
        }
        match now {
            Some(now) => drop(wide.insert(pattern, now)),
            None => drop(wide.remove(pattern)),
        }
        turned.insert(pattern, ());
    }
    turned
}

/// The values of the patterns that have all names of this one, and more.
fn wider<'m, V>(wide: &'m HostMap<V>, pattern: &'m HostPattern) -> impl Iterator<Item = &'m V> {
    let name: Option<&str> = match pattern {
        HostPattern::Exact(name) => Some(name),
        // The domain is none of the wildcard's own names, but one of those of all wider ones.
        HostPattern::Wildcard(domain) => Some(domain),
        HostPattern::Any => None,
    };
    name.into_iter().flat_map(|name| wide.matching(name))
}

// === impl Oldest ===

impl Oldest {
    /// `None` if no route is served under the pattern.
    fn of(
        attached: &ListenerRoutes,
        pattern: &HostPattern,
        listener: &ListenerKey,
        routes: &Routes,
        conflicts: &KindConflicts,
    ) -> Option<Self> {
        let conflicted = conflicts.at(listener);
        let served = attached.at(pattern).filter(|route| !conflicted.contains_key(*route));
        let origins: Vec<_> = served.filter_map(|route| Some(&routes.get(route)?.parsed.origin)).collect();
        let first = *origins.iter().min()?;
        let others = origins.iter().filter(|origin| origin.name.namespace != first.name.namespace);
        Some(Self { first: first.clone(), elsewhere: others.min().copied().cloned() })
    }

    fn is_before(&self, route: &RouteOrigin) -> bool {
        let mut others = std::iter::once(&self.first).chain(&self.elsewhere);
        others.any(|other| other.name.namespace != route.name.namespace && other < route)
    }
}
