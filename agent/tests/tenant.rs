//! A tenant with all rights in a namespace of its own tries to loosen what the owner of the Gateway
//! asks for: each field that protects, by whatever the tenant can write.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use support::{Agent, HTTP, backend, eventually};

const GATEWAY: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - {name: http, protocol: HTTP, port: 8080, hostname: own.example, allowedRoutes: {namespaces: {from: All}}}
";

/// A parent route of the operator's, whose child is the tenant's, a set and routes of the tenant's.
const ROUTES: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: parent, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules:
  - matches: [{path: {value: /child}}]
    backendRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: child, namespace: shop}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: child, namespace: shop}
spec:
  parentRefs: [{kind: HTTPRoute, namespace: infra, name: parent}]
  rules: [{name: r, backendRefs: [{name: shop, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: web, namespace: shop}
spec:
  parentRef: {name: web, namespace: infra}
  listeners: [{name: http, protocol: HTTP, port: 8080, hostname: set.example}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: web, namespace: infra}, {kind: ListenerSet, name: web}]
  rules: [{name: r, backendRefs: [{name: shop, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-1, namespace: shop, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: BACKEND}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
";

/// All that the tenant can have a policy on, and what it cannot.
const TARGETS: [&str; 8] = [
    "kind: Gateway, name: web",
    "kind: Gateway, name: web, sectionName: http",
    "kind: ListenerSet, name: web",
    "kind: ListenerSet, name: web, sectionName: http",
    "kind: HTTPRoute, name: web",
    "kind: HTTPRoute, name: web, sectionName: r",
    "kind: HTTPRoute, name: child",
    "kind: HTTPRoute, name: child, sectionName: r",
];

/// Older than any other, by its name before any other, and of the other's name.
fn policies(loose: &str) -> String {
    let mut text = String::new();
    for (at, target) in TARGETS.iter().enumerate() {
        let name = if at == 0 { "p".to_owned() } else { format!("a-{at}") };
        text += &format!(
            "---\napiVersion: portcullis.dev/v1alpha1\nkind: TrafficPolicy\n\
             metadata: {{name: {name}, namespace: shop, creationTimestamp: \"2000-01-01T00:00:00Z\"}}\n\
             spec:\n  targetRefs: [{{group: gateway.networking.k8s.io, {target}}}]\n  {loose}\n"
        );
    }
    text
}

fn strict(target: &str, protecting: &str) -> String {
    format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: p, namespace: infra}}\n\
         spec:\n  targetRefs: [{{group: gateway.networking.k8s.io, {target}}}]\n  {protecting}\n"
    )
}

fn post(agent: &Agent, host: &str, path: &str, claims: &str) -> Option<u16> {
    let mut stream = TcpStream::connect((agent.address, HTTP)).ok()?;
    let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n{claims}connection: close\r\n");
    stream.write_all(format!("{head}content-length: 20\r\n\r\n01234567890123456789").as_bytes()).ok()?;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn no_field_that_protects_can_be_loosened_by_a_tenant() {
    let routes = ROUTES.replace("BACKEND", &backend("shop").to_string());
    let everybody = "allow: [0.0.0.0/0, \"::/0\"]";
    let limited = |number: u32| format!("rateLimits: [{{requests: {number}, per: Hour}}]");
    let fields = [
        ("allow: [192.0.2.0/24]".to_owned(), everybody.to_owned(), 403),
        ("deny: [127.0.0.0/8]".to_owned(), everybody.to_owned(), 403),
        ("maxRequestBody: 10".to_owned(), "maxRequestBody: 1000000".to_owned(), 413),
        (limited(1), limited(100_000), 429),
    ];
    // Without a policy all of it is served, so that what follows is the policy's doing.
    let agent = Agent::start(&[("gateway.yaml", GATEWAY), ("routes.yaml", &routes)]);
    let requests = [("own.example", "/"), ("set.example", "/"), ("own.example", "/child")];
    for (host, path) in requests {
        eventually("it is served", || post(&agent, host, path, "") == Some(200));
    }
    for (protecting, loose, expected) in &fields {
        for (target, requests) in
            [("kind: Gateway, name: web", &requests[..]), ("kind: HTTPRoute, name: parent", &requests[2..])]
        {
            agent.edit("infra.yaml", &strict(target, protecting));
            let (host, path) = requests[0];
            eventually("the policy is in force", || post(&agent, host, path, "") == Some(*expected));
            agent.edit("shop.yaml", &policies(loose));
            eventually("the tenant's policies are in force", || {
                agent.command(&["status", "TrafficPolicy", "shop/a-7"]).contains("True")
            });
            for (host, path) in requests {
                for claims in ["", "x-forwarded-for: 192.0.2.1\r\nforwarded: for=192.0.2.1\r\n"] {
                    let answer = post(&agent, host, path, claims);
                    assert_eq!(answer, Some(*expected), "{protecting} on {target}: {host}{path}");
                }
            }
            agent.edit("shop.yaml", "");
            agent.edit("infra.yaml", "");
            eventually("it is open again", || post(&agent, host, path, "") == Some(200));
        }
    }
}
