//! XBackend (GEP-4894): hosts outside the cluster as backends. What one says is read here, and what
//! of it cannot be done is refused: nothing is sent to such a host. Which addresses its name has is
//! observed, and judged where endpoints are.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::types::shared::ObjectReference;
use portcullis_api::types::xbackends::{XBackend, XBackendTls};
use portcullis_api::{Kind, ObjectKey, created, generation};
use portcullis_model::{
    BackendProtocol, BackendTls, Certificate, ClientIdentity, Encryption, HostPattern, ObjectName,
};

use crate::listener::read_certificate;
use crate::policy::authorities::Holders;
use crate::policy::backend_tls::{Named, validation};
use crate::{ExternalRule, Fault, Reason};

/// An XBackend as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared {
    pub(crate) generation: i64,
    /// Of too many in a namespace, the older ones are served.
    pub(crate) created: i64,
    /// # Errors
    /// The fault for which nothing is sent to it.
    pub(crate) host: Result<ExternalHost, Fault>,
    /// The fault of references to authorities that lead nowhere; others may be left.
    pub(crate) unresolved: Option<Fault>,
    /// The objects with authorities and the client certificate, there or not.
    pub(crate) holders: BTreeSet<ObjectKey>,
}

/// A host, and how it is spoken to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExternalHost {
    /// In lower case.
    pub(crate) name: Arc<str>,
    pub(crate) port: u16,
    /// `None`: whatever the route speaks.
    pub(crate) protocol: Option<BackendProtocol>,
    pub(crate) encryption: Encryption,
}

/// "hostnames ending with .cluster.local are not allowed".
const CLUSTER_DOMAIN: &str = "cluster.local";

// === impl Declared ===

impl Declared {
    pub(crate) fn of(
        name: &ObjectName,
        backend: &XBackend,
        sources: Holders<'_>,
        rule: &ExternalRule,
    ) -> Self {
        let mut holders = BTreeSet::new();
        let mut unresolved = None;
        let tls = match &backend.spec.tls {
            Some(tls) => tls_of(name, tls, sources, &mut holders, &mut unresolved),
            None => Ok(None),
        };
        let host = host(backend, tls, rule).map_err(|mut fault| {
            fault.message.push_str("; nothing is sent to it");
            fault
        });
        let (generation, created) = (generation(&backend.metadata), created(&backend.metadata));
        Self { generation, created, host, unresolved, holders }
    }
}

fn host(
    backend: &XBackend,
    tls: Result<Option<BackendTls>, Fault>,
    rule: &ExternalRule,
) -> Result<ExternalHost, Fault> {
    let spec = &backend.spec;
    let external = match (spec.r#type.as_str(), &spec.external_hostname) {
        ("ExternalHostname", Some(external)) => external,
        ("ExternalHostname", None) => {
            return Err(invalid("type ExternalHostname needs externalHostname".to_owned()));
        }
        ("EndpointSelector", _) => {
            return Err(Fault::unsupported(
                "type EndpointSelector is not supported: refer to a Service with the same selector",
            ));
        }
        (other, _) => {
            return Err(Fault::unsupported(format!("type {other:?} is not supported; use ExternalHostname")));
        }
    };
    if spec.session_persistence.is_some() {
        return Err(invalid("sessionPersistence is for type EndpointSelector".to_owned()));
    }
    let name = host_name(&external.hostname)?;
    if !rule.allows_name(&name) {
        let message =
            format!("the agents' operator does not allow the external name {name} (--external-names)");
        return Err(Fault::not_accepted(Reason::NotAllowed, message));
    }
    let port = spec.port.number.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let port = port.ok_or_else(|| invalid("port.number has to be between 1 and 65535".to_owned()))?;
    let tls = tls?;
    let protocol = protocol(spec.protocol.as_deref(), tls.as_ref())?;
    let encryption = tls.map_or(Encryption::None, |tls| Encryption::Tls(Arc::new(tls)));
    Ok(ExternalHost { name, port, protocol, encryption })
}

/// "IP addresses are not allowed in this field."
fn host_name(written: &str) -> Result<Arc<str>, Fault> {
    let is_shorthand = written.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let name = match HostPattern::parse(written) {
        Ok(HostPattern::Exact(name)) if !is_shorthand => name,
        _ => {
            return Err(invalid(format!("externalHostname.hostname {written:?} is no DNS name of one host")));
        }
    };
    let is_clusters =
        name.strip_suffix(CLUSTER_DOMAIN).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if is_clusters || !name.contains('.') {
        let message = format!(
            "externalHostname.hostname {name} is no name of an external host: for what the cluster has, refer to a Service"
        );
        return Err(invalid(message));
    }
    Ok(name)
}

