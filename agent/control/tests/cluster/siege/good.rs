//! A tenant who does nothing wrong: routes at both Gateways, a ListenerSet at each with and without
//! TLS, TLS that is passed on, a port of TCP and one of UDP, a family of routes of its own, and a
//! child of the platform's route.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Authority, Over, Target, backend, datagram_backend, tls_backend};
use super::platform::{EDGE, GUARDED, PARENT, PARENT_HOST, ROLE, RULE, Sites, at};
use super::pod::POD;
use crate::fixture::{Fixture, condition};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Objects whose status must not change.
const OBJECTS: [(&str, &str); 12] = [
    ("ListenerSet", "edge"),
    ("ListenerSet", "guarded"),
    ("HTTPRoute", "web"),
    ("HTTPRoute", "guarded"),
    ("HTTPRoute", "set"),
    ("HTTPRoute", "child"),
    ("HTTPRoute", "family"),
    ("HTTPRoute", "member"),
    ("TLSRoute", "passed"),
    ("TLSRoute", "ended"),
    ("TCPRoute", "tcp"),
    ("UDPRoute", "udp"),
];

pub(super) struct Tenant {
    fixture: Fixture,
    number: usize,
}

/// Hostname of a good tenant's at a Gateway.
pub(super) fn host(prefix: &str, number: usize) -> String {
    format!("{prefix}-{number}.good.example")
}

/// The port of TCP and UDP that a good tenant has for itself.
pub(super) fn own_port(number: usize) -> u16 {
    11_000 + u16::try_from(number).unwrap()
}

impl Tenant {
    pub(super) async fn create(platform: &Fixture, number: usize, authority: &Authority) -> Self {
        let fixture = platform.another_namespace(&format!("good-{number}"), json!({ROLE: "good"})).await;
        let tenant = Self { fixture, number };
        tenant.create_backends(authority).await;
        tenant.create_listeners(platform, authority).await;
        tenant.create_routes(platform).await;
        tenant.create_stream_routes().await;
        tenant
    }

    pub(super) fn name(&self) -> String {
        self.fixture.name.clone()
    }

    /// They answer with the tenant's name.
    async fn create_backends(&self, authority: &Authority) {
        let hosts = [EDGE, GUARDED].map(|gateway| host(&format!("passed-{gateway}"), self.number));
        let tls = tls_backend(self.name(), authority.server(&hosts));
        service(&self.fixture, "web", "TCP", POD, backend(self.name())).await;
        service(&self.fixture, "tls", "TCP", POD, tls).await;
        service(&self.fixture, "udp", "UDP", POD, datagram_backend(self.name())).await;
    }

    async fn create_listeners(&self, platform: &Fixture, authority: &Authority) {
        for gateway in [EDGE, GUARDED] {
            let host = host(&format!("tls-{gateway}"), self.number);
            self.fixture.create("Secret", gateway, authority.secret(&host)).await;
            let tls = json!({"certificateRefs": [{"name": gateway}]});
            let [passed, ended] = ["passed", "ended"].map(|mode| self.host_at(mode, gateway));
            self.fixture.create("Secret", &format!("ended-{gateway}"), authority.secret(&ended)).await;
            let end = json!({"mode": "Terminate", "certificateRefs": [{"name": format!("ended-{gateway}")}]});
            let mut listeners = vec![
                json!({"name": "https", "port": 443, "protocol": "HTTPS", "hostname": host, "tls": tls}),
                json!({"name": "http", "port": 8080, "protocol": "HTTP", "hostname": host}),
                json!({"name": "passed", "port": 443, "protocol": "TLS", "hostname": passed, "tls": {"mode": "Passthrough"}}),
                json!({"name": "ended", "port": 443, "protocol": "TLS", "hostname": ended, "tls": end}),
            ];
            if gateway == EDGE {
                let port = own_port(self.number);
                listeners.push(json!({"name": "tcp", "port": port, "protocol": "TCP"}));
                listeners.push(json!({"name": "udp", "port": port, "protocol": "UDP"}));
            }
            let parent = json!({"name": gateway, "namespace": platform.name});
            let spec = json!({"parentRef": parent, "listeners": listeners});
            self.fixture.create("ListenerSet", gateway, json!({"spec": spec})).await;
        }
    }

    fn host_at(&self, prefix: &str, gateway: &str) -> String {
        host(&format!("{prefix}-{gateway}"), self.number)
    }

    async fn create_stream_routes(&self) {
        let set =
            |name: &str, section: &str| json!({"kind": "ListenerSet", "name": name, "sectionName": section});
        let to = |service: &str| json!([{"backendRefs": [{"name": service, "port": 80}]}]);
        for (mode, service) in [("passed", "tls"), ("ended", "web")] {
            let hosts = [EDGE, GUARDED].map(|gateway| self.host_at(mode, gateway));
            let parents = [EDGE, GUARDED].map(|gateway| set(gateway, mode));
            let spec = json!({"parentRefs": parents, "hostnames": hosts, "rules": to(service)});
            self.fixture.create("TLSRoute", mode, json!({"spec": spec})).await;
        }
        for (kind, name, service) in [("TCPRoute", "tcp", "web"), ("UDPRoute", "udp", "udp")] {
            let spec = json!({"parentRefs": [set(EDGE, name)], "rules": to(service)});
            self.fixture.create(kind, name, json!({"spec": spec})).await;
        }
    }

