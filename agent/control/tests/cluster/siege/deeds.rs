//! The objects of a hostile tenant, and for each of them a valid one of the same kind and about the
//! same size.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::Size;
use super::good::{host, own_port};
use super::node::Node;
use super::platform::{EDGE, GUARDED, PARENT, PARENT_HOST, RULE};
use super::pod::{NODES_END, POD};

/// The tenant's mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Hostile,
    /// As many objects, of the same kinds.
    Valid,
}

/// The tenant's place among the others.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) namespace: String,
    pub(super) platform: String,
    pub(super) class: String,
    pub(super) number: usize,
    /// Address of the Gateway that all share.
    pub(super) edge: IpAddr,
}

#[derive(Clone)]
pub(super) struct Deed {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Without name and kind.
    pub(super) body: Value,
}

/// Endpoints that are no pods: by Service what it leads to; `EDGE` stands for the shared Gateway's
/// address, `NODES-END` for one of the first node's that its status does not list. The API server
/// itself refuses the last two.
const FORBIDDEN: [(&str, &str); 8] = [
    ("kubelet", "10.250.0.1:10250"),
    ("other-kubelet", "10.250.0.2:10250"),
    ("api", "10.250.0.1:6443"),
    ("cluster-ip", "10.96.0.1:443"),
    ("vip", "EDGE:80"),
    (UNLISTED, "NODES-END:10250"),
    ("loopback", "127.0.0.1:10249"),
    ("link-local", "169.254.169.254:80"),
];

/// Only the node itself knows that the address is its own, as `docs/cluster-mode.md` says.
const UNLISTED: &str = "interface";

/// Valid endpoint of the tenant's own: nothing listens there.
const OWN_PORT: u16 = 9;

type Objects = Vec<Deed>;

/// Names of what must not be reached through a node's agent.
pub(super) fn forbidden(node: Node) -> impl Iterator<Item = &'static str> {
    let names = FORBIDDEN.into_iter().map(|(name, _)| name);
    names.filter(move |name| node == Node::First || *name != UNLISTED)
}

impl Scene {
    pub(super) fn host(&self, prefix: &str) -> String {
        format!("{prefix}-{}.evil.example", self.number)
    }

    fn gateway(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.platform})
    }

    /// The shared Gateway's port at which connections would get to an endpoint that is no pod.
    pub(super) fn port_to(&self, name: &str) -> u16 {
        let at = FORBIDDEN.iter().position(|(known, _)| *known == name).unwrap();
        own_port(0) + 1000 + u16::try_from(self.number * FORBIDDEN.len() + at).unwrap()
    }

    /// Number of a good tenant to harm.
    fn victim(&self, size: Size) -> usize {
        self.number % size.good
    }
}

impl Deed {
    fn new(kind: &'static str, name: impl Into<String>, spec: Value) -> Self {
        Self { kind, name: name.into(), body: json!({"spec": spec}) }
    }

    fn whole(kind: &'static str, name: impl Into<String>, body: Value) -> Self {
        Self { kind, name: name.into(), body }
    }

    /// The specification as it is on another turn: every other time a route has no hostnames, or a
    /// Gateway or set one listener only.
    pub(super) fn edited(&self, turn: usize) -> Value {
        let mut spec = self.body["spec"].clone();
        if turn.is_multiple_of(2) {
            if matches!(self.kind, "HTTPRoute" | "TLSRoute") && !spec["hostnames"].is_null() {
                spec["hostnames"] = json!(["edited.evil.example"]);
            }
            if let Some(listeners) = spec["listeners"].as_array_mut() {
                listeners.truncate(1);
            }
        }
        spec
    }
}

/// A route that is as valid as can be.
pub(super) fn last(scene: &Scene, name: &str) -> Deed {
    valid_route(scene, name)
}

pub(super) fn all(scene: &Scene, intent: Intent, size: Size) -> Objects {
    let mut objects = backends(scene, intent);
    objects.extend(children(scene, intent, size));
    objects.extend(routes(scene, intent, size));
    objects.extend(sets(scene, intent, size));
    objects.extend(streams(scene, intent, size));
    objects.extend(gateways(scene, intent));
    objects.extend(odds(scene, intent));
    objects.extend(policies(scene, intent, size));
    objects
}

fn backend() -> Value {
    json!([{"name": "backend", "port": 80}])
}

