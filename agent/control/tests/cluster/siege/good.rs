//! A tenant who does nothing wrong: routes at both Gateways, a ListenerSet at each with and without
//! TLS, a family of routes of its own, and a child of the platform's route.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Authority, Target, backend};
use super::platform::{EDGE, GUARDED, PARENT, PARENT_HOST, ROLE, RULE, Sites, at};
use super::pod::POD;
use crate::fixture::{Fixture, condition};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Objects whose status must not change.
const OBJECTS: [(&str, &str); 8] = [
    ("ListenerSet", "edge"),
    ("ListenerSet", "guarded"),
    ("HTTPRoute", "web"),
    ("HTTPRoute", "guarded"),
    ("HTTPRoute", "set"),
    ("HTTPRoute", "child"),
    ("HTTPRoute", "family"),
    ("HTTPRoute", "member"),
];

pub(super) struct Tenant {
    fixture: Fixture,
    number: usize,
}

/// Hostname of a good tenant's at a Gateway.
pub(super) fn host(prefix: &str, number: usize) -> String {
    format!("{prefix}-{number}.good.example")
}

impl Tenant {
    pub(super) async fn create(platform: &Fixture, number: usize, authority: &Authority) -> Self {
        let fixture = platform.another_namespace(&format!("good-{number}"), json!({ROLE: "good"})).await;
        let tenant = Self { fixture, number };
        tenant.create_backend().await;
        tenant.create_listeners(platform, authority).await;
        tenant.create_routes(platform).await;
        tenant
    }

    pub(super) fn name(&self) -> String {
        self.fixture.name.clone()
    }

    /// It answers with the tenant's name.
    async fn create_backend(&self) {
        let port = backend(self.name());
        service(&self.fixture, "web", POD, port).await;
    }

    async fn create_listeners(&self, platform: &Fixture, authority: &Authority) {
        for gateway in [EDGE, GUARDED] {
            let host = host(&format!("tls-{gateway}"), self.number);
            self.fixture.create("Secret", gateway, authority.secret(&host)).await;
            let tls = json!({"certificateRefs": [{"name": gateway}]});
            let listeners = json!([
                {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": host, "tls": tls},
                {"name": "http", "port": 8080, "protocol": "HTTP", "hostname": host}
            ]);
            let parent = json!({"name": gateway, "namespace": platform.name});
            let spec = json!({"parentRef": parent, "listeners": listeners});
            self.fixture.create("ListenerSet", gateway, json!({"spec": spec})).await;
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
            is_tls: false,
            answer: self.name(),
        };
        let number = self.number;
        let secure = |target: Target| Target { is_tls: true, ..target };
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
pub(super) async fn service(fixture: &Fixture, name: &str, address: &str, port: u16) {
    let ports = json!({"ports": [{"port": 80, "targetPort": port}]});
    fixture.create("Service", name, json!({"spec": ports})).await;
    let labels = json!({"kubernetes.io/service-name": name});
    let slice = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "ports": [{"name": "", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]});
    fixture.create("EndpointSlice", name, slice).await;
}