fn protocol(written: Option<&str>, tls: Option<&BackendTls>) -> Result<Option<BackendProtocol>, Fault> {
    match (written, tls) {
        // "HTTP (version negotiated via ALPN or implementation default)".
        (None | Some("HTTP"), _) => Ok(None),
        (Some("HTTP11"), _) | (Some("WSS"), Some(_)) => Ok(Some(BackendProtocol::Http1)),
        (Some("HTTP2"), Some(_)) | (Some("H2C"), None) | (Some("GRPC"), _) => Ok(Some(BackendProtocol::H2c)),
        (Some(protocol @ ("HTTP2" | "WSS")), None) => {
            Err(invalid(format!("protocol {protocol} needs TLS: set tls, or use another protocol")))
        }
        (Some("H2C"), Some(_)) => {
            Err(invalid("protocol H2C is without TLS: use HTTP2, or remove tls".to_owned()))
        }
        (Some(other), _) => Err(Fault::unsupported(format!(
            "protocol {other:?} is not supported; use HTTP, HTTP11, HTTP2, H2C, GRPC or WSS"
        ))),
    }
}

fn tls_of(
    name: &ObjectName,
    tls: &XBackendTls,
    sources: Holders<'_>,
    holders: &mut BTreeSet<ObjectKey>,
    unresolved: &mut Option<Fault>,
) -> Result<Option<BackendTls>, Fault> {
    let (validated, reference) = match (tls.mode.as_str(), &tls.validation, &tls.client_certificate_ref) {
        ("None", None, None) => return Ok(None),
        ("ServerOnly", Some(validated), None) => (validated, None),
        ("ClientAndServer", Some(validated), Some(reference)) => (validated, Some(reference)),
        ("None" | "ServerOnly" | "ClientAndServer", ..) => {
            let message = "tls: write validation if mode is not None, and clientCertificateRef if it is \
                           ClientAndServer";
            return Err(invalid(message.to_owned()));
        }
        (other, ..) => {
            return Err(Fault::unsupported(format!("tls.mode {other:?} is not supported; use ServerOnly")));
        }
    };
    let named = Named::by(validated, &name.namespace, sources);
    holders.extend(named.holders);
    let client = match reference {
        None => ClientIdentity::None,
        Some(reference) => {
            let secret = own_secret(name, reference)?;
            holders.insert(ObjectKey { kind: Kind::Secret, name: secret.clone() });
            ClientIdentity::Own(client_certificate(&secret, sources)?)
        }
    };
    let read = validation(validated, named.anchors, named.unresolved.as_ref());
    *unresolved = named.unresolved;
    read.map(|read| Some(BackendTls { client, ..read })).map_err(|fault| fault.within("tls"))
}

/// "Limited to secrets within their namespace for TLS configuration".
fn own_secret(backend: &ObjectName, reference: &ObjectReference) -> Result<ObjectName, Fault> {
    let group = reference.group.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or(Kind::Secret.as_str());
    if Kind::of(group, kind) != Some(Kind::Secret) {
        let message =
            format!("tls.clientCertificateRef: {kind:?} in group {group:?} is not supported; only Secret is");
        return Err(Fault::unresolved(Reason::InvalidKind, message));
    }
    if reference.namespace.as_deref().is_some_and(|namespace| *namespace != *backend.namespace) {
        let message =
            format!("tls.clientCertificateRef: the Secret has to be in namespace {}", backend.namespace);
        return Err(Fault::unresolved(Reason::RefNotPermitted, message));
    }
    Ok(ObjectName::new(backend.namespace.clone(), reference.name.as_str()))
}

fn client_certificate(secret: &ObjectName, sources: Holders<'_>) -> Result<Certificate, Fault> {
    let invalid = |what: String| {
        let message = format!("tls.clientCertificateRef: Secret {secret} {what}");
        Fault::unresolved(Reason::InvalidClientCertificateRef, message)
    };
    let found = sources.objects.secrets.get(secret).ok_or_else(|| invalid("does not exist".to_owned()))?;
    read_certificate(found).map_err(|error| invalid(error.to_string()))
}

fn invalid(message: String) -> Fault {
    Fault::not_accepted(Reason::Invalid, message)
}
