//! Names of header fields that objects write: which of them frame messages or belong to a
//! connection, which have a meaning of their own, and which are the agent's own, so that what is
//! written about them would be without effect, or would pass for the agent's word. Nothing here
//! knows which object a name is of.

use http::{HeaderName, header};
use portcullis_model::origin::{Claim, claim, is_alike};

use crate::Fault;

/// These frame messages or belong to one connection; a route that changed them could smuggle
/// requests.
const OF_CONNECTIONS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const CDN_LOOP: &str = "cdn-loop";
const X_REQUEST_ID: &str = "x-request-id";
/// The fields by which backends learn of a client's certificate. All others that claim to say so
/// are removed from every request.
const IDENTITY: [&str; 3] = ["client-cert", "client-cert-chain", "x-forwarded-client-cert"];

/// The name of a field that objects may be about.
///
/// # Errors
/// When it is no name, or the field is for the agent alone.
pub(crate) fn header_name(name: &str) -> Result<HeaderName, Fault> {
    let parsed = HeaderName::from_bytes(name.as_bytes());
    let name = parsed.map_err(|_| Fault::unsupported(format!("{name:?} is no header name")))?;
    if is_of_connection(&name) {
        return Err(Fault::unsupported(format!(
            "header {name} belongs to the connection and cannot be changed by a route"
        )));
    }
    if name == CDN_LOOP {
        return Err(Fault::unsupported(format!(
            "header {name} is what loops are noticed by, and cannot be changed by a route"
        )));
    }
    Ok(name)
}

/// Refuses fields of requests that backends believe, and that only the agent is to write.
pub(crate) fn check_written(name: &HeaderName) -> Result<(), Fault> {
    match claim(name.as_str()) {
        Some(Claim::Identity) => Err(Fault::unsupported(format!(
            "header {name} says whose certificate a client has shown, which only the gateway knows: choose another \
             name"
        ))),
        Some(Claim::Disguised) => Err(Fault::unsupported(format!(
            "header {name} reads as {} at some backends: write that",
            name.as_str().replace('_', "-")
        ))),
        Some(Claim::Plain | Claim::RequestId) | None => Ok(()),
    }
}

/// True for fields that frame messages or belong to a connection.
pub(crate) fn is_of_connection(name: &HeaderName) -> bool {
    OF_CONNECTIONS.contains(&name.as_str())
}

/// True for fields that frame messages, belong to a connection, have other credentials, or say
/// where a request comes from and by whose certificate: in whatever spelling.
pub(crate) fn is_reserved(name: &HeaderName) -> bool {
    const OTHERS: [HeaderName; 7] = [
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        header::COOKIE,
        header::FORWARDED,
        header::HOST,
        header::PROXY_AUTHORIZATION,
        header::VIA,
    ];
    let mut others = OTHERS.iter().map(HeaderName::as_str).chain(OF_CONNECTIONS).chain([CDN_LOOP]);
    claim(name.as_str()).is_some() || others.any(|reserved| is_alike(reserved, name.as_str()))
}

/// True for fields of which backends get what the agent writes, or nothing: what a client writes
/// there says nothing about it.
pub(crate) fn is_of_agent(name: &HeaderName) -> bool {
    let is_other = *name == header::FORWARDED || *name == header::VIA || *name == CDN_LOOP;
    is_other || is_of_connection(name) || claim(name.as_str()).is_some()
}

/// True for fields that are removed from every request, and that nothing writes again.
pub(crate) fn is_always_removed(name: &HeaderName) -> bool {
    match claim(name.as_str()) {
        Some(Claim::Disguised) => true,
        Some(Claim::Identity) => !IDENTITY.contains(&name.as_str()),
        Some(Claim::Plain | Claim::RequestId) | None => false,
    }
}

/// True for fields that may be the same in some of the requests that backends get, and others in
/// other ones.
pub(crate) fn tells_clients_apart(name: &HeaderName) -> bool {
    let is_void = is_of_connection(name) || is_always_removed(name);
    !is_void && *name != CDN_LOOP && *name != X_REQUEST_ID
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &'static str) -> HeaderName {
        HeaderName::from_static(text)
    }

    #[test]
    fn fields_of_connections_and_loops_are_for_no_object() {
        for text in OF_CONNECTIONS.into_iter().chain(["cdn-loop", "a b"]) {
            assert!(header_name(text).is_err(), "{text}");
        }
        for text in ["X-User", "x-forwarded-for", "Client-Cert", "host"] {
            assert_eq!(header_name(text).unwrap(), *text.to_lowercase(), "{text}");
        }
    }

    #[test]
    fn certificates_of_clients_are_told_by_the_gateway_alone() {
        for text in ["client-cert", "x-forwarded-client_cert", "ssl_client_verify", "x_forwarded_for"] {
            assert!(check_written(&name(text)).is_err(), "{text}");
        }
        for text in ["x-forwarded-for", "x-forwarded-proto", "x-request-id", "x-user"] {
            assert!(check_written(&name(text)).is_ok(), "{text}");
        }
    }

    #[test]
    fn fields_have_their_kinds() {
        for (text, of_agent, reserved, removed, apart) in [
            ("x-user", false, false, false, true),
            ("host", false, true, false, true),
            ("authorization", false, true, false, true),
            ("proxy_authorization", false, true, false, true),
            ("te", true, true, false, false),
            ("transfer_encoding", false, true, false, true),
            ("via", true, true, false, true),
            ("cdn-loop", true, true, false, false),
            ("forwarded", true, true, false, true),
            ("x-request-id", true, true, false, false),
            ("x-forwarded-for", true, true, false, true),
            ("x_forwarded_for", true, true, true, false),
            ("x-real-ip", true, true, false, true),
            ("client-cert", true, true, false, true),
            ("client_cert", true, true, true, false),
            ("ssl-client-s-dn", true, true, true, false),
        ] {
            let name = name(text);
            let kinds = (
                is_of_agent(&name),
                is_reserved(&name),
                is_always_removed(&name),
                tells_clients_apart(&name),
            );
            assert_eq!(kinds, (of_agent, reserved, removed, apart), "{text}");
        }
    }
}
