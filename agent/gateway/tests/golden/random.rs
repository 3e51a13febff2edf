//! Random objects, changes of them, and observations of what became of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use portcullis_api::{Change, Kind, Object, Objects};
use portcullis_gateway::infra::{AssignedAddresses, generated_name};
use portcullis_gateway::{ApiServer, Fault, Feedback, NameAnswer, Reason, read_certificate};
use portcullis_model::{Certificate, FrontendKey, ListenerId, ObjectName, ParentKind, PortKey, Unserved};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support;

const NAMESPACES: [&str; 3] = ["infra", "a", "b"];
/// A Gateway that gets more attention than others, so that what it takes several objects for
/// happens at all.
const MOST_CHANGED: (&str, &str) = ("infra", "one");
pub(crate) const ADDRESSES: [&str; 2] = ["192.0.2.9", "192.0.2.10"];
/// Of hosts outside the cluster; the last one is none.
const HOSTS: [&str; 3] = ["h.example", "i.example", "10.0.0.1"];
const HOSTNAMES: [&str; 5] = ["a.example", "*.a.example", "b.example", "x.a.example", "*.example"];

pub(crate) type Assigned = BTreeMap<ObjectName, AssignedAddresses>;

pub(crate) fn change() -> impl Strategy<Value = Change> {
    (any::<prop::sample::Selector>(), 0..8u8, any::<u64>()).prop_map(|(selector, fate, seed)| {
        let object = object(selector.select(0..KINDS), &mut Dice(seed));
        // Services are often deleted: most have addresses that nothing uses.
        let is_deleted = fate == 0 || fate < 4 && object.kind() == Kind::Service;
        if is_deleted { Change::Delete(object.key()) } else { Change::Set(object) }
    })
}

/// Observations of earlier outcomes, most of the time none.
pub(crate) fn feedback() -> impl Strategy<Value = Vec<Feedback>> {
    any::<u64>().prop_map(|seed| {
        let mut dice = Dice(seed);
        match dice.roll(13) {
            0 | 1 => vec![Feedback::Assigned(assigned(&mut dice))],
            2 => vec![Feedback::Unserved(unserved(&mut dice))],
            3 => vec![Feedback::Unprovisioned(unprovisioned(&mut dice))],
            4 => vec![Feedback::KeptCertificates(kept_certificates(&mut dice))],
            5 => vec![Feedback::ApiServer(api_server(&mut dice))],
            6 => vec![Feedback::Unread(
                [Kind::BackendTlsPolicy, Kind::ListenerPolicy, Kind::TrafficPolicy, Kind::Node].into(),
            )],
            7 => vec![Feedback::Unread(BTreeSet::new())],
            8 => vec![Feedback::OwnAddresses(own_addresses(&mut dice))],
            10 => vec![Feedback::Names(names(&mut dice))],
            11 => vec![Feedback::Agents(NonZeroU32::new(dice.roll(3) as u32))],
            9 => vec![Feedback::NodeAddresses(own_addresses(&mut dice).into_iter().collect())],
            _ => Vec::new(),
        }
    })
}

/// Of all Gateways, for those of which nothing was observed have no address.
fn assigned(dice: &mut Dice) -> Assigned {
    let names = NAMESPACES.into_iter().flat_map(|namespace| ["one", "two"].map(|name| (namespace, name)));
    let mut addresses = |name: &ObjectName| {
        let count = [0, 1, 1, 2][dice.roll(4) as usize];
        match dice.roll(2) {
            0 => ADDRESSES.iter().take(count).map(|address| address.parse().unwrap()).collect(),
            _ => published(name, &ADDRESSES[..count]),
        }
    };
    let names = names.map(|(namespace, name)| ObjectName::new(namespace, name));
    names.map(|name| (name.clone(), addresses(&name))).collect()
}

