//! Checks of an API server on kinds of its own, beyond the types of fields: what it refuses, a
//! directory should not serve, and fields that it does not know are named. Only fields that
//! translation reads are checked. Endpoints on loopback and link-local addresses, which an API
//! server refuses, are backends in a directory.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::Object;
use crate::name::{is_config_key, is_label, is_port_name, is_qualified_name};

const LABEL: &str = "must be lower case letters, digits and '-', at most 63";
const PORT: &str = "must be between 1 and 65535";

/// Collects what is wrong, worded as an API server words it.
#[derive(Default)]
struct Refusals(Vec<String>);

/// The reasons why an API server would refuse the object.
pub(crate) fn refusals(object: &Object) -> Vec<String> {
    let mut refusals = Refusals::default();
    match object {
        Object::Service(service) => refusals.service(service),
        Object::EndpointSlice(slice) => refusals.endpoint_slice(slice),
        Object::ConfigMap(map) => refusals.config_map(map),
        Object::Secret(secret) => refusals.secret(secret),
        Object::Namespace(namespace) => {
            refusals.name(namespace.metadata.name.as_deref().unwrap_or_default());
        }
        _ => {}
    }
    refusals.0
}

/// API paths of the fields of a manifest that its type does not have, `metadata` left out.
pub(crate) fn unknown_fields(given: &Value, read: &Object) -> Vec<String> {
    let mut unknown = Vec::new();
    let (Some(given), Ok(read)) = (given.as_object(), read.to_json()) else { return unknown };
    for (name, value) in given.iter().filter(|(name, value)| *name != "metadata" && !value.is_null()) {
        match read.get(name) {
            Some(read) => lost(value, read, name, &mut unknown),
            // An API server writes it into `data`.
            None if name == "stringData" && read["kind"] == "Secret" => {}
            None => unknown.push(name.clone()),
        }
    }
    unknown
}

