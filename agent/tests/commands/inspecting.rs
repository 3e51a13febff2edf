//! `status`, `routes`, `explain` and `dump` of a running agent: what is chosen, and in what form it
//! is printed.

use crate::support::{Agent, eventually};

const MANIFESTS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8080, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8081}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{name: web, namespace: infra}]
  rules: [{backendRefs: [{name: nowhere, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: home, namespace: infra}
spec:
  parentRefs: [{name: web}]
  hostnames: [home.example]
  rules: [{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 302}}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: refused, namespace: shop}
spec: {parentRefs: [{name: web, port: many}]}
";

fn agent() -> Agent {
    let agent = Agent::start(&[("all.yaml", MANIFESTS)]);
    eventually("statuses are written", || {
        let status = agent.command(&["status", "httproute,gateway,gc"]);
        ["shop/cart", "infra/home", "shop/edge", "infra/web", "GatewayClass"]
            .iter()
            .all(|it| status.contains(it))
    });
    agent
}

/// The first two columns of the rows of the first table.
fn objects(text: &str) -> Vec<String> {
    let rows = text.lines().skip(1).take_while(|line| !line.is_empty());
    let mut names: Vec<_> =
        rows.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn objects_are_chosen_as_with_kubectl() {
    let agent = agent();
    let chosen = |arguments: &[&str]| objects(&agent.command(&[&["status"], arguments].concat()));
    assert_eq!(chosen(&["gw"]), ["Gateway infra/web", "Gateway shop/edge"]);
    assert_eq!(chosen(&["gateways", "-A"]), ["Gateway infra/web", "Gateway shop/edge"]);
    assert_eq!(chosen(&["gw", "-n", "shop"]), ["Gateway shop/edge"]);
    assert_eq!(chosen(&["-n", "shop"]), ["Gateway shop/edge", "HTTPRoute shop/cart"]);
    assert_eq!(chosen(&["httproute/home"]), ["HTTPRoute infra/home"]);
    assert_eq!(chosen(&["gc", "-n", "shop"]), ["GatewayClass portcullis"]);
    let listeners = agent.command(&["status", "listeners", "-n", "shop"]);
    assert!(listeners.contains("Gateway shop/edge") && !listeners.contains("infra/web"), "{listeners}");
    for (arguments, complaint) in [
        (&["status", "gate"][..], "no kind with a status is called \"gate\""),
        (&["status", "gw", "none"], "no object of this kind and name has a status"),
        (&["status", "gw", "-n", "none"], "no object of this kind and name has a status"),
        (&["status", "-A", "-n", "shop"], "cannot be used with"),
        (&["status", "listeners", "--problems"], "--problems is of objects"),
    ] {
        let output = agent.command(arguments);
        assert!(output.contains(complaint), "{arguments:?}: {output}");
    }
}

#[test]
fn problems_are_of_objects_that_are_not_well() {
    let agent = agent();
    let problems = agent.command(&["status", "--problems"]);
    assert_eq!(objects(&problems), ["HTTPRoute shop/cart"], "{problems}");
    assert!(problems.contains("HTTPRoute shop/refused: spec.parentRefs[0].port"), "{problems}");
    assert!(problems.ends_with("\n1 of 5 objects with a status are not well\n"), "{problems}");
    assert_eq!(agent.command(&["status", "gw", "--problems"]), "0 of 2 objects with a status are not well\n");
    let yaml = agent.command(&["status", "--problems", "-o", "yaml"]);
    assert!(yaml.contains("name: cart") && !yaml.contains("name: home"), "{yaml}");
}