fn valid_route(scene: &Scene, name: &str) -> Deed {
    let matches = json!([{"path": {"type": "PathPrefix", "value": format!("/{name}")}}]);
    let rules = json!([{"matches": matches, "backendRefs": backend()}]);
    let hosts = json!([scene.host(name)]);
    let spec = json!({"parentRefs": [scene.gateway(EDGE)], "hostnames": hosts, "rules": rules});
    Deed::new("HTTPRoute", name, spec)
}

/// A Service with an endpoint, and a route to it.
fn backends(scene: &Scene, intent: Intent) -> Objects {
    let mut objects = service("backend", "TCP", POD, OWN_PORT);
    let mut listeners = Vec::new();
    for (name, place) in FORBIDDEN {
        let place = place.replace("EDGE", &scene.edge.to_string()).replace("NODES-END", NODES_END);
        let (address, port) = place.rsplit_once(':').unwrap();
        let port = port.parse().unwrap();
        objects.extend(match intent {
            Intent::Hostile => service(name, "TCP", address, port),
            Intent::Valid => service(name, "TCP", POD, OWN_PORT),
        });
        let rules = json!([{"backendRefs": [{"name": name, "port": 80}]}]);
        let hosts = json!([scene.host(name)]);
        let spec = json!({"parentRefs": [scene.gateway(EDGE)], "hostnames": hosts, "rules": rules});
        objects.push(Deed::new("HTTPRoute", format!("to-{name}"), spec));
        listeners.push(json!({"name": name, "port": scene.port_to(name), "protocol": "TCP"}));
        let parents = json!([{"kind": "ListenerSet", "name": "to", "sectionName": name}]);
        objects.push(Deed::new(
            "TCPRoute",
            format!("to-{name}"),
            json!({"parentRefs": parents, "rules": rules}),
        ));
    }
    let spec = json!({"parentRef": scene.gateway(EDGE), "listeners": listeners});
    objects.push(Deed::new("ListenerSet", "to", spec));
    objects
}