/// Adds what of a value was not read.
fn lost(given: &Value, read: &Value, at: &str, unknown: &mut Vec<String>) {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => {
            for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
                match read.get(name) {
                    Some(read) => lost(value, read, &format!("{at}.{name}"), unknown),
                    None => unknown.push(format!("{at}.{name}")),
                }
            }
        }
        (Value::Array(given), Value::Array(read)) => {
            for (index, (given, read)) in given.iter().zip(read).enumerate() {
                lost(given, read, &format!("{at}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

// === impl Refusals ===

impl Refusals {
    fn service(&mut self, service: &Service) {
        self.name(service.metadata.name.as_deref().unwrap_or_default());
        let no_spec = ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&no_spec);
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        self.supported("spec.type", kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
        let is_headless = spec.cluster_ip.as_deref() == Some("None");
        let ports = spec.ports.as_deref().unwrap_or_default();
        match kind {
            "ExternalName" if spec.external_name.as_deref().is_none_or(str::is_empty) => {
                self.required("spec.externalName");
            }
            "ExternalName" => {}
            _ if ports.is_empty() && !is_headless => self.required("spec.ports"),
            _ => {}
        }
        let addresses = spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten());
        for address in addresses.filter(|address| !matches!(address.as_str(), "" | "None")) {
            if address.parse::<IpAddr>().is_err() {
                self.invalid("spec.clusterIP", address, "must be an IP address");
            }
        }
        let mut numbers = BTreeSet::new();
        for (index, port) in ports.iter().enumerate() {
            let at = format!("spec.ports[{index}]");
            self.port(&at, port);
            if ports.len() > 1 && port.name.as_deref().is_none_or(str::is_empty) {
                self.required(&format!("{at}.name"));
            }
            if !numbers.insert((port.protocol.as_deref().unwrap_or("TCP"), port.port)) {
                self.refuse(&format!("{at}.port"), &format!("Duplicate value: {}", port.port));
            }
        }
        self.unique("spec.ports", ports.iter().filter_map(|port| port.name.as_deref()));
    }

    fn port(&mut self, at: &str, port: &ServicePort) {
        self.label(&format!("{at}.name"), port.name.as_deref());
        if !is_port(port.port) {
            self.invalid(&format!("{at}.port"), port.port, PORT);
        }
        self.protocol(&format!("{at}.protocol"), port.protocol.as_deref());
        let target = format!("{at}.targetPort");
        match &port.target_port {
            Some(IntOrString::Int(number)) if *number != 0 && !is_port(*number) => {
                self.invalid(&target, *number, PORT);
            }
            Some(IntOrString::String(name)) if !name.is_empty() && !is_port_name(name) => {
                let rule = "must be lower case letters, digits and '-', at most 15, a letter among them";
                self.invalid(&target, name, rule);
            }
            _ => {}
        }
        if let Some(protocol) = port.app_protocol.as_deref().filter(|name| !is_qualified_name(name)) {
            let rule = "must be a name like http or example.com/name";
            self.invalid(&format!("{at}.appProtocol"), protocol, rule);
        }
    }

    fn endpoint_slice(&mut self, slice: &EndpointSlice) {
        match slice.address_type.as_str() {
            "" => self.required("addressType"),
            kind => self.supported("addressType", kind, &["FQDN", "IPv4", "IPv6"]),
        }
        for (index, endpoint) in slice.endpoints.iter().enumerate() {
            let at = format!("endpoints[{index}].addresses");
            if endpoint.addresses.is_empty() {
                self.required(&at);
            }
            for (index, address) in endpoint.addresses.iter().enumerate() {
                if let Err(rule) = endpoint_address(&slice.address_type, address) {
                    self.invalid(&format!("{at}[{index}]"), address, rule);
                }
            }
        }
        let ports = slice.ports.iter().flatten();
        for (index, port) in ports.clone().enumerate() {
            self.label(&format!("ports[{index}].name"), port.name.as_deref());
            self.protocol(&format!("ports[{index}].protocol"), port.protocol.as_deref());
        }
        self.unique("ports", ports.map(|port| port.name.as_deref().unwrap_or_default()));
    }

    fn config_map(&mut self, map: &ConfigMap) {
        self.keys("data", map.data.iter().flat_map(|data| data.keys()));
        self.keys("binaryData", map.binary_data.iter().flat_map(|data| data.keys()));
    }

    fn secret(&mut self, secret: &Secret) {
        self.keys("data", secret.data.iter().flat_map(|data| data.keys()));
        self.keys("stringData", secret.string_data.iter().flat_map(|data| data.keys()));
        if secret.type_.as_deref() == Some("kubernetes.io/tls") {
            for key in ["tls.crt", "tls.key"] {
                let in_data = secret.data.as_ref().is_some_and(|data| data.contains_key(key));
                let in_text = secret.string_data.as_ref().is_some_and(|data| data.contains_key(key));
                if !in_data && !in_text {
                    self.required(&format!("data[{key}]"));
                }
            }
        }
    }

    fn keys<'a>(&mut self, field: &str, keys: impl Iterator<Item = &'a String>) {
        for key in keys.filter(|key| !is_config_key(key)) {
            self.invalid(field, key, "must be letters, digits, '-', '_' and '.', at most 253");
        }
    }

    fn name(&mut self, name: &str) {
        self.label("metadata.name", Some(name));
    }

    fn label(&mut self, at: &str, name: Option<&str>) {
        if let Some(name) = name.filter(|name| !name.is_empty() && !is_label(name)) {
            self.invalid(at, name, LABEL);
        }
    }

    fn protocol(&mut self, at: &str, protocol: Option<&str>) {
        if let Some(protocol) = protocol.filter(|protocol| !protocol.is_empty()) {
            self.supported(at, protocol, &["SCTP", "TCP", "UDP"]);
        }
    }

    fn unique<'a>(&mut self, list: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeSet::new();
        for (index, name) in names.enumerate() {
            if !seen.insert(name) {
                self.refuse(&format!("{list}[{index}].name"), &format!("Duplicate value: {name:?}"));
            }
        }
    }

    fn supported(&mut self, at: &str, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            let supported = supported.join(", ");
            self.refuse(at, &format!("Unsupported value: {value:?}: supported values: {supported}"));
        }
    }

    fn invalid(&mut self, at: &str, value: impl std::fmt::Debug, rule: &str) {
        self.refuse(at, &format!("Invalid value: {value:?}: {rule}"));
    }

    fn required(&mut self, at: &str) {
        self.refuse(at, "Required value");
    }

    fn refuse(&mut self, at: &str, what: &str) {
        self.0.push(format!("{at}: {what}"));
    }
}

fn is_port(number: i32) -> bool {
    (1..=65535).contains(&number)
}

