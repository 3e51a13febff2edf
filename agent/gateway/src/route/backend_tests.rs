use std::sync::Arc;

use portcullis_model::{Authorities, BackendTls, ClientIdentity, PeerIdentity};
use serde_json::{Value, json};

use super::*;

fn service(port: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"name": "app"}, "spec": {"ports": [port]}})).unwrap()
}

fn slice(value: Value) -> EndpointSlice {
    let mut slice = json!({"addressType": "IPv4", "metadata": {"name": "app-1"}, "endpoints": [],
        "ports": [{"name": "web", "port": 3000}]});
    slice.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    serde_json::from_value(slice).unwrap()
}

fn used() -> BackendUse {
    BackendUse {
        service: ObjectName::new("ns", "app"),
        port: PortKey::tcp(80),
        protocol: ProtocolSource::Service,
    }
}

fn addresses(slices: &[EndpointSlice]) -> Vec<String> {
    let service = service(json!({"name": "web", "port": 80}));
    backend(&used(), Some(&service), Encryption::None, slices, &AgentPlace::default(), |_, _, _| true)
        .endpoints
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn endpoints_have_the_slices_port_of_the_same_name_in_both_families() {
    let slices = [
        slice(json!({"endpoints": [{"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.1"]}]})),
        slice(json!({"endpoints": [{"addresses": ["10.0.0.2"]}]})),
        slice(json!({"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"]}]})),
        slice(json!({"addressType": "FQDN", "endpoints": [{"addresses": ["a.example"]}]})),
        slice(json!({"ports": [{"name": "metrics", "port": 9}], "endpoints": [{"addresses": ["10.0.0.9"]}]})),
    ];
    assert_eq!(addresses(&slices), ["10.0.0.1:3000", "10.0.0.2:3000", "[fd00::1]:3000"]);
}

/// As for kube-proxy: a port of a Service is known by its name and its transport.
#[test]
fn a_port_of_another_transport_is_another_port() {
    let ports = json!([{"name": "web", "port": 9, "protocol": "UDP"}, {"name": "web", "port": 3000}]);
    let endpoints = json!([{"addresses": ["10.0.0.1"]}]);
    assert_eq!(addresses(&[slice(json!({"ports": ports, "endpoints": endpoints}))]), ["10.0.0.1:3000"]);
    let udp = json!([{"name": "web", "port": 9, "protocol": "UDP"}]);
    assert!(addresses(&[slice(json!({"ports": udp, "endpoints": endpoints}))]).is_empty());
}

#[test]
fn endpoints_count_when_ready_and_serve_to_the_end_when_nothing_else_does() {
    let endpoint =
        |address: &str, conditions: Value| json!({"addresses": [address], "conditions": conditions});
    let unknown = endpoint("10.0.0.1", json!({}));
    let leaving = endpoint("10.0.0.2", json!({"ready": false, "serving": true, "terminating": true}));
    let gone = endpoint("10.0.0.3", json!({"ready": false, "serving": false, "terminating": true}));
    let starting = endpoint("10.0.0.4", json!({"ready": false, "serving": false}));
    let of = |endpoints: &[&Value]| addresses(&[slice(json!({"endpoints": endpoints}))]);
    assert_eq!(of(&[&unknown, &leaving, &gone, &starting]), ["10.0.0.1:3000"]);
    assert_eq!(of(&[&leaving, &gone, &starting]), ["10.0.0.2:3000"]);
    assert!(of(&[&gone, &starting]).is_empty());
}

fn tls() -> Encryption {
    let (server_name, authorities) = ("a.example".into(), Authorities::System);
    let identities = [PeerIdentity::Dns("a.example".into())].into();
    Encryption::Tls(Arc::new(BackendTls {
        server_name,
        identities,
        authorities,
        client: ClientIdentity::default(),
    }))
}

fn used_by(kind: Kind, port: Value, encryption: &Encryption) -> Result<BackendUse, Fault> {
    BackendUse::of(kind, ObjectName::new("ns", "app"), &service(port), 80, encryption)
}

