//! Edits of parents, children and labels while clients are served: no request fails, and every edit
//! is seen.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use portcullis_netns_tests::{Load, Probe, Scenario};

const ROUNDS: u32 = 40;
const HOST: &str = "www.example.com";

#[test]
fn no_request_fails_while_a_family_is_edited() {
    let site = Site { scenario: Scenario::without_configuration("family-edits").unwrap() };
    site.write_all().unwrap();
    let agent = site.scenario.start_agent().unwrap();
    let load = site.load().unwrap();
    let mut probe = Probe::open(&site.scenario, HOST).unwrap();
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 1..=ROUNDS {
        site.child(round).unwrap();
        times[0].push(probe.until_contains("/store/cart", &format!("x-child: {round}\r")).unwrap());
        site.parent(round).unwrap();
        times[1].push(probe.until_contains("/store/cart", &format!("x-parent: {round}\r")).unwrap());
        let admitted = round % 2 == 1;
        site.label(round, admitted).unwrap();
        let status = if admitted { "200 ok" } else { "404 not found" };
        times[2].push(probe.until_contains("/store/news", status).unwrap());
    }
    let answered = site.scenario.shop.requests();
    for load in load {
        load.finish().unwrap_or_else(|error| panic!("{error:#}; the agent's log:\n{}", agent.log()));
    }
    assert!(answered > 300, "the load was no load: {answered} requests");
    for (what, times) in ["child", "parent's filter", "label"].into_iter().zip(times) {
        println!(
            "{what}: visible after {:?} (median of {ROUNDS}), {answered} requests served meanwhile",
            median(times)
        );
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Site {
    scenario: Scenario,
}

impl Site {
    fn write_all(&self) -> Result<()> {
        self.put("gateway.yaml", GATEWAY)?;
        self.put("services.yaml", SERVICES)?;
        self.put("news.yaml", NEWS)?;
        self.put("tls.yaml", &self.scenario.authority.issue(&[HOST])?.secret("infra", "tls"))?;
        self.child(0)?;
        self.parent(0)?;
        self.label(0, false)
    }

    /// Replaces a file as an editor does.
    fn put(&self, name: &str, text: &str) -> Result<()> {
        let partial = self.scenario.config().join(format!(".{name}.partial"));
        fs::write(&partial, text)?;
        Ok(fs::rename(partial, self.scenario.config().join(name))?)
    }

    fn child(&self, round: u32) -> Result<()> {
        self.put("child.yaml", &CHILD.replace("ROUND", &round.to_string()))
    }

    fn parent(&self, round: u32) -> Result<()> {
        self.put("parent.yaml", &PARENT.replace("ROUND", &round.to_string()))
    }

    /// The namespace of the child under load changes, too, in a label that no one asks for.
    fn label(&self, round: u32, admitted: bool) -> Result<()> {
        let team = if admitted { "web" } else { "none" };
        let text = LABELS.replace("ROUND", &round.to_string()).replace("TEAM", team);
        self.put("namespaces.yaml", &text)
    }

    fn load(&self) -> Result<Vec<Load>> {
        let kinds = [
            ("http", "h1", ["--http1.1"].as_slice()),
            ("https", "h2", &["--http2"]),
            ("http", "close", &["--http1.1", "--header", "Connection: close"]),
        ];
        let start = |(scheme, name, arguments): (&str, &str, &[&str])| {
            let url = format!("{scheme}://{HOST}/store/cart/load");
            self.scenario.request(&url).with(arguments).repeat(self.scenario.file(name))
        };
        kinds.into_iter().map(start).collect()
    }
}

const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: tls}]}}
";

const PARENT: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: infra}
spec:
  parentRefs: [{name: edge}]
  hostnames: [www.example.com]
  rules:
  - name: store
    matches: [{path: {type: PathPrefix, value: /store}}]
    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {set: [{name: X-Parent, value: \"ROUND\"}]}
    allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: web}}}}
";

const CHILD: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{kind: HTTPRoute, name: web, namespace: infra, sectionName: store}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /cart}}]
    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {set: [{name: X-Child, value: \"ROUND\"}]}
    backendRefs: [{name: cart, port: 8080}]
";

const NEWS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: news, namespace: press}
spec:
  parentRefs: [{kind: HTTPRoute, name: web, namespace: infra}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /news}}]
    backendRefs: [{name: news, port: 8080}]
";

const LABELS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: web, round: \"ROUND\"}}
---
apiVersion: v1
kind: Namespace
metadata: {name: press, labels: {team: TEAM}}
";

const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {ports: [{port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.2.0.2]}]
---
apiVersion: v1
kind: Service
metadata: {name: news, namespace: press}
spec: {ports: [{port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: news-1, namespace: press, labels: {kubernetes.io/service-name: news}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.2.0.3]}]
";
