//! Faults that `check` tells of a file, and the reasons for which they are right.

use std::fmt;

use serde_json::Value;

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fault {
    kind: String,
    /// Type, status and reason of a condition; nothing for a problem that no status tells.
    condition: String,
    reason: String,
    message: String,
}

pub(super) struct Reason {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
    explains: fn(&str, &Fault) -> bool,
}

pub(super) const REASONS: &[Reason] = &[
    Reason {
        name: "other backends",
        why: "a backend of the kind ServiceImport is another API's; only Services are supported",
        explains: |_, fault| fault.reason == "InvalidKind" && fault.message.contains("ServiceImport"),
    },
    Reason {
        name: "other addresses",
        why: "addresses that are no IP addresses are not supported; a Gateway that asks for one is not accepted, as the API has it",
        explains: |_, fault| fault.reason == "UnsupportedAddress",
    },
    Reason {
        name: "no parent",
        why: "a route without `parentRefs` is served by nothing, which is an example's matter and otherwise an oversight",
        explains: |_, fault| fault.message.contains("the route names no parent"),
    },
    Reason {
        name: "asked for",
        why: "wrong on purpose: the file's test in the suite, which `cargo xtask conformance` runs, wants this refusal",
        explains: |file, fault| {
            let asked = ASKED_FOR.iter().find(|(name, _)| file == format!("{name}.yaml"));
            asked.is_some_and(|(_, reasons)| reasons.contains(&fault.reason.as_str()))
        },
    },
    Reason {
        name: "the suite's slip",
        why: "a route of `gateway-with-invalid-clientcertificate-validation` names a Gateway that no manifest of the suite has",
        explains: |file, fault| {
            file == "gateway-with-invalid-clientcertificate-validation.yaml"
                && fault
                    .message
                    .contains("there is no Gateway gateway-conformance-infra/client-validation-invalid;")
        },
    },
];

/// Reasons that tests of the suite want to see.
const ASKED_FOR: &[(&str, &[&str])] = &[
    ("backendtlspolicy-conflict-resolution", &["Conflicted"]),
    (
        "backendtlspolicy-invalid-ca-certificate-ref",
        &["InvalidBackendTLSPolicy", "InvalidCACertificateRef", "NoValidCACertificate"],
    ),
    ("backendtlspolicy-invalid-kind", &["InvalidBackendTLSPolicy", "InvalidKind", "NoValidCACertificate"]),
    (
        "gateway-invalid-default-frontend-client-certificate-validation",
        &["InvalidCACertificateRef", "NoValidCACertificate"],
    ),
    ("gateway-invalid-listeners-unsupported-protocol", &["UnsupportedProtocol"]),
    ("gateway-invalid-parameters-ref", &["InvalidParameters"]),
    ("gateway-invalid-route-kind", &["InvalidRouteKinds"]),
    ("gateway-invalid-tls-backend-configuration", &["InvalidClientCertificateRef", "RefNotPermitted"]),
    ("gateway-invalid-tls-configuration", &["InvalidCertificateRef"]),
    ("gateway-secret-invalid-reference-grant", &["RefNotPermitted"]),
    ("gateway-secret-missing-reference-grant", &["RefNotPermitted"]),
    (
        "gateway-with-attached-routes",
        &["BackendNotFound", "InvalidCertificateRef", "NoMatchingListenerHostname"],
    ),
    (
        "gateway-with-invalid-clientcertificate-validation",
        &["InvalidCACertificateKind", "InvalidCACertificateRef", "NoValidCACertificate", "RefNotPermitted"],
    ),
    ("httproute-disallowed-kind", &["NotAllowedByListeners"]),
    ("httproute-hostname-intersection", &["NoMatchingListenerHostname"]),
    ("httproute-invalid-backendref-unknown-kind", &["InvalidKind"]),
    ("httproute-invalid-cross-namespace-backend-ref", &["RefNotPermitted"]),
    ("httproute-invalid-cross-namespace-parent-ref", &["NotAllowedByListeners"]),
    ("httproute-invalid-nonexistent-backendref", &["BackendNotFound"]),
    ("httproute-invalid-parentref-not-matching-listener-port", &["NoMatchingParent"]),
    ("httproute-invalid-parentref-not-matching-section-name", &["NoMatchingParent"]),
    ("httproute-invalid-parentref-section-name-not-matching-port", &["NoMatchingParent"]),
    ("httproute-invalid-reference-grant", &["RefNotPermitted"]),
    ("httproute-partially-invalid-via-invalid-reference-grant", &["RefNotPermitted"]),
    ("listenerset-allowed-namespace-none", &["NotAllowed"]),
    ("listenerset-allowed-namespace-same", &["NotAllowed"]),
    ("listenerset-allowed-namespace-selector", &["NotAllowed"]),
    ("listenerset-allowed-routes-namespaces", &["NotAllowedByListeners"]),
    ("listenerset-allowed-routes-supported-kinds", &["InvalidRouteKinds"]),
    ("listenerset-default-not-allowed", &["NotAllowed"]),
    ("listenerset-dual-parentref-independence", &["NoMatchingParent"]),
    ("listenerset-gateway-parent-section-name-not-found", &["NoMatchingParent"]),
    ("listenerset-hostname-conflict", &["HostnameConflict"]),
    ("listenerset-protocol-conflict", &["ProtocolConflict"]),
    ("listenerset-reference-grant", &["RefNotPermitted"]),
    ("tcproute-invalid-backendref-nonexistent", &["BackendNotFound"]),
    ("tcproute-invalid-cross-namespace-backend-ref", &["RefNotPermitted"]),
    ("tcproute-invalid-non-tcp-listener", &["NotAllowedByListeners", "BackendNotFound"]),
    ("tlsroute-invalid-backendref-nonexistent", &["BackendNotFound"]),
    ("tlsroute-invalid-backendref-unknown-kind", &["InvalidKind"]),
    ("tlsroute-invalid-no-matching-listener-hostname", &["NoMatchingListenerHostname"]),
    ("tlsroute-invalid-no-matching-listener", &["NoMatchingParent", "NotAllowedByListeners"]),
    ("tlsroute-invalid-reference-grant", &["RefNotPermitted"]),
    ("tlsroute-listener-passthrough-supported-kinds", &["InvalidRouteKinds"]),
    ("udproute-invalid-backendref-nonexistent", &["BackendNotFound"]),
    ("udproute-invalid-cross-namespace-backend-ref", &["RefNotPermitted"]),
    ("udproute-not-allowed-by-listeners", &["NotAllowedByListeners"]),
];

