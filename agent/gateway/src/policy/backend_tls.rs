//! BackendTLSPolicy: the Services to be spoken to in TLS, with what certificate. That is not
//! supported yet, so such a backend is not spoken to at all: what a policy keeps from being read on
//! the way must not be sent in plaintext. Nothing here knows who refers to the Services.

use k8s_openapi::api::core::v1::Service;
use portcullis_api::Kind;
use portcullis_api::types::backendtlspolicies::BackendTlsPolicy;
use portcullis_model::ObjectName;

use crate::{Fault, Reason};

/// A Service, or one of its ports, that a policy names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) service: ObjectName,
    /// The name of a port; `None` for all of them.
    pub(crate) section: Option<Box<str>>,
}

/// The say of policies on a port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendTls<'p> {
    /// No policy is about it.
    NotAsked,
    /// It has to be spoken to in TLS, by this policy first of all.
    Asked(&'p ObjectName),
    /// Policies cannot be read, so that there may be one.
    Unknown,
}

/// The Services that a policy names, which are of its own namespace. Other kinds of backends are
/// none that a route of ours could be forwarded to.
pub(crate) fn targets(name: &ObjectName, policy: &BackendTlsPolicy) -> Box<[Target]> {
    let references = policy.spec.target_refs.iter();
    let services = references.filter(|to| Kind::of(&to.group, &to.kind) == Some(Kind::Service));
    let target = services.map(|to| Target {
        service: ObjectName::new(name.namespace.clone(), to.name.as_str()),
        section: to.section_name.as_deref().filter(|section| !section.is_empty()).map(Box::from),
    });
    target.collect()
}

/// The fault of a reference to a port that has to be spoken to in TLS; `reader` is the namespace of
/// the referrer, which may learn the policy's name if it is its own.
pub(crate) fn unserved(policy: &ObjectName, service: &ObjectName, port: u16, reader: &str) -> Fault {
    let policy = if *policy.namespace == *reader {
        format!("BackendTLSPolicy {policy}")
    } else {
        format!("a BackendTLSPolicy in namespace {}", policy.namespace)
    };
    let message = format!(
        "{policy} wants TLS to Service {service} port {port}, which is not supported yet; requests for it are \
         answered with an error, connections to it are refused, and nothing is sent in plaintext"
    );
    Fault::unresolved(Reason::UnsupportedProtocol, message)
}

/// The fault of a reference to a port of which it is not known whether it has to be spoken to in
/// TLS.
pub(crate) fn unknown(service: &ObjectName, port: u16) -> Fault {
    let message = format!(
        "the agents cannot read BackendTLSPolicies, and one may want TLS to Service {service} port {port}; requests \
         for it are answered with an error, connections to it are refused, and nothing is sent in plaintext: give \
         the agents the rights of the chart's ClusterRole"
    );
    Fault::unresolved(Reason::UnsupportedProtocol, message)
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

/// The fault that the policy's own status reports.
pub(crate) fn unsupported() -> Fault {
    Fault::unsupported(
        "TLS to backends is not supported yet: requests for the Services that the policy targets are answered with \
         an error, connections to them are refused, and nothing is sent in plaintext",
    )
}

// === impl Target ===

impl Target {
    /// True if it is about the port of that name.
    pub(crate) fn covers(&self, port: Option<&str>) -> bool {
        self.section.is_none() || self.section.as_deref() == port
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_are_services_of_the_policys_namespace_or_their_ports() {
        let references = json!([{"group": "", "kind": "Service", "name": "a"},
            {"group": "", "kind": "Service", "name": "b", "sectionName": "https"},
            {"group": "example.com", "kind": "Service", "name": "c"},
            {"group": "", "kind": "Secret", "name": "d"}]);
        let validation = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
        let policy = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
            "metadata": {"name": "p"}, "spec": {"targetRefs": references, "validation": validation}});
        let found = targets(&ObjectName::new("shop", "p"), &serde_json::from_value(policy).unwrap());
        let service = |name| ObjectName::new("shop", name);
        assert_eq!(
            *found,
            [
                Target { service: service("a"), section: None },
                Target { service: service("b"), section: Some("https".into()) }
            ]
        );
        assert!(found[0].covers(None) && found[0].covers(Some("http")));
        assert!(found[1].covers(Some("https")) && !found[1].covers(Some("http")) && !found[1].covers(None));
    }

    #[test]
    fn a_policys_name_is_for_its_namespace() {
        let (policy, service) = (ObjectName::new("shop", "p"), ObjectName::new("shop", "s"));
        let told = |reader| unserved(&policy, &service, 443, reader).message;
        assert!(told("shop").starts_with("BackendTLSPolicy shop/p wants TLS to Service shop/s port 443"));
        assert!(told("edge").starts_with("a BackendTLSPolicy in namespace shop wants TLS to Service shop/s"));
    }
}
