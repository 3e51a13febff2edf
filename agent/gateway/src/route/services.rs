//! Services that rules, filters and policies refer to: whether they may be referred to, and how
//! they are spoken to.

use k8s_openapi::api::core::v1::Service;
use portcullis_api::Kind;
use portcullis_model::ObjectName;

use super::BackendUse;
use super::backend::port_name;
use super::service_reference::Referred;
use crate::policy::backend_tls::{self, TlsPolicy};
use crate::{Fault, Reason};

/// The objects that references to Services are looked up in.
pub trait Services {
    fn service(&self, name: &ObjectName) -> Option<&Service>;
    /// The Gateway whose agents answer at the Service themselves.
    fn served_gateway(&self, service: &Service) -> Option<ObjectName>;
    /// True if objects of `kind` in `namespace` may refer to the Service: always within a
    /// namespace, else by ReferenceGrant.
    fn permits(&self, kind: Kind, namespace: &str, service: &ObjectName) -> bool;
    /// The policy by which the port of that name is spoken to in TLS, if there is one.
    fn tls_policy(&self, service: &ObjectName, port: Option<&str>) -> TlsPolicy<'_>;
}

/// A backend that may be forwarded to.
pub(super) struct Target {
    pub(super) used: BackendUse,
    /// True if a policy is about it.
    pub(super) has_policy: bool,
    /// The fault for which it gets only what is passed on as it came.
    pub(super) tls_fault: Option<Fault>,
}

/// The backend that an object of kind `from` refers to, spoken to as routes of `speaks_as` do.
///
/// # Errors
/// When the reference leads nowhere, or is not permitted.
pub(super) fn find(
    from: Kind,
    reference: Referred<'_>,
    speaks_as: Kind,
    services: &(impl Services + ?Sized),
) -> Result<Target, Fault> {
    let name = reference.service().ok_or_else(|| unknown_kind(reference))?;
    let port = reference.port.ok_or_else(|| {
        Fault::unresolved(
            Reason::BackendNotFound,
            format!("the backendRef to Service {name} names no port: add one"),
        )
    })?;
    // Permission first: without it, not even whether the Service exists is reported.
    if !services.permits(from, reference.owner, &name) {
        return Err(not_permitted(from, reference.owner, &name));
    }
    let service = services.service(&name).ok_or_else(|| {
        Fault::unresolved(Reason::BackendNotFound, format!("Service {name} does not exist"))
    })?;
    if let Some(gateway) = services.served_gateway(service) {
        return Err(leads_back(&name, &gateway));
    }
    let policy = services.tls_policy(&name, port_name(speaks_as, service, port));
    let tls_fault = match policy {
        TlsPolicy::None | TlsPolicy::InForce(_, Ok(_)) => None,
        TlsPolicy::InForce(by, Err(fault)) => {
            Some(backend_tls::unserved((by, fault), &name, port, reference.owner))
        }
        TlsPolicy::Unknown => Some(backend_tls::unknown(&name, port)),
    };
    let has_policy = matches!(policy, TlsPolicy::InForce(..));
    let used = BackendUse::of(speaks_as, name, service, port, &policy.encryption())?;
    Ok(Target { used, has_policy, tls_fault })
}

/// The backend that an agent sends requests of its own to, because an object of kind `from` refers
/// to it.
///
/// # Errors
/// When the reference leads nowhere, or is not permitted.
pub(crate) fn find_for_requests(
    from: Kind,
    reference: Referred<'_>,
    services: &impl Services,
) -> Result<BackendUse, Fault> {
    find(from, reference, Kind::HttpRoute, services)?.for_requests()
}

// === impl Target ===

impl Target {
    pub(super) fn for_requests(self) -> Result<BackendUse, Fault> {
        self.tls_fault.map_or(Ok(self.used), Err)
    }
}

fn unknown_kind(reference: Referred<'_>) -> Fault {
    let Referred { group, kind, namespace, name, .. } = reference;
    let message = if kind == Kind::Service.as_str() {
        format!(
            "backendRef {namespace}/{name} is of group {group:?}, where there is no Service: leave group out"
        )
    } else {
        format!(
            "backendRef {namespace}/{name} is of kind {kind:?} in group {group:?}; only Service is supported"
        )
    };
    Fault::unresolved(Reason::InvalidKind, message)
}

fn leads_back(service: &ObjectName, gateway: &ObjectName) -> Fault {
    let message = format!(
        "Service {service} is Gateway {gateway}'s own, which the agents serve: requests would come back to them; refer to the \
         Services behind it"
    );
    Fault::unresolved(Reason::RefNotPermitted, message)
}

pub(crate) fn not_permitted(kind: Kind, namespace: &str, to: &ObjectName) -> Fault {
    let kind = kind.as_str();
    let kinds = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
    let message = format!(
        "a ReferenceGrant in namespace {} has to allow {kinds} of namespace {namespace} to refer to Service {}",
        to.namespace, to.name
    );
    Fault::unresolved(Reason::RefNotPermitted, message)
}
