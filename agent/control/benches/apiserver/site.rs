//! A Gateway with routes to a backend on the node, and the agent that serves it.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Bench;
use crate::agent::Agent;
use crate::fixture::{Fixture, condition};
use crate::http::{Connection, backend};

pub(crate) const GATEWAY: &str = "web";
/// Requests in flight at once when objects are made by the thousand.
const CONCURRENCY: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Site {
    pub(crate) fixture: Fixture,
    pub(crate) agent: Agent,
    /// Address of the Gateway.
    pub(crate) address: SocketAddr,
}

impl Site {
    /// Serves one route, to `first.example.com`.
    pub(crate) async fn create(bench: &Bench) -> Self {
        let fixture = Fixture::new().await;
        create_backend(&fixture).await;
        let mut agent = Agent::start(bench, &fixture);
        fixture.gateway(GATEWAY, json!({})).await;
        let gateway = fixture.until("Gateway", GATEWAY, is_programmed).await;
        let address = gateway["status"]["addresses"][0]["value"].as_str().unwrap().parse().unwrap();
        agent.await_ready();
        let site = Self { fixture, agent, address: SocketAddr::new(address, 80) };
        site.create_route("first").await;
        site.await_answer("first").await;
        site
    }

    pub(crate) async fn create_route(&self, name: &str) {
        let backends = json!([{"name": "backend", "port": 80}]);
        let spec = json!({"parentRefs": [{"name": GATEWAY}], "hostnames": [host(name)], "rules": [{"backendRefs": backends}]});
        self.fixture.create("HTTPRoute", name, json!({"spec": spec})).await;
    }

    /// As fast as the API server takes them.
    pub(crate) async fn create_routes(&self, prefix: &str, numbers: std::ops::Range<usize>) {
        let create = |number: usize| async move { self.create_route(&format!("{prefix}-{number}")).await };
        futures::stream::iter(numbers).for_each_concurrent(CONCURRENCY, create).await;
    }

    /// Until all statuses say that so many routes are served.
    pub(crate) async fn await_attached(&self, routes: usize, last: &str) {
        self.until("Gateway", GATEWAY, |gateway| {
            gateway["status"]["listeners"][0]["attachedRoutes"] == routes
        })
        .await;
        self.until("HTTPRoute", last, is_told).await;
    }

    pub(crate) async fn until(&self, kind: &str, name: &str, holds: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !holds(&self.fixture.get(kind, name).await) {
            assert!(Instant::now() < deadline, "{kind} {name} stays as it is");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn await_answer(&self, route: &str) {
        let mut connection = Connection::to(self.address);
        let deadline = Instant::now() + TIMEOUT;
        while connection.get(&host(route), "/").ok() != Some(200) {
            assert!(Instant::now() < deadline, "{route} is not served");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the agent, and removes what was made.
    pub(crate) async fn remove(self) {
        self.agent.stop();
        self.fixture.remove().await;
    }
}

pub(crate) fn host(route: &str) -> String {
    format!("{route}.example.com")
}

pub(crate) fn is_programmed(gateway: &Value) -> bool {
    condition(&gateway["status"], "Programmed")["status"] == "True"
}

pub(crate) fn is_told(route: &Value) -> bool {
    condition(&route["status"]["parents"][0], "Accepted")["status"] == "True"
}

async fn create_backend(fixture: &Fixture) {
    let address = node_address(fixture).await;
    let port = backend(address.parse().unwrap());
    fixture
        .create("Service", "backend", json!({"spec": {"ports": [{"port": 80, "targetPort": port}]}}))
        .await;
    let labels = json!({"kubernetes.io/service-name": "backend"});
    let slice = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "ports": [{"name": "", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]});
    fixture.create("EndpointSlice", "backend", slice).await;
}

async fn node_address(fixture: &Fixture) -> String {
    let nodes: Api<Node> = Api::all(fixture.client.clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap();
    let addresses = nodes.items.into_iter().filter_map(|node| node.status?.addresses).flatten();
    let mut internal = addresses.filter(|address| address.type_ == "InternalIP");
    internal.next().expect("the cluster has no node").address
}