fn service(name: &str, transport: &str, address: &str, port: u16) -> Objects {
    let labels = json!({"kubernetes.io/service-name": name});
    let slice = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "ports": [{"name": "", "protocol": transport, "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]});
    vec![
        Deed::new(
            "Service",
            name,
            json!({"ports": [{"port": 80, "protocol": transport, "targetPort": port}]}),
        ),
        Deed::whole("EndpointSlice", name, slice),
    ]
}

/// Children of the platform's route: refused ones of 9 KiB, which would like to be guards in front
/// of their siblings, and more of them than one namespace may have. Valid ones have a parent of the
/// tenant's own for every 200.
fn children(scene: &Scene, intent: Intent, size: Size) -> Objects {
    let victim = scene.victim(size);
    let parent = |rule: Option<&str>| {
        let mut parent = json!({"kind": "HTTPRoute", "name": PARENT, "namespace": scene.platform});
        if let Some(rule) = rule {
            parent["sectionName"] = rule.into();
        }
        parent
    };
    let mut objects = Objects::new();
    for number in 0..size.refused {
        let parents = match (intent, number % 3) {
            (Intent::Valid, _) => json!([scene.gateway(EDGE)]),
            (Intent::Hostile, 0) => json!([parent(Some(RULE))]),
            (Intent::Hostile, 1) => json!([parent(None)]),
            (Intent::Hostile, _) => json!([parent(Some("no-such-rule")), parent(Some(RULE))]),
        };
        let mut rules = vec![big_rule(number)];
        if intent == Intent::Hostile {
            // What a good sibling serves, next to what no rule can be made of.
            let exact = json!({"type": "Exact", "value": format!("/{victim}")});
            let broken = json!({"type": "RegularExpression", "value": "/("});
            rules.push(json!({"matches": [{"path": exact}, {"path": broken}], "backendRefs": backend()}));
        }
        let hosts = match (intent, number % 2) {
            (Intent::Hostile, 0) => json!([PARENT_HOST]),
            (Intent::Hostile, _) => json!([PARENT_HOST, host("web", victim), "*.good.example"]),
            (Intent::Valid, _) => json!([scene.host("big")]),
        };
        let spec = json!({"parentRefs": parents, "hostnames": hosts, "rules": rules});
        objects.push(Deed::new("HTTPRoute", format!("refused-{number}"), spec));
    }
    let own = json!([{"name": "rule", "matches": [{"path": {"type": "PathPrefix", "value": "/own"}}],
        "allowedRoutes": {"namespaces": {"from": "Same"}}}]);
    for number in 0..=size.children / 200 {
        let hosts = json!([scene.host(&format!("family-{number}"))]);
        let spec = json!({"parentRefs": [scene.gateway(EDGE)], "hostnames": hosts, "rules": own});
        objects.push(Deed::new("HTTPRoute", format!("family-{number}"), spec));
    }
    for number in 0..size.children {
        let (parents, kind, path) = match intent {
            // In conflict with the parent's prefix.
            Intent::Hostile if number % 4 == 3 => {
                (json!([parent(Some(RULE))]), "RegularExpression", format!("/{number}.*"))
            }
            // Among them the very path of a good sibling, which is older.
            Intent::Hostile => {
                (json!([parent(Some(RULE))]), "Exact", format!("/{}", number % (size.good + 7)))
            }
            Intent::Valid => {
                let own = format!("family-{}", number / 200);
                (json!([{"kind": "HTTPRoute", "name": own}]), "Exact", format!("/{number}"))
            }
        };
        let matches = json!([{"path": {"type": kind, "value": path}}]);
        let mut spec =
            json!({"parentRefs": parents, "rules": [{"matches": matches, "backendRefs": backend()}]});
        if intent == Intent::Hostile && number % 4 == 1 {
            // None that the parent has.
            spec["hostnames"] = json!([scene.host("child")]);
        }
        objects.push(Deed::new("HTTPRoute", format!("child-{number}"), spec));
    }
    objects
}

/// 9 KiB of conditions.
fn big_rule(number: usize) -> Value {
    let value = |at: usize| format!("{number}-{at}-{}", "x".repeat(110));
    let header = |at: usize| json!({"name": format!("x-condition-{at}"), "value": value(at)});
    let matches = |of: usize| {
        let headers: Vec<_> = (0..8).map(|at| header(of * 8 + at)).collect();
        json!({"path": {"type": "PathPrefix", "value": format!("/big/{of}")}, "headers": headers})
    };
    json!({"matches": (0..8).map(matches).collect::<Vec<_>>(), "backendRefs": backend()})
}

/// Routes at the shared Gateways: for hostnames of others, at listeners that are not there, of
/// another kind, with what cannot be.
fn routes(scene: &Scene, intent: Intent, size: Size) -> Objects {
    let victim = scene.victim(size);
    let route = |gateway: &str, section: Option<&str>, hosts: Value, rule: Value| {
        let mut parent = scene.gateway(gateway);
        if let Some(section) = section {
            parent["sectionName"] = section.into();
        }
        json!({"parentRefs": [parent], "hostnames": hosts, "rules": [rule]})
    };
    let rule = |matches: Value| json!({"matches": matches, "backendRefs": backend()});
    let exact = |path: &str| json!([{"path": {"type": "Exact", "value": path}}]);
    let get = json!([{"path": {"type": "Exact", "value": "/any/path"}, "method": "GET"}]);
    let of_victim = json!([host("guarded", victim)]);
    let redirect = json!([{"type": "RequestRedirect", "requestRedirect": {"hostname": "evil.example"}}]);
    let unresolved = json!([{"type": "ExtensionRef", "extensionRef": {"group": "evil.example", "kind": "Filter", "name": "none"}}]);
    let hostile = [
        // The same as an older route.
        ("same", route(EDGE, None, json!([host("web", victim)]), rule(exact("/")))),
        // More specific than those with claims.
        ("specific", route(GUARDED, None, of_victim.clone(), rule(get))),
        ("wildcard", route(GUARDED, None, json!(["*.good.example", "*.example"]), rule(exact("/any/path")))),
        ("nameless", route(GUARDED, None, json!([]), rule(exact("/any/path")))),
        ("redirect", route(GUARDED, None, of_victim, json!({"filters": redirect}))),
        ("section", route(EDGE, Some("no-such-listener"), json!([host("web", victim)]), rule(exact("/")))),
        (
            "regex",
            route(
                EDGE,
                None,
                json!([host("web", victim)]),
                rule(json!([{"path": {"type": "RegularExpression", "value": "(((("}}])),
            ),
        ),
        (
            "unresolved",
            route(
                EDGE,
                None,
                json!([scene.host("unresolved")]),
                json!({"filters": unresolved, "backendRefs": backend()}),
            ),
        ),
        (
            "nowhere",
            route(
                EDGE,
                None,
                json!([scene.host("nowhere")]),
                json!({"backendRefs": [{"name": "nobody", "port": 80}]}),
            ),
        ),
        (
            "strange",
            route(
                EDGE,
                None,
                json!([scene.host("strange")]),
                json!({"backendRefs": [{"name": "web", "port": 80, "namespace": scene.platform}]}),
            ),
        ),
        ("far", route("no-such-gateway", None, json!([host("web", victim)]), rule(exact("/")))),
    ];
    let mut objects: Objects = hostile
        .into_iter()
        .map(|(name, spec)| match intent {
            Intent::Hostile => Deed::new("HTTPRoute", name, spec),
            Intent::Valid => valid_route(scene, name),
        })
        .collect();
    // Adopts what agrees to it in namespaces of others, by name and all of it.
    let adopted = |name: &str| {
        json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name,
        "namespace": scene.namespace.replace("evil", "good")})
    };
    let adopting = json!({"parentRefs": [scene.gateway(EDGE)], "hostnames": [scene.host("adopt")],
        "rules": [{"backendRefs": [adopted("*"), adopted("web"), adopted("child")]}]});
    objects.push(match intent {
        Intent::Hostile => Deed::new("HTTPRoute", "adopt", adopting),
        Intent::Valid => valid_route(scene, "adopt"),
    });
    let grpc_host = match intent {
        Intent::Hostile => host("web", victim),
        Intent::Valid => scene.host("grpc"),
    };
    let grpc = json!({"parentRefs": [scene.gateway(EDGE)], "hostnames": [grpc_host], "rules": [{"backendRefs": backend()}]});
    objects.push(Deed::new("GRPCRoute", "web", grpc));
    objects
}

