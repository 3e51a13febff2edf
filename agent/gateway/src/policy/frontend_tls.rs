//! `tls.frontend` of Gateways: the certificates that clients have to show where TLS ends. Those of
//! the Gateway that an object is attached to add up with its own. What cannot be followed lets no
//! client in. Nothing here knows which listeners there are.

use portcullis_api::types::gateways::Gateway;
use portcullis_api::types::shared::{FrontendTlsValidation, NamespacedObjectReference};
use portcullis_api::{Kind, ObjectKey, Objects, Scope};
use portcullis_model::{ClientCertificates, ObjectName};

use super::authorities::{Anchors, Holders};
use super::{FrontendValidation, Policies, authorities};
use crate::{Fault, Grants, Reason};

/// `FrontendValidationModeType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AllowValidOnly,
    AllowInsecureFallback,
}

/// The certificates that clients of a listener have to show, as its status has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Clients {
    pub(crate) certificates: ClientCertificates,
    /// The faults of references; the listener works with what was resolved.
    pub(crate) unresolved: Vec<Fault>,
    /// The fault for which it does not, and lets no client in.
    pub(crate) refusal: Option<Fault>,
}

/// The validation by one Gateway.
struct Resolved {
    mode: Mode,
    anchors: Anchors,
    unresolved: Vec<Fault>,
    refusal: Option<Fault>,
}

// === impl Clients ===

impl Clients {
    /// As the policies of a listener demand; `reader` is the namespace of the object that the
    /// listener is of, whose owner is told no more than concerns them.
    pub(crate) fn of(policies: &Policies<'_>, reader: &str, sources: Holders<'_>) -> Self {
        let mut clients = Self::default();
        let (mut required, mut is_asked) = (Vec::new(), false);
        for policy in &policies.frontend_validation {
            let resolved = Resolved::of(policy, sources);
            let told = |fault: Fault| told_to(reader, policy.gateway, fault);
            clients.unresolved.extend(resolved.unresolved.into_iter().map(told));
            clients.refusal = clients.refusal.or(resolved.refusal.map(told));
            is_asked = true;
            if resolved.mode == Mode::AllowValidOnly {
                required.push(resolved.anchors);
            }
        }
        clients.certificates = match (required.is_empty(), is_asked) {
            (false, _) => ClientCertificates::Required(required.into()),
            (true, true) => ClientCertificates::Any,
            (true, false) => ClientCertificates::NotAsked,
        };
        clients
    }
}

/// True if a Gateway lets clients in whose certificates are not valid, on some port.
pub(crate) fn is_insecure(gateway: &Gateway) -> bool {
    let mut modes = validations(gateway).map(mode);
    modes.any(|mode| matches!(mode, Ok(Mode::AllowInsecureFallback)))
}

/// The ports that `perPort` names.
pub(crate) fn ports(gateway: &Gateway) -> impl Iterator<Item = i32> {
    let frontend = gateway.spec.tls.iter().flat_map(|tls| &tls.frontend);
    frontend.flat_map(|frontend| frontend.per_port.iter().flatten()).map(|entry| entry.port)
}

/// The objects that a Gateway's authorities are read from, as far as they are of kinds that hold
/// any.
pub(crate) fn holders(gateway: &Gateway) -> impl Iterator<Item = ObjectKey> {
    let references = validations(gateway).flat_map(|validation| &validation.ca_certificate_refs);
    references.filter_map(|reference| holder(gateway, reference).ok())
}

fn validations(gateway: &Gateway) -> impl Iterator<Item = &FrontendTlsValidation> {
    let frontend = gateway.spec.tls.iter().flat_map(|tls| &tls.frontend);
    let configurations = frontend.flat_map(|frontend| {
        std::iter::once(&frontend.default).chain(frontend.per_port.iter().flatten().map(|port| &port.tls))
    });
    configurations.filter_map(|configuration| configuration.validation.as_ref())
}

fn namespace(gateway: &Gateway) -> &str {
    gateway.metadata.namespace.as_deref().unwrap_or("default")
}

/// The owner of another namespace's listener can do nothing about the Gateway's references, and may
/// not see what they name.
fn told_to(reader: &str, gateway: &Gateway, fault: Fault) -> Fault {
    if namespace(gateway) == reader {
        return fault;
    }
    let message = "clients of the listener need certificates by the Gateway's tls.frontend, which cannot be followed: \
        its owner has to mend it";
    Fault::new(fault.condition, fault.reason, message)
}

// === impl Resolved ===

impl Resolved {
    fn of(
        &FrontendValidation { gateway, validation }: &FrontendValidation<'_>,
        sources: Holders<'_>,
    ) -> Self {
        let (mut sets, mut unresolved) = (Vec::new(), Vec::new());
        for reference in &validation.ca_certificate_refs {
            match permitted(gateway, reference, sources.objects).and_then(|key| sources.read(&key)) {
                Ok(read) => sets.push(read),
                Err(fault) => unresolved.push(fault.within("tls.frontend")),
            }
        }
        let (mode, anchors) = (mode(validation), authorities::union(&sets));
        let refusal = mode.as_ref().err().cloned().or_else(|| {
            let message = "clients need certificates by tls.frontend, and none of its caCertificateRefs leads to an \
                authority's: no client is let in";
            anchors.is_empty().then(|| Fault::not_accepted(Reason::NoValidCACertificate, message))
        });
        Self { mode: mode.unwrap_or(Mode::AllowValidOnly), anchors, unresolved, refusal }
    }
}

/// An unknown mode refuses: what it was to demand must not be left out.
fn mode(validation: &FrontendTlsValidation) -> Result<Mode, Fault> {
    match validation.mode.as_deref() {
        None | Some("" | "AllowValidOnly") => Ok(Mode::AllowValidOnly),
        Some("AllowInsecureFallback") => Ok(Mode::AllowInsecureFallback),
        Some(other) => Err(Fault::unsupported(format!(
            "tls.frontend: there is no mode {other:?}; use AllowValidOnly or AllowInsecureFallback"
        ))),
    }
}

fn permitted(
    gateway: &Gateway,
    reference: &NamespacedObjectReference,
    objects: &Objects,
) -> Result<ObjectKey, Fault> {
    let key = holder(gateway, reference)?;
    // What is of the cluster is for all of its namespaces.
    if key.kind.scope() == Scope::Cluster {
        return Ok(key);
    }
    let from = namespace(gateway);
    match Grants::new(objects).check(Kind::Gateway, from, key.kind, key.name.clone()) {
        Some(_) => Ok(key),
        None => {
            let message = format!(
                "caCertificateRefs: a ReferenceGrant in namespace {} has to allow Gateways of namespace {from} to refer \
                 to {key}",
                key.name.namespace
            );
            Err(Fault::unresolved(Reason::RefNotPermitted, message))
        }
    }
}

fn holder(gateway: &Gateway, reference: &NamespacedObjectReference) -> Result<ObjectKey, Fault> {
    let NamespacedObjectReference { group, kind, name, .. } = reference;
    let namespace = reference.namespace.as_deref().unwrap_or_else(|| namespace(gateway));
    let held = authorities::holder(group, kind, ObjectName::new(namespace, name.as_str()));
    held.map_err(|fault| fault.because(Reason::InvalidCACertificateKind))
}

#[cfg(test)]
#[path = "frontend_tls_tests.rs"]
mod tests;
