//! Host names as listeners and routes write them: absent (any), exact, or with a leading wildcard
//! label. `*.example.com` matches `a.example.com` and `a.b.example.com`, never `example.com`
//! (Gateway API, `Hostname`).

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::ShardMap;

/// One host pattern. Ordered from the most to the least specific, as route precedence wants it:
/// exact names first, then wildcards with more characters, then "any".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    Exact(Arc<str>),
    /// Holds the part after `*.`.
    Wildcard(Arc<str>),
    Any,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HostnameError {
    #[error("hostname {0:?} is an IP address; a DNS name is needed")]
    IpAddress(String),
    #[error(
        "hostname {0:?} is not a DNS name (letters, digits and hyphens in labels of 1 to 63 characters, 253 in all)"
    )]
    NotADnsName(String),
}

/// Values by host pattern; finds the values whose pattern matches a name, the most specific first.
#[derive(Clone, Debug)]
pub struct HostMap<V> {
    exact: ShardMap<V>,
    wildcard: ShardMap<V>,
    any: Option<V>,
}

// === impl HostPattern ===

impl HostPattern {
    /// Parses a listener's or route's hostname; upper case is folded.
    ///
    /// # Errors
    /// When the text is no DNS name with an optional leading `*.`.
    pub fn parse(text: &str) -> Result<Self, HostnameError> {
        let lower = text.to_ascii_lowercase();
        if lower.parse::<std::net::IpAddr>().is_ok() {
            return Err(HostnameError::IpAddress(text.to_owned()));
        }
        let (name, pattern): (&str, fn(Arc<str>) -> Self) = match lower.strip_prefix("*.") {
            Some(suffix) => (suffix, Self::Wildcard),
            None => (&lower, Self::Exact),
        };
        if is_dns_name(name) {
            Ok(pattern(name.into()))
        } else {
            Err(HostnameError::NotADnsName(text.to_owned()))
        }
    }

    /// True if a lower-case host name without port matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => **name == *host,
            Self::Wildcard(suffix) => is_below(host, suffix),
            Self::Any => true,
        }
    }

    /// True if every name that `other` matches is matched by `self`, too.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Wildcard(suffix), Self::Exact(name)) => is_below(name, suffix),
            (Self::Wildcard(suffix), Self::Wildcard(inner)) => suffix == inner || is_below(inner, suffix),
            (Self::Exact(a), Self::Exact(b)) => a == b,
            _ => false,
        }
    }

    /// The names that both patterns match, as a pattern. Two patterns either contain one another or
    /// share nothing.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }

    fn rank(&self) -> (u8, std::cmp::Reverse<usize>, &str) {
        match self {
            Self::Exact(name) => (0, std::cmp::Reverse(name.len()), name),
            Self::Wildcard(suffix) => (1, std::cmp::Reverse(suffix.len()), suffix),
            Self::Any => (2, std::cmp::Reverse(0), ""),
        }
    }
}

impl Ord for HostPattern {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for HostPattern {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
            Self::Any => f.write_str("*"),
        }
    }
}

impl Serialize for HostPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl HostMap ===

impl<V> Default for HostMap<V> {
    fn default() -> Self {
        Self { exact: ShardMap::default(), wildcard: ShardMap::default(), any: None }
    }
}