/// Of a load balancer.
fn published(gateway: &ObjectName, addresses: &[&str]) -> AssignedAddresses {
    let metadata = |name: &str| json!({"name": name, "namespace": gateway.namespace});
    let mut service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": metadata(&generated_name(&gateway.name, "portcullis")), "spec": {"type": "LoadBalancer"}});
    let ingress = addresses.iter().map(|address| json!({"ip": address}));
    service["status"] = json!({"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}});
    service["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "portcullis"});
    service["metadata"]["ownerReferences"] = json!([{"apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway", "name": gateway.name, "uid": "u", "controller": true}]);
    let mut object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": metadata(&gateway.name), "spec": {"gatewayClassName": "portcullis", "listeners": []}});
    object["metadata"]["uid"] = json!("u");
    let mut objects = Objects::default();
    for manifest in [service, object] {
        objects.apply(Change::Set(support::object(manifest)));
    }
    AssignedAddresses::of(gateway, &objects)
}

/// Of the addresses that Gateways are given, and of those of endpoints.
fn api_server(dice: &mut Dice) -> ApiServer {
    let mut some = |count| (0..dice.roll(count)).map(|_| dice.pick(&ADDRESSES).parse().unwrap()).collect();
    ApiServer { addresses: some(3), suspects: some(3) }
}

fn own_addresses(dice: &mut Dice) -> BTreeSet<IpAddr> {
    (0..dice.roll(3)).map(|_| IpAddr::from([10, 0, 0, dice.roll(5) as u8])).collect()
}

fn unserved(dice: &mut Dice) -> Unserved {
    let mut unserved = Unserved::default();
    for _ in 0..dice.roll(3) {
        let address = dice.pick(&["192.0.2.1", "192.0.2.9"]).parse().unwrap();
        let frontend = FrontendKey::new(address, PortKey::tcp(dice.pick(&[80, 443])));
        let why = "in use".to_owned();
        if dice.roll(2) == 0 {
            unserved.frontends.insert(frontend, why);
            continue;
        }
        let gateway = gateway_name(dice);
        let (kind, parent) = match dice.roll(2) {
            0 => (ParentKind::Gateway, gateway.clone()),
            _ => (ParentKind::ListenerSet, ObjectName::new(dice.pick(&NAMESPACES), dice.pick(&["s", "t"]))),
        };
        let name = dice.pick(&["l0", "l1"]).into();
        unserved.listeners.insert((frontend, ListenerId { gateway, kind, parent, name }), why);
    }
    unserved
}

fn unprovisioned(dice: &mut Dice) -> BTreeMap<ObjectName, Fault> {
    let fault =
        |dice: &mut Dice| Fault::not_programmed(Reason::Pending, dice.pick(&["no pod", "no Service"]));
    (0..dice.roll(3)).map(|_| (gateway_name(dice), fault(dice))).collect()
}

fn kept_certificates(dice: &mut Dice) -> BTreeMap<ObjectName, Certificate> {
    let secrets = (0..dice.roll(4)).map(|_| support::object(secret(dice.pick(&NAMESPACES), dice)));
    let certificate = |object: Object| match object {
        Object::Secret(secret) => {
            Some((Object::Secret(secret.clone()).key().name, read_certificate(&secret).ok()?))
        }
        _ => None,
    };
    secrets.filter_map(certificate).collect()
}

fn gateway_name(dice: &mut Dice) -> ObjectName {
    ObjectName::new(dice.pick(&NAMESPACES), dice.pick(&["one", "two"]))
}

/// Numbers from a seed (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.roll(from.len() as u64)).unwrap()]
    }

    fn maybe(&mut self, value: impl FnOnce(&mut Self) -> Value) -> Value {
        if self.roll(2) == 0 { Value::Null } else { value(self) }
    }
}

/// The number of sides of [`object`]'s dice.
pub(crate) const KINDS: u8 = 18;

pub(crate) fn object(kind: u8, dice: &mut Dice) -> Object {
    let namespace = dice.pick(&NAMESPACES);
    let manifest = match kind {
        0 | 1 => gateway(namespace, dice),
        2 | 3 => listener_set(namespace, dice),
        4..=7 => route(namespace, dice),
        8 => dice.pick(&[secret as fn(&str, &mut Dice) -> Value, secret, trust_bundle])(namespace, dice),
        9 => dice.pick(&[service as fn(&str, &mut Dice) -> Value, slice, pod])(namespace, dice),
        10 => dice.pick(&[
            grant as fn(&str, &mut Dice) -> Value,
            policy,
            backend_policy,
            backend_traffic_policy,
            x_backend,
        ])(namespace, dice),
        11 | 12 => generated_service(namespace, dice),
        13 => dice.pick(&[labels as fn(&str, &mut Dice) -> Value, class, parameters])(namespace, dice),
        14 => listener_policy(namespace, dice),
        15 => traffic_policy(namespace, dice),
        16 => route_filter(namespace, dice),
        _ => dice.pick(&[node as fn(&mut Dice) -> Value, definition])(dice),
    };
    support::object(without_nulls(manifest))
}

fn gateway(namespace: &str, dice: &mut Dice) -> Value {
    let (namespace, name) = dice.pick(&[(namespace, "one"), (namespace, "two"), MOST_CHANGED]);
    let infrastructure = match dice.roll(5) {
        2 => json!({"parametersRef": {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "p"}}),
        0 => json!({"allowedChildren": {"namespaces": from(dice)}}),
        1 => json!({"attachTo": {"name": dice.pick(&["one", "two"]), "namespace": dice.pick(&NAMESPACES)}}),
        _ => Value::Null,
    };
    let addresses = match dice.roll(6) {
        0 => json!([{"value": "192.0.2.9"}]),
        1 => json!([{"type": "Hostname", "value": "x.example"}]),
        2 => json!([{"routability": "Cluster"}, {"routability": dice.pick(&["", "Cluster"])}]),
        _ => Value::Null,
    };
    let spec = json!({
        "gatewayClassName": dice.pick(&["portcullis", "portcullis", "second"]),
        "infrastructure": infrastructure,
        "addresses": addresses,
        "defaultScope": dice.maybe(|dice| json!(dice.pick(&["All", "All", "None"]))),
        "allowedListeners": {"namespaces": from(dice)},
        "listeners": listeners(dice),
        "tls": tls(dice),
    });
    let mut gateway =
        manifest("gateway.networking.k8s.io/v1", "Gateway", namespace, name, dice, json!({"spec": spec}));
    gateway["metadata"]["uid"] = json!(format!("{namespace}-{name}"));
    gateway
}

fn tls(dice: &mut Dice) -> Value {
    let mut reference = |kind: &str, name: &str| {
        json!({"group": "", "kind": kind, "name": name,
            "namespace": dice.maybe(|dice| json!(dice.pick(&NAMESPACES)))})
    };
    let backend = json!({"clientCertificateRef": reference("Secret", "c")});
    let authority = reference("ConfigMap", "ca");
    let authorities = json!([if dice.roll(2) == 0 { authority } else { bundle_ref() }]);
    let frontend = json!({"default": {"validation": {"caCertificateRefs": authorities}}});
    match dice.roll(6) {
        0 => json!({"backend": backend}),
        1 => json!({"backend": backend, "frontend": frontend}),
        _ => Value::Null,
    }
}

fn listener_set(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["s", "t"]);
    let parent = json!({"name": dice.pick(&["one", "two"]), "namespace": dice.pick(&NAMESPACES)});
    let spec = json!({"parentRef": parent, "listeners": listeners(dice)});
    manifest("gateway.networking.k8s.io/v1", "ListenerSet", namespace, name, dice, json!({"spec": spec}))
}

