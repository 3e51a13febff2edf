//! Changes that a rule makes on the way through. They are parsed once, at translation: the data
//! plane applies them as they are.

use std::fmt;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Serialize, Serializer};

use crate::{BackendName, Cors, ExternalAuth, HeaderTemplates, PathSubstitution, Scheme};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Filter {
    RequestHeaders(HeaderEdit),
    ResponseHeaders(HeaderEdit),
    Rewrite(Rewrite),
    /// Boxed: it is large, and few rules have one.
    Cors(Box<Cors>),
    Mirror(Mirror),
    /// Boxed for the same reason.
    ExternalAuth(Box<ExternalAuth>),
    /// Follows all rewrites.
    Substitution(Arc<PathSubstitution>),
    RequestTemplates(Arc<HeaderTemplates>),
    ResponseTemplates(Arc<HeaderTemplates>),
}

/// Applied in the order remove, set, add.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeaderEdit {
    #[serde(serialize_with = "fields")]
    pub set: Vec<(HeaderName, HeaderValue)>,
    #[serde(serialize_with = "fields")]
    pub add: Vec<(HeaderName, HeaderValue)>,
    #[serde(serialize_with = "names")]
    pub remove: Vec<HeaderName>,
}

/// `URLRewrite`: what the backend sees instead of the client's host and path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rewrite {
    #[serde(serialize_with = "value")]
    pub hostname: Option<HeaderValue>,
    pub path: Option<PathRewrite>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum PathRewrite {
    /// The whole path.
    Full(Box<str>),
    /// The part that the rule's PathPrefix matched; the rest is kept, with exactly one `/` between
    /// both.
    Prefix(Box<str>),
}

/// `RequestMirror`: a backend that gets copies of requests, and whose responses no client gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mirror {
    pub backend: BackendName,
    pub share: Share,
}

/// A part of all requests, of which each is chosen by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    numerator: u32,
    denominator: u32,
}

/// `RequestRedirect`. Absent parts are taken from the request; an absent port follows the scheme as
/// the API says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Redirect {
    pub scheme: Option<Scheme>,
    /// A DNS name in lower case.
    pub hostname: Option<Box<str>>,
    pub path: Option<PathRewrite>,
    pub port: Option<u16>,
    /// 301, 302, 303, 307 or 308.
    #[serde(serialize_with = "status")]
    pub status: StatusCode,
}

// === impl Filter ===

impl Filter {
    pub fn cors(&self) -> Option<&Cors> {
        match self {
            Self::Cors(cors) => Some(cors),
            Self::RequestHeaders(_)
            | Self::ResponseHeaders(_)
            | Self::Rewrite(_)
            | Self::Mirror(_)
            | Self::ExternalAuth(_)
            | Self::Substitution(_)
            | Self::RequestTemplates(_)
            | Self::ResponseTemplates(_) => None,
        }
    }

    /// The backend that gets copies.
    pub fn mirror(&self) -> Option<&BackendName> {
        match self {
            Self::Mirror(mirror) => Some(&mirror.backend),
            Self::RequestHeaders(_)
            | Self::ResponseHeaders(_)
            | Self::Rewrite(_)
            | Self::Cors(_)
            | Self::ExternalAuth(_)
            | Self::Substitution(_)
            | Self::RequestTemplates(_)
            | Self::ResponseTemplates(_) => None,
        }
    }
}

// === impl Share ===

impl Share {
    pub const ALL: Self = Self { numerator: 1, denominator: 1 };

    /// `None` for what is no part of a whole.
    pub fn new(numerator: u32, denominator: u32) -> Option<Self> {
        (denominator > 0 && numerator <= denominator).then_some(Self { numerator, denominator })
    }

    /// True for this share of all numbers.
    pub fn takes(self, random: u32) -> bool {
        (u64::from(random) * u64::from(self.denominator)) >> u32::BITS < u64::from(self.numerator)
    }
}

/// `20 of 100`
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.numerator, self.denominator)
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl PathRewrite ===

impl PathRewrite {
    /// The new path for `path`, of which the rule's prefix `matched` matched.
    pub fn apply<'a>(&'a self, path: &str, matched: &str) -> std::borrow::Cow<'a, str> {
        match self {
            Self::Full(full) => full.as_ref().into(),
            Self::Prefix(prefix) => replace_prefix(path, matched, prefix).into(),
        }
    }
}

fn replace_prefix(path: &str, matched: &str, prefix: &str) -> String {
    let rest = path.strip_prefix(matched.trim_end_matches('/')).unwrap_or(path);
    let head = prefix.trim_end_matches('/');
    if rest.is_empty() && head.is_empty() { "/".to_owned() } else { format!("{head}{rest}") }
}

// --- the form of snapshots ---

fn fields<S: Serializer>(fields: &[(HeaderName, HeaderValue)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(fields.iter().map(|(name, value)| (name.as_str(), text(value))))
}

fn names<S: Serializer>(names: &[HeaderName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(HeaderName::as_str))
}

pub(crate) fn value<S: Serializer>(value: &Option<HeaderValue>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(text).serialize(serializer)
}

pub(crate) fn status<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

fn text(value: &HeaderValue) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_takes_its_part_of_all_numbers() {
        for (numerator, denominator) in [(0, 100), (20, 100), (50, 100), (1, 3), (100, 100), (7, 7)] {
            let share = Share::new(numerator, denominator).unwrap();
            let taken = (0..30_000).filter(|at| share.takes(at * 143_165)).count();
            let expected = 30_000.0 * f64::from(numerator) / f64::from(denominator);
            assert!((taken as f64 - expected).abs() <= 1.0, "{share}: {taken}");
        }
        assert!(Share::ALL.takes(u32::MAX));
        assert_eq!((Share::new(1, 0), Share::new(2, 1)), (None, None));
    }

    /// The table of `HTTPPathModifier.replacePrefixMatch` in the API, and its edges.
    #[test]
    fn prefix_replacement_follows_the_api_table() {
        for (path, matched, prefix, result) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            ("/a/b", "/", "/x", "/x/a/b"),
        ] {
            let rewrite = PathRewrite::Prefix(prefix.into());
            assert_eq!(rewrite.apply(path, matched), result, "{path} -{matched}+{prefix}");
        }
    }
}
