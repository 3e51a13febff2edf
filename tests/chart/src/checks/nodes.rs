//! An agent on each of two nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::{Check, Cluster, Node, wait};
use portcullis_testbed::command;

use super::SCALING;
use super::client::{Client, Conversation, PODS};
use super::load::Load;
use super::removed;
use super::sessions::{Kind, Sessions};
use super::words::{agent_pid, await_field, field, patch, pins, vip};
use crate::{NAMESPACE, RELEASE};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("an agent runs on each node, and the XMesh counts both", each_node_has_an_agent),
    (
        "pods on both nodes reach the Gateway and a backend on one, and their addresses are kept",
        pods_reach_it,
    ),
    ("both nodes reach the Gateway", nodes_reach_it),
    (
        "updates of the agents, of their maps too, fail no request and no session, and none waits for another agent",
        updates_cost_nothing,
    ),
    ("the leader's death: the other agent serves on, leads, and follows changes", leader_dies),
    ("the agent that died is back and serves", agent_returns),
    ("a node that the DaemonSet leaves out keeps nothing; the other one serves on", node_is_left_out),
];

/// Versions that the maps of the old agents have, as far as the new ones can tell: old, new, old.
const OTHER_VERSIONS: [&str; 3] = ["v0", "v9999", "v0"];

/// Time after which Linux sends the first packet of a connection again.
const RETRANSMISSION: Duration = Duration::from_secs(1);

fn each_node_has_an_agent(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        ensure!(!agent_pid(cluster, node)?.is_empty(), "no agent on {node}");
    }
    let message = "{.status.conditions[?(@.type=='Accepted')].message}";
    wait::until_true("the XMesh counts two agents", SCALING, || {
        field(cluster, "xmesh/portcullis", message).is_ok_and(|message| message.contains("(2 agents)"))
    })
}

fn pods_reach_it(cluster: &Cluster) -> Result<()> {
    let url = format!("http://{}/from-a-pod", vip(cluster)?);
    for client in PODS {
        let Client::Pod(pod) = client else { continue };
        let answer = client.await_answer(cluster, &url)?;
        ensure!(answer.contains("/from-a-pod"), "unexpected answer: {answer}");
        let address = field(cluster, &format!("pod/{pod}"), "{.status.podIP}")?;
        ensure!(answer.contains(&address), "the backend does not see the client {address}: {answer}");
    }
    Ok(())
}

fn nodes_reach_it(cluster: &Cluster) -> Result<()> {
    let vip = vip(cluster)?;
    for node in cluster.nodes() {
        let answer = Client::Node(node).await_answer(cluster, &format!("http://{vip}/from-{node}"))?;
        ensure!(answer.contains(&format!("/from-{node}")), "unexpected answer: {answer}");
    }
    Ok(())
}

/// The connection that stays open keeps an old agent for as long as it may.
fn updates_cost_nothing(cluster: &Cluster) -> Result<()> {
    let vip = vip(cluster)?;
    let url = format!("http://{vip}/");
    let on = |client| Load::begin(cluster, client, &url);
    let loads = [PODS[0], PODS[1], Client::Node(Node::FIRST), Client::Node(Node::SECOND)].map(on);
    let loads = loads.into_iter().collect::<Result<Vec<_>>>()?;
    let sessions = begin_sessions(cluster, &vip)?;
    for version in OTHER_VERSIONS {
        let tunnel = Conversation::begin(cluster, PODS[0], &vip, 80)?;
        rename_pins(cluster, version)?;
        let daemon_set = format!("daemonset/{RELEASE}");
        cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, &daemon_set])?;
        cluster.kubectl(&["rollout", "status", "--timeout=120s", "-n", NAMESPACE, &daemon_set])?;
        drop(tunnel);
        for node in cluster.nodes() {
            let pins = pins(cluster, node)?;
            ensure!(!pins.contains(&format!("{version}/")), "{node} has the old agent's maps still: {pins}");
        }
    }
    for session in sessions {
        eprintln!("    {}", session.end()?);
    }
    for load in loads {
        let longest = load.end()?;
        eprintln!("    the slowest request took {longest:?}");
        ensure!(longest < RETRANSMISSION, "a request took {longest:?}: it was dropped at first");
    }
    Ok(())
}