fn listeners(dice: &mut Dice) -> Value {
    let count = dice.pick(&[0, 1, 1, 2]);
    (0..count).map(|at| listener(at, dice)).collect()
}

fn listener(at: u64, dice: &mut Dice) -> Value {
    let protocol = dice.pick(&["HTTP", "HTTP", "HTTP", "HTTPS", "TLS", "TLS", "TCP", "UDP"]);
    let reference = json!({"name": dice.pick(&["c", "d"]), "namespace": dice.maybe(|dice| json!(dice.pick(&NAMESPACES)))});
    json!({
        "name": format!("l{at}"),
        "port": dice.pick(&[80, 443]),
        "protocol": protocol,
        "hostname": dice.maybe(|dice| json!(dice.pick(&HOSTNAMES))),
        "tls": match protocol {
            "HTTPS" => json!({"certificateRefs": [reference]}),
            "TLS" => json!({"mode": dice.pick(&["Terminate", "Passthrough"]), "certificateRefs": [reference]}),
            _ => Value::Null,
        },
        "filters": if matches!(protocol, "HTTP" | "HTTPS") { dice.maybe(authorisation) } else { Value::Null },
        "allowedRoutes": dice.maybe(|dice| json!({"namespaces": from(dice)})),
    })
}

/// Filters of a listener that ask a service.
fn authorisation(dice: &mut Dice) -> Value {
    let service = json!({"name": dice.pick(&["v", "w"]), "port": 80, "namespace": dice.maybe(|dice| json!(dice.pick(&NAMESPACES)))});
    let auth = json!({"protocol": "HTTP", "backendRef": service, "http": {}});
    json!({"requests": [{"type": "ExternalAuth", "externalAuth": auth}]})
}