/// Types of which False is a fault, and those of which True is.
const GOOD: [&str; 4] = ["Accepted", "Programmed", "ResolvedRefs", "Attached"];
const BAD: [&str; 3] = ["Conflicted", "NotSupported", "PartiallyInvalid"];
/// Faults whatever the status is.
const ALWAYS: [&str; 3] = ["FieldsIgnored", "PartiallyAttached", "GrandparentConfigError"];

/// Of the objects that `check` printed, and of its lines on standard error.
pub(super) fn faults(objects: &Value, complaints: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for object in objects.as_array().into_iter().flatten() {
        collect(&object["status"], object["kind"].as_str().unwrap_or_default(), &mut faults);
    }
    let complaints =
        complaints.lines().filter(|line| !line.ends_with("ignored, Portcullis does not use this kind"));
    faults.extend(complaints.map(|line| Fault {
        kind: String::new(),
        condition: String::new(),
        reason: String::new(),
        message: line.to_owned(),
    }));
    faults.sort();
    faults.dedup();
    faults
}

fn collect(status: &Value, kind: &str, faults: &mut Vec<Fault>) {
    match status {
        Value::Object(fields) => {
            let conditions = fields.get("conditions").and_then(Value::as_array);
            faults
                .extend(conditions.into_iter().flatten().filter_map(|condition| Fault::of(kind, condition)));
            fields.values().for_each(|value| collect(value, kind, faults));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, kind, faults)),
        _ => {}
    }
}

// === impl Fault ===

impl Fault {
    fn of(kind: &str, condition: &Value) -> Option<Self> {
        let field = |name: &str| condition[name].as_str().unwrap_or_default();
        let (r#type, status, reason) = (field("type"), field("status"), field("reason"));
        let is_fault = GOOD.contains(&r#type) && status == "False"
            || BAD.contains(&r#type) && status == "True"
            || ALWAYS.contains(&reason);
        is_fault.then(|| Self {
            kind: kind.to_owned(),
            condition: format!("{type}={status}"),
            reason: reason.to_owned(),
            message: field("message").to_owned(),
        })
    }

    /// It says only that there is another one.
    pub(super) fn follows(&self) -> bool {
        self.reason == "ListenersNotValid" || self.reason == "Invalid" && self.condition == "Programmed=False"
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: {}", self.kind, self.condition, self.reason, self.message)
    }
}

// === impl Reason ===

impl Reason {
    /// For a fault of a file.
    pub(super) fn of(file: &str, fault: &Fault) -> Option<&'static Self> {
        REASONS.iter().find(|reason| (reason.explains)(file, fault))
    }
}
