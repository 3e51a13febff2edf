//! The way from outside: what load balancers find in the API server and ask nodes for, and node
//! ports, with kube-proxy in either mode.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::{Check, Cluster, Node, ProxyMode, wait};

use super::client::{Client, PODS};
use super::nodes::select_nodes;
use super::words::{TIMEOUT, apply, await_field, delete, field};
use super::{SCALING, outside};
use crate::TESTED;

const GATEWAY: &str = "reached.yaml";
const SERVICE: &str = "service/reached-portcullis";
/// Given to the Gateway by these checks as its load balancer.
const ADDRESS: &str = "198.51.100.20";

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a Service's endpoints are the nodes whose agent is ready", endpoints_are_nodes),
    ("every node answers a load balancer that asks for its health", health_is_answered),
    ("every node's node port leads to the Gateway, and clients' addresses are kept", node_ports_are_served),
    ("all of this is the same over IPv6", ipv6_is_the_same),
    ("a load balancer's address is served by every node, beside endpoints", address_is_served),
    ("a node without agent is no endpoint, and not healthy", node_is_left_out),
    ("with kube-proxy in iptables mode all of this is the same", iptables_mode_is_the_same),
];

fn endpoints_are_nodes(cluster: &Cluster) -> Result<()> {
    apply(cluster, GATEWAY)?;
    await_endpoints(cluster, cluster.nodes())
}

/// In kube-proxy's words, though kube-proxy runs: it leaves the Service alone.
fn health_is_answered(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let answer = Client::Outside.await_answer(cluster, &health(cluster, node)?)?;
        let expected = r#""localEndpoints":1"#;
        ensure!(answer.contains(expected) && answer.contains("reached-portcullis"), "{node}: {answer}");
    }
    Ok(())
}

fn node_ports_are_served(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let url = node_port(cluster, node)?;
        let answer = Client::Outside.await_answer(cluster, &url)?;
        ensure!(answer.contains(outside::ADDRESS), "{node}: the backend does not see the client: {answer}");
        PODS[0].await_answer(cluster, &url)?;
        PODS[1].await_answer(cluster, &url)?;
    }
    let port = field(cluster, SERVICE, "{.spec.ports[0].nodePort}")?;
    let slices = slices(cluster, "{.items[*].ports[*].port}")?;
    let expected = format!("{port} {port}");
    ensure!(slices == expected, "the endpoints have the ports {slices}, the node port is {port}");
    Ok(())
}

/// The Service's address and node port, from pods, nodes and outside, on both nodes.
fn ipv6_is_the_same(cluster: &Cluster) -> Result<()> {
    let vip = format!("http://[{}]/", field(cluster, SERVICE, "{.spec.clusterIPs[1]}")?);
    let port = field(cluster, SERVICE, "{.spec.ports[0].nodePort}")?;
    let health = field(cluster, SERVICE, "{.spec.healthCheckNodePort}")?;
    for client in PODS.into_iter().chain(cluster.nodes().map(Client::Node)) {
        client.await_answer(cluster, &vip)?;
    }
    for node in cluster.nodes() {
        let node_port = format!("http://[{}]:{port}/", node.ipv6_address());
        let answer = Client::Outside.await_answer(cluster, &node_port)?;
        let client = outside::IPV6_ADDRESS;
        ensure!(answer.contains(client), "{node}: the backend does not see the client: {answer}");
        PODS[0].await_answer(cluster, &node_port)?;
        PODS[1].await_answer(cluster, &node_port)?;
        Client::Outside
            .await_answer(cluster, &format!("http://[{}]:{health}/healthz", node.ipv6_address()))?;
    }
    // The nodes' own processes are not reached there.
    PODS[0].await_refusal(cluster, &vip.replace("]/", "]:6443/"))
}