fn from(dice: &mut Dice) -> Value {
    match dice.pick(&["All", "All", "Same", "None", "Selector"]) {
        "Selector" => {
            json!({"from": "Selector", "selector": {"matchLabels": {"team": dice.pick(&["x", "y"])}}})
        }
        from => json!({"from": from}),
    }
}

fn route(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["r", "q"]);
    let parents: Vec<_> = (0..dice.pick(&[0, 1, 1, 1, 2, 2])).map(|_| parent_ref(dice)).collect();
    let backend = match dice.roll(4) {
        0 => {
            json!({"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": dice.pick(&["v", "w"])})
        }
        _ => {
            json!({"name": dice.pick(&["v", "w"]), "port": 80, "namespace": dice.maybe(|dice| json!(dice.pick(&NAMESPACES)))})
        }
    };
    let kind = dice.pick(&["HTTPRoute", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"]);
    let matches = match kind {
        "HTTPRoute" => {
            json!([{"path": {"type": "PathPrefix", "value": dice.pick(&["/", "/x"])}}])
        }
        "GRPCRoute" => json!([{"method": {"service": dice.pick(&["x.Y", "x.Z"])}}]),
        _ => Value::Null,
    };
    let hostnames = match kind {
        "TCPRoute" | "UDPRoute" => Value::Null,
        _ => dice.maybe(|dice| json!([dice.pick(&HOSTNAMES)])),
    };
    let (mut rule, mut backend) = (json!({"matches": matches}), backend);
    if matches!(kind, "HTTPRoute" | "GRPCRoute") {
        let filters = |dice: &mut Dice| {
            let name = dice.pick(&["f", "f", "g", "a/f"]);
            let reference = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": name});
            (dice.roll(2) == 0).then(|| json!([{"type": "ExtensionRef", "extensionRef": reference}]))
        };
        rule["filters"] = json!(filters(dice));
        backend["filters"] = json!(filters(dice));
    }
    rule["backendRefs"] = json!([backend]);
    let spec = json!({
        "parentRefs": parents,
        "useDefaultGateways": dice.maybe(|dice| json!(dice.pick(&["All", "None"]))),
        "hostnames": hostnames,
        "rules": [rule],
    });
    manifest("gateway.networking.k8s.io/v1", kind, namespace, name, dice, json!({"spec": spec}))
}

fn parent_ref(dice: &mut Dice) -> Value {
    let set = dice.roll(2) == 0;
    json!({
        "kind": if set { "ListenerSet" } else { "Gateway" },
        "name": if set { dice.pick(&["s", "t"]) } else { dice.pick(&["one", "two"]) },
        "namespace": dice.pick(&NAMESPACES),
        "sectionName": dice.maybe(|dice| json!(dice.pick(&["l0", "l1"]))),
    })
}

fn secret(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["c", "d"]);
    let (certificate, key) =
        (dice.pick(&["file:a.crt", "file:b.crt"]), dice.pick(&["file:a.key", "file:b.key"]));
    let r#type = dice.pick(&["kubernetes.io/tls", "kubernetes.io/tls", "Opaque"]);
    let authority = dice.pick(&["file:a.crt", "none"]);
    let users = dice.pick(&["ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "ann"]);
    let data = json!({"tls.crt": certificate, "tls.key": key, "ca.crt": authority, "auth": users});
    let data = json!({"type": r#type, "stringData": data});
    manifest("v1", "Secret", namespace, name, dice, data)
}

/// The one that there may be.
fn bundle_ref() -> Value {
    json!({"group": "certificates.k8s.io", "kind": "ClusterTrustBundle", "name": "b"})
}

/// Of an object with certificates of authorities.
fn holder_ref(dice: &mut Dice) -> Value {
    match dice.pick(&["ConfigMap", "Secret", "ClusterTrustBundle"]) {
        "ClusterTrustBundle" => bundle_ref(),
        kind => json!({"group": "", "kind": kind, "name": dice.pick(&["c", "d"])}),
    }
}

fn trust_bundle(_: &str, dice: &mut Dice) -> Value {
    let text = dice.pick(&["file:a.crt", "file:b.crt", "none"]);
    json!({"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": {"name": "b"}, "spec": {"trustBundle": text}})
}

fn service(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["v", "w"]);
    let addresses = dice.maybe(|dice| json!([dice.pick(&ADDRESSES)]));
    let port = json!({"port": dice.pick(&[80, 80, 81]), "protocol": dice.pick(&["TCP", "TCP", "UDP"])});
    let spec = json!({"ports": [port], "clusterIPs": addresses});
    let ingress = dice.maybe(|dice| json!([{"ip": dice.pick(&ADDRESSES)}]));
    let content = json!({"spec": spec, "status": {"loadBalancer": {"ingress": ingress}}});
    manifest("v1", "Service", namespace, name, dice, content)
}

/// The Service of a Gateway, most of the time; or another one of that name.
fn generated_service(namespace: &str, dice: &mut Dice) -> Value {
    let (namespace, gateway) = dice.pick(&[(namespace, "one"), (namespace, "two"), MOST_CHANGED]);
    let name = generated_name(gateway, dice.pick(&["portcullis", "portcullis", "portcullis", "second"]));
    let ingress = json!({"ip": dice.pick(&ADDRESSES), "ipMode": dice.pick(&["VIP", "Proxy", "Proxy"])});
    let ports = [80, 443].map(|port| json!({"port": port, "nodePort": dice.pick(&[0, 30080, 30081])}));
    let spec = json!({"type": "LoadBalancer", "clusterIPs": [dice.pick(&["10.96.0.1", "10.96.0.2"])], "ports": ports,
        "externalTrafficPolicy": dice.pick(&["Local", "Cluster"]), "healthCheckNodePort": dice.pick(&[0, 32000, 32001])});
    let content = json!({"spec": spec, "status": {"loadBalancer": {"ingress": [ingress]}}});
    let mut service = manifest("v1", "Service", namespace, &name, dice, content);
    service["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "portcullis"});
    if dice.roll(4) != 0 {
        service["metadata"]["ownerReferences"] = json!([{"apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway", "name": gateway, "uid": format!("{namespace}-{gateway}"), "controller": true}]);
    }
    service
}

fn node(dice: &mut Dice) -> Value {
    let addresses = json!([{"address": dice.pick(&ADDRESSES)}]);
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": dice.pick(&["n", "m"])},
        "spec": {"podCIDR": dice.maybe(|dice| json!(format!("{}/{}", dice.pick(&ADDRESSES), dice.pick(&["32", "30"]))))},
        "status": {"addresses": addresses}})
}

fn definition(dice: &mut Dice) -> Value {
    let version = dice.pick(&["v1.7.0", "v1.7.0", "v0.1.0"]);
    let name = dice.pick(&["gateways", "httproutes"]);
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{name}.gateway.networking.k8s.io"),
            "annotations": {"gateway.networking.k8s.io/bundle-version": version}}})
}

