//! `CORS`: the pages of other origins that may use the responses of a rule (Fetch standard,
//! "HTTP extensions"). All but the request's own part is in the form that responses have it in.

use std::fmt;

use http::HeaderValue;
use serde::{Serialize, Serializer};

use crate::Scheme;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cors {
    pub origins: AllowedOrigins,
    pub credentials: Credentials,
    pub methods: AllowedNames,
    pub headers: AllowedNames,
    /// `Access-Control-Expose-Headers`.
    #[serde(serialize_with = "text_of", skip_serializing_if = "Option::is_none")]
    pub expose: Option<HeaderValue>,
    /// Seconds for which a browser may keep the answer to a preflight request.
    #[serde(rename = "maxAge")]
    pub max_age: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigins {
    Any,
    /// None at all if the list is empty.
    Listed(Vec<OriginPattern>),
}

/// Cookies, client certificates and `Authorization` that a browser sends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Credentials {
    #[default]
    Withheld,
    Allowed,
}

/// Methods, or names of header fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedNames {
    /// But those that need no permission.
    #[default]
    None,
    Any,
    Listed(HeaderValue),
}

/// `<scheme>://<host>(:<port>)`, where the host may be `*` or begin with `*.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPattern {
    scheme: Scheme,
    host: OriginHost,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OriginHost {
    Any,
    /// With the dot that it begins with.
    Below(Box<str>),
    Exact(Box<str>),
}

/// An origin as browsers send it, but `null`.
struct Origin<'o> {
    scheme: Scheme,
    host: &'o str,
    port: u16,
}

// === impl Cors ===

impl Cors {
    pub fn has_credentials(&self) -> bool {
        self.credentials == Credentials::Allowed
    }
}

// === impl AllowedOrigins ===

impl AllowedOrigins {
    /// True for the value of an `Origin` field whose pages may use responses.
    pub fn allow(&self, origin: &[u8]) -> bool {
        let Ok(origin) = std::str::from_utf8(origin) else { return false };
        match self {
            Self::Any => is_serialised(origin),
            Self::Listed(patterns) => {
                let origin = Origin::parse(origin);
                origin.is_some_and(|origin| patterns.iter().any(|pattern| pattern.matches(&origin)))
            }
        }
    }
}

impl Serialize for AllowedOrigins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Any => serializer.serialize_str("*"),
            Self::Listed(patterns) => serializer.collect_seq(patterns.iter().map(ToString::to_string)),
        }
    }
}

/// One origin, or the `null` of a document that has none. The Fetch standard allows a list of
/// origins nowhere, and what is repeated to the client must be nothing else.
fn is_serialised(origin: &str) -> bool {
    let parts = origin.split_once("://");
    let is_tuple = parts.is_some_and(|(scheme, rest)| {
        let in_scheme = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        let in_host =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':' | b'[' | b']');
        let are_all = |text: &str, is: fn(u8) -> bool| !text.is_empty() && text.bytes().all(is);
        are_all(scheme, in_scheme) && are_all(rest, in_host)
    });
    is_tuple || origin == "null"
}

// === impl AllowedNames ===

impl Serialize for AllowedNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_none(),
            Self::Any => serializer.serialize_str("*"),
            Self::Listed(names) => serializer.serialize_str(&text(names)),
        }
    }
}

// === impl OriginPattern ===

impl OriginPattern {
    /// `None` for a text that is no such pattern.
    pub fn parse(text: &str) -> Option<Self> {
        let Origin { scheme, host, port } = Origin::split(text)?;
        let below = host.strip_prefix('*');
        let name = below.unwrap_or(host);
        let is_fine = match below {
            Some(rest) => rest.is_empty() || rest.starts_with('.') && is_name(&rest[1..]),
            None => is_name(name),
        };
        let host = match below {
            Some("") => OriginHost::Any,
            Some(rest) => OriginHost::Below(rest.to_ascii_lowercase().into()),
            None => OriginHost::Exact(name.to_ascii_lowercase().into()),
        };
        is_fine.then_some(Self { scheme, host, port })
    }

    /// A wildcard stands for "any number of DNS labels to the left of its position", at least one.
    fn matches(&self, origin: &Origin<'_>) -> bool {
        let has_host = match &self.host {
            OriginHost::Any => true,
            OriginHost::Exact(name) => name.eq_ignore_ascii_case(origin.host),
            OriginHost::Below(suffix) => {
                let labels = origin.host.len().checked_sub(suffix.len());
                labels
                    .and_then(|end| origin.host.split_at_checked(end))
                    .is_some_and(|(labels, end)| is_name(labels) && end.eq_ignore_ascii_case(suffix))
            }
        };
        has_host && (self.scheme, self.port) == (origin.scheme, origin.port)
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wildcard, host) = match &self.host {
            OriginHost::Any => ("*", ""),
            OriginHost::Below(suffix) => ("*", &**suffix),
            OriginHost::Exact(name) => ("", &**name),
        };
        write!(f, "{}://{wildcard}{host}", self.scheme)?;
        if self.port == self.scheme.default_port() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

// === impl Origin ===

impl<'o> Origin<'o> {
    fn parse(text: &'o str) -> Option<Self> {
        let origin = Self::split(text)?;
        let literal = origin.host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match literal {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => is_name(origin.host),
        };
        is_host.then_some(origin)
    }

