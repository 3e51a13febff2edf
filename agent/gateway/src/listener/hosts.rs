//! Host patterns that share something: a listener, or a port.

use std::collections::HashSet;

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
}
