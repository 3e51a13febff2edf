//! BackendTLSPolicy: the Services to be spoken to in TLS, under what name, and by whose
//! certificate. A policy that cannot be followed protects all the same: such a Service is not
//! spoken to at all, since what a policy keeps from being read on the way must not be sent in
//! plaintext. Nothing here knows who refers to the Services.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use portcullis_api::types::backendtlspolicies::BackendTlsPolicy;
use portcullis_api::types::shared::{
    BackendTlsValidation, LocalObjectReference, PolicyTargetReference, SubjectAltName,
};
use portcullis_api::{Kind, ObjectKey, created, generation};
use portcullis_model::{Authorities, BackendTls, ClientIdentity, Encryption, ObjectName, PeerIdentity};
use rustls_pki_types::DnsName;

use super::authorities::{self, Anchors, Holders};
use super::declared::no_target;
use crate::options::is_foreign;
use crate::{Fault, Reason};

/// A Service, or one of its ports, that a policy names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) service: ObjectName,
    /// The name of a port; `None` for all of them.
    pub(crate) section: Option<Box<str>>,
}

/// A policy as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared {
    pub(crate) generation: i64,
    /// Older ones take precedence.
    pub(crate) created: i64,
    pub(crate) targets: Box<[Target]>,
    /// The faults of `targetRefs` that are none, and no other implementation's either.
    pub(crate) misnamed: Vec<Fault>,
    /// The TLS that it asks for.
    ///
    /// # Errors
    /// The fault for which nothing is sent to its targets.
    pub(crate) tls: Result<Arc<BackendTls>, Fault>,
    /// The fault of references to authorities that lead nowhere; others may be left.
    pub(crate) unresolved: Option<Fault>,
    /// The objects with authorities, there or not.
    pub(crate) holders: BTreeSet<ObjectKey>,
    /// Keys of `options` that are another implementation's.
    pub(crate) ignored: Vec<String>,
}

/// The say of policies on a port of a Service.
#[derive(Clone, Copy, Debug)]
pub enum TlsPolicy<'p> {
    /// No policy is about it.
    None,
    /// This one is in force.
    InForce(&'p ObjectName, &'p Result<Arc<BackendTls>, Fault>),
    /// Policies cannot be read, so that there may be one.
    Unknown,
}

/// The Services that a policy names, which are of its own namespace. Other kinds of backends are
/// none that a route of ours could be forwarded to.
fn targets(name: &ObjectName, policy: &BackendTlsPolicy) -> Box<[Target]> {
    let services = policy.spec.target_refs.iter().filter(|to| is_service(to));
    let target = services.map(|to| Target {
        service: ObjectName::new(name.namespace.clone(), to.name.as_str()),
        section: to.section_name.as_deref().filter(|section| !section.is_empty()).map(Box::from),
    });
    target.collect()
}

fn is_service(to: &PolicyTargetReference) -> bool {
    Kind::of(&to.group, &to.kind) == Some(Kind::Service)
}

/// True if another implementation may have such backends: the group is a domain, and none of those
/// whose kinds we know.
fn is_foreign_backend(to: &PolicyTargetReference) -> bool {
    to.group.contains('.') && Kind::ALL.iter().all(|known| known.group() != to.group)
}

fn misnamed(policy: &BackendTlsPolicy) -> Vec<Fault> {
    let references = policy.spec.target_refs.iter();
    let unknown = references.filter(|to| !is_service(to) && !is_foreign_backend(to));
    unknown.map(|to| no_target(to, Kind::BackendTlsPolicy.targets())).collect()
}

/// The fault of a reference to a port that gets nothing, because its policy cannot be followed;
/// `reader` is the namespace of the referrer, which may learn more of the policy if it is its own.
pub(crate) fn unserved(
    (policy, fault): (&ObjectName, &Fault),
    service: &ObjectName,
    port: u16,
    reader: &str,
) -> Fault {
    let what = if *policy.namespace == *reader {
        format!("BackendTLSPolicy {policy} is not valid ({})", fault.message)
    } else {
        format!("a BackendTLSPolicy in namespace {} is not valid", policy.namespace)
    };
    let message = format!("{what}; {}", nothing_sent(service, port));
    Fault::unresolved(Reason::InvalidBackendTLSPolicy, message)
}

