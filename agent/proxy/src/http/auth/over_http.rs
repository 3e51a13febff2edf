//! External auth over HTTP: the service gets the head of the request, and 200 lets it pass.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use portcullis_model::{FieldNames, HttpAuth};

use crate::core::origin;
use crate::http::auth::{Consent, Question, Verdict};
use crate::http::change::{self, Change};
use crate::http::headers::named_by_connection;
use crate::upstream::attempt::UpstreamResponse;

/// The question, without its body. `None` if the path cannot be asked about.
///
/// "The following headers must always be sent": `Host`, method and path, `Content-Length`,
/// `Authorization`; and what shows that the request has come by here.
pub(super) fn request(auth: &HttpAuth, question: &Question<'_>) -> Option<Request<()>> {
    let Question { fields, .. } = question;
    let mut asked = HeaderMap::new();
    for name in auth.request.iter().chain([&header::AUTHORIZATION]).filter(|name| is_told(name)) {
        for value in fields.get_all(name) {
            asked.append(name.clone(), value.clone());
        }
    }
    asked.insert(header::HOST, question.authority.clone());
    // "The length sent must be correct for the actual request to the external authorization
    // server".
    let length = question.body.as_ref().map_or(0, |body| body.len());
    asked.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    question.sign(&mut asked);
    let mut request = Request::new(());
    *request.method_mut() = Method::clone(question.method);
    *request.uri_mut() = format!("{}{}", auth.prefix, question.target).parse().ok()?;
    *request.headers_mut() = asked;
    Some(request)
}

/// True for fields that a service may get of the request. What there is of the client's certificate
/// is the gateway's own word.
fn is_told(name: &HeaderName) -> bool {
    !change::is_own(name) || origin::claim(name.as_str()).is_some()
}

/// "Each backend must respond with a `200` status code … on a successful authorization. Any other
/// code is considered an authorization failure." What would not look like one to the client, or is
/// the service's own trouble, is not passed on.
pub(super) fn verdict(auth: &HttpAuth, response: UpstreamResponse) -> Verdict {
    match response.status() {
        StatusCode::OK => {
            let request = changes(&auth.response, response.headers());
            Verdict::Allowed(Consent { request, ..Consent::default() }, Some(response.into_body()))
        }
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => Verdict::DeniedBy(response),
        status if status.is_client_error() => Verdict::DeniedBy(response),
        status if status.is_success() || status.is_redirection() => Verdict::Denied,
        _ => Verdict::Failed("the auth service answered with an error"),
    }
}

/// The fields of the answer that the backend gets. Those that are listed come from the service and
/// from no client, even if the answer lacks them. "If this list is empty, then all headers from the
/// authorization server except Authority or Host must be copied": but for what describes the
/// answer's own content.
fn changes(allowed: &FieldNames, answer: &HeaderMap) -> Vec<Change> {
    let values = |name| answer.get_all(name).iter().cloned();
    match allowed {
        FieldNames::Only(names) => names.iter().flat_map(|name| Change::set(name, values(name))).collect(),
        FieldNames::All => {
            let of_connection = named_by_connection(answer);
            let is_left_out = |name: &HeaderName| {
                change::is_own(name) || of_connection.contains(name) || name.as_str().starts_with("content-")
            };
            let names = answer.keys().filter(|name| !is_left_out(name));
            names.flat_map(|name| Change::set(name, values(name))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_answers_connection_go_no_further() {
        let fields = [("x-user", "ann"), ("connection", "x-hop"), ("x-hop", "1"), ("content-type", "a/b")];
        let fields =
            fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut request = HeaderMap::new();
        for change in changes(&FieldNames::All, &HeaderMap::from_iter(fields)) {
            change.apply(&mut request);
        }
        assert_eq!(
            request,
            HeaderMap::from_iter([(HeaderName::from_static("x-user"), HeaderValue::from_static("ann"))])
        );
    }

    #[test]
    fn services_are_told_of_certificates_and_of_no_connection() {
        for (name, expected) in [
            ("cookie", true),
            ("x-forwarded-for", true),
            ("client-cert", true),
            ("x-forwarded-client-cert", true),
            ("cdn-loop", false),
            ("connection", false),
            ("content-length", false),
        ] {
            assert_eq!(is_told(&HeaderName::from_static(name)), expected, "{name}");
        }
    }
}
