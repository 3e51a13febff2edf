//! Header fields of RouteFilters, filled in for a request: only rules that have such pay for it.
//! Values that clients choose become text that no field is ended or quoted by. Nothing here depends
//! on the parser that the head comes from.

use std::borrow::Cow;
use std::net::SocketAddr;

use http::{HeaderName, HeaderValue, Version};
use portcullis_model::{
    Filter, HeaderEdit, HeaderTemplates, Limits, Listener, RuleId, Scheme, Template, TrustedProxies, Variable,
};

use crate::core::head::{FieldsMut, Head};
use crate::core::reason::Reason;
use crate::http::edge::Target;
use crate::http::{headers, request_id, sender};

/// The connection of a request, as templates show it.
#[derive(Clone, Copy)]
pub(crate) struct Connected<'r> {
    pub peer: SocketAddr,
    /// The peer's address as header fields show it.
    pub address: &'r HeaderValue,
    /// Of its ClientHello.
    pub server_name: Option<&'r str>,
    /// Proxies in front that are believed.
    pub proxies: &'r TrustedProxies,
    /// The id that the request has in the access log. `None`: it has none yet.
    pub request_id: Option<&'r HeaderValue>,
}

/// The fields, each filter's in the order of filters.
pub(crate) struct FilledTemplates {
    /// The id that they were filled in with, which the request has to have.
    pub request_id: HeaderValue,
    request: Vec<HeaderEdit>,
    response: Vec<HeaderEdit>,
}

/// Edits in the order of filters.
pub(crate) struct Edits<'f>(std::slice::Iter<'f, HeaderEdit>);

/// The values of all variables.
struct Values<'r> {
    address: Cow<'r, str>,
    port: String,
    server_name: Cow<'r, str>,
    request_id: &'r str,
    protocol: &'static str,
    scheme: Scheme,
    host: Cow<'r, str>,
    method: &'r str,
    path: Cow<'r, str>,
    listener: &'r str,
    rule: &'r RuleId,
}

/// Applies a header filter of a response, be it a backend's or our own; `filled` are the edits of
/// the filters with templates from this one on.
pub(crate) fn edit_response(fields: &mut impl FieldsMut, filter: &Filter, filled: &mut Edits<'_>) {
    let edit = match filter {
        Filter::ResponseHeaders(edit) => Some(edit),
        Filter::ResponseTemplates(_) => filled.next(),
        Filter::RequestHeaders(_)
        | Filter::RequestTemplates(_)
        | Filter::Rewrite(_)
        | Filter::Substitution(_)
        | Filter::Mirror(_)
        | Filter::ExternalAuth(_)
        | Filter::Cors(_) => None,
    };
    if let Some(edit) = edit {
        headers::edit(fields, edit);
    }
}

// === impl FilledTemplates ===

impl FilledTemplates {
    /// # Errors
    /// When the fields would be larger than those of a request may be.
    pub(crate) fn of<'f>(
        filters: impl Iterator<Item = &'f Filter> + Clone,
        (head, target): (&impl Head, &Target<'_>),
        (connected, scheme): (Connected<'_>, Scheme),
        (listener, rule): (&Listener, &RuleId),
        limits: &Limits,
    ) -> Result<Box<Self>, Reason> {
        let peer = (connected.peer.ip(), connected.address);
        let chain = sender::chain(head.fields(), connected.proxies, peer);
        let given = chain.as_ref().and_then(|_| request_id::given(head.fields()));
        let request_id = connected.request_id.cloned().or(given).unwrap_or_else(request_id::make);
        let first = chain.as_ref().and_then(sender::first);
        let values = Values {
            port: if first.is_none() { connected.peer.port().to_string() } else { String::new() },
            address: first.map_or_else(
                || Cow::Borrowed(connected.address.to_str().unwrap_or_default()),
                |address| Cow::Owned(address.to_string()),
            ),
            server_name: safe(connected.server_name.unwrap_or_default()),
            request_id: request_id.to_str().unwrap_or_default(),
            protocol: match head.version() {
                Version::HTTP_2 => "HTTP/2",
                Version::HTTP_10 => "HTTP/1.0",
                _ => "HTTP/1.1",
            },
            scheme,
            host: safe(&target.host),
            method: head.method().as_str(),
            path: safe(&target.path),
            listener: &listener.id.name,
            rule,
        };
        let all = filters.clone().filter_map(|filter| match filter {
            Filter::RequestTemplates(templates) | Filter::ResponseTemplates(templates) => Some(templates),
            _ => None,
        });
        let length: usize = all.map(|templates| templates.length(|variable| values.of(variable))).sum();
        if length > limits.header_bytes as usize {
            return Err(Reason::FieldsTooLarge);
        }
        let (mut request, mut response) = (Vec::new(), Vec::new());
        for filter in filters {
            match filter {
                Filter::RequestTemplates(templates) => request.push(values.fill(templates)),
                Filter::ResponseTemplates(templates) => response.push(values.fill(templates)),
                _ => {}
            }
        }
        drop(values);
        Ok(Box::new(Self { request_id, request, response }))
    }

    pub(crate) fn request_edits(filled: Option<&Self>) -> Edits<'_> {
        Edits(filled.map_or(&[][..], |filled| &filled.request).iter())
    }

