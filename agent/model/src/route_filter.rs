//! The parts of RouteFilters, compiled: paths made by regular expressions, header fields made of
//! variables, responses of the gateway's own. Objects share them by `Arc`: thousands of routes may
//! refer to one filter.

use std::fmt;

use http::{HeaderName, HeaderValue, StatusCode};
use regex::bytes::{Captures, Regex};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// A path that takes the place of another one, where a regular expression matches all of that.
#[derive(Clone, Debug)]
pub struct PathSubstitution {
    /// Anchored at both ends.
    pattern: Regex,
    parts: Box<[PathPart]>,
    /// Both as their owner wrote them.
    written: [Box<str>; 2],
}

/// The length of paths, in bytes, of which every core keeps the memory that a search took.
const ORDINARY_PATH: usize = 512;

/// A part of a substituted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPart {
    Text(Box<str>),
    /// The text that a group of the pattern matched; nothing, if it matched none.
    Group(usize),
}

/// The outcome of a substitution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Substituted {
    /// The pattern does not match: the path stays.
    Unchanged,
    /// Something that may be no path.
    To(String),
    TooLong,
}

/// Header fields with values that are made for each message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderTemplates {
    pub set: Box<[(HeaderName, Template)]>,
    pub add: Box<[(HeaderName, Template)]>,
}

/// Text and variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Box<[TemplatePart]>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// Of characters that a field's value may have.
    Text(Box<str>),
    Variable(Variable),
}

/// A response in place of a backend's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectResponse {
    /// 200 to 599.
    #[serde(serialize_with = "crate::filter::status")]
    pub status: StatusCode,
    /// `None` without body.
    #[serde(serialize_with = "crate::filter::value", skip_serializing_if = "Option::is_none")]
    pub content_type: Option<HeaderValue>,
    pub body: Box<str>,
}

macro_rules! variables {
    ($($(#[doc = $doc:literal])* $variable:ident $name:literal,)*) => {
        /// Something of a request that is known by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Variable {
            $($(#[doc = $doc])* $variable,)*
        }

        impl Variable {
            pub const ALL: &'static [Self] = &[$(Self::$variable),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variable => $name,)* }
            }
        }
    };
}

variables! {
    /// The client's, as trusted proxies report it.
    ClientAddress "client.address",
    /// Empty for requests that came by trusted proxies.
    ClientPort "client.port",
    /// Of the ClientHello; empty without TLS.
    ServerName "tls.serverName",
    RequestId "request.id",
    /// `HTTP/1.1`.
    Protocol "request.protocol",
    /// `http` or `https`.
    Scheme "request.scheme",
    /// In lower case, without port.
    Host "request.host",
    Method "request.method",
    /// The normal form of the path that came.
    Path "request.path",
    ListenerName "listener.name",
    RouteNamespace "route.namespace",
    RouteName "route.name",
}

// === impl PathSubstitution ===

impl PathSubstitution {
    /// `pattern` is anchored at both ends; it and `substitution` were written as `written`.
    pub fn new(pattern: Regex, parts: Vec<PathPart>, written: [&str; 2]) -> Self {
        Self { pattern, parts: parts.into(), written: written.map(Into::into) }
    }

    /// The new path, of `longest` bytes at most. Text of a group that is none by itself, as no part
    /// of an ASCII path is, counts as nothing.
    pub fn apply(&self, path: &str, longest: usize) -> Substituted {
        // A clone searches in memory of its own, which grows with the path and goes with the clone:
        // a core would keep it for each of a tenant's thousands of patterns.
        let for_this = (path.len() > ORDINARY_PATH).then(|| self.pattern.clone());
        let pattern = for_this.as_ref().unwrap_or(&self.pattern);
        let Some(groups) = pattern.captures(path.as_bytes()) else { return Substituted::Unchanged };
        let parts = self.parts.iter().map(|part| part.text(&groups, path));
        if parts.clone().map(str::len).sum::<usize>() > longest {
            return Substituted::TooLong;
        }
        Substituted::To(parts.collect())
    }
}

impl PathPart {
    fn text<'t>(&'t self, groups: &Captures<'_>, path: &'t str) -> &'t str {
        match self {
            Self::Text(text) => text,
            Self::Group(group) => {
                groups.get(*group).and_then(|group| path.get(group.range())).unwrap_or_default()
            }
        }
    }
}

