//! Heads of messages as the edge policy, the decision, the header filters and the access log use
//! them, whichever parser they come from. The traits are implemented for the HTTP library's types
//! here; calls are static, so that no parser pays for another one.

#[cfg(test)]
pub(crate) mod plain;
pub(crate) mod spans;

use std::borrow::Cow;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Version};
use portcullis_model::separator;

use crate::core::origin::{self, Claim};

/// The head of a request.
pub(crate) trait Head {
    type Fields: Fields;

    fn method(&self) -> &Method;
    fn version(&self) -> Version;
    /// Host and port as the target names them: an absolute one, or `:authority` of HTTP/2.
    fn authority(&self) -> Option<&str>;
    /// The path as it came; `*` where the request asks the server as a whole.
    fn path(&self) -> &str;
    fn query(&self) -> Option<&str>;
    fn fields(&self) -> &Self::Fields;

    /// False if the target has a query alone: its path is `/`, and of HTTP/2 it is malformed.
    fn says_path(&self) -> bool {
        true
    }

    /// A copy of path and query, for when the request is gone. `None` if the target has neither.
    fn target(&self) -> Option<PathAndQuery> {
        match self.query() {
            None => self.path().parse().ok(),
            Some(query) => format!("{}?{query}", self.path()).parse().ok(),
        }
    }
}

/// The header fields of a message.
pub(crate) trait Fields {
    type Name: FieldName;

    /// Fields that occur more than once come as often.
    fn iter(&self) -> impl Iterator<Item = (&Self::Name, &[u8])>;
    /// Each name at least once.
    fn names(&self) -> impl Iterator<Item = &Self::Name>;
    /// The first value.
    fn get(&self, name: &HeaderName) -> Option<&[u8]>;
    /// All values.
    fn get_all(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]>;
    /// A copy of the first value; without cost where the parser counts references.
    fn copy(&self, name: &HeaderName) -> Option<HeaderValue>;
}

/// Header fields that can be changed.
pub(crate) trait FieldsMut: Fields {
    /// Makes room for so many more, at once.
    fn reserve(&mut self, additional: usize);
    /// Replaces all values.
    fn insert(&mut self, name: HeaderName, value: HeaderValue);
    fn append(&mut self, name: HeaderName, value: HeaderValue);
    fn remove(&mut self, name: &HeaderName);
    fn remove_if(&mut self, is_removed: impl Fn(&Self::Name) -> bool);
}

/// The name of a header field, in the parser's own form.
pub(crate) trait FieldName {
    /// In lower case.
    fn as_bytes(&self) -> &[u8];
    fn known(&self) -> Option<KnownField>;
}

/// Fields that mean something to a gateway by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownField {
    /// A statement about the client, or the way that the request came; see [`origin`].
    Claim,
    CdnLoop,
    /// A statement about the client's certificate.
    ClientIdentity,
    Connection,
    ContentLength,
    Cookie,
    /// A claim in a spelling that some backends read alike.
    DisguisedClaim,
    Expect,
    Forwarded,
    Host,
    Http2Settings,
    KeepAlive,
    ProxyConnection,
    RequestId,
    Te,
    TransferEncoding,
    Upgrade,
}

/// The known fields that a message has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownFields(u32);

// === impl KnownField ===

impl KnownField {
    /// Of a name in lower case.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"connection" => Self::Connection,
            b"content-length" => Self::ContentLength,
            b"cookie" => Self::Cookie,
            b"expect" => Self::Expect,
            b"forwarded" => Self::Forwarded,
            b"host" => Self::Host,
            b"te" => Self::Te,
            b"transfer-encoding" => Self::TransferEncoding,
            b"upgrade" => Self::Upgrade,
            _ => return Self::of_rare(name),
        })
    }

    /// Of a name that the HTTP library has no constant for.
    fn of_rare(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"cdn-loop" => Self::CdnLoop,
            b"http2-settings" => Self::Http2Settings,
            b"keep-alive" => Self::KeepAlive,
            b"proxy-connection" => Self::ProxyConnection,
            name => match origin::claim(name)? {
                Claim::Plain => Self::Claim,
                Claim::RequestId => Self::RequestId,
                Claim::Disguised => Self::DisguisedClaim,
                Claim::Identity => Self::ClientIdentity,
            },
        })
    }
}

// === impl KnownFields ===

impl KnownFields {
    /// Costs a pass over the names.
    pub(crate) fn of(fields: &impl Fields) -> Self {
        let mut found = Self::default();
        fields.names().filter_map(FieldName::known).for_each(|known| found.insert(known));
        found
    }

    pub(crate) const fn all_of(fields: &[KnownField]) -> Self {
        let (mut all, mut at) = (0, 0);
        while at < fields.len() {
            all |= 1 << fields[at] as u32;
            at += 1;
        }
        Self(all)
    }