/// Sets at the shared Gateways: ports in use, another protocol, names of others, and certificates
/// that are broken or another's.
fn sets(scene: &Scene, intent: Intent, size: Size) -> Objects {
    let victim = scene.victim(size);
    let secret = |name: &str| json!({"certificateRefs": [{"name": name}]});
    let http = |name: &str, port: u16, host: String| json!({"name": name, "port": port, "protocol": "HTTP", "hostname": host});
    let https = |name: &str, host: String, tls: Value| json!({"name": name, "port": 443, "protocol": "HTTPS", "hostname": host, "tls": tls});
    let stolen = |gateway: &str| host(&format!("tls-{gateway}"), victim);
    let foreign =
        json!({"certificateRefs": [{"name": EDGE, "namespace": scene.namespace.replace("evil", "good")}]});
    let plain =
        |name: &str, protocol: &str, port: u16| json!({"name": name, "port": port, "protocol": protocol});
    let hostile = [
        (
            "ports",
            EDGE,
            json!([
                http("kubelet", 10250, scene.host("p")),
                http("api", 6443, scene.host("p")),
                http("proxy", 10256, scene.host("p"))
            ]),
        ),
        ("protocol", EDGE, json!([http("http", 443, scene.host("p")), http("again", 443, scene.host("q"))])),
        (
            "broken",
            EDGE,
            json!([
                https("stolen", stolen(EDGE), secret("broken")),
                https("own", scene.host("broken"), secret("broken")),
                http("http", 8080, stolen(EDGE))
            ]),
        ),
        (
            "absent",
            EDGE,
            json!([
                https("stolen", stolen(EDGE), secret("absent")),
                https("foreign", scene.host("foreign"), foreign)
            ]),
        ),
        (
            "invalid",
            EDGE,
            json!([
                plain("sctp", "SCTP", 9000),
                plain("udp", "UDP", 80),
                plain("tcp", "TCP", 8080),
                plain("odd", "evil.example/odd", 8081)
            ]),
        ),
        (
            "claims",
            GUARDED,
            json!([
                https("stolen", stolen(GUARDED), secret("broken")),
                https("wild", "*.good.example".to_owned(), secret("broken")),
                http("port", 9090, scene.host("p"))
            ]),
        ),
        ("all-names", GUARDED, json!([plain("http", "HTTP", 8080)])),
    ];
    let hostile = hostile.into_iter().map(|(name, gateway, listeners)| {
        let good = json!([http("http", 8080, scene.host(name))]);
        let spec = match intent {
            Intent::Hostile => json!({"parentRef": scene.gateway(gateway), "listeners": listeners}),
            Intent::Valid => json!({"parentRef": scene.gateway(gateway), "listeners": good}),
        };
        Deed::new("ListenerSet", name, spec)
    });
    let mut objects: Objects = hostile.collect();
    let parent = match intent {
        Intent::Hostile => json!({"group": "", "kind": "Service", "name": "backend"}),
        Intent::Valid => scene.gateway(EDGE),
    };
    // More ports than one namespace may open.
    for number in 0..2 {
        let listeners: Vec<_> = (0..64)
            .map(|of| {
                let name = format!("p{of}");
                let port = 20_000 + 128 * (u16::try_from(scene.number).unwrap() % 300) + 64 * number + of;
                match intent {
                    Intent::Hostile => http(&name, port, scene.host("ports")),
                    Intent::Valid => http(&name, 8080, scene.host(&format!("ports-{number}-{of}"))),
                }
            })
            .collect();
        let spec = json!({"parentRef": scene.gateway(EDGE), "listeners": listeners});
        objects.push(Deed::new("ListenerSet", format!("many-ports-{number}"), spec));
    }
    let lost = json!({"parentRef": parent, "listeners": [http("http", 8080, scene.host("lost"))]});
    objects.push(Deed::new("ListenerSet", "lost", lost));
    let garbage = "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n";
    let data = json!({"type": "kubernetes.io/tls", "stringData": {"tls.crt": garbage, "tls.key": "none"}});
    objects.push(Deed::whole("Secret", "broken", data));
    objects
}