    pub(crate) fn response_edits(filled: Option<&Self>) -> Edits<'_> {
        Edits(filled.map_or(&[][..], |filled| &filled.response).iter())
    }
}

impl<'f> Edits<'f> {
    /// The edit of the next filter with templates.
    pub(crate) fn next(&mut self) -> Option<&'f HeaderEdit> {
        self.0.next()
    }
}

/// With what no URI may have in percent-encoding: quotes, spaces, control characters, and all that
/// is not ASCII; and with what ends a member of a list, or a parameter.
fn safe(text: &str) -> Cow<'_, str> {
    if text.bytes().all(request_id::ends_nothing) {
        return Cow::Borrowed(text);
    }
    let encoded = text.bytes().map(|byte| match request_id::ends_nothing(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    Cow::Owned(encoded.collect())
}

// === impl Values ===

impl Values<'_> {
    fn of(&self, variable: Variable) -> &str {
        match variable {
            Variable::ClientAddress => &self.address,
            Variable::ClientPort => &self.port,
            Variable::ServerName => &self.server_name,
            Variable::RequestId => self.request_id,
            Variable::Protocol => self.protocol,
            Variable::Scheme => self.scheme.as_str(),
            Variable::Host => &self.host,
            Variable::Method => self.method,
            Variable::Path => &self.path,
            Variable::ListenerName => self.listener,
            Variable::RouteNamespace => &self.rule.route.namespace,
            Variable::RouteName => &self.rule.route.name,
        }
    }

    fn fill(&self, templates: &HeaderTemplates) -> HeaderEdit {
        let fields = |fields: &[(HeaderName, Template)]| {
            let filled = fields.iter().map(|(name, template)| {
                (headers::copy_name(name), value(&template.filled(|variable| self.of(variable))))
            });
            filled.collect()
        };
        HeaderEdit { set: fields(&templates.set), add: fields(&templates.add), remove: Vec::new() }
    }
}

/// White space around a value is no part of it (RFC 9110 section 5.5): a variable may be empty.
fn value(filled: &str) -> HeaderValue {
    HeaderValue::from_bytes(filled.trim_ascii().as_bytes()).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_begin_and_end_with_what_they_are() {
        for (filled, expected) in [("by ", "by"), (" a b\t", "a b"), (" é", "é"), (" ", ""), ("a\nb", "")] {
            assert_eq!(value(filled), expected.as_bytes(), "{filled:?}");
        }
    }

    #[test]
    fn what_clients_choose_ends_nothing() {
        for (text, expected) in [
            ("/a/b;v=1,2", "/a/b%3Bv=1%2C2"),
            ("/a\"b", "/a%22b"),
            ("/%20", "/%20"),
            ("a b\r\nc: d", "a%20b%0D%0Ac:%20d"),
            ("é\0", "%C3%A9%00"),
        ] {
            assert_eq!(safe(text), expected);
        }
    }
}
