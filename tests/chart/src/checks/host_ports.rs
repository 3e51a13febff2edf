//! Gateways whose ports are served on the nodes' own addresses.

use anyhow::{Context, Result, bail, ensure};
use portcullis_test_cluster::{Check, Cluster, wait};

use super::client::{Client, Conversation, PODS};
use super::load::Load;
use super::outside;
use super::words::{TIMEOUT, apply, await_field, delete, field, patch};
use crate::TESTED;

/// A pod of the second node's network that listens on the same port.
const OCCUPANT: &str = "occupant.yaml";
/// A Gateway that wants the same port, made later.
const YOUNGER: &str = "younger.yaml";
/// A Gateway that wants a port of the nodes themselves.
const KUBELETS: &str = "kubelets.yaml";

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a Gateway with host ports is served on every node's own address, and clients' are kept", nodes_serve),
    ("its status has the addresses of the nodes with a ready agent, too", status_has_nodes),
    (
        "a port on which another process begins to listen is given up on its node, which an Event says",
        occupied_port_is_given_up,
    ),
    ("of two Gateways that want a port the older has it, and the younger says so", older_keeps_its_port),
    ("a port that the older gives up is the younger's", younger_inherits),
    (
        "a port that a cluster needs for itself is no Gateway's, and its status says so",
        node_ports_are_refused,
    ),
    ("switched off, the port is closed, and connections to others live on", ports_close),
];

fn nodes_serve(cluster: &Cluster) -> Result<()> {
    for url in urls(cluster) {
        let answer = Client::Outside.await_answer(cluster, &url)?;
        ensure!(answer.contains(outside::ADDRESS), "the backend does not see the client: {answer}");
        PODS[0].await_answer(cluster, &url)?;
        PODS[1].await_answer(cluster, &url)?;
    }
    Ok(())
}

fn status_has_nodes(cluster: &Cluster) -> Result<()> {
    let own = field(cluster, "service/older-portcullis", "{.spec.clusterIP}")?;
    let nodes: Vec<_> = cluster.nodes().flat_map(|node| [node.address(), node.ipv6_address()]).collect();
    let all = format!("{own} {}", nodes.join(" "));
    await_field(cluster, "gateway/older", "{.status.addresses[*].value}", &all)?;
    for node in cluster.nodes() {
        Client::Outside.await_answer(cluster, &format!("http://[{}]:8081/", node.ipv6_address()))?;
    }
    Ok(())
}

fn occupied_port_is_given_up(cluster: &Cluster) -> Result<()> {
    let events = || {
        let messages = "jsonpath={.items[?(@.reason=='PortUnavailable')].message}";
        let older = "--field-selector=involvedObject.kind=Gateway,involvedObject.name=older";
        cluster.kubectl(&["get", "events", "--namespace", TESTED, older, "-o", messages])
    };
    ensure!(events()?.is_empty(), "there is an Event before: {}", events()?);
    apply(cluster, OCCUPANT)?;
    let said = "another process of the node listens on port 8081";
    wait::until_true("an Event of the Gateway", TIMEOUT, || events().is_ok_and(|it| it.contains(said)))?;
    let urls: Vec<_> = urls(cluster).collect();
    let [first, second] = urls.as_slice() else { bail!("there are {} nodes", urls.len()) };
    served_by(cluster, second, "occupant")?;
    served_by(cluster, first, "older")?;
    delete(cluster, OCCUPANT)?;
    served_by(cluster, second, "older")
}

fn older_keeps_its_port(cluster: &Cluster) -> Result<()> {
    apply(cluster, YOUNGER)?;
    let programmed = "{.status.conditions[?(@.type=='Programmed')].status}";
    let reason = "{.status.conditions[?(@.type=='Programmed')].reason}";
    await_field(cluster, "gateway/younger", reason, "AddressNotUsable")?;
    let message = "{.status.conditions[?(@.type=='Programmed')].message}";
    let message = field(cluster, "gateway/younger", message)?;
    ensure!(message.contains("8081"), "the message does not name the port: {message}");
    await_field(cluster, "gateway/older", programmed, "True")?;
    all_served_by(cluster, "older")?;
    let own = field(cluster, "service/younger-portcullis", "{.spec.clusterIP}")?;
    let answer = PODS[1].await_answer(cluster, &format!("http://{own}:8081/"))?;
    ensure!(answer.contains("younger"), "the younger does not serve its own address: {answer}");
    Ok(())
}

fn younger_inherits(cluster: &Cluster) -> Result<()> {
    let own = field(cluster, "service/older-portcullis", "{.spec.clusterIP}")?;
    let conversation = Conversation::begin(cluster, PODS[0], &own, 8081)?;
    patch(cluster, "gateway/older", r#"{"spec":{"infrastructure":null}}"#)?;
    await_field(cluster, "gateway/younger", "{.status.conditions[?(@.type=='Programmed')].status}", "True")?;
    all_served_by(cluster, "younger")?;
    conversation.go_on().context("to the older's own address")
}

fn node_ports_are_refused(cluster: &Cluster) -> Result<()> {
    apply(cluster, KUBELETS)?;
    let reason = "{.status.conditions[?(@.type=='Programmed')].reason}";
    await_field(cluster, "gateway/kubelets", reason, "AddressNotUsable")?;
    let message = "{.status.conditions[?(@.type=='Programmed')].message}";
    let message = field(cluster, "gateway/kubelets", message)?;
    ensure!(message.contains("port 10250"), "the message does not name the port: {message}");
    for node in cluster.nodes() {
        let health = format!("/api/v1/nodes/{node}/proxy/healthz");
        ensure!(cluster.kubectl(&["get", "--raw", &health])? == "ok", "the kubelet lost its port");
    }
    delete(cluster, KUBELETS)
}

fn ports_close(cluster: &Cluster) -> Result<()> {
    let own = field(cluster, "service/older-portcullis", "{.spec.clusterIP}")?;
    let conversation = Conversation::begin(cluster, PODS[1], &own, 8081)?;
    let load = Load::begin(cluster, PODS[0], &format!("http://{own}:8081/"))?;
    patch(cluster, "gatewayparameters/host-ports", r#"{"spec":{"hostPorts":false}}"#)?;
    for url in urls(cluster) {
        Client::Outside.await_refusal(cluster, &url)?;
        PODS[1].await_refusal(cluster, &url)?;
    }
    conversation.go_on()?;
    load.end()?;
    delete(cluster, YOUNGER)
}

/// Waits until both nodes' addresses are the Gateway's.
fn all_served_by(cluster: &Cluster, gateway: &str) -> Result<()> {
    urls(cluster).try_for_each(|url| served_by(cluster, &url, gateway))
}

fn served_by(cluster: &Cluster, url: &str, name: &str) -> Result<()> {
    wait::until_true(&format!("{url} to be served by {name}"), TIMEOUT, || {
        Client::Outside.get(cluster, url).is_ok_and(|answer| answer.contains(name))
    })
}

fn urls(cluster: &Cluster) -> impl Iterator<Item = String> {
    cluster.nodes().map(|node| format!("http://{}:8081/", node.address()))
}