/// Listeners and routes for what is passed on as it is: at ports and for names that good tenants
/// have, at listeners of theirs, to backends of another transport, and in a circle.
fn streams(scene: &Scene, intent: Intent, size: Size) -> Objects {
    let victim = scene.victim(size);
    let is_hostile = intent == Intent::Hostile;
    let named = |name: &str, host: String| json!({"name": name, "port": 443, "protocol": "TLS", "hostname": host, "tls": {"mode": "Passthrough"}});
    let bare =
        |name: &str, protocol: &str, port: u16| json!({"name": name, "port": port, "protocol": protocol});
    let own = scene.port_to(FORBIDDEN[0].0) + 1000;
    let of_victim = |prefix: &str, gateway: &str| host(&format!("{prefix}-{gateway}"), victim);
    let mine = json!([bare("tcp", "TCP", own), bare("udp", "UDP", own), named("tls", scene.host("passed"))]);
    let mut taken = mine.as_array().cloned().unwrap();
    taken.extend([
        bare("all", "TCP", 443),
        bare("their-tcp", "TCP", own_port(victim)),
        bare("their-udp", "UDP", own_port(victim)),
        named("passed", of_victim("passed", EDGE)),
        named("ended", of_victim("ended", EDGE)),
        named("https", of_victim("tls", EDGE)),
    ]);
    let guarded = json!([
        named("passed", of_victim("passed", GUARDED)),
        named("wild", "*.good.example".to_owned()),
        bare("tcp", "TCP", 443),
        bare("udp", "UDP", 8080)
    ]);
    let set = |gateway: &str, listeners: Value| json!({"parentRef": scene.gateway(gateway), "listeners": listeners});
    let theirs = |section: &str| json!({"kind": "ListenerSet", "name": EDGE, "namespace": scene.namespace.replace("evil", "good"), "sectionName": section});
    let at = |section: &str| json!({"kind": "ListenerSet", "name": "streams", "sectionName": section});
    let route = |parents: Vec<Value>, service: &str| json!({"parentRefs": parents, "rules": [{"backendRefs": [{"name": service, "port": 80}]}]});
    let with_names = |mut spec: Value, names: Value| {
        spec["hostnames"] = names;
        spec
    };
    let passed = json!([of_victim("passed", EDGE), of_victim("passed", GUARDED)]);
    let own_name = json!([scene.host("passed")]);
    let mut objects = service("circle", "UDP", &scene.edge.to_string(), own);
    let hostile = [
        ("ListenerSet", "streams", set(EDGE, taken.into()), set(EDGE, mine.clone())),
        (
            "ListenerSet",
            "streams-guarded",
            set(GUARDED, guarded),
            set(EDGE, json!([named("tls", scene.host("more"))])),
        ),
        (
            "TLSRoute",
            "stolen",
            with_names(route(vec![scene.gateway(EDGE), at("tls")], "backend"), passed.clone()),
            with_names(route(vec![at("tls")], "backend"), own_name.clone()),
        ),
        (
            "TLSRoute",
            "theirs",
            with_names(route(vec![theirs("passed"), theirs("ended")], "backend"), passed),
            with_names(route(vec![at("tls")], "backend"), own_name),
        ),
        (
            "TCPRoute",
            "stolen",
            route(vec![scene.gateway(EDGE)], "backend"),
            route(vec![at("tcp")], "backend"),
        ),
        ("TCPRoute", "theirs", route(vec![theirs("tcp")], "backend"), route(vec![at("tcp")], "backend")),
        ("TCPRoute", "transport", route(vec![at("tcp")], "circle"), route(vec![at("tcp")], "backend")),
        ("UDPRoute", "theirs", route(vec![theirs("udp")], "circle"), route(vec![at("udp")], "own-udp")),
        ("UDPRoute", "circle", route(vec![at("udp")], "circle"), route(vec![at("udp")], "own-udp")),
        ("UDPRoute", "transport", route(vec![at("udp")], "backend"), route(vec![at("udp")], "own-udp")),
    ];
    if !is_hostile {
        objects = service("own-udp", "UDP", POD, OWN_PORT);
    }
    objects.extend(
        hostile.into_iter().map(|(kind, name, hostile, valid)| {
            Deed::new(kind, name, if is_hostile { hostile } else { valid })
        }),
    );
    objects
}

