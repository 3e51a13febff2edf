//! Stage: RouteFilters, compiled. All regular expressions of a namespace together may take so much
//! memory, and no more: the oldest filters get it, so that those that are served stay so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::types::routefilters::RouteFilter;
use portcullis_api::{Kind, Objects, created};
use portcullis_model::ObjectName;

use super::changes::ChangedObjects;
use crate::route::{CompiledFilter, Extension, compile};
use crate::{Fault, Reason};

#[derive(Debug, Default)]
pub(super) struct RouteFilters {
    read: BTreeMap<ObjectName, ReadFilter>,
}

#[derive(Debug)]
struct ReadFilter {
    /// The object that was read.
    source: Arc<RouteFilter>,
    result: Result<Extension, Fault>,
    /// The share of the namespace's memory; 0 if it is not compiled.
    bytes: usize,
}

/// Of the regular expressions of all RouteFilters of a namespace, in bytes: thousands of ordinary
/// ones.
const NAMESPACE_BYTES: usize = 16 * 1024 * 1024;

// === impl RouteFilters ===

impl RouteFilters {
    /// `None` if there is no such filter.
    pub(super) fn get(&self, name: &ObjectName) -> Option<&Result<Extension, Fault>> {
        self.read.get(name).map(|read| &read.result)
    }

    /// Returns the filters that came, went, or are something else now.
    pub(super) fn update(&mut self, changed: &ChangedObjects, objects: &Objects) -> BTreeSet<ObjectName> {
        let mut now_changed = BTreeSet::new();
        for name in changed.of(Kind::RouteFilter) {
            // Its status has to name the new generation, whatever it says besides.
            now_changed.insert(name.clone());
        }
        let namespaces: BTreeSet<_> = now_changed.iter().map(|name| name.namespace.clone()).collect();
        for namespace in namespaces {
            self.read_all(&namespace, objects, &mut now_changed);
        }
        now_changed
    }

    fn read_all(&mut self, namespace: &Arc<str>, objects: &Objects, changed: &mut BTreeSet<ObjectName>) {
        let first = ObjectName::new(namespace.clone(), "");
        let is_there = |name: &ObjectName| name.namespace == *namespace;
        let known = self.read.range(first.clone()..).map(|(name, _)| name);
        let gone =
            known.take_while(|name| is_there(name)).filter(|name| !objects.route_filters.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.read.remove(&name);
        }
        let there = objects.route_filters.range(first..).take_while(|(name, _)| is_there(name));
        let mut by_age: Vec<_> =
            there.map(|(name, filter)| (created(&filter.metadata), name, filter)).collect();
        by_age.sort_unstable_by_key(|(created, name, _)| (*created, *name));
        let mut left = NAMESPACE_BYTES;
        for (_, name, filter) in by_age {
            let before = self.read.remove(name);
            let now = ReadFilter::of(filter, before.as_ref(), &mut left);
            if before.is_none_or(|before| before.result != now.result) {
                changed.insert(name.clone());
            }
            self.read.insert(name.clone(), now);
        }
    }
}

impl ReadFilter {
    /// One that does not fit takes all the rest: thousands that do not must not cost the time to
    /// compile each of them.
    fn of(filter: &Arc<RouteFilter>, before: Option<&Self>, left: &mut usize) -> Self {
        let read = |result, bytes| Self { source: filter.clone(), result, bytes };
        let has_expression = filter.spec.path_rewrite.is_some();
        if has_expression && *left == 0 {
            return read(Err(too_many()), 0);
        }
        let known = before.filter(|before| Arc::ptr_eq(&before.source, filter) && before.result.is_ok());
        let compiled = match known {
            Some(known) => known.result.clone().map(|extension| (extension, known.bytes)),
            None => compile(filter).map(|CompiledFilter { extension, bytes }| (extension, bytes)),
        };
        match compiled {
            Ok((_, bytes)) if bytes > *left => {
                *left = 0;
                read(Err(too_many()), 0)
            }
            Ok((extension, bytes)) => {
                *left -= bytes;
                read(Ok(extension), bytes)
            }
            Err(fault) => read(Err(fault), 0),
        }
    }
}

fn too_many() -> Fault {
    let message = format!(
        "the regular expressions of the RouteFilters of this namespace may compile to {} MiB together, and older \
         ones take that: use fewer or smaller ones",
        NAMESPACE_BYTES / (1024 * 1024)
    );
    Fault::not_accepted(Reason::LimitExceeded, message)
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Object, ObjectKey};
    use serde_json::json;

    use super::*;

    /// With a pattern that takes as much as one may.
    fn filter(name: &str, created: u32) -> Change {
        let pattern = format!("/{name}[a-z]{{1,60}}");
        let manifest = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
            "metadata": {"name": name, "namespace": "shop",
                "creationTimestamp": format!("2026-01-01T00:{:02}:{:02}Z", created / 60, created % 60)},
            "spec": {"type": "PathRewrite", "pathRewrite": {"pattern": pattern, "substitution": "/"}}});
        Change::Set(Object::from_json(manifest).unwrap().unwrap())
    }

    #[test]
    fn the_expressions_of_a_namespace_are_limited_in_all() {
        let mut objects = Objects::default();
        let mut filters = RouteFilters::default();
        let mut apply = |changes: Vec<Change>, filters: &mut RouteFilters| {
            let (changed, _) = ChangedObjects::apply(changes.into_iter(), &mut objects);
            filters.update(&changed, &objects)
        };
        let key = |at: usize| ObjectName::new("shop", format!("f{at}"));
        let most = NAMESPACE_BYTES / (8 * 1024);
        let all = (0..most + 3).map(|at| filter(&format!("f{at}"), at as u32)).collect();
        apply(all, &mut filters);
        let accepted = (0..most + 3).filter(|at| filters.get(&key(*at)).unwrap().is_ok());
        assert_eq!(accepted.collect::<Vec<_>>(), (0..most).collect::<Vec<_>>());
        let fault = filters.get(&key(most)).unwrap().as_ref().unwrap_err();
        assert!(fault.message.contains("16 MiB"), "{}", fault.message);
        // The oldest of the others follows one that goes.
        let gone = Change::Delete(ObjectKey::new(Kind::RouteFilter, key(7)));
        assert_eq!(apply(vec![gone], &mut filters), [key(most), key(7)].into());
        assert!(filters.get(&key(7)).is_none());
        assert!(filters.get(&key(most)).unwrap().is_ok() && filters.get(&key(most + 1)).unwrap().is_err());
    }
}
