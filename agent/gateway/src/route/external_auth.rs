//! `ExternalAuth` (GEP-1494), of rules, backendRefs and listeners alike. Whatever is not understood
//! of it is a fault: a request that it should have kept out must not pass.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::{HeaderName, header};
use portcullis_api::Kind;
use portcullis_api::types::shared::{
    BackendObjectReference, ExternalAuth as Written, ExternalAuthGrpc, ExternalAuthHttp,
};
use portcullis_model::origin::is_alike;
use portcullis_model::{AuthProtocol, BackendName, ExternalAuth, FieldNames, HttpAuth};

use super::BackendUse;
use super::matches::{check_path, unknown_type};
use super::service_reference::ServiceReference;
use super::services::{self, Services};
use crate::Fault;
use crate::field_names::{check_written, header_name, is_always_removed};

/// A filter whose service is yet to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedAuth {
    /// The number of filters in front of it that refer to nothing.
    pub at: usize,
    pub service: ServiceReference,
    protocol: AuthProtocol,
    body: Option<NonZeroU32>,
}

/// By the CRD, of a list of names.
const MOST_NAMES: usize = 64;
/// Ours: bodies are held in memory until the service has answered.
const LARGEST_BODY: i32 = 1 << 20;

// === impl ParsedAuth ===

impl ParsedAuth {
    /// One that an object in `namespace` has.
    pub(crate) fn parse(written: &Written, at: usize, namespace: &Arc<str>) -> Result<Self, Fault> {
        let protocol = match (written.protocol.as_str(), &written.http, &written.grpc) {
            ("HTTP", http, None) => AuthProtocol::Http(http_auth(http.as_ref())?),
            ("GRPC", None, grpc) => AuthProtocol::Grpc { request: grpc_names(grpc.as_ref())? },
            ("HTTP", _, Some(_)) => return Err(Fault::unsupported("grpc is for protocol GRPC: remove it")),
            ("GRPC", Some(_), _) => return Err(Fault::unsupported("http is for protocol HTTP: remove it")),
            (other, ..) => return Err(unknown_type(other, "HTTP or GRPC").within("protocol")),
        };
        let body = written.forward_body.as_ref().and_then(|body| body.max_size).unwrap_or_default();
        let size = u32::try_from(body).ok().filter(|_| body <= LARGEST_BODY);
        let size = size.ok_or_else(|| {
            Fault::unsupported(format!("forwardBody.maxSize {body} is not between 0 and {LARGEST_BODY}"))
        })?;
        let service = service(&written.backend_ref, namespace).map_err(|fault| fault.within("backendRef"))?;
        Ok(Self { at, service, protocol, body: NonZeroU32::new(size) })
    }

    /// The kind of route that would speak to the service as this filter does.
    pub(super) fn speaks_as(&self) -> Kind {
        match self.protocol {
            AuthProtocol::Http(_) => Kind::HttpRoute,
            AuthProtocol::Grpc { .. } => Kind::GrpcRoute,
        }
    }

    pub(super) fn resolved(&self, backend: BackendName) -> ExternalAuth {
        ExternalAuth { backend, protocol: self.protocol.clone(), body: self.body }
    }

    /// With the service that an object of kind `from` refers to by it.
    ///
    /// # Errors
    /// When the reference leads nowhere, or is not permitted.
    pub(crate) fn resolve(
        &self,
        from: Kind,
        services: &(impl Services + ?Sized),
    ) -> Result<(ExternalAuth, BackendUse), Fault> {
        let target = services::find(from, self.service.referred(), self.speaks_as(), services)?;
        let used = target.for_requests()?;
        Ok((self.resolved(used.name()), used))
    }
}

fn service(reference: &BackendObjectReference, namespace: &Arc<str>) -> Result<ServiceReference, Fault> {
    Ok(ServiceReference {
        group: reference.group.as_deref().unwrap_or_default().into(),
        kind: reference.kind.as_deref().unwrap_or("Service").into(),
        owner: namespace.clone(),
        namespace: reference.namespace.as_deref().map_or_else(|| namespace.clone(), Arc::from),
        name: reference.name.as_str().into(),
        port: reference.port.map(port).transpose()?,
    })
}

fn port(port: i32) -> Result<u16, Fault> {
    let number = u16::try_from(port).ok().filter(|port| *port > 0);
    number.ok_or_else(|| Fault::unsupported(format!("port {port} is not between 1 and 65535")))
}