impl PartialEq for PathSubstitution {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

impl Eq for PathSubstitution {}

impl Serialize for PathSubstitution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [pattern, substitution] = &self.written;
        let mut shown = serializer.serialize_struct("PathSubstitution", 2)?;
        shown.serialize_field("pattern", pattern)?;
        shown.serialize_field("substitution", substitution)?;
        shown.end()
    }
}

// === impl HeaderTemplates ===

impl HeaderTemplates {
    /// The names that are set or added.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.set.iter().chain(&self.add).map(|(name, _)| name)
    }

    /// The bytes that the fields take, with what `value` gives for variables.
    pub fn length<'v>(&self, value: impl Fn(Variable) -> &'v str) -> usize {
        let fields = self.set.iter().chain(&self.add);
        fields.map(|(name, template)| name.as_str().len() + template.length(&value)).sum()
    }
}

impl Serialize for HeaderTemplates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = |fields: &[(HeaderName, Template)]| {
            fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect::<Vec<_>>()
        };
        let mut shown = serializer.serialize_struct("HeaderTemplates", 2)?;
        shown.serialize_field("set", &fields(&self.set))?;
        shown.serialize_field("add", &fields(&self.add))?;
        shown.end()
    }
}

// === impl Template ===

impl Template {
    pub fn new(parts: Vec<TemplatePart>) -> Self {
        Self(parts.into())
    }

    fn length<'v>(&self, value: &impl Fn(Variable) -> &'v str) -> usize {
        self.0.iter().map(|part| part.text(value).len()).sum()
    }

    /// With what `value` gives for variables.
    pub fn filled<'v>(&self, value: impl Fn(Variable) -> &'v str) -> String {
        self.0.iter().map(|part| part.text(&value)).collect()
    }
}

impl TemplatePart {
    fn text<'t, 'v: 't>(&'t self, value: &impl Fn(Variable) -> &'v str) -> &'t str {
        match self {
            Self::Text(text) => text,
            Self::Variable(variable) => value(*variable),
        }
    }
}

/// As its owner wrote it.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            TemplatePart::Text(text) => f.write_str(&text.replace('$', "$$")),
            TemplatePart::Variable(variable) => write!(f, "${{{}}}", variable.name()),
        })
    }
}

// === impl Variable ===

impl Variable {
    /// `None` if there is no variable of the name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_substitution_takes_the_text_of_groups() {
        let pattern = Regex::new("^(?:/shop(/|$)(.*)|/(old)/x)$").unwrap();
        let parts = vec![PathPart::Text("/".into()), PathPart::Group(2), PathPart::Group(3)];
        let substitution = PathSubstitution::new(pattern, parts, ["", ""]);
        let to = |path: &str| Substituted::To(path.to_owned());
        for (path, result) in [
            ("/shop/cart/1", to("/cart/1")),
            ("/shop", to("/")),
            ("/old/x", to("/old")),
            ("/shops", Substituted::Unchanged),
            ("/x/shop/", Substituted::Unchanged),
            ("/shop/12345678", Substituted::TooLong),
        ] {
            assert_eq!(substitution.apply(path, 8), result, "{path}");
        }
    }

    #[test]
    fn templates_are_shown_as_they_were_written() {
        let parts = vec![
            TemplatePart::Text("for $".into()),
            TemplatePart::Variable(Variable::Host),
            TemplatePart::Text("!".into()),
        ];
        let template = Template::new(parts);
        assert_eq!(template.to_string(), "for $$${request.host}!");
        assert_eq!(template.filled(|_| "a.example"), "for $a.example!");
        assert_eq!(template.length(&|_| "a.example"), "for $a.example!".len());
    }

    #[test]
    fn variables_have_names_of_their_own() {
        for variable in Variable::ALL {
            assert_eq!(Variable::named(variable.name()), Some(*variable));
        }
        assert_eq!(Variable::named("claim.sub"), None);
    }
}
