//! Objects that a file refers to and does not hold: taken from the files around it, or made up. Of
//! the suite, whose files refer to what does not exist on purpose, only what its program makes is
//! made up.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use portcullis_testbed::Authority;
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Example,
    Suite,
}

/// Fields that refer to other objects, and the kind that is meant where none is named.
const REFERENCES: [(&str, &str); 8] = [
    ("certificateRefs", "Secret"),
    ("clientCertificateRef", "Secret"),
    ("caCertificateRefs", "ConfigMap"),
    ("backendRefs", "Service"),
    ("backendRef", "Service"),
    ("targetRefs", "Service"),
    ("parentRefs", "Gateway"),
    ("parentRef", "Gateway"),
];

/// Secrets and ConfigMaps that the suite's program makes (`utils/suite/suite.go`).
const OF_SUITE: [&str; 13] = [
    "certificate",
    "tls-validity-checks-certificate",
    "web-backend-cm",
    "tls-validity-checks-ca-certificate",
    "tls-validity-checks-client-certificate",
    "tls-validity-checks-per-port-ca-certificate",
    "tls-validity-checks-per-port-client-certificate",
    "tls-checks-ca-certificate",
    "tls-checks-certificate",
    "tls-checks-client-certificate",
    "tls-passthrough-checks-certificate",
    "tls-terminate-checks-certificate",
    "mismatch-ca-certificate",
];

/// Protocols of listeners for routes that no HTTP listener takes.
const PROTOCOLS: [(&str, &str); 3] = [("TCPRoute", "TCP"), ("UDPRoute", "UDP"), ("TLSRoute", "TLS")];

/// Kind, namespace, name.
type Key = (String, String, String);

/// A reference as it is written, by an object of a kind.
struct Reference<'a> {
    by: &'a str,
    written: &'a Value,
}

pub(super) struct World {
    chain: String,
    key: String,
    authority: String,
}

impl World {
    pub(super) fn new() -> Result<Self> {
        let authority = Authority::new()?;
        let pair = authority.issue(&["example.com"])?;
        Ok(Self { chain: pair.chain, key: pair.key, authority: authority.pem() })
    }

    /// Everything that the objects, and what is supplied for them, refer to.
    pub(super) fn supply(&self, objects: &[Value], around: &[Value], origin: Origin) -> Vec<Value> {
        let around: BTreeMap<_, _> = around.iter().map(|object| (key(object), object)).collect();
        let mut known: BTreeSet<_> = objects.iter().map(key).collect();
        let mut supplied = Vec::new();
        loop {
            let all = objects.iter().chain(&supplied);
            let mut wanted = BTreeMap::<Key, Vec<Reference<'_>>>::new();
            for (key, reference) in all.flat_map(references) {
                if !known.contains(&key) {
                    wanted.entry(key).or_default().push(reference);
                }
            }
            known.extend(wanted.keys().cloned());
            let found = wanted.iter().filter_map(|(key, references)| {
                around.get(key).map(|object| (*object).clone()).or_else(|| self.make(key, references, origin))
            });
            let found: Vec<_> = found.collect();
            if found.is_empty() {
                return supplied;
            }
            supplied.extend(found);
        }
    }

