//! XBackends as rules use them: hosts outside the cluster (GEP-4894). Who they are and where is
//! decided elsewhere; here it is decided whether a route may use one, and what it speaks to it.

use portcullis_api::Kind;
use portcullis_model::{BackendName, BackendProtocol, ObjectName};

use super::ProtocolSource;
use super::kind::{Traffic, traffic};
use super::service_reference::Referred;
use crate::{Fault, Reason};

/// An XBackend as rules use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExternalUse {
    pub backend: ObjectName,
    /// Its own `protocol`, or the kind of route's.
    pub protocol: ProtocolSource,
}

/// The terms on which routes may use an XBackend.
#[derive(Clone, Copy, Debug)]
pub struct ExternalTerms {
    pub port: u16,
    /// The protocol that it asks for; `None`: whatever the route speaks.
    pub protocol: Option<BackendProtocol>,
}

// === impl ExternalUse ===

impl ExternalUse {
    /// The use that a route of `kind` makes of it.
    ///
    /// # Errors
    /// When the reference is not the route's to make, or names something else.
    pub(super) fn of(kind: Kind, reference: Referred<'_>, terms: ExternalTerms) -> Result<Self, Fault> {
        let backend = ObjectName::new(reference.namespace.clone(), reference.name.clone());
        if let Some(port) = reference.port.filter(|port| *port != terms.port) {
            let message = format!(
                "the backendRef to XBackend {backend} names port {port}, and the XBackend has {}: leave port out",
                terms.port
            );
            return Err(Fault::unresolved(Reason::BackendNotFound, message));
        }
        let Traffic::Requests { backend_protocol, .. } = traffic(kind) else {
            return Err(not_for(kind, &backend));
        };
        let protocol = match (terms.protocol, backend_protocol) {
            (None, BackendProtocol::H2c) => ProtocolSource::RouteKind,
            (Some(BackendProtocol::Http1), BackendProtocol::H2c) => {
                let message = format!(
                    "XBackend {backend} speaks HTTP/1.1, which {kind}s cannot forward to: write HTTP2"
                );
                return Err(Fault::unresolved(Reason::UnsupportedProtocol, message));
            }
            _ => ProtocolSource::Service,
        };
        Ok(Self { backend, protocol })
    }

    pub fn name(&self) -> BackendName {
        let plain = BackendName::external(&self.backend.namespace, &self.backend.name);
        match self.protocol {
            ProtocolSource::Service => plain,
            ProtocolSource::RouteKind => BackendName(format!("{plain}/h2c").into()),
        }
    }
}

/// "Backends MUST live in the same namespace as any route (or other parent resource) that
/// references them" (GEP-4894).
///
/// # Errors
/// When the reference leads to another namespace; whether there is such an XBackend is not said.
pub(super) fn in_own_namespace(reference: Referred<'_>) -> Result<(), Fault> {
    let Referred { owner, namespace, name, .. } = reference;
    if owner == namespace {
        return Ok(());
    }
    let message = format!(
        "backendRef {namespace}/{name}: an XBackend has to be in the namespace of the route, {owner}; no \
         ReferenceGrant changes that (GEP-4894)"
    );
    Err(Fault::unresolved(Reason::RefNotPermitted, message))
}

pub(super) fn not_for(kind: Kind, backend: &ObjectName) -> Fault {
    let message = format!("backendRef {backend}: {kind}s cannot forward to an XBackend, only to a Service");
    Fault::unresolved(Reason::InvalidKind, message)
}