fn address_is_served(cluster: &Cluster) -> Result<()> {
    let status = format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{ADDRESS}"}}]}}}}}}"#);
    let service = ["patch", "-n", TESTED, SERVICE, "--subresource=status", "--type=merge", "--patch"];
    cluster.kubectl(&[&service[..], &[&status]].concat())?;
    await_field(cluster, "gateway/reached", "{.status.addresses[*].value}", ADDRESS)?;
    let own = field(cluster, SERVICE, "{.spec.clusterIP}")?;
    for node in cluster.nodes() {
        outside::balance_to(cluster, node)?;
        let answer = Client::Outside.await_answer(cluster, &format!("http://{ADDRESS}/"))?;
        ensure!(answer.contains(outside::ADDRESS), "{node}: the backend does not see the client: {answer}");
        Client::Node(node).await_answer(cluster, &format!("http://{own}/"))?;
    }
    for pod in PODS {
        pod.await_answer(cluster, &format!("http://{ADDRESS}/"))?;
        pod.await_answer(cluster, &format!("http://{own}/"))?;
    }
    Ok(())
}

fn node_is_left_out(cluster: &Cluster) -> Result<()> {
    let url = health(cluster, Node::SECOND)?;
    select_nodes(cluster, r#"{"kubernetes.io/hostname":"node-1"}"#)?;
    let found = await_endpoints(cluster, [Node::FIRST].into_iter());
    let refused = Client::Outside.await_refusal(cluster, &url);
    select_nodes(cluster, "null")?;
    found.and(refused)?;
    await_endpoints(cluster, cluster.nodes())
}

fn iptables_mode_is_the_same(cluster: &Cluster) -> Result<()> {
    cluster.set_proxy_mode(ProxyMode::Iptables)?;
    let same = health_is_answered(cluster)
        .and_then(|()| node_ports_are_served(cluster))
        .and_then(|()| address_is_served(cluster));
    cluster.set_proxy_mode(ProxyMode::Nftables)?;
    delete(cluster, GATEWAY)?;
    same
}

fn health(cluster: &Cluster, node: Node) -> Result<String> {
    let port = field(cluster, SERVICE, "{.spec.healthCheckNodePort}")?;
    ensure!(!port.is_empty(), "the Service has no healthCheckNodePort");
    Ok(format!("http://{}:{port}/healthz", node.address()))
}

fn node_port(cluster: &Cluster, node: Node) -> Result<String> {
    let port = field(cluster, SERVICE, "{.spec.ports[0].nodePort}")?;
    ensure!(!port.is_empty(), "the Service has no node port");
    Ok(format!("http://{}:{port}/", node.address()))
}

/// Waits until these nodes are the endpoints that are ready, of IPv4 and of IPv6, and there are no
/// others.
fn await_endpoints(cluster: &Cluster, nodes: impl Iterator<Item = Node>) -> Result<()> {
    let nodes: Vec<_> = nodes.collect();
    let mut expected = String::new();
    for address_of in [Node::address, Node::ipv6_address] {
        for node in &nodes {
            writeln!(expected, "{node} {} true true false", address_of(*node))?;
        }
    }
    let line =
        "{.nodeName} {.addresses[0]} {.conditions.ready} {.conditions.serving} {.conditions.terminating}";
    let path = format!(r#"{{range .items[*].endpoints[*]}}{line}{{"\n"}}{{end}}"#);
    let mut found = String::new();
    wait::until_true("endpoints", SCALING.max(TIMEOUT), || {
        found = slices(cluster, &path).unwrap_or_else(|error| format!("{error:#}"));
        found == expected
    })
    .with_context(|| format!("they are {found:?} instead of {expected:?}"))
}

fn slices(cluster: &Cluster, path: &str) -> Result<String> {
    let selector = "--selector=kubernetes.io/service-name=reached-portcullis";
    let path = format!("jsonpath={path}");
    cluster.kubectl(&["get", "endpointslices", "--namespace", TESTED, selector, "-o", &path])
}
