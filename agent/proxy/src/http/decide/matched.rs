//! The match by which a rule has taken a request, for an operator who waits for that: a decision
//! needs the rule alone.

use portcullis_model::{Limits, Listener, Rule};

use crate::core::head::Head;
use crate::http::decide::head::RoutedHead;
use crate::http::edge;

/// `None` if the rule has none for such a head: filters may have changed it.
pub(crate) fn matched(limits: &Limits, listener: &Listener, head: &impl Head, rule: &Rule) -> Option<String> {
    let target = edge::admit(head, limits).ok()?;
    let request = RoutedHead::new(head, head.method(), &target);
    let matched = listener.serves.routes()?.matched(&request, &rule.id)?;
    let method = matched.method.iter().map(|method| format!("method {method}"));
    // Their values are the request's.
    let fields = matched.headers.iter().map(|(name, _)| format!("field {name}"));
    let query = matched.query.iter().map(|(name, _)| format!("parameter {name}"));
    let parts = std::iter::once(matched.path.to_string()).chain(method).chain(fields).chain(query);
    Some(parts.collect::<Vec<_>>().join(", "))
}
