//! The request head as routes and filters see it: borrowed, and independent of the HTTP library
//! that parsed it.

use std::borrow::Cow;

use http::{HeaderName, Method, header};

/// A parsed, normalised request head. Implementations may cache what they parse (the query, for
/// example).
pub trait RequestHead {
    fn method(&self) -> &Method;
    /// Lower-case host without port; empty if the request names none.
    fn host(&self) -> &str;
    /// Absolute path without query, normalised once: what is matched is what is forwarded.
    fn path(&self) -> &str;
    /// The value of a header field; repeated ones are joined by their [`separator`].
    fn header(&self, name: &HeaderName) -> Option<Cow<'_, [u8]>>;
    /// The first value of a query parameter, percent-decoded.
    fn query_param(&self, name: &str) -> Option<Cow<'_, str>>;

    /// True if one more regular expression may look at so many bytes. Once it may not, no other one
    /// matches, either, and the rule that was found need not be the right one.
    fn may_search(&self, _bytes: usize) -> bool {
        true
    }
}

/// The size of a field as limits count it: with what is between name and value, and behind it.
pub const fn field_size(name: usize, value: usize) -> usize {
    name + ": ".len() + value + "\r\n".len()
}

/// Between the values of a field that is repeated (RFC 9110 section 5.3). Cookies, which clients of
/// HTTP/2 may send in crumbs, are put together as clients of HTTP/1 send them (RFC 9113 section
/// 8.2.3).
pub fn separator(name: &HeaderName) -> &'static str {
    if *name == header::COOKIE { "; " } else { "," }
}