fn http_auth(written: Option<&ExternalAuthHttp>) -> Result<HttpAuth, Fault> {
    let Some(written) = written else {
        return Ok(HttpAuth { prefix: "".into(), request: Vec::new(), response: FieldNames::All });
    };
    let path = written.path.as_deref().unwrap_or_default();
    if !path.is_empty() {
        check_prefix(path).map_err(|fault| fault.within("http.path"))?;
    }
    let request = request_names(written.allowed_headers.as_deref());
    let mut request = request.map_err(|fault| fault.within("http.allowedHeaders"))?;
    // It is always sent.
    request.retain(|name| *name != header::AUTHORIZATION);
    let response = names(written.allowed_response_headers.as_deref()).and_then(|response| {
        if response.contains(&header::HOST) {
            return Err(Fault::unsupported("header host is not for an auth service to set: remove it"));
        }
        response.iter().try_for_each(check_written)?;
        match alike(&response) {
            // The one that is written later takes the other's place.
            Some((one, other)) => Err(Fault::unsupported(format!(
                "headers {one} and {other} read as one at some backends: remove one"
            ))),
            None => Ok(response),
        }
    });
    let response = response.map_err(|fault| fault.within("http.allowedResponseHeaders"))?;
    let response = if response.is_empty() { FieldNames::All } else { FieldNames::Only(response) };
    Ok(HttpAuth { prefix: path.trim_end_matches('/').into(), request, response })
}

fn grpc_names(written: Option<&ExternalAuthGrpc>) -> Result<FieldNames, Fault> {
    let written = written.and_then(|grpc| grpc.allowed_headers.as_deref()).unwrap_or_default();
    let request = request_names(Some(written)).map_err(|fault| fault.within("grpc.allowedHeaders"))?;
    // "If this list is empty, then all headers must be sent."
    Ok(if written.is_empty() { FieldNames::All } else { FieldNames::Only(request) })
}

/// "Implementations MUST sanitize this input before using it directly": what normalising a path
/// would change is refused.
fn check_prefix(path: &str) -> Result<(), Fault> {
    const ESCAPES: [&str; 4] = ["%2e", "%2f", "%5c", "%00"];
    check_path(path)?;
    let lower = path.to_ascii_lowercase();
    match ESCAPES.iter().find(|escape| lower.contains(**escape)) {
        Some(escape) => Err(Fault::unsupported(format!("value {path:?} must not contain {escape}"))),
        None => Ok(()),
    }
}

/// Names of fields that the service gets. `Host` and `Content-Length` it has anyway, those of the
/// question.
fn request_names(written: Option<&[String]>) -> Result<Vec<HeaderName>, Fault> {
    let own =
        |name: &&String| name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case("content-length");
    let others: Vec<_> = written.unwrap_or_default().iter().filter(|name| !own(name)).cloned().collect();
    let names = names(Some(&others))?;
    match names.iter().find(|name| is_always_removed(name)) {
        Some(name) => Err(Fault::unsupported(format!(
            "header {name} is removed from every request, since clients could not be believed: remove it"
        ))),
        None => Ok(names),
    }
}

/// Two names that read alike, and are not the same.
fn alike(names: &[HeaderName]) -> Option<(&HeaderName, &HeaderName)> {
    let mut pairs =
        names.iter().enumerate().flat_map(|(at, one)| names[..at].iter().map(move |it| (it, one)));
    pairs.find(|(one, other)| is_alike(one.as_str(), other.as_str()))
}

