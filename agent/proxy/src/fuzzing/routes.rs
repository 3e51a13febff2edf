//! Requests as routes see them, and the rules that take them.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portcullis_model::{Limits, RouteTable};

use crate::core::head::{FieldName, Fields, Head};
use crate::http::decide::RoutedRequest;
use crate::http::edge;
use crate::http::h1::head::{self, Reading};

/// A request that may be routed.
#[derive(Debug)]
pub struct Routed {
    pub method: Method,
    pub path: String,
    /// As it came.
    pub query: Option<String>,
    pub fields: HeaderMap,
    /// The index of the rule that takes it in its route, and the prefix that matched.
    pub found: Option<(usize, String)>,
    /// Expressions took longer than they may: then the rule need not be the right one.
    pub is_over_time: bool,
}

/// The first request of these bytes, if it is certain and comes as far as the routes.
pub fn routed(bytes: &[u8], table: &RouteTable) -> Option<Routed> {
    let mut bytes = bytes.to_vec();
    let Reading::Head(head, _) = head::read(&mut bytes) else { return None };
    let target = edge::admit(&head, &Limits::default()).ok()?;
    let request = RoutedRequest::new(&head, head.method(), &target);
    let found = table.find(&request).map(|found| (found.rule.id.index, found.prefix.to_owned()));
    let is_over_time = request.search.is_over();
    let mut fields = HeaderMap::new();
    for (name, value) in head.fields().iter() {
        fields.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    let (path, query) = (target.path.clone().into_owned(), head.query().map(str::to_owned));
    Some(Routed { method: head.method().clone(), path, query, fields, found, is_over_time })
}