/// Gateways of the tenant's own: with ports and addresses of the node and of the cluster, with a
/// name that comes to an object that is there, attached to a Gateway that takes none.
fn gateways(scene: &Scene, intent: Intent) -> Objects {
    let listeners = |ports: &[u16]| -> Vec<Value> {
        ports
            .iter()
            .map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "HTTP"}))
            .collect()
    };
    let gateway = |ports: &[u16], more: Value| {
        let mut spec = json!({"gatewayClassName": scene.class, "listeners": listeners(ports)});
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        spec
    };
    let host_ports = json!({"infrastructure": {"parametersRef": {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "host-ports"}}});
    let address = |value: &str| json!({"addresses": [{"type": "IPAddress", "value": value}]});
    let attach = json!({"infrastructure": {"attachTo": {"name": EDGE, "namespace": scene.platform}}});
    let hostile = [
        ("hosts", gateway(&[10250, 6443, 10256, 2379, 80], host_ports)),
        ("taken", gateway(&[80], Value::Object(Map::new()))),
        ("api", gateway(&[443], address("10.96.0.1"))),
        ("neighbour", gateway(&[80, 443], address(&scene.edge.to_string()))),
        ("node", gateway(&[10250, 6443], address("10.250.0.1"))),
        ("attached", gateway(&[80, 8080], attach)),
        (
            "nothing",
            json!({"gatewayClassName": scene.class, "listeners": [{"name": "x", "port": 80, "protocol": "SCTP"}]}),
        ),
    ];
    let mut objects: Objects = hostile
        .into_iter()
        .map(|(name, spec)| match intent {
            Intent::Hostile => Deed::new("Gateway", name, spec),
            Intent::Valid => Deed::new("Gateway", name, gateway(&[80], Value::Object(Map::new()))),
        })
        .collect();
    let is_hostile = intent == Intent::Hostile;
    objects.push(Deed::new("GatewayParameters", "host-ports", json!({"hostPorts": is_hostile})));
    // The name that a Gateway's Service would have.
    let name = if is_hostile { format!("taken-{}", scene.class) } else { "not-taken".to_owned() };
    objects.insert(0, Deed::new("Service", name, json!({"ports": [{"port": 80}]})));
    objects
}

