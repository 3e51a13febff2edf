//! Host patterns that share something: a listener, or a port.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;
use portcullis_model::HostPattern;

type Names<'h> = HashSet<&'h str, RandomState>;

/// Answers whether a pattern has a name in common with one of many, at a cost that does not grow
/// with their number.
#[derive(Default)]
pub(crate) struct Hosts<'h> {
    exact: Names<'h>,
    /// Without `*.`.
    wildcards: Names<'h>,
    any: bool,
    /// The domains that something above is below of.
    domains: Names<'h>,
}

impl<'h> Hosts<'h> {
    pub(crate) fn add(&mut self, pattern: &'h HostPattern) {
        let name: &'h str = match pattern {
            HostPattern::Exact(name) => {
                self.exact.insert(name);
                name
            }
            HostPattern::Wildcard(domain) => {
                self.wildcards.insert(domain);
                domain
            }
            HostPattern::Any => return self.any = true,
        };
        for domain in parents_of(name) {
            // The name that brought this domain has brought the domains above, too.
            if !self.domains.insert(domain) {
                break;
            }
        }
    }

    pub(crate) fn overlap(&self, pattern: &HostPattern) -> bool {
        let has_itself = match pattern {
            HostPattern::Exact(name) => self.exact.contains(&**name),
            HostPattern::Wildcard(domain) => self.wildcards.contains(&**domain),
            HostPattern::Any => self.any,
        };
        has_itself || self.overlap_another(pattern)
    }

    /// The same, the pattern itself left out.
    pub(crate) fn overlap_another(&self, pattern: &HostPattern) -> bool {
        let is_covered = |name| parents_of(name).any(|domain| self.wildcards.contains(domain));
        match pattern {
            HostPattern::Exact(name) => self.any || is_covered(name),
            HostPattern::Wildcard(domain) => {
                self.any || is_covered(domain) || self.domains.contains(&**domain)
            }
            HostPattern::Any => !(self.exact.is_empty() && self.wildcards.is_empty()),
        }
    }
}

/// Wildcards by the namespaces that have them. Answers whether a pattern takes names out of another
/// namespace's, at a cost that does not grow with their number.
#[derive(Default)]
pub(crate) struct NamespacedHosts<'h> {
    /// By the domain below which the names are; `None`: any.
    wide: HashMap<Option<&'h str>, Owner<'h>, RandomState>,
}

enum Owner<'h> {
    One(&'h str),
    Several,
}

impl<'h> NamespacedHosts<'h> {
    pub(crate) fn add(&mut self, pattern: &'h HostPattern, namespace: &'h str) {
        let domain: Option<&'h str> = match pattern {
            HostPattern::Exact(_) => return,
            HostPattern::Wildcard(domain) => Some(domain),
            HostPattern::Any => None,
        };
        match self.wide.entry(domain) {
            Entry::Occupied(mut owner) if !matches!(owner.get(), Owner::One(own) if *own == namespace) => {
                owner.insert(Owner::Several);
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(owner) => drop(owner.insert(Owner::One(namespace))),
        }
    }

    /// Tells whether all names of the pattern, and more, are another namespace's, too.
    pub(crate) fn cover(&self, pattern: &HostPattern, namespace: &str) -> bool {
        let name: &str = match pattern {
            HostPattern::Exact(name) => name,
            HostPattern::Wildcard(domain) => domain,
            HostPattern::Any => return false,
        };
        let owners = parents_of(name).map(Some).chain([None]).filter_map(|domain| self.wide.get(&domain));
        owners.into_iter().any(|owner| !matches!(owner, Owner::One(own) if *own == namespace))
    }
}

/// `a.b.c` gives `b.c`, `c`.
fn parents_of(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(name.split_once('.'), |(_, parent)| parent.split_once('.'))
        .map(|(_, parent)| parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_overlap_if_they_intersect() {
        let patterns = ["a.b.c", "*.b.c", "*.c", "b.c", "x.b.c", "*.a.b.c", "y.c", "*.d"];
        let mut patterns: Vec<_> = patterns.iter().map(|text| HostPattern::parse(text).unwrap()).collect();
        patterns.push(HostPattern::Any);
        for one in &patterns {
            let mut hosts = Hosts::default();
            hosts.add(one);
            for other in &patterns {
                let intersect = one.intersect(other).is_some();
                assert_eq!(hosts.overlap(other), intersect, "{one} and {other}");
                assert_eq!(hosts.overlap_another(other), intersect && one != other, "{one} and {other}");
            }
        }
    }

    #[test]
    fn names_are_taken_from_other_namespaces_only() {
        let pattern = |text: &str| HostPattern::parse(text).unwrap();
        let (wide, narrow, name) = (pattern("*.b"), pattern("*.a.b"), pattern("x.a.b"));
        let mut hosts = NamespacedHosts::default();
        hosts.add(&wide, "one");
        hosts.add(&name, "one");
        let covered = |hosts: &NamespacedHosts<'_>, namespace| {
            [&wide, &narrow, &name, &pattern("b")].map(|pattern| hosts.cover(pattern, namespace))
        };
        assert_eq!(covered(&hosts, "one"), [false; 4]);
        assert_eq!(covered(&hosts, "two"), [false, true, true, false]);
        hosts.add(&wide, "two");
        assert_eq!(covered(&hosts, "two"), [false, true, true, false]);
        hosts.add(&HostPattern::Any, "two");
        assert_eq!(covered(&hosts, "one"), [true; 4]);
        assert!(!hosts.cover(&HostPattern::Any, "one"));
    }
}