/// The fault of a reference to a port of which it is not known whether it has to be spoken to in
/// TLS.
pub(crate) fn unknown(service: &ObjectName, port: u16) -> Fault {
    let message = format!(
        "the agents cannot read BackendTLSPolicies, and one may be about it; {}: give the agents the rights of the \
         chart's ClusterRole",
        nothing_sent(service, port)
    );
    Fault::unresolved(Reason::UnsupportedProtocol, message)
}

fn nothing_sent(service: &ObjectName, port: u16) -> String {
    format!(
        "nothing is sent to Service {service} port {port}, least of all in plaintext: requests for it are answered \
         with an error, and connections to it are refused"
    )
}

/// The fault of a target that is not there; `service` is the one of its name.
pub(crate) fn missing(target: &Target, service: Option<&Service>) -> Option<Fault> {
    let name = &target.service;
    let Some(service) = service else {
        let message = format!("targetRefs: Service {name} does not exist");
        return Some(Fault::not_accepted(Reason::TargetNotFound, message));
    };
    let section = target.section.as_deref()?;
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let names: Vec<_> = ports.filter_map(|port| port.name.as_deref()).collect();
    let there = match names.as_slice() {
        [] => "its port has no name: leave sectionName out".to_owned(),
        names => format!("there are {}", names.join(", ")),
    };
    let message = format!(
        "targetRefs: Service {name} has no port named {section}, so that the policy is without effect on it; {there}"
    );
    (!names.contains(&section)).then(|| Fault::not_accepted(Reason::TargetNotFound, message))
}

// === impl Declared ===

impl Declared {
    pub(crate) fn of(name: &ObjectName, policy: &BackendTlsPolicy, sources: Holders<'_>) -> Self {
        let Named { anchors, unresolved, holders } =
            Named::by(&policy.spec.validation, &name.namespace, sources);
        let keys = policy.spec.options.iter().flat_map(|options| options.keys());
        let (foreign, unknown): (Vec<_>, Vec<_>) = keys.map(String::as_str).partition(|key| is_foreign(key));
        let tls = match (&policy.spec.refused, &*unknown) {
            (Some(reasons), _) => Err(invalid(reasons.clone())),
            (None, []) => validation(&policy.spec.validation, anchors, unresolved.as_ref()),
            (None, _) => Err(invalid(format!(
                "options has {}, which is no option that we know: remove it; what an option was to forbid must not be \
                 done without it",
                unknown.join(", ")
            ))),
        };
        let tls = tls.map_err(|mut fault| {
            fault.message.push_str("; nothing is sent to the targets until that is right");
            fault
        });
        Self {
            generation: generation(&policy.metadata),
            created: created(&policy.metadata),
            targets: targets(name, policy),
            misnamed: misnamed(policy),
            tls: tls.map(Arc::new),
            unresolved,
            holders,
            ignored: foreign.into_iter().map(|key| format!("options {key}")).collect(),
        }
    }
}

/// The authorities that a validation names, and where they are.
pub(crate) struct Named {
    pub(crate) anchors: Anchors,
    /// The fault of references that lead nowhere.
    pub(crate) unresolved: Option<Fault>,
    /// The objects referred to, there or not.
    pub(crate) holders: BTreeSet<ObjectKey>,
}

impl Named {
    /// Those of an object in the namespace.
    pub(crate) fn by(validation: &BackendTlsValidation, namespace: &Arc<str>, sources: Holders<'_>) -> Self {
        let (mut holders, mut sets, mut faults) = (BTreeSet::new(), Vec::new(), Vec::new());
        for reference in validation.ca_certificate_refs.iter().flatten() {
            let LocalObjectReference { group, kind, name: holder } = reference;
            let holder = ObjectName::new(namespace.clone(), holder.as_str());
            let read = authorities::holder(group, kind, holder).and_then(|holder| {
                holders.insert(holder.clone());
                sources.read(&holder)
            });
            match read {
                Ok(read) => sets.push(read),
                Err(fault) => faults.push(fault),
            }
        }
        Self { anchors: authorities::union(&sets), unresolved: Fault::summary(faults), holders }
    }
}