/// The rule that an address of a slice breaks. Names are judged where the kind of address is.
fn endpoint_address(kind: &str, address: &str) -> Result<(), &'static str> {
    let address = match kind {
        "IPv4" => IpAddr::V4(address.parse().map_err(|_| "must be an IPv4 address")?),
        "IPv6" => IpAddr::V6(address.parse().map_err(|_| "must be an IPv6 address")?),
        _ => return Ok(()),
    };
    match address {
        _ if address.is_unspecified() => Err("must not be the unspecified address"),
        IpAddr::V4(address) if address.octets()[..3] == [224, 0, 0] => Err("must not be a multicast address"),
        IpAddr::V6(address) if address.segments()[0] == 0xff02 => Err("must not be a multicast address"),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            Err("must not be an IPv4 address in IPv6 form")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(manifest: Value) -> Vec<String> {
        refusals(&Object::from_json(manifest).unwrap().unwrap())
    }

    fn service(spec: Value) -> Vec<String> {
        refused(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec}))
    }

    fn slice(kind: &str, address: &str, ports: Value) -> Vec<String> {
        refused(
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
            "addressType": kind, "endpoints": [{"addresses": [address]}], "ports": ports}),
        )
    }

    /// Each row was tried on an API server.
    #[test]
    fn services_are_refused_as_an_api_server_refuses_them() {
        let port = |port: Value| service(json!({"ports": [port]}));
        let range = "must be between 1 and 65535";
        for (refused, expected) in [
            (port(json!({"port": 80, "targetPort": "http", "appProtocol": "kubernetes.io/h2c"})), vec![]),
            (service(json!({"clusterIP": "None"})), vec![]),
            (service(json!({"type": "ExternalName", "externalName": "example.com"})), vec![]),
            (service(json!({"ports": []})), vec!["spec.ports: Required value".to_owned()]),
            (port(json!({"port": 0})), vec![format!("spec.ports[0].port: Invalid value: 0: {range}")]),
            (port(json!({"port": 70000})), vec![format!("spec.ports[0].port: Invalid value: 70000: {range}")]),
            (
                port(json!({"port": 80, "targetPort": 70000})),
                vec![format!("spec.ports[0].targetPort: Invalid value: 70000: {range}")],
            ),
            (
                port(json!({"port": 80, "targetPort": "Http_x"})),
                vec!["spec.ports[0].targetPort: Invalid value: \"Http_x\": must be lower case letters, digits and '-', at most 15, a letter among them".to_owned()],
            ),
            (
                port(json!({"port": 80, "protocol": "tcp"})),
                vec!["spec.ports[0].protocol: Unsupported value: \"tcp\": supported values: SCTP, TCP, UDP".to_owned()],
            ),
            (
                port(json!({"port": 80, "name": "Http"})),
                vec![format!("spec.ports[0].name: Invalid value: \"Http\": {LABEL}")],
            ),
            (
                service(json!({"ports": [{"port": 80}, {"port": 81}]})),
                vec!["spec.ports[0].name: Required value".to_owned(), "spec.ports[1].name: Required value".to_owned()],
            ),
            (
                service(json!({"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "a"}]})),
                vec!["spec.ports[1].port: Duplicate value: 80".to_owned(), "spec.ports[1].name: Duplicate value: \"a\"".to_owned()],
            ),
            (
                service(json!({"type": "Foo", "ports": [{"port": 80}]})),
                vec!["spec.type: Unsupported value: \"Foo\": supported values: ClusterIP, ExternalName, LoadBalancer, NodePort".to_owned()],
            ),
            (
                service(json!({"clusterIP": "300.1.1.1", "ports": [{"port": 80}]})),
                vec!["spec.clusterIP: Invalid value: \"300.1.1.1\": must be an IP address".to_owned()],
            ),
            (service(json!({"type": "ExternalName"})), vec!["spec.externalName: Required value".to_owned()]),
        ] {
            assert_eq!(refused, expected);
        }
        let dotted = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a.b"}, "spec": {"ports": [{"port": 1}]}});
        assert_eq!(refused(dotted), [format!("metadata.name: Invalid value: \"a.b\": {LABEL}")]);
    }

    #[test]
    fn endpoint_slices_are_refused_as_an_api_server_refuses_them() {
        let address = |kind: &str, address: &str| slice(kind, address, json!([{"port": 80}]));
        for (kind, good) in
            [("IPv4", "10.1.1.1"), ("IPv6", "fd00::1"), ("FQDN", "example.com"), ("IPv4", "127.0.0.1")]
        {
            assert_eq!(address(kind, good), [""; 0]);
        }
        for (kind, bad, rule) in [
            ("IPv4", "300.1.1.1", "must be an IPv4 address"),
            ("IPv4", "010.1.1.1", "must be an IPv4 address"),
            ("IPv4", "fd00::1", "must be an IPv4 address"),
            ("IPv6", "10.1.1.1", "must be an IPv6 address"),
            ("IPv6", "fe80::1%eth0", "must be an IPv6 address"),
            ("IPv6", "::ffff:10.1.1.1", "must not be an IPv4 address in IPv6 form"),
            ("IPv4", "0.0.0.0", "must not be the unspecified address"),
            ("IPv4", "224.0.0.1", "must not be a multicast address"),
        ] {
            assert_eq!(
                address(kind, bad),
                [format!("endpoints[0].addresses[0]: Invalid value: {bad:?}: {rule}")]
            );
        }
        assert_eq!(
            address("ipv4", "10.1.1.1"),
            ["addressType: Unsupported value: \"ipv4\": supported values: FQDN, IPv4, IPv6"]
        );
        assert_eq!(
            slice("IPv4", "10.1.1.1", json!([{"port": 80}, {"port": 81}])),
            ["ports[1].name: Duplicate value: \"\""]
        );
    }

    #[test]
    fn keys_of_maps_are_checked() {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a/b": "", "tls.crt": ""}});
        assert_eq!(
            refused(map),
            ["data: Invalid value: \"a/b\": must be letters, digits, '-', '_' and '.', at most 253"]
        );
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": ""}});
        assert_eq!(refused(secret), ["data[tls.key]: Required value"]);
    }
}