    pub(crate) const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub(crate) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    pub(crate) fn has_any(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    pub(crate) fn insert(&mut self, field: KnownField) {
        self.0 |= 1 << field as u32;
    }

    pub(crate) fn has(self, field: KnownField) -> bool {
        self.0 & 1 << field as u32 != 0
    }
}

/// The length of a body that one `Content-Length` has as decimal digits.
pub(crate) fn content_length(fields: &impl Fields) -> Option<u64> {
    let mut lengths = fields.get_all(&header::CONTENT_LENGTH);
    let length = lengths.next().filter(|digits| !digits.is_empty())?;
    let number = length.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    });
    number.filter(|_| lengths.next().is_none())
}

/// Appends the fields in the form of HTTP/1, without the empty line after them.
pub(crate) fn write_fields(fields: &impl Fields, out: &mut Vec<u8>) {
    for (name, value) in fields.iter() {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// The values of a field as one. Of a cookie's crumbs, empty ones are left out: nothing is between
/// two separators.
pub(crate) fn joined<'f>(fields: &'f impl Fields, name: &HeaderName) -> Option<Cow<'f, [u8]>> {
    let separator = separator(name).as_bytes();
    let mut values = fields.get_all(name);
    let first = values.next()?;
    let is_left_out = |value: &[u8]| value.is_empty() && *name == header::COOKIE;
    Some(values.fold(Cow::Borrowed(first), |all, value| match (is_left_out(&all), is_left_out(value)) {
        (_, true) => all,
        (true, false) => Cow::Borrowed(value),
        (false, false) => Cow::Owned([&all, separator, value].concat()),
    }))
}

/// "A field value MUST NOT start or end with an ASCII whitespace character" (RFC 9113 section
/// 8.2.1). HTTP/1 takes them off; the library for HTTP/2 lets them pass.
pub(crate) fn is_padded(value: &[u8]) -> bool {
    [value.first(), value.last()].into_iter().flatten().any(|byte| matches!(byte, b' ' | b'\t'))
}

// === the HTTP library's types ===

impl Head for Parts {
    type Fields = HeaderMap;

    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn authority(&self) -> Option<&str> {
        self.uri.authority().map(|authority| authority.as_str())
    }

    fn path(&self) -> &str {
        self.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.uri.query()
    }

    fn fields(&self) -> &HeaderMap {
        &self.headers
    }

    fn says_path(&self) -> bool {
        self.uri.path_and_query().is_none_or(|target| !target.as_str().starts_with('?'))
    }

    fn target(&self) -> Option<PathAndQuery> {
        let target = self.uri.path_and_query()?;
        if self.says_path() { Some(target.clone()) } else { format!("/{}", target.as_str()).parse().ok() }
    }
}

impl Fields for HeaderMap {
    type Name = HeaderName;

    fn iter(&self) -> impl Iterator<Item = (&HeaderName, &[u8])> {
        self.iter().map(|(name, value)| (name, value.as_bytes()))
    }

    fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.keys()
    }

    fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        self.get(name).map(HeaderValue::as_bytes)
    }

    fn get_all(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]> {
        self.get_all(name).iter().map(HeaderValue::as_bytes)
    }

    fn copy(&self, name: &HeaderName) -> Option<HeaderValue> {
        self.get(name).cloned()
    }
}

impl FieldsMut for HeaderMap {
    fn reserve(&mut self, additional: usize) {
        self.reserve(additional);
    }

    fn insert(&mut self, name: HeaderName, value: HeaderValue) {
        self.insert(name, value);
    }

    fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.append(name, value);
    }

    fn remove(&mut self, name: &HeaderName) {
        self.remove(name);
    }

    fn remove_if(&mut self, is_removed: impl Fn(&HeaderName) -> bool) {
        while let Some(name) = self.keys().find(|name| is_removed(name)).cloned() {
            self.remove(name);
        }
    }
}

impl FieldName for HeaderName {
    fn as_bytes(&self) -> &[u8] {
        self.as_str().as_bytes()
    }

    fn known(&self) -> Option<KnownField> {
        Some(match *self {
            header::CONNECTION => KnownField::Connection,
            header::CONTENT_LENGTH => KnownField::ContentLength,
            header::COOKIE => KnownField::Cookie,
            header::EXPECT => KnownField::Expect,
            header::FORWARDED => KnownField::Forwarded,
            header::HOST => KnownField::Host,
            header::TE => KnownField::Te,
            header::TRANSFER_ENCODING => KnownField::TransferEncoding,
            header::UPGRADE => KnownField::Upgrade,
            _ => return KnownField::of_rare(self.as_bytes()),
        })
    }
}