    /// "If not included, port `80` is assumed for `http` scheme origins, and port `443` is assumed
    /// for `https` origins."
    fn split(text: &'o str) -> Option<Self> {
        let (scheme, rest) = [Scheme::Http, Scheme::Https]
            .into_iter()
            .find_map(|scheme| Some((scheme, text.strip_prefix(scheme.as_str())?.strip_prefix("://")?)))?;
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, number(port)?),
            _ => (rest, scheme.default_port()),
        };
        Some(Self { scheme, host, port })
    }
}

fn number(port: &str) -> Option<u16> {
    let is_plain = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    port.parse().ok().filter(|port| is_plain && *port > 0)
}

fn is_name(host: &str) -> bool {
    let is_fine = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    host.split('.').all(is_fine)
}

fn text_of<S: Serializer>(value: &Option<HeaderValue>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(text).serialize(serializer)
}

fn text(value: &HeaderValue) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(patterns: &[&str]) -> AllowedOrigins {
        AllowedOrigins::Listed(patterns.iter().map(|it| OriginPattern::parse(it).unwrap()).collect())
    }

    #[test]
    fn patterns_are_shown_as_they_are_written() {
        for text in
            ["http://*", "https://*.bar.com", "https://foo.com:8443", "http://localhost", "https://*:444"]
        {
            assert_eq!(OriginPattern::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(OriginPattern::parse("https://FOO.com:443").unwrap().to_string(), "https://foo.com");
        for text in [
            "*",
            "foo.com",
            "ftp://foo.com",
            "https://",
            "https://foo.com/",
            "https://foo.com:0",
            "https://a:65536",
            "https://foo.com:+1",
            "https://foo.*",
            "https://*foo.com",
            "https://a.*.com",
            "https://a b",
            "https://*.",
            "https://u@foo.com",
            "https://foo.com:",
            "HTTPS://foo.com",
            "https://[::1]",
            "https://foo..com",
        ] {
            assert_eq!(OriginPattern::parse(text), None, "{text}");
        }
    }

    #[test]
    fn origins_are_compared_by_scheme_host_and_port() {
        let listed = listed(&["https://www.foo.com", "https://*.bar.com", "http://*:8080"]);
        for (origin, is_allowed) in [
            ("https://www.foo.com", true),
            ("https://WWW.foo.com:443", true),
            ("http://www.foo.com", false),
            ("https://www.foo.com:8443", false),
            ("https://foo.com", false),
            ("https://www.bar.com", true),
            ("https://xpto.www.bar.com", true),
            ("https://bar.com", false),
            ("https://.bar.com", false),
            ("https://evilbar.com", false),
            ("https://www.bar.com.evil.com", false),
            ("https://evil.com/.bar.com", false),
            ("https://evil.com?.bar.com", false),
            ("https://evil.com#.bar.com", false),
            ("https://evil.com\\.bar.com", false),
            ("https://evil.com:443.bar.com", false),
            ("https://user@www.bar.com", false),
            ("https://www.bar.com:443:443", false),
            ("https://evil.com, https://www.bar.com", false),
            ("https://evil.com https://www.bar.com", false),
            ("https://www.bar.com.", false),
            ("https://ww%77.bar.com", false),
            ("https://\u{e9}.bar.com", false),
            ("http://anything:8080", true),
            ("http://[::1]:8080", true),
            ("http://[::1%lo]:8080", false),
            ("http://anything", false),
            ("null", false),
            ("", false),
            ("*", false),
        ] {
            assert_eq!(listed.allow(origin.as_bytes()), is_allowed, "{origin}");
        }
        assert!(!listed.allow(b"https://\xff.bar.com"));
        assert!(!AllowedOrigins::Listed(vec![]).allow(b"https://www.foo.com"));
    }

    #[test]
    fn any_origin_is_one_origin() {
        for (origin, is_allowed) in [
            ("https://www.foo.com:12345", true),
            ("http://[::1]:80", true),
            ("null", true),
            ("capacitor://localhost", true),
            ("https://a.com, https://b.com", false),
            ("https://a.com\thttps://b.com", false),
            ("https://a.com/", false),
            ("https://", false),
            ("a.com", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(AllowedOrigins::Any.allow(origin.as_bytes()), is_allowed, "{origin}");
        }
    }
}