    fn make(&self, key: &Key, references: &[Reference<'_>], origin: Origin) -> Option<Value> {
        let (kind, namespace, name) = key;
        let is_made = origin == Origin::Example || OF_SUITE.contains(&name.as_str());
        let (version, rest) = match kind.as_str() {
            "Namespace" => ("v1", json!({})),
            "GatewayClass" if name != "portcullis" => (
                "gateway.networking.k8s.io/v1",
                json!({"spec": {"controllerName": "portcullis.dev/gateway"}}),
            ),
            "Secret" if is_made => {
                let pair = json!({"tls.crt": self.chain, "tls.key": self.key});
                ("v1", json!({"type": "kubernetes.io/tls", "stringData": pair}))
            }
            "ConfigMap" if is_made => ("v1", json!({"data": {"ca.crt": self.authority}})),
            "Service" if is_made => ("v1", json!({"spec": {"ports": ports(references)}})),
            "Gateway" if is_made => {
                let spec = json!({"gatewayClassName": "portcullis", "listeners": listeners(references)});
                ("gateway.networking.k8s.io/v1", json!({"spec": spec}))
            }
            _ => return None,
        };
        let mut object = rest;
        object["apiVersion"] = version.into();
        object["kind"] = kind.as_str().into();
        object["metadata"] = json!({"name": name});
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.as_str().into();
        }
        Some(object)
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value[field].as_str()
}

fn namespace(object: &Value) -> &str {
    text(&object["metadata"], "namespace").unwrap_or("default")
}

fn key(object: &Value) -> Key {
    let kind = text(object, "kind").unwrap_or_default();
    let is_of_cluster = matches!(kind, "Namespace" | "GatewayClass");
    let namespace = if is_of_cluster { "" } else { namespace(object) };
    let name = text(&object["metadata"], "name").unwrap_or_default();
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

/// Its namespace, its class, and everything that its fields name.
fn references(object: &Value) -> Vec<(Key, Reference<'_>)> {
    let by = text(object, "kind").unwrap_or_default();
    let mut found = Vec::new();
    let own = (String::from("Namespace"), String::new(), namespace(object).to_owned());
    if key(object).1.as_str() != "" {
        found.push((own, Reference { by, written: &Value::Null }));
    }
    if let Some(class) = text(&object["spec"], "gatewayClassName") {
        let class = ("GatewayClass".to_owned(), String::new(), class.to_owned());
        found.push((class, Reference { by, written: &Value::Null }));
    }
    collect(&object["spec"], by, namespace(object), &mut found);
    found
}

fn collect<'a>(value: &'a Value, by: &'a str, own: &str, found: &mut Vec<(Key, Reference<'a>)>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                if let Some((_, kind)) = REFERENCES.iter().find(|(name, _)| name == field) {
                    let one = std::slice::from_ref(value);
                    let written = value.as_array().map_or(one, Vec::as_slice).iter();
                    found.extend(written.filter_map(|written| {
                        let kind = text(written, "kind").unwrap_or(kind).to_owned();
                        let namespace = text(written, "namespace").unwrap_or(own).to_owned();
                        Some((
                            (kind, namespace, text(written, "name")?.to_owned()),
                            Reference { by, written },
                        ))
                    }));
                }
                collect(value, by, own, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, by, own, found)),
        _ => {}
    }
}

/// Of a Service: every port that is referred to.
fn ports(references: &[Reference<'_>]) -> Vec<Value> {
    let transport = |kind: &str| if kind == "UDPRoute" { "UDP" } else { "TCP" };
    let ports = references.iter().filter_map(|it| Some((it.written["port"].as_u64()?, transport(it.by))));
    let ports: BTreeSet<_> = ports.collect();
    let ports = if ports.is_empty() { BTreeSet::from([(80, "TCP")]) } else { ports };
    let port = |(number, transport): (u64, &str)| json!({"name": format!("p{number}-{}", transport.to_ascii_lowercase()), "port": number, "protocol": transport});
    ports.into_iter().map(port).collect()
}

/// Of a Gateway: one for each section and port that is referred to, open to all.
fn listeners(references: &[Reference<'_>]) -> Vec<Value> {
    let mut listeners = BTreeMap::new();
    for (reference, free) in references.iter().zip(8000_u64..) {
        let of_kind = PROTOCOLS.iter().find(|(kind, _)| *kind == reference.by);
        let protocol = of_kind.map_or("HTTP", |(_, protocol)| protocol);
        let port = reference.written["port"].as_u64();
        let name = text(reference.written, "sectionName").map(str::to_owned);
        let name = name.unwrap_or_else(|| format!("p{}", port.unwrap_or(80)));
        let mut listener = json!({"name": name, "port": port.unwrap_or(free), "protocol": protocol,
            "allowedRoutes": {"namespaces": {"from": "All"}}});
        if protocol == "TLS" {
            listener["tls"] = json!({"mode": "Passthrough"});
        }
        listeners.insert(name, listener);
    }
    listeners.into_values().collect()
}
