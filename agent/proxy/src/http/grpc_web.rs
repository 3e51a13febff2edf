//! gRPC-Web (`PROTOCOL-WEB.md` of gRPC), which browsers speak since they see no trailers: calls
//! whose trailers are the last message of the body, and whose body may be base64. Here is what a
//! client speaks, and the heads on both ways; the body of the request is decoded in
//! [`request`](crate::upstream::request), that of the response made in
//! [`body`](crate::http::body).

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use crate::core::head::Fields;
use crate::core::reason::Reason;
use crate::upstream::request::Outgoing;

const GRPC: &str = "application/grpc";
const WEB: &str = "application/grpc-web";
const TEXT: &str = "-text";

/// The formats of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcWebCall {
    request: Format,
    pub response: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Binary,
    /// Base64, in segments.
    Text,
}

// === impl GrpcWebCall ===

impl GrpcWebCall {
    /// `None` for a content type that is none of gRPC-Web's.
    pub(crate) fn of(fields: &impl Fields, content_type: &HeaderValue) -> Option<Self> {
        let (request, _) = parse(content_type.to_str().ok()?)?;
        let mut accepted = fields.get_all(&ACCEPT).filter_map(|types| std::str::from_utf8(types).ok());
        let response = accepted.find_map(|types| types.split(',').find_map(|it| parse(it.trim())));
        Some(Self { request, response: response.map_or(request, |(format, _)| format) })
    }

    /// Makes the request one of gRPC, but for `TE`. A backend that compresses the body as a whole
    /// leaves no place for trailers behind it.
    ///
    /// # Errors
    /// When its body is here already, and malformed.
    pub(crate) fn edit_request(self, outgoing: &mut Outgoing) -> Result<(), Reason> {
        let fields = &mut outgoing.parts.headers;
        if let Some(content_type) = fields.get(CONTENT_TYPE).and_then(of_grpc) {
            fields.insert(CONTENT_TYPE, content_type);
        }
        fields.remove(CONTENT_LENGTH);
        fields.remove(ACCEPT_ENCODING);
        match self.request {
            Format::Binary => Ok(()),
            Format::Text => outgoing.upload.decode_base64().map_err(|_| Reason::ClientBody),
        }
    }

    /// Makes the head of a response one of gRPC-Web. `None` if it is not of gRPC: then it goes as
    /// it is.
    pub(crate) fn edit_response(self, fields: &mut HeaderMap) -> Option<Format> {
        let content_type = fields.get(CONTENT_TYPE)?.to_str().ok()?;
        let rest = strip(content_type, GRPC).filter(|rest| is_end(rest))?;
        if fields.contains_key(CONTENT_ENCODING) {
            return None;
        }
        let text = match self.response {
            Format::Binary => "",
            Format::Text => TEXT,
        };
        let content_type = HeaderValue::from_str(&format!("{WEB}{text}{rest}")).ok()?;
        fields.insert(CONTENT_TYPE, content_type);
        fields.remove(CONTENT_LENGTH);
        Some(self.response)
    }
}

/// The format that a content type says, and what it says of the messages: `+proto`.
fn parse(content_type: &str) -> Option<(Format, &str)> {
    let rest = strip(content_type, WEB)?;
    let (format, rest) = match strip(rest, TEXT) {
        Some(rest) => (Format::Text, rest),
        None => (Format::Binary, rest),
    };
    is_end(rest).then_some((format, rest))
}

fn of_grpc(content_type: &HeaderValue) -> Option<HeaderValue> {
    let (_, rest) = parse(content_type.to_str().ok()?)?;
    HeaderValue::from_str(&format!("{GRPC}{rest}")).ok()
}

fn strip<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (begin, rest) = text.split_at_checked(prefix.len())?;
    begin.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// True for what may follow the name of a protocol.
fn is_end(rest: &str) -> bool {
    matches!(rest.bytes().next(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    #[test]
    fn clients_say_what_they_speak() {
        use Format::{Binary, Text};
        for (content_type, accepted, expected) in [
            ("application/grpc-web", &[][..], Some((Binary, Binary))),
            ("Application/GRPC-Web+proto", &["*/*"], Some((Binary, Binary))),
            ("application/grpc-web+json; charset=utf-8", &[], Some((Binary, Binary))),
            ("application/grpc-web\t; charset=utf-8", &[], Some((Binary, Binary))),
            ("application/grpc-web-text", &[], Some((Text, Text))),
            ("application/grpc-web-text+proto", &["application/grpc-web+proto"], Some((Text, Binary))),
            ("application/grpc-web", &["*/*", "a/b, application/grpc-web-text;q=1"], Some((Binary, Text))),
            ("application/grpc", &["application/grpc-web"], None),
            ("application/grpc+proto", &[], None),
            ("application/grpc-website", &[], None),
            ("application/grpc-web-texts", &[], None),
        ] {
            let accepted: Vec<_> = accepted.iter().map(|value| ("accept", *value)).collect();
            let content_type = HeaderValue::from_static(content_type);
            let call = GrpcWebCall::of(&PlainFields::of(&accepted), &content_type);
            assert_eq!(call.map(|call| (call.request, call.response)), expected, "{content_type:?}");
        }
    }

    #[test]
    fn only_responses_of_grpc_become_grpc_web() {
        for (given, encoding, response, expected) in [
            ("application/grpc", None, Format::Binary, Some("application/grpc-web")),
            ("application/grpc+proto", None, Format::Text, Some("application/grpc-web-text+proto")),
            ("application/grpc;x=y", None, Format::Binary, Some("application/grpc-web;x=y")),
            ("application/grpc-web+proto", None, Format::Binary, None),
            ("application/grpc", Some("gzip"), Format::Binary, None),
            ("text/html", None, Format::Binary, None),
        ] {
            let mut fields = HeaderMap::new();
            fields.insert(CONTENT_TYPE, given.parse().unwrap());
            fields.insert(CONTENT_LENGTH, HeaderValue::from_static("5"));
            if let Some(encoding) = encoding {
                fields.insert(CONTENT_ENCODING, encoding.parse().unwrap());
            }
            let before = fields.clone();
            let call = GrpcWebCall { request: Format::Binary, response };
            let format = call.edit_response(&mut fields);
            assert_eq!(format, expected.map(|_| response), "{given}");
            match expected {
                Some(expected) => {
                    assert_eq!(fields[CONTENT_TYPE], expected);
                    assert!(!fields.contains_key(CONTENT_LENGTH));
                }
                None => assert_eq!(fields, before),
            }
        }
    }
}