/// "Only one of CACertificateRefs or WellKnownCACertificates may be specified, not both"; files in
/// a directory were never checked.
pub(crate) fn validation(
    validation: &BackendTlsValidation,
    anchors: Anchors,
    unresolved: Option<&Fault>,
) -> Result<BackendTls, Fault> {
    let are_given = validation.ca_certificate_refs.as_ref().is_some_and(|references| !references.is_empty());
    let well_known = validation.well_known_ca_certificates.as_deref().filter(|name| !name.is_empty());
    let authorities = match (are_given, well_known) {
        (true, None) if anchors.is_empty() => {
            let why = unresolved.map_or("they hold none", |fault| fault.message.as_str());
            return Err(Fault::not_accepted(
                Reason::NoValidCACertificate,
                format!("no certificate of an authority is left: {why}"),
            ));
        }
        (true, None) => Authorities::Given(anchors),
        (false, Some("System")) => Authorities::System,
        (false, Some(other)) => {
            return Err(invalid(format!("validation.wellKnownCACertificates is {other:?}: write System")));
        }
        (true, Some(_)) | (false, None) => {
            let message = "validation: write one of caCertificateRefs and wellKnownCACertificates";
            return Err(invalid(message.to_owned()));
        }
    };
    let server_name = dns_name("validation.hostname", &validation.hostname)?;
    let alternatives = validation.subject_alt_names.as_deref().unwrap_or_default();
    let identities = if alternatives.is_empty() {
        // "Hostname MUST be used for authentication ..., unless SubjectAltNames is specified."
        vec![PeerIdentity::Dns(server_name.clone())]
    } else {
        alternatives.iter().map(identity).collect::<Result<_, _>>()?
    };
    Ok(BackendTls {
        server_name,
        identities: identities.into(),
        authorities,
        client: ClientIdentity::Gateway,
    })
}

fn identity(name: &SubjectAltName) -> Result<PeerIdentity, Fault> {
    let field = "validation.subjectAltNames";
    match (name.r#type.as_str(), &name.hostname, &name.uri) {
        ("Hostname", Some(hostname), _) => match hostname.strip_prefix("*.") {
            Some(suffix) => {
                let suffix = dns_name(field, suffix)?;
                Ok(PeerIdentity::Dns(format!("*.{suffix}").into()))
            }
            None => dns_name(field, hostname).map(PeerIdentity::Dns),
        },
        ("URI", _, Some(uri)) if is_absolute_uri(uri) => Ok(PeerIdentity::Uri(uri.as_str().into())),
        ("URI", _, Some(uri)) => Err(invalid(format!("{field}: {uri:?} is no absolute URI"))),
        ("Hostname", None, _) => Err(invalid(format!("{field}: an entry of type Hostname has no hostname"))),
        ("URI", _, None) => Err(invalid(format!("{field}: an entry of type URI has no uri"))),
        (other, ..) => Err(invalid(format!("{field}: there is no type {other:?}; use Hostname or URI"))),
    }
}

/// A scheme and something behind it, all of it as a certificate can hold it.
fn is_absolute_uri(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else { return false };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && !rest.is_empty()
        && rest.bytes().all(|byte| byte.is_ascii_graphic())
}

/// "IPs are not allowed", and have no place in SNI.
fn dns_name(field: &str, text: &str) -> Result<Box<str>, Fault> {
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    let name = text.to_ascii_lowercase();
    if is_address || name.ends_with('.') || DnsName::try_from(name.as_str()).is_err() {
        return Err(invalid(format!("{field}: {text:?} is no DNS name")));
    }
    Ok(name.into())
}

fn invalid(message: String) -> Fault {
    Fault::not_accepted(Reason::Invalid, message)
}

// === impl TlsPolicy ===

impl TlsPolicy<'_> {
    /// The way to speak to the port by them.
    pub(crate) fn encryption(&self) -> Encryption {
        match self {
            Self::None => Encryption::None,
            Self::InForce(_, Ok(tls)) => Encryption::Tls(tls.clone()),
            Self::InForce(_, Err(_)) | Self::Unknown => Encryption::Unavailable,
        }
    }
}

// === impl Target ===

impl Target {
    /// True if it is about the port of that name.
    pub(crate) fn covers(&self, port: Option<&str>) -> bool {
        self.section.is_none() || self.section.as_deref() == port
    }
}

#[cfg(test)]
#[path = "backend_tls_tests.rs"]
mod tests;