    async fn create_routes(&self, platform: &Fixture) {
        let gateway = |name: &str| json!({"name": name, "namespace": platform.name, "sectionName": "http"});
        let set = |name: &str| json!({"kind": "ListenerSet", "name": name});
        let route = |section: &str| json!({"kind": "HTTPRoute", "name": PARENT, "namespace": platform.name, "sectionName": section});
        let backends = json!([{"name": "web", "port": 80}]);
        let exact = |path: &str| json!([{"path": {"type": "Exact", "value": path}}]);
        let to_backend = |matches: Value| json!([{"matches": matches, "backendRefs": backends}]);
        let any = json!([{"path": {"type": "PathPrefix", "value": "/"}}]);
        let own = json!([{"name": "rule", "matches": [{"path": {"type": "PathPrefix", "value": "/own"}}],
            "allowedRoutes": {"namespaces": {"from": "Same"}}}]);
        let specs = [
            (
                "web",
                json!({"parentRefs": [gateway(EDGE)], "hostnames": [host("web", self.number)], "rules": to_backend(exact("/"))}),
            ),
            (
                "guarded",
                json!({"parentRefs": [gateway(GUARDED)], "hostnames": [host("guarded", self.number)], "rules": to_backend(any.clone())}),
            ),
            ("set", json!({"parentRefs": [set(EDGE), set(GUARDED)], "rules": to_backend(any)})),
            (
                "child",
                json!({"parentRefs": [route(RULE)], "rules": to_backend(exact(&format!("/{}", self.number)))}),
            ),
            (
                "family",
                json!({"parentRefs": [gateway(EDGE)], "hostnames": [host("family", self.number)], "rules": own}),
            ),
            (
                "member",
                json!({"parentRefs": [{"kind": "HTTPRoute", "name": "family"}], "rules": to_backend(exact("/cart"))}),
            ),
        ];
        for (name, spec) in specs {
            self.fixture.create("HTTPRoute", name, json!({"spec": spec})).await;
        }
    }

    /// Requests that its clients make all the time.
    pub(super) fn targets(&self, sites: &Sites) -> Vec<Target> {
        let plain = |address, port, host: String, path: &str| Target {
            to: at(address, port),
            host,
            path: path.to_owned(),
            over: Over::Tcp,
            answer: self.name(),
        };
        let number = self.number;
        let secure = |target: Target| Target { over: Over::Tls, ..target };
        let own = plain(sites.edge, own_port(number), host("tcp", number), "/");
        let child = format!("/tenants/{number}");
        vec![
            plain(sites.edge, 80, host("web", number), "/"),
            plain(sites.guarded, 80, host("guarded", number), "/any/path"),
            plain(sites.edge, 80, PARENT_HOST.to_owned(), &child),
            plain(sites.edge, 80, host("family", number), "/own/cart"),
            plain(sites.edge, 8080, host("tls-edge", number), "/"),
            plain(sites.guarded, 8080, host("tls-guarded", number), "/"),
            secure(plain(sites.edge, 443, host("tls-edge", number), "/")),
            secure(plain(sites.guarded, 443, host("tls-guarded", number), "/")),
            secure(plain(sites.edge, 443, self.host_at("passed", EDGE), "/")),
            secure(plain(sites.guarded, 443, self.host_at("passed", GUARDED), "/")),
            secure(plain(sites.edge, 443, self.host_at("ended", EDGE), "/")),
            secure(plain(sites.guarded, 443, self.host_at("ended", GUARDED), "/")),
            Target { over: Over::Udp, ..own.clone() },
            own,
        ]
    }

    /// Until each of its objects has the status that it is to keep.
    pub(super) async fn await_told(&self) {
        let deadline = Instant::now() + TIMEOUT;
        for (kind, name) in OBJECTS {
            while !is_good(&self.fixture.get(kind, name).await["status"]) {
                assert!(Instant::now() < deadline, "{kind} {}/{name} is not as it should be", self.name());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// With the version: a status that was another in between shows, too.
    pub(super) async fn statuses(&self) -> BTreeMap<String, Value> {
        let mut statuses = BTreeMap::new();
        for (kind, name) in OBJECTS {
            let object = self.fixture.get(kind, name).await;
            let version = object["metadata"]["resourceVersion"].clone();
            statuses.insert(format!("{kind} {}/{name}", self.name()), json!([version, object["status"]]));
        }
        statuses
    }
}

/// Accepted at every parent.
fn is_good(status: &Value) -> bool {
    let parents = status["parents"].as_array();
    let holders: Vec<_> = parents.map_or_else(|| vec![status], |parents| parents.iter().collect());
    let told = |holder: &&Value| condition(holder, "Accepted")["status"] == "True";
    !holders.is_empty() && holders.iter().all(told)
}

/// A Service whose endpoint is no pod that the API server knows.
pub(super) async fn service(fixture: &Fixture, name: &str, transport: &str, address: &str, port: u16) {
    let ports = json!({"ports": [{"port": 80, "protocol": transport, "targetPort": port}]});
    fixture.create("Service", name, json!({"spec": ports})).await;
    let labels = json!({"kubernetes.io/service-name": name});
    let slice = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "ports": [{"name": "", "protocol": transport, "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]});
    fixture.create("EndpointSlice", name, slice).await;
}
