//! A Service of type LoadBalancer, with these checks as the load balancer: they give it addresses
//! and lead traffic to a node.

use anyhow::{Result, bail, ensure};
use portcullis_test_cluster::{Check, Cluster, wait};

use super::client::{Client, Conversation, PODS};
use super::load::Load;
use super::outside;
use super::words::{TIMEOUT, await_field, field, is_local, patch};
use crate::TESTED;

const FIRST: &str = "198.51.100.1";
const SECOND: &str = "198.51.100.2";
const ASKED_FOR: &str = "198.51.100.7";

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a Gateway's Service is a LoadBalancer, with the policy and without node ports", service_is_balanced),
    ("a Gateway has no address before its load balancer gives one", nothing_is_published),
    ("the address that a load balancer gives is the Gateway's", address_is_published),
    ("a client outside reaches it through either node, and its address is kept", outside_reaches_it),
    ("addresses come and go, and nothing is lost on those that stay", addresses_change),
    ("a load balancer that publishes a node's address takes it from nobody", node_keeps_its_address),
    ("an address that the Gateway asks for is asked of the load balancer", address_is_asked_for),
    ("without a load balancer its addresses go, and the cluster's stays", balancer_is_given_up),
];

fn service_is_balanced(cluster: &Cluster) -> Result<()> {
    for (path, value) in [
        ("{.spec.type}", "LoadBalancer"),
        ("{.spec.externalTrafficPolicy}", "Local"),
        ("{.spec.allocateLoadBalancerNodePorts}", "false"),
    ] {
        await_field(cluster, "service/balanced-portcullis", path, value)?;
    }
    Ok(())
}

/// The cluster's is nothing that clients outside could use.
fn nothing_is_published(cluster: &Cluster) -> Result<()> {
    let reason = "{.status.conditions[?(@.type=='Programmed')].reason}";
    await_field(cluster, "gateway/balanced", reason, "AddressNotAssigned")?;
    await_field(cluster, "gateway/balanced", "{.status.addresses[*].value}", "")
}

fn address_is_published(cluster: &Cluster) -> Result<()> {
    give(cluster, &[FIRST])?;
    await_field(cluster, "gateway/balanced", "{.status.addresses[*].value}", FIRST)?;
    let programmed = "{.status.conditions[?(@.type=='Programmed')].status}";
    await_field(cluster, "gateway/balanced", programmed, "True")
}

fn outside_reaches_it(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        outside::balance_to(cluster, node)?;
        let answer = Client::Outside.await_answer(cluster, &format!("http://{FIRST}/through-{node}"))?;
        ensure!(answer.contains(&format!("/through-{node}")), "unexpected answer: {answer}");
        ensure!(answer.contains(outside::ADDRESS), "the backend does not see the client: {answer}");
    }
    Ok(())
}

fn addresses_change(cluster: &Cluster) -> Result<()> {
    let cluster_ip = field(cluster, "service/balanced-portcullis", "{.spec.clusterIP}")?;
    let load = Load::begin(cluster, PODS[1], &format!("http://{cluster_ip}/"))?;
    let within = Conversation::begin(cluster, PODS[0], &cluster_ip, 80)?;
    let to_first = Conversation::begin(cluster, Client::Outside, FIRST, 80)?;
    give(cluster, &[FIRST, SECOND])?;
    Client::Outside.await_answer(cluster, &format!("http://{SECOND}/"))?;
    to_first.go_on()?;
    let to_second = Conversation::begin(cluster, Client::Outside, SECOND, 80)?;
    give(cluster, &[SECOND])?;
    for node in cluster.nodes() {
        wait::until_true(&format!("{FIRST} gone from {node}"), TIMEOUT, || !is_local(cluster, node, FIRST))?;
    }
    to_second.go_on()?;
    within.go_on()?;
    load.end().map(drop)
}

/// As ServiceLB of k3s does, which brings the traffic to the ClusterIP itself.
fn node_keeps_its_address(cluster: &Cluster) -> Result<()> {
    let nodes: Vec<_> = cluster.nodes().collect();
    let [first, second] = nodes[..] else { bail!("this takes two nodes") };
    let address = field(cluster, &format!("node/{second}"), "{.status.addresses[0].address}")?;
    give(cluster, &[&address, FIRST])?;
    let all = format!("{address} {FIRST}");
    await_field(cluster, "gateway/balanced", "{.status.addresses[*].value}", &all)?;
    // What came with it is served, so it would be, too.
    wait::until_true(&format!("{FIRST} on {first}"), TIMEOUT, || is_local(cluster, first, FIRST))?;
    ensure!(!is_local(cluster, first, &address), "{first} took the address of {second}: {address}");
    give(cluster, &[SECOND])
}

/// It has what it asks for when the load balancer gives it, and nothing else then.
fn address_is_asked_for(cluster: &Cluster) -> Result<()> {
    let asked = format!(r#"{{"spec":{{"addresses":[{{"type":"IPAddress","value":"{ASKED_FOR}"}}]}}}}"#);
    patch(cluster, "gateway/balanced", &asked)?;
    await_field(cluster, "service/balanced-portcullis", "{.spec.loadBalancerIP}", ASKED_FOR)?;
    let reason = "{.status.conditions[?(@.type=='Programmed')].reason}";
    await_field(cluster, "gateway/balanced", reason, "AddressNotAssigned")?;
    give(cluster, &[ASKED_FOR])?;
    await_field(cluster, "gateway/balanced", "{.status.addresses[*].value}", ASKED_FOR)?;
    await_field(cluster, "gateway/balanced", reason, "Programmed")?;
    Client::Outside.await_answer(cluster, &format!("http://{ASKED_FOR}/")).map(drop)
}

fn balancer_is_given_up(cluster: &Cluster) -> Result<()> {
    patch(cluster, "gateway/balanced", r#"{"spec":{"addresses":null}}"#)?;
    let cluster_ip = field(cluster, "service/balanced-portcullis", "{.spec.clusterIP}")?;
    PODS[1].await_answer(cluster, &format!("http://{cluster_ip}/"))?;
    let conversation = Conversation::begin(cluster, PODS[1], &cluster_ip, 80)?;
    patch(cluster, "gatewayparameters/balanced", r#"{"spec":{"service":null}}"#)?;
    await_field(cluster, "service/balanced-portcullis", "{.spec.type}", "ClusterIP")?;
    await_field(cluster, "gateway/balanced", "{.status.addresses[*].value}", &cluster_ip)?;
    for node in cluster.nodes() {
        wait::until_true(&format!("{ASKED_FOR} gone from {node}"), TIMEOUT, || {
            !is_local(cluster, node, ASKED_FOR)
        })?;
    }
    conversation.go_on()
}

/// Does a load balancer controller's part.
fn give(cluster: &Cluster, addresses: &[&str]) -> Result<()> {
    let ingress: Vec<_> = addresses.iter().map(|ip| format!(r#"{{"ip":"{ip}"}}"#)).collect();
    let status = format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{}]}}}}}}"#, ingress.join(","));
    let service = ["-n", TESTED, "service/balanced-portcullis", "--subresource=status", "--type=merge"];
    cluster.kubectl(&[&["patch"], &service[..], &["--patch", &status]].concat()).map(drop)
}
