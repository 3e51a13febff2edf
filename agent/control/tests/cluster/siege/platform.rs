//! The platform team's part: two Gateways that all tenants share, one of them with claims, and a
//! route that leaves everything below a path to tenants.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Authority, TlsClient};
use super::good::Tenant;
use super::node::Node;
use crate::fixture::{Fixture, condition};

/// Without claims: only what is older wins.
pub(super) const EDGE: &str = "edge";
/// With claims.
pub(super) const GUARDED: &str = "guarded";
/// Takes children of all namespaces.
pub(super) const PARENT: &str = "shop";
pub(super) const PARENT_HOST: &str = "shop.example";
/// The one rule of it that good tenants attach to.
pub(super) const RULE: &str = "tenants";

/// Label of tenants' namespaces.
pub(super) const ROLE: &str = "role";

const RULES: usize = 16;
const MATCHES: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Places at which clients ask.
#[derive(Clone)]
pub(super) struct Sites {
    pub(super) edge: IpAddr,
    pub(super) guarded: IpAddr,
    pub(super) tls: TlsClient,
}

pub(super) async fn create(platform: &Fixture) {
    let claims = json!([
        {"namespaces": {"matchLabels": {ROLE: "good"}}, "hostnames": ["*.good.example"], "ports": [80, 443, 8080]},
        {"namespaces": {"matchLabels": {ROLE: "evil"}}, "hostnames": ["*.evil.example"], "ports": [80, 443, 8080],
            "listeners": 4}
    ]);
    platform.create("GatewayParameters", "claims", json!({"spec": {"claims": claims}})).await;
    gateway(platform, EDGE, json!({})).await;
    let parameters = json!({"group": "portcullis.dev", "kind": "GatewayParameters", "name": "claims"});
    gateway(platform, GUARDED, json!({"infrastructure": {"parametersRef": parameters}})).await;
    let rules: Vec<_> = (0..RULES).map(rule).collect();
    let spec = json!({"parentRefs": [{"name": EDGE, "sectionName": "http"}], "hostnames": [PARENT_HOST], "rules": rules});
    platform.create("HTTPRoute", PARENT, json!({"spec": spec})).await;
}

async fn gateway(platform: &Fixture, name: &str, more: Value) {
    let open = json!({"namespaces": {"from": "All"}});
    let mut spec = json!({"allowedListeners": open,
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": open}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    platform.gateway(name, spec).await;
}

/// The first rule is for good tenants; the others only multiply what strangers bring.
fn rule(number: usize) -> Value {
    let (name, prefix) = match number {
        0 => (RULE.to_owned(), "/tenants".to_owned()),
        number => (format!("r{number}"), format!("/r{number}")),
    };
    let header = |of: usize| json!([{"name": "x-variant", "value": format!("v{of}")}]);
    let matches: Vec<_> = (0..MATCHES)
        .map(|of| {
            let path = json!({"type": "PathPrefix", "value": prefix});
            if of == 0 { json!({"path": path}) } else { json!({"path": path, "headers": header(of)}) }
        })
        .collect();
    json!({"name": name, "matches": matches, "allowedRoutes": {"namespaces": {"from": "All"}}})
}

/// Conditions of both Gateways and of their own listeners: counts of what attaches are tenants' to
/// change.
pub(super) async fn statuses(platform: &Fixture) -> BTreeMap<String, Value> {
    let mut statuses = BTreeMap::new();
    for name in [EDGE, GUARDED] {
        let status = platform.get("Gateway", name).await["status"].clone();
        let listeners = status["listeners"].as_array().into_iter().flatten();
        let listeners: Vec<_> = listeners.map(|it| it["conditions"].clone()).collect();
        let kept = json!({"conditions": status["conditions"], "addresses": status["addresses"], "listeners": listeners});
        statuses.insert(format!("Gateway {name}"), kept);
    }
    statuses
}

impl Sites {
    pub(super) async fn of(platform: &Fixture, authority: &Authority) -> Self {
        let [edge, guarded] = [address(platform, EDGE).await, address(platform, GUARDED).await];
        Self { edge, guarded, tls: authority.client() }
    }

    /// Until every request of a tenant's clients on a node is answered by its backend.
    pub(super) async fn await_served(&self, tenant: &Tenant, node: Node) {
        let deadline = Instant::now() + TIMEOUT;
        for target in tenant.targets(self) {
            loop {
                let (asked, sites) = (target.clone(), self.clone());
                let ask = move || asked.ask_once(node, &sites);
                let failed = tokio::task::spawn_blocking(ask).await.unwrap().err();
                let Some(failed) = failed else { break };
                assert!(Instant::now() < deadline, "{failed}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

pub(super) async fn address(platform: &Fixture, name: &str) -> IpAddr {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let gateway = platform.get("Gateway", name).await;
        if condition(&gateway["status"], "Programmed")["status"] == "True" {
            return gateway["status"]["addresses"][0]["value"].as_str().unwrap().parse().unwrap();
        }
        assert!(Instant::now() < deadline, "Gateway {name} is not programmed: {:#}", gateway["status"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}
