//! CORS filters at work: the answer to a preflight request, and the fields by which a browser tells
//! whether a page may read a response. Nothing here depends on the parser that heads come from.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN, VARY,
};
use http::{HeaderValue, Method, StatusCode};
use portcullis_model::{AllowedNames, AllowedOrigins, Cors};

use crate::core::head::{FieldName, Fields, FieldsMut, Head};
use crate::http::answer::Answer;
use crate::http::headers::copy_value;

/// The prefix of all names that CORS gives a meaning in responses.
const PREFIX: &[u8] = b"access-control-";
const ANY: HeaderValue = HeaderValue::from_static("*");

/// A request to which a CORS filter applies.
pub(crate) struct CrossOrigin<'s> {
    filter: &'s Cors,
    /// `Access-Control-Allow-Origin`, for a request from a page that may read the response.
    allowed: Option<HeaderValue>,
}

/// The question of a browser whether a page may send a request.
pub(crate) struct Preflight {
    /// Of the request.
    pub method: Method,
    /// The names of fields that it would have, as they came.
    headers: Option<HeaderValue>,
}

// === impl CrossOrigin ===

impl<'s> CrossOrigin<'s> {
    pub(crate) fn of(filter: &'s Cors, fields: &impl Fields) -> Self {
        let mut origins = fields.get_all(&ORIGIN);
        let origin = origins.next().filter(|origin| filter.origins.allow(origin));
        let allowed = match (origin, origins.next()) {
            (Some(_), None) if filter.origins == AllowedOrigins::Any && !filter.has_credentials() => {
                Some(ANY)
            }
            (Some(origin), None) => HeaderValue::from_bytes(origin).ok(),
            _ => None,
        };
        Self { filter, allowed }
    }

    /// Makes a response say what the filter says, and nothing of what the backend says about the
    /// same: "a Gateway API implementation is expected to be the final authority" (GEP-1767).
    pub(crate) fn edit(&self, fields: &mut impl FieldsMut) {
        fields.remove_if(|name| name.as_bytes().starts_with(PREFIX));
        vary_by_origin(fields);
        self.allow(fields);
    }

    /// The answer to a preflight request. Pages that may not send the request are told nothing:
    /// "the gateway returns 204/200 response but doesn't set the relevant cross-origin response
    /// headers" (HTTPCORSFilter).
    pub(crate) fn answer(&self, asked: &Preflight) -> Answer {
        let mut answer = Answer::new(Bytes::new());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        let fields = answer.headers_mut();
        for name in [ORIGIN, ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_REQUEST_HEADERS] {
            fields.append(VARY, HeaderValue::from(name));
        }
        if self.allowed.is_none() {
            return answer;
        }
        self.allow(fields);
        let method = HeaderValue::from_str(asked.method.as_str()).ok();
        for (name, allowed, requested) in [
            (ACCESS_CONTROL_ALLOW_METHODS, &self.filter.methods, &method),
            (ACCESS_CONTROL_ALLOW_HEADERS, &self.filter.headers, &asked.headers),
        ] {
            let value = match allowed {
                AllowedNames::None => None,
                AllowedNames::Listed(names) => Some(copy_value(names)),
                // "The gateway must not return `*`", which would be a name.
                AllowedNames::Any if self.filter.has_credentials() => requested.clone(),
                AllowedNames::Any => Some(ANY),
            };
            if let Some(value) = value {
                fields.insert(name, value);
            }
        }
        fields.insert(ACCESS_CONTROL_MAX_AGE, self.filter.max_age.into());
        answer
    }

    fn allow(&self, fields: &mut impl FieldsMut) {
        let Some(allowed) = &self.allowed else { return };
        fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed.clone());
        if self.filter.has_credentials() {
            fields.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        if let Some(names) = &self.filter.expose {
            fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, copy_value(names));
        }
    }
}

/// Has caches keep the responses to pages of different origins apart.
fn vary_by_origin(fields: &mut impl FieldsMut) {
    let is_it = |name: &[u8]| name == b"*" || name.eq_ignore_ascii_case(b"origin");
    let mut names = fields.get_all(&VARY).flat_map(|names| names.split(|b| *b == b','));
    if !names.any(|name| is_it(name.trim_ascii())) {
        drop(names);
        fields.append(VARY, HeaderValue::from_static("Origin"));
    }
}

// === impl Preflight ===

impl Preflight {
    /// "A CORS-preflight request is a CORS request that checks to see if the CORS protocol is
    /// understood": OPTIONS with `Origin` and `Access-Control-Request-Method`.
    pub(crate) fn of(head: &impl Head) -> Option<Self> {
        if *head.method() != Method::OPTIONS {
            return None;
        }
        let fields = head.fields();
        fields.get(&ORIGIN)?;
        let method = Method::from_bytes(fields.get(&ACCESS_CONTROL_REQUEST_METHOD)?).ok()?;
        let headers = fields.copy(&ACCESS_CONTROL_REQUEST_HEADERS).filter(|names| {
            names
                .as_bytes()
                .split(|b| *b == b',')
                .all(|name| HeaderName::from_bytes(name.trim_ascii()).is_ok())
        });
        Some(Self { method, headers })
    }
}