impl<V> HostMap<V> {
    /// The values whose pattern matches a lower-case host name, the most specific first.
    pub fn matching<'m, 'h>(&'m self, host: &'h str) -> impl Iterator<Item = &'m V> + use<'m, 'h, V> {
        let wildcards = if self.wildcard.is_empty() { "" } else { host };
        self.exact
            .get(host)
            .into_iter()
            .chain(parents_of(wildcards).filter_map(|suffix| self.wildcard.get(suffix)))
            .chain(self.any.as_ref())
    }

    /// The value of the most specific pattern that matches.
    pub fn most_specific(&self, host: &str) -> Option<&V> {
        self.matching(host).next()
    }

    pub fn get(&self, pattern: &HostPattern) -> Option<&V> {
        match pattern {
            HostPattern::Exact(name) => self.exact.get(name),
            HostPattern::Wildcard(suffix) => self.wildcard.get(suffix),
            HostPattern::Any => self.any.as_ref(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcard.len() + usize::from(self.any.is_some())
    }

    /// All values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.exact.iter().chain(self.wildcard.iter()).map(|(_, value)| value).chain(self.any.as_ref())
    }

    /// All entries ordered by pattern, for output.
    pub fn sorted(&self) -> Vec<(HostPattern, &V)> {
        let exact = self.exact.iter().map(|(name, value)| (HostPattern::Exact(name.clone()), value));
        let wildcard =
            self.wildcard.iter().map(|(suffix, value)| (HostPattern::Wildcard(suffix.clone()), value));
        let any = self.any.iter().map(|value| (HostPattern::Any, value));
        let mut entries: Vec<_> = exact.chain(wildcard).chain(any).collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries
    }
}

impl<V: Clone> HostMap<V> {
    pub fn insert(&mut self, pattern: &HostPattern, value: V) -> Option<V> {
        match pattern {
            HostPattern::Exact(name) => self.exact.insert(name.clone(), value),
            HostPattern::Wildcard(suffix) => self.wildcard.insert(suffix.clone(), value),
            HostPattern::Any => self.any.replace(value),
        }
    }

    pub fn remove(&mut self, pattern: &HostPattern) -> Option<V> {
        match pattern {
            HostPattern::Exact(name) => self.exact.remove(name),
            HostPattern::Wildcard(suffix) => self.wildcard.remove(suffix),
            HostPattern::Any => self.any.take(),
        }
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|head| head.len() > 1 && head.ends_with('.'))
}

/// `a.b.c` gives `b.c`, `c`.
fn parents_of(host: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent_of(host), |name| parent_of(name))
}

fn parent_of(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, parent)| parent)
}

fn is_dns_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        if text == "*" { HostPattern::Any } else { HostPattern::parse(text).unwrap() }
    }

    #[test]
    fn wildcards_match_any_number_of_labels_but_not_the_bare_name() {
        let wildcard = pattern("*.Example.com");
        assert!(wildcard.matches("a.example.com") && wildcard.matches("a.b.example.com"));
        assert!(
            !wildcard.matches("example.com")
                && !wildcard.matches("badexample.com")
                && !wildcard.matches(".example.com")
        );
    }

    #[test]
    fn intersections() {
        for (a, b, both) in [
            ("*", "a.com", Some("a.com")),
            ("*.a.com", "x.a.com", Some("x.a.com")),
            ("*.a.com", "*.b.a.com", Some("*.b.a.com")),
            ("*.a.com", "a.com", None),
            ("*.a.com", "*.b.com", None),
            ("x.a.com", "y.a.com", None),
            ("*", "*", Some("*")),
        ] {
            assert_eq!(pattern(a).intersect(&pattern(b)), both.map(pattern), "{a} with {b}");
            assert_eq!(pattern(b).intersect(&pattern(a)), both.map(pattern), "{b} with {a}");
        }
    }

    #[test]
    fn what_is_no_dns_name_is_refused() {
        for text in ["", "*", "a..b", "-a.com", "a.com.", "10.0.0.1", "::1", "a_b.com", "*.*.com", "a/b"] {
            assert!(HostPattern::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_map_walks_from_exact_over_longer_wildcards_to_any() {
        let mut map = HostMap::default();
        for text in ["*", "*.com", "*.a.com", "x.a.com"] {
            map.insert(&pattern(text), text);
        }
        assert_eq!(
            map.matching("x.a.com").copied().collect::<Vec<_>>(),
            ["x.a.com", "*.a.com", "*.com", "*"]
        );
        assert_eq!(map.matching("a.com").copied().collect::<Vec<_>>(), ["*.com", "*"]);
        assert_eq!(map.most_specific("localhost"), Some(&"*"));
        assert_eq!(
            map.sorted().iter().map(|(_, v)| **v).collect::<Vec<_>>(),
            ["x.a.com", "*.a.com", "*.com", "*"]
        );
    }
}