fn slice(namespace: &str, dice: &mut Dice) -> Value {
    let (name, service) = (dice.pick(&["v-1", "v-2"]), dice.pick(&["v", "w"]));
    let of_others = ["192.0.2.1", ADDRESSES[0], ADDRESSES[1], "10.96.0.1"];
    let address = match dice.roll(2) {
        0 => dice.pick(&of_others).to_owned(),
        _ => format!("10.0.0.{}", dice.roll(5)),
    };
    let pod = dice.maybe(|_| json!({"kind": "Pod", "name": "p"}));
    let endpoint = json!({"addresses": [address], "targetRef": pod});
    let endpoints = json!({"addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [endpoint]});
    let mut slice = manifest("discovery.k8s.io/v1", "EndpointSlice", namespace, name, dice, endpoints);
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": service});
    slice
}

fn pod(namespace: &str, dice: &mut Dice) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace},
        "spec": {"hostNetwork": dice.roll(4) != 0}, "status": {"podIPs": [{"ip": dice.pick(&ADDRESSES)}]}})
}

fn grant(namespace: &str, dice: &mut Dice) -> Value {
    let kind = dice.pick(&[
        "Gateway",
        "ListenerSet",
        "HTTPRoute",
        "GRPCRoute",
        "TLSRoute",
        "TCPRoute",
        "TrafficPolicy",
    ]);
    let group = if kind == "TrafficPolicy" { "portcullis.dev" } else { "gateway.networking.k8s.io" };
    let from = json!({"group": group, "kind": kind, "namespace": dice.pick(&NAMESPACES)});
    let spec = json!({"from": [from], "to": [{"group": "", "kind": dice.pick(&["Secret", "Service", "ConfigMap"])}]});
    manifest("gateway.networking.k8s.io/v1", "ReferenceGrant", namespace, "g", dice, json!({"spec": spec}))
}