fn names(written: Option<&[String]>) -> Result<Vec<HeaderName>, Fault> {
    let written = written.unwrap_or_default();
    if written.len() > MOST_NAMES {
        return Err(Fault::unsupported(format!("{} names; at most {MOST_NAMES} are allowed", written.len())));
    }
    let mut names = Vec::with_capacity(written.len());
    for name in written {
        let name = header_name(name)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(fields: Value) -> Result<ParsedAuth, Fault> {
        let mut written = json!({"protocol": "HTTP", "backendRef": {"name": "auth", "port": 80}});
        for (name, value) in fields.as_object().unwrap() {
            written[name] = value.clone();
        }
        ParsedAuth::parse(&serde_json::from_value(written).unwrap(), 0, &"shop".into())
    }

    fn http(fields: Value) -> HttpAuth {
        match parse(json!({"http": fields})).unwrap().protocol {
            AuthProtocol::Http(http) => http,
            AuthProtocol::Grpc { .. } => panic!("it is HTTP"),
        }
    }

    #[test]
    fn every_field_has_its_effect() {
        let defaults = HttpAuth { prefix: "".into(), request: Vec::new(), response: FieldNames::All };
        assert_eq!(http(json!({})), defaults);
        assert_eq!(&*http(json!({"path": "/verify/"})).prefix, "/verify");
        assert_eq!(&*http(json!({"path": "/"})).prefix, "");
        let named =
            json!({"allowedHeaders": ["Cookie", "X-A", "cookie", "Host", "Content-Length", "Authorization"]});
        assert_eq!(http(named).request, ["cookie", "x-a"]);
        let response =
            http(json!({"allowedResponseHeaders": ["X-User", "x-user", "Authorization"]})).response;
        assert_eq!(response.listed(), ["x-user", "authorization"]);
        let grpc = |fields: Value| parse(json!({"protocol": "GRPC", "grpc": fields})).unwrap().protocol;
        assert_eq!(grpc(json!({})), AuthProtocol::Grpc { request: FieldNames::All });
        let request = FieldNames::Only(vec![header::COOKIE]);
        assert_eq!(grpc(json!({"allowedHeaders": ["Cookie"]})), AuthProtocol::Grpc { request });
        for (body, expected) in [
            (json!({}), None),
            (json!({"maxSize": 0}), None),
            (json!({"maxSize": 1}), NonZeroU32::new(1)),
            (json!({"maxSize": LARGEST_BODY}), NonZeroU32::new(1 << 20)),
        ] {
            assert_eq!(parse(json!({"forwardBody": body})).unwrap().body, expected, "{body}");
        }
    }

    #[test]
    fn a_list_of_what_is_always_sent_is_no_empty_list() {
        let only_host = json!({"protocol": "GRPC", "grpc": {"allowedHeaders": ["Host"]}});
        let nothing = AuthProtocol::Grpc { request: FieldNames::Only(Vec::new()) };
        assert_eq!(parse(only_host).unwrap().protocol, nothing);
    }

    #[test]
    fn the_service_is_of_the_routes_namespace_and_may_be_of_another() {
        let own = parse(json!({})).unwrap().service;
        assert_eq!((&*own.owner, &*own.namespace, &*own.name, own.port), ("shop", "shop", "auth", Some(80)));
        let other = parse(json!({"backendRef": {"name": "auth", "namespace": "edge"}})).unwrap().service;
        assert_eq!((&*other.owner, &*other.namespace, other.port), ("shop", "edge", None));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let many: Vec<_> = (0..=MOST_NAMES).map(|number| format!("x-{number}")).collect();
        for (fields, expected) in [
            (json!({"protocol": "TCP"}), "protocol: type \"TCP\" is unknown: use HTTP or GRPC"),
            (json!({"grpc": {}}), "grpc is for protocol GRPC: remove it"),
            (json!({"protocol": "GRPC", "http": {}}), "http is for protocol HTTP: remove it"),
            (
                json!({"backendRef": {"name": "auth", "port": 0}}),
                "backendRef: port 0 is not between 1 and 65535",
            ),
            (json!({"forwardBody": {"maxSize": -1}}), "forwardBody.maxSize -1 is not between 0 and 1048576"),
            (
                json!({"forwardBody": {"maxSize": 1_048_577}}),
                "forwardBody.maxSize 1048577 is not between 0 and 1048576",
            ),
            (json!({"http": {"path": "verify"}}), "http.path: value \"verify\" must start with /"),
            (json!({"http": {"path": "/a/../b"}}), "http.path: value \"/a/../b\" must not contain /../"),
            (
                json!({"http": {"path": "/a/%2E%2e/b"}}),
                "http.path: value \"/a/%2E%2e/b\" must not contain %2e",
            ),
            (
                json!({"http": {"path": "/a?b"}}),
                "http.path: value \"/a?b\" has a character that no path can have",
            ),
            (json!({"http": {"allowedHeaders": ["a b"]}}), "http.allowedHeaders: \"a b\" is no header name"),
            (
                json!({"http": {"allowedHeaders": ["Upgrade"]}}),
                "http.allowedHeaders: header upgrade belongs to the connection and cannot be changed by a route",
            ),
            (
                json!({"http": {"allowedHeaders": ["CDN-Loop"]}}),
                "http.allowedHeaders: header cdn-loop is what loops are noticed by, and cannot be changed by a route",
            ),
            (
                json!({"protocol": "GRPC", "grpc": {"allowedHeaders": ["SSL-Client-Verify"]}}),
                "grpc.allowedHeaders: header ssl-client-verify is removed from every request, since clients could not be \
                 believed: remove it",
            ),
            (
                json!({"http": {"allowedResponseHeaders": ["X-Forwarded-Client-Cert"]}}),
                "http.allowedResponseHeaders: header x-forwarded-client-cert says whose certificate a client has shown, \
                 which only the gateway knows: choose another name",
            ),
            (
                json!({"http": {"allowedResponseHeaders": ["X_User", "X-User"]}}),
                "http.allowedResponseHeaders: headers x_user and x-user read as one at some backends: remove one",
            ),
            (
                json!({"http": {"allowedResponseHeaders": ["Host"]}}),
                "http.allowedResponseHeaders: header host is not for an auth service to set: remove it",
            ),
            (
                json!({"http": {"allowedResponseHeaders": ["Content-Length"]}}),
                "http.allowedResponseHeaders: header content-length belongs to the connection and cannot be changed by a route",
            ),
            (
                json!({"protocol": "GRPC", "grpc": {"allowedHeaders": [":path"]}}),
                "grpc.allowedHeaders: \":path\" is no header name",
            ),
            (
                json!({"http": {"allowedHeaders": many}}),
                "http.allowedHeaders: 65 names; at most 64 are allowed",
            ),
        ] {
            assert_eq!(parse(fields.clone()).unwrap_err().message, expected, "{fields}");
        }
    }
}
