//! Names of the objects that are written: each is given once, the same ones whatever the order of
//! the input, and none is longer than an API server takes.

use std::collections::{BTreeMap, BTreeSet};

use super::ingress::{Ingress, World};

/// Of a name.
const LONGEST: usize = 253;
/// Of the part that is an Ingress' or a Service's, so that what follows has its place.
const LONGEST_BASE: usize = 200;

/// Kinds of which objects are written under names of their own.
const WRITTEN: &[&str] = &[
    "BackendPolicy",
    "BackendTLSPolicy",
    "HTTPRoute",
    "ReferenceGrant",
    "RouteFilter",
    "TLSRoute",
    "TrafficPolicy",
];

/// Names by kind and namespace.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: BTreeSet<(&'static str, String, String)>,
    /// Of the objects that have an Ingress' name, by kind, namespace and that name.
    own: BTreeMap<(&'static str, String, String), String>,
}

impl Names {
    /// Names of the input's objects are theirs. Of others, objects that have an Ingress' own name
    /// are that Ingress'.
    pub(super) fn new(world: &World) -> Self {
        let mut names = Self::default();
        for (kind, (namespace, name)) in &world.given {
            if let Some(kind) = WRITTEN.iter().find(|written| *written == kind) {
                names.taken.insert((kind, namespace.clone(), name.clone()));
            }
        }
        for ingress in &world.ingresses {
            for kind in ["HTTPRoute", "TLSRoute", "TrafficPolicy"] {
                let own = names.give(kind, &ingress.namespace, &ingress.name);
                names.own.insert((kind, ingress.namespace.clone(), ingress.name.clone()), own);
            }
        }
        names
    }

    /// For the listeners, of which Gateways and ListenerSets share their names.
    pub(super) fn of_listeners(world: &World) -> Self {
        let is_one = |kind: &str| kind == "Gateway" || kind == "ListenerSet";
        let given = world.given.iter().filter(|(kind, _)| is_one(kind));
        let taken = given.map(|(_, (namespace, name))| ("Gateway", namespace.clone(), name.clone()));
        Self { taken: taken.collect(), own: BTreeMap::new() }
    }

    /// The name of an Ingress' first object of a kind.
    pub(super) fn own(&self, kind: &'static str, ingress: &Ingress) -> String {
        let own = self.own.get(&(kind, ingress.namespace.clone(), ingress.name.clone()));
        own.unwrap_or(&ingress.name).clone()
    }

    /// The begin of the names of an Ingress' RouteFilters.
    pub(super) fn base_of_filters(&self, ingress: &Ingress) -> String {
        let own = base(&ingress.name);
        let is_taken = self.taken.iter().any(|(kind, namespace, name)| {
            let rest = name.strip_prefix(&own).unwrap_or_default();
            *kind == "RouteFilter" && *namespace == ingress.namespace && rest.starts_with('-')
        });
        if is_taken { format!("{own}-{:08x}", hash(&own)) } else { own }
    }

    /// The name, or, if it is another object's, one with a hash.
    pub(super) fn give(&mut self, kind: &'static str, namespace: &str, name: &str) -> String {
        let mut given = bounded(name, LONGEST);
        let mut attempt = 0_u32;
        while !self.taken.insert((kind, namespace.to_owned(), given.clone())) {
            attempt += 1;
            let hashed = hash(&format!("{kind} {name} {attempt}"));
            given = format!("{}-{hashed:08x}", begin(name, LONGEST - 9));
        }
        given
    }
}

/// The begin of names that are made of one.
pub(super) fn base(name: &str) -> String {
    bounded(name, LONGEST_BASE)
}

fn bounded(name: &str, longest: usize) -> String {
    if name.len() <= longest {
        return name.to_owned();
    }
    format!("{}-{:08x}", begin(name, longest - 9), hash(name))
}

/// Ends as names end.
fn begin(name: &str, longest: usize) -> &str {
    let end = (0..=longest.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name[..end].trim_end_matches(['-', '.'])
}

/// FNV-1a.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once_and_is_never_too_long() {
        let mut names = Names::default();
        let mut give = |namespace: &str, name: &str| names.give("HTTPRoute", namespace, name);
        assert_eq!([give("a", "x-www"), give("b", "x-www")], ["x-www", "x-www"]);
        let other = give("a", "x-www");
        assert!(other.starts_with("x-www-") && other.len() == "x-www-".len() + 8, "{other}");
        assert_ne!(give("a", "x-www"), other);
        let long = "a".repeat(300);
        assert_eq!([give("a", &long), give("a", &long)].map(|name| name.len()), [253, 253]);
        assert_ne!(base(&format!("{long}b")), base(&format!("{long}c")));
    }
}