#[test]
fn protocols_follow_the_service_then_the_route_kind() {
    let of = |kind: Kind, port: Value| used_by(kind, port, &Encryption::None);
    let protocol = |kind: Kind, port: Value| {
        let used = of(kind, port.clone()).unwrap();
        backend(&used, Some(&service(port)), Encryption::None, [], &AgentPlace::default(), |_, _, _| true)
            .protocol
    };
    assert_eq!(protocol(Kind::HttpRoute, json!({"port": 80})), BackendProtocol::Http1);
    assert_eq!(protocol(Kind::GrpcRoute, json!({"port": 80})), BackendProtocol::H2c);
    let h2c = json!({"port": 80, "appProtocol": "kubernetes.io/h2c"});
    assert_eq!(protocol(Kind::HttpRoute, h2c.clone()), BackendProtocol::H2c);
    assert_eq!(of(Kind::GrpcRoute, h2c).unwrap(), used());
    assert_eq!(
        protocol(Kind::HttpRoute, json!({"port": 80, "appProtocol": "x.example/y"})),
        BackendProtocol::Http1
    );
    for (port, reason) in [
        (json!({"port": 80, "appProtocol": "kubernetes.io/wss"}), Reason::UnsupportedProtocol),
        (json!({"port": 80, "protocol": "UDP"}), Reason::UnsupportedProtocol),
        (json!({"port": 81}), Reason::BackendNotFound),
    ] {
        assert_eq!(of(Kind::HttpRoute, port).unwrap_err().reason, reason);
    }
}

#[test]
fn inside_tls_the_backend_chooses_unless_the_service_or_the_kind_of_route_does() {
    let protocol = |kind: Kind, app_protocol: Option<&str>| {
        let port = json!({"port": 80, "appProtocol": app_protocol});
        let used = used_by(kind, port.clone(), &tls()).unwrap();
        let backend = backend(&used, Some(&service(port)), tls(), [], &AgentPlace::default(), |_, _, _| true);
        assert_eq!(backend.encryption, tls());
        backend.protocol
    };
    for (app_protocol, by_http, by_grpc) in [
        (None, BackendProtocol::Negotiated, BackendProtocol::H2c),
        (Some("https"), BackendProtocol::Negotiated, BackendProtocol::H2c),
        (Some("HTTPS"), BackendProtocol::Negotiated, BackendProtocol::H2c),
        (Some("tls"), BackendProtocol::Negotiated, BackendProtocol::H2c),
        (Some("kubernetes.io/h2c"), BackendProtocol::H2c, BackendProtocol::H2c),
        (Some("http"), BackendProtocol::Http1, BackendProtocol::Http1),
        (Some("kubernetes.io/ws"), BackendProtocol::Http1, BackendProtocol::Http1),
        (Some("kubernetes.io/wss"), BackendProtocol::Http1, BackendProtocol::Http1),
    ] {
        assert_eq!(protocol(Kind::HttpRoute, app_protocol), by_http, "{app_protocol:?}");
        assert_eq!(protocol(Kind::GrpcRoute, app_protocol), by_grpc, "{app_protocol:?}");
    }
    for tls in ["https", "tls", "kubernetes.io/wss"] {
        let port = json!({"port": 80, "appProtocol": tls});
        let refused = used_by(Kind::HttpRoute, port.clone(), &Encryption::None).unwrap_err();
        assert_eq!(refused.reason, Reason::UnsupportedProtocol);
        // The policy's own fault is the one to be told.
        assert!(used_by(Kind::HttpRoute, port, &Encryption::Unavailable).is_ok());
    }
}

#[test]
fn external_names_are_refused() {
    let service = serde_json::from_value(json!({"metadata": {"name": "app"},
        "spec": {"type": "ExternalName", "externalName": "a.example", "ports": [{"port": 80}]}}));
    let refused = BackendUse::of(
        Kind::HttpRoute,
        ObjectName::new("ns", "app"),
        &service.unwrap(),
        80,
        &Encryption::None,
    );
    assert_eq!(refused.unwrap_err().reason, Reason::InvalidKind);
}