/// Terms for listeners: for those of others, as many ranges as there may be, ones that contradict
/// each other or themselves, and ones that cannot be read. Valid ones are of the same size, and
/// each about a listener of the tenant's own. None is about what leaks are looked for at.
fn policies(scene: &Scene, intent: Intent, size: Size) -> Objects {
    let target = |kind: &str, name: &str, section: Option<String>| {
        let mut target = json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name});
        if let Some(section) = section {
            target["sectionName"] = section.into();
        }
        target
    };
    let own = |listener: usize| target("ListenerSet", "many-ports-0", Some(format!("p{listener}")));
    let few = || json!({"connections": {"perSecond": 5, "burst": 10}, "deny": ["192.0.2.0/24"]});
    let with_targets = |targets: Vec<Value>, mut terms: Value| {
        terms["targetRefs"] = targets.into();
        terms
    };
    let all_of = |kind: &str, name: &str| vec![target(kind, name, None)];
    // Of those who would like to be there first: what is in the way of others.
    let nobody = || json!({"allow": ["192.0.2.1"], "connections": {"perSecond": 1, "burst": 1}});
    let same_names = (0..8).map(|port| target("Gateway", EDGE, Some(format!("p{port}"))));
    let same_names =
        same_names.chain((0..8).map(|port| target("Gateway", GUARDED, Some(format!("p{port}")))));
    let theirs = with_targets(all_of("Gateway", EDGE), nobody());
    let sets = with_targets(all_of("ListenerSet", "web"), nobody());
    let attached = with_targets(all_of("Gateway", "attached"), nobody());
    let both = json!({"allow": ["::/0", "0.0.0.0/0"], "deny": ["::/0", "0.0.0.0/0"]});
    let absurd =
        json!({"connections": {"perSecond": 1, "burst": 1_000_000}, "allow": ["255.255.255.255/32"]});
    let hostile = [
        ("edge", theirs),
        ("sections", with_targets(same_names.collect(), nobody())),
        ("set", sets),
        ("attached", attached),
        ("good", with_targets(all_of("ListenerSet", "streams"), few())),
        ("whole", with_targets(all_of("ListenerSet", "many-ports-1"), few())),
        ("contradictory", with_targets(all_of("ListenerSet", "many-ports-1"), both)),
        ("conflicted", with_targets(vec![own(60), own(61)], few())),
        ("again", with_targets(vec![own(61), own(60)], nobody())),
        ("absurd", with_targets(vec![own(62)], absurd)),
        ("unreadable", with_targets(vec![own(63)], json!({"deny": ["1:2:3"]}))),
        ("mapped", with_targets(vec![own(59)], json!({"deny": ["::ffff:192.0.2.1"]}))),
        ("too-many", with_targets(vec![own(58)], json!({"deny": ranges(scene, 0, 129)}))),
        ("nothing", with_targets(vec![own(57)], json!({}))),
        ("twice", with_targets(vec![own(56), own(56)], few())),
    ];
    let mut objects = Objects::new();
    for (at, (name, spec)) in hostile.into_iter().enumerate() {
        let spec = if intent == Intent::Hostile { spec } else { with_targets(vec![own(at)], few()) };
        objects.push(Deed::new("ListenerPolicy", name, spec));
    }
    // Lists of which no two are the same, for one listener each: thousands of ranges.
    for number in 0..size.refused.min(40) {
        let terms =
            json!({"allow": ranges(scene, 2 * number, 128), "deny": ranges(scene, 2 * number + 1, 128)});
        objects.push(Deed::new(
            "ListenerPolicy",
            format!("long-{number}"),
            with_targets(vec![own(16 + number)], terms),
        ));
    }
    objects
}

/// Ranges of addresses that no other list has.
fn ranges(scene: &Scene, list: usize, number: usize) -> Vec<String> {
    let range = |at: usize| format!("2001:db8:{:x}:{list:x}:{at:x}::/80", scene.number);
    (0..number).map(range).collect()
}

/// A policy that wants TLS to its Service, and grants to other tenants.
fn odds(scene: &Scene, intent: Intent) -> Objects {
    let is_hostile = intent == Intent::Hostile;
    let to = if is_hostile { EDGE } else { "none" };
    let policy = json!({"targetRefs": [{"group": "", "kind": "Service", "name": if is_hostile { "api" } else { "not-taken" }}],
        "validation": {"hostname": "backend.evil.example", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": to}]}});
    let grant = json!({"from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": scene.namespace.replace("evil", "good")}],
        "to": [{"group": "", "kind": "Service"}, {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}]});
    let mut objects = vec![Deed::new("ReferenceGrant", "all", grant)];
    if is_hostile {
        objects.push(Deed::new("BackendTLSPolicy", "breaks", policy));
    } else {
        objects.push(valid_route(scene, "odd"));
    }
    objects
}