fn policy(namespace: &str, dice: &mut Dice) -> Value {
    let target = json!({"group": "", "kind": "Service", "name": dice.pick(&["v", "w"]),
        "sectionName": dice.maybe(|_| json!("none"))});
    let holders: Vec<_> = (0..=dice.roll(2)).map(|_| holder_ref(dice)).collect();
    let validation = match dice.roll(3) {
        0 => json!({"hostname": "a.example", "wellKnownCACertificates": "System"}),
        1 => json!({"hostname": "10.0.0.1", "wellKnownCACertificates": "System"}),
        _ => json!({"hostname": "a.example", "caCertificateRefs": holders}),
    };
    let content = json!({"spec": {"targetRefs": [target], "validation": validation}});
    let name = dice.pick(&["p", "q"]);
    manifest("gateway.networking.k8s.io/v1", "BackendTLSPolicy", namespace, name, dice, content)
}

fn backend_policy(namespace: &str, dice: &mut Dice) -> Value {
    let target = json!({"group": "", "kind": "Service", "name": dice.pick(&["v", "w"]),
        "sectionName": dice.maybe(|dice| json!(dice.pick(&["none", "http"])))});
    let balancing = dice.maybe(|dice| json!({"type": dice.pick(&["RoundRobin", "LeastRequest", "Hash"])}));
    let connect = dice.maybe(|dice| json!(dice.pick(&["1s", "2s"])));
    let header = dice.maybe(|dice| json!(dice.pick(&["V1", "V2"])));
    let content = json!({"spec": {"targetRefs": [target], "loadBalancing": balancing,
        "timeouts": {"connect": connect}, "proxyProtocol": header}});
    let name = dice.pick(&["p", "q"]);
    manifest("portcullis.dev/v1alpha1", "BackendPolicy", namespace, name, dice, content)
}

fn backend_traffic_policy(namespace: &str, dice: &mut Dice) -> Value {
    let target = json!({"group": "", "kind": "Service", "name": dice.pick(&["v", "w"])});
    let percent = dice.maybe(|dice| json!(dice.pick(&[10, 20, 101])));
    let cookie = dice.maybe(|dice| json!({"cookie": {"name": dice.pick(&["a", "b"])}}));
    let content = json!({"spec": {"targetRefs": [target], "sessionPersistence": cookie,
        "retryConstraint": {"budget": {"percent": percent}}}});
    let name = dice.pick(&["p", "q"]);
    let version = "gateway.networking.x-k8s.io/v1alpha1";
    manifest(version, "XBackendTrafficPolicy", namespace, name, dice, content)
}

fn x_backend(namespace: &str, dice: &mut Dice) -> Value {
    let holder = holder_ref(dice);
    let tls = match dice.roll(3) {
        0 => Value::Null,
        1 => {
            json!({"mode": "ServerOnly", "validation": {"hostname": "h.example", "caCertificateRefs": [holder]}})
        }
        _ => json!({"mode": "ClientAndServer", "clientCertificateRef": {"name": dice.pick(&["c", "d"])},
            "validation": {"hostname": "h.example", "wellKnownCACertificates": "System"}}),
    };
    let spec = json!({"type": "ExternalHostname", "externalHostname": {"hostname": dice.pick(&HOSTS)},
        "port": {"number": dice.pick(&[80, 443])}, "tls": tls});
    let name = dice.pick(&["v", "w"]);
    manifest("gateway.networking.x-k8s.io/v1alpha1", "XBackend", namespace, name, dice, json!({"spec": spec}))
}