/// From pods on both nodes, and of each kind.
fn begin_sessions(cluster: &Cluster, vip: &str) -> Result<Vec<Sessions>> {
    let address = "{.status.addresses[0].value}";
    wait::until_true("the address of the Gateway for streams", SCALING, || {
        field(cluster, "gateway/streams", address).is_ok_and(|address| !address.is_empty())
    })?;
    let streams = field(cluster, "gateway/streams", address)?;
    let kinds = [(Kind::WebSocket, vip, 80), (Kind::Tcp, &*streams, 7000), (Kind::Udp, &*streams, 5353)];
    let of_both = kinds.into_iter().flat_map(|kind| PODS.map(|client| (client, kind)));
    of_both
        .map(|(client, (kind, address, port))| Sessions::begin(cluster, client, kind, address, port))
        .collect()
}

/// The version of the maps is the name of the directory. The nodes may share its file system.
fn rename_pins(cluster: &Cluster, version: &str) -> Result<()> {
    let rename =
        r#"cd /sys/fs/bpf/portcullis && for found in v*; do [ "$found" = "$0" ] || mv "$found" "$0"; done"#;
    for node in cluster.nodes() {
        command::output(cluster.command_on(node, "sh").args(["-ec", rename, version]))?;
    }
    Ok(())
}

/// Without a kubelet it is not started again.
fn leader_dies(cluster: &Cluster) -> Result<()> {
    let leader = leader(cluster)?;
    cluster.stop("kubelet", leader)?;
    let result = other_takes_over(cluster, leader);
    cluster.start("kubelet", leader)?;
    result
}

fn other_takes_over(cluster: &Cluster, dead: Node) -> Result<()> {
    let vip = vip(cluster)?;
    let other = cluster.nodes().find(|node| *node != dead).context("there is one node only")?;
    let [pod_1, pod_2] = PODS;
    let client = if other == Node::FIRST { pod_1 } else { pod_2 };
    let conversation = Conversation::begin(cluster, client, &vip, 80)?;
    command::output(cluster.command_on(dead, "kill").args(["-KILL", &agent_pid(cluster, dead)?]))?;
    Client::Node(dead).await_refusal(cluster, &format!("http://{vip}/"))?;
    client.get(cluster, &format!("http://{vip}/"))?;
    Client::Node(other).get(cluster, &format!("http://{vip}/"))?;
    let holder = ["get", "lease", RELEASE, "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"];
    wait::until_true("another leader", SCALING, || {
        cluster.kubectl(&holder).is_ok_and(|holder| holder == other.to_string())
    })?;
    patch(cluster, "gateway/other", r#"{"spec":{"infrastructure":{"labels":{"led-by":"another"}}}}"#)?;
    await_field(cluster, "service/other-portcullis", "{.metadata.labels.led-by}", "another")?;
    conversation.go_on()
}

fn agent_returns(cluster: &Cluster) -> Result<()> {
    pods_reach_it(cluster)?;
    nodes_reach_it(cluster)
}

/// The other agent restarts for it, as for every change of the DaemonSet's template.
fn node_is_left_out(cluster: &Cluster) -> Result<()> {
    let before = pins(cluster, Node::FIRST)?;
    select_nodes(cluster, r#"{"kubernetes.io/hostname":"node-1"}"#)?;
    wait::until_true("no agent on the second node", SCALING, || agent_pid(cluster, Node::SECOND).is_err())?;
    removed::leaves_nothing_on(cluster, Node::SECOND)?;
    ensure!(pins(cluster, Node::FIRST)? == before, "the other node's pins are not the same");
    PODS[0].await_answer(cluster, &format!("http://{}/", vip(cluster)?))?;
    select_nodes(cluster, "null")?;
    pods_reach_it(cluster)
}

pub(super) fn select_nodes(cluster: &Cluster, selector: &str) -> Result<()> {
    let patch = format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{selector}}}}}}}}}"#);
    let daemon_set = format!("daemonset/{RELEASE}");
    cluster.kubectl(&["patch", "-n", NAMESPACE, &daemon_set, "--type=merge", "--patch", &patch])?;
    cluster.kubectl(&["rollout", "status", "--timeout=120s", "-n", NAMESPACE, &daemon_set]).map(drop)
}

fn leader(cluster: &Cluster) -> Result<Node> {
    let holder = ["get", "lease", RELEASE, "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"];
    let holder = cluster.kubectl(&holder)?;
    holder.parse().map_err(anyhow::Error::msg).with_context(|| format!("the leader is {holder:?}"))
}
