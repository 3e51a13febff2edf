//! What a rule changes on the way through. Filters are compiled: names are lower case and valid, values are bytes.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Filter {
    RequestHeaders(HeaderEdit),
    ResponseHeaders(HeaderEdit),
    Rewrite(Rewrite),
}

/// Applied in the order remove, set, add.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeaderEdit {
    pub set: Vec<(Box<str>, Box<str>)>,
    pub add: Vec<(Box<str>, Box<str>)>,
    pub remove: Vec<Box<str>>,
}

/// `URLRewrite`: what the backend sees instead of the client's host and path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rewrite {
    pub hostname: Option<Box<str>>,
    pub path: Option<PathRewrite>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum PathRewrite {
    /// The whole path.
    Full(Box<str>),
    /// The part that the rule's PathPrefix matched; the rest is kept, with exactly one `/` between both.
    Prefix(Box<str>),
}

/// `RequestRedirect`. Absent parts are taken from the request; an absent port follows the scheme as the API says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Redirect {
    pub scheme: Option<Box<str>>,
    pub hostname: Option<Box<str>>,
    pub path: Option<PathRewrite>,
    pub port: Option<u16>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

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

#[cfg(test)]
mod tests {
    use super::*;

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