/// Public addresses, and such as nodes, Services and Gateways may have.
fn names(dice: &mut Dice) -> BTreeMap<Arc<str>, NameAnswer> {
    let known = (0..dice.roll(3)).map(|_| {
        let addresses =
            (0..dice.roll(3)).map(|_| dice.pick(&["1.1.1.1", "1.1.1.2", "192.0.2.1"]).parse().unwrap());
        let addresses = addresses.collect();
        (dice.pick(&HOSTS).into(), NameAnswer { addresses, failure: None })
    });
    known.collect()
}

fn listener_policy(namespace: &str, dice: &mut Dice) -> Value {
    let (namespace, name) = dice.pick(&[(namespace, "p"), (namespace, "q"), (MOST_CHANGED.0, "p")]);
    let target = |dice: &mut Dice| {
        let (kind, name) = dice.pick(&[("Gateway", "one"), ("Gateway", "two"), ("ListenerSet", "s")]);
        json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name,
            "sectionName": dice.maybe(|dice| json!(dice.pick(&["l0", "l1"])))})
    };
    let targets: Vec<_> = (0..=dice.roll(3)).map(|_| target(dice)).collect();
    let connections = dice.maybe(|dice| json!({"perSecond": dice.roll(3), "open": dice.maybe(|_| json!(5))}));
    let limits = dice.maybe(|dice| json!({"http2Streams": dice.pick(&[0, 5, 9])}));
    let log = dice.maybe(|dice| json!({"enabled": dice.pick(&[true, false])}));
    let deny = dice.maybe(|dice| json!([dice.pick(&["10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/33"])]));
    let proxies = dice.maybe(|dice| json!({"from": [dice.pick(&["10.0.0.1", "10.0.0.1", "::/0"])]}));
    let address = dice.maybe(|dice| json!({"trustedHops": dice.pick(&[0, 1, 1, 17])}));
    let content = json!({"spec": {"targetRefs": targets, "connections": connections, "deny": deny,
        "proxyProtocol": proxies, "clientAddress": address, "limits": limits, "accessLog": log}});
    manifest("portcullis.dev/v1alpha1", "ListenerPolicy", namespace, name, dice, content)
}

fn traffic_policy(namespace: &str, dice: &mut Dice) -> Value {
    // Of three on one target, the last has no effect, and is not the next to have any.
    let (namespace, name) =
        dice.pick(&[(namespace, "p"), (namespace, "q"), (namespace, "r"), (MOST_CHANGED.0, "p")]);
    let target = |dice: &mut Dice| {
        let (kind, name, section) = dice.pick(&[
            ("Gateway", "one", "l0"),
            ("ListenerSet", "s", "l1"),
            ("HTTPRoute", "r", "r0"),
            ("HTTPRoute", "q", "r1"),
            ("GRPCRoute", "q", "r0"),
        ]);
        json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name,
            "sectionName": dice.maybe(|_| json!(section))})
    };
    let targets: Vec<_> = (0..=dice.roll(3)).map(|_| target(dice)).collect();
    let most = dice.maybe(|dice| json!(dice.roll(3)));
    let deny = dice.maybe(|dice| json!([dice.pick(&["10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/33"])]));
    let basic = dice.maybe(|dice| json!({"secretRef": {"name": dice.pick(&["c", "d"])}}));
    let jwt = dice.maybe(|dice| {
        let remote = json!({"backendRef": {"name": dice.pick(&["v", "w"]), "namespace": dice.pick(&NAMESPACES),
            "port": dice.pick(&[80, 80, 443])}, "path": dice.pick(&["/a", "/b"])});
        json!({"providers": [{"name": "a", "issuer": "a", "remoteJwks": remote}]})
    });
    let compression = dice.maybe(|dice| json!({"algorithms": [dice.pick(&["gzip", "br", "lzma"])]}));
    let auth = dice.maybe(|dice| {
        json!({"protocol": dice.pick(&["HTTP", "GRPC"]), "backendRef": {"name": dice.pick(&["v", "w"]),
            "namespace": dice.maybe(|dice| json!(dice.pick(&NAMESPACES))), "port": 80}})
    });
    let limits = dice.maybe(|dice| {
        json!([{"requests": 1, "per": "Hour", "scope": dice.pick(&["Node", "Cluster", "Cluster", "Zone"])}])
    });
    let grpc_web = dice.maybe(|dice| json!(dice.pick(&["Translate", "Pass", "Both"])));
    let tracing = dice.maybe(|dice| json!({"percent": dice.pick(&[0, 5, 101])}));
    let retry = dice.maybe(|dice| {
        json!({"attempts": dice.maybe(|dice| json!(dice.pick(&[0, 2, 2000]))),
            "codes": dice.maybe(|dice| json!([dice.pick(&[502, 503])]))})
    });
    let timeouts = dice.maybe(|dice| {
        json!({"request": dice.maybe(|dice| json!(dice.pick(&["0s", "9s", "9"]))),
            "backendRequest": dice.maybe(|dice| json!(dice.pick(&["0s", "1s"])))})
    });
    let content = json!({"spec": {"targetRefs": targets, "maxRequestBody": most, "deny": deny, "rateLimits": limits,
        "retry": retry, "timeouts": timeouts, "basic": basic, "jwt": jwt, "compression": compression, "grpcWeb": grpc_web, "tracing": tracing, "externalAuth": auth}});
    manifest("portcullis.dev/v1alpha1", "TrafficPolicy", namespace, name, dice, content)
}

fn route_filter(namespace: &str, dice: &mut Dice) -> Value {
    let (namespace, name) = dice.pick(&[(namespace, "f"), (namespace, "g"), (MOST_CHANGED.0, "f")]);
    let pattern = dice.pick(&["/(.*)", "/x", "("]);
    let spec = match dice.roll(3) {
        0 => json!({"type": "DirectResponse", "directResponse": {"statusCode": 503}}),
        1 => json!({"type": "RequestHeaders",
            "requestHeaders": {"set": [{"name": "x", "value": "${client.address}"}]}}),
        _ => json!({"type": "PathRewrite", "pathRewrite": {"pattern": pattern, "substitution": "/$0"}}),
    };
    manifest("portcullis.dev/v1alpha1", "RouteFilter", namespace, name, dice, json!({"spec": spec}))
}

fn labels(namespace: &str, dice: &mut Dice) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {"team": dice.pick(&["x", "y"])}}})
}

fn class(_: &str, dice: &mut Dice) -> Value {
    let controller = dice.pick(&["portcullis.dev/gateway", "portcullis.dev/gateway", "example.com/other"]);
    let parameters = dice.maybe(|dice| {
        json!({"group": "portcullis.dev", "kind": "GatewayParameters", "name": "p", "namespace": dice.pick(&NAMESPACES)})
    });
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": dice.pick(&["portcullis", "second"])},
        "spec": {"controllerName": controller, "parametersRef": parameters}})
}

fn claims(dice: &mut Dice) -> Value {
    let selectors = [json!({}), json!({"matchLabels": {"team": "x"}}), json!({"matchLabels": {"team": "y"}})];
    let claim = |dice: &mut Dice| {
        json!({"namespaces": selectors[dice.roll(3) as usize], "hostnames": dice.maybe(|dice| json!([dice.pick(&HOSTNAMES)])),
            "ports": dice.maybe(|dice| json!([dice.pick(&[80, 443])])), "listeners": dice.maybe(|dice| json!(dice.roll(2))),
            "totalListeners": dice.maybe(|dice| json!(dice.roll(3)))})
    };
    (0..dice.roll(3)).map(|_| claim(dice)).collect()
}

fn parameters(namespace: &str, dice: &mut Dice) -> Value {
    let limits = json!({"connections": dice.maybe(|dice| json!(dice.roll(3)))});
    json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"limits": limits, "claims": dice.maybe(claims), "accessLog": dice.maybe(|dice| json!({"enabled": dice.roll(2) == 0})), "hostPorts": dice.maybe(|_| json!(true)),
            "mode": dice.maybe(|_| json!("Dedicated"))}})
}

fn manifest(version: &str, kind: &str, namespace: &str, name: &str, dice: &mut Dice, rest: Value) -> Value {
    let mut manifest = rest;
    let created = format!("2026-01-01T00:00:0{}Z", dice.roll(3));
    manifest["apiVersion"] = json!(version);
    manifest["kind"] = json!(kind);
    manifest["metadata"] = json!({"name": name, "namespace": namespace, "creationTimestamp": created,
        "generation": dice.roll(3)});
    manifest
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect(),
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}
