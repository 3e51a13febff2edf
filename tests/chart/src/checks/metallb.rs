//! MetalLB in front of a Gateway, in layer 2: its controller gives the address, its speakers answer
//! for it on a network that nodes and the client share, and what they go by are the endpoints.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::{Check, Cluster, Node, wait};
use portcullis_testbed::command;

use super::SCALING;
use super::client::Client;
use super::nodes::select_nodes;
use super::words::{apply, apply_elsewhere, delete, field};
use crate::metallb::{MetalLb, programs};

const GATEWAY: &str = "announced.yaml";
const METALLB: &str = "metallb.yaml";
/// Of the client on the network that it shares with the nodes.
const CLIENT: &str = "198.51.100.140";
const FIRST_GIVEN: &str = "198.51.100.200";

/// A network of the client, with a bridge, and of the nodes.
const BRIDGE: &str =
    "ip link add lan type bridge && ip link set lan up && ip address add 198.51.100.140/25 dev lan";
/// Joins the node `$0` with the address `$1`. Pid 1 sees the first node's files.
const JOIN: &str = r#"
set -e
ip link add lan type veth peer name "lan-$0" netns /proc/1/root/run/netns/outside
ip link set lan up
ip address add "$1/25" dev lan
"#;

pub(super) const CHECKS: &[(&str, Check)] = &[(
    "MetalLB gives a Gateway an address, announces it where there is a ready agent, and moves it when that goes",
    address_is_announced,
)];

/// Ends with the checks, whatever comes of them.
struct Processes(Vec<Child>);

fn address_is_announced(cluster: &Cluster) -> Result<()> {
    let metallb = programs()?;
    cluster.install_crds(&metallb.crds)?;
    apply_elsewhere(cluster, METALLB)?;
    make_network(cluster)?;
    let system = ["-n", "metallb-system", "pod", "--all"];
    cluster.kubectl(&[&["wait", "--for=condition=Ready", "--timeout=60s"], &system[..]].concat())?;
    let processes = Processes::start(cluster, &metallb)?;
    let announced = client_follows(cluster);
    drop(processes);
    delete(cluster, GATEWAY)?;
    remove_network(cluster)?;
    cluster.kubectl(&["delete", "--ignore-not-found", "namespace/metallb-system"])?;
    cluster.kubectl(&["delete", "-f", &metallb.crds.display().to_string()])?;
    announced
}

fn client_follows(cluster: &Cluster) -> Result<()> {
    apply(cluster, GATEWAY)?;
    let mut address = String::new();
    wait::until_true("an address from MetalLB", SCALING, || {
        address = field(cluster, "gateway/announced", "{.status.addresses[*].value}").unwrap_or_default();
        address == FIRST_GIVEN
    })
    .with_context(|| format!("it is {address:?}"))?;
    let before = announcer(cluster, &address)?;
    let other = cluster.nodes().find(|node| *node != before).context("there is one node only")?;
    select_nodes(cluster, &format!(r#"{{"kubernetes.io/hostname":"{other}"}}"#))?;
    let mut now = before;
    let moved = wait::until_true("another node announces it", SCALING, || {
        now = announcer(cluster, &address).unwrap_or(before);
        now == other
    });
    select_nodes(cluster, "null")?;
    moved.with_context(|| format!("{now} does, and has no agent"))
}

/// The node that answers the client's ARP, after it has served a request.
fn announcer(cluster: &Cluster, address: &str) -> Result<Node> {
    let outside = |program: &str, arguments: &[&str]| {
        command::output(super::outside::command(cluster, program).args(arguments))
    };
    let _ = outside("ip", &["neigh", "flush", "to", address]);
    let answer = Client::Outside.await_answer(cluster, &format!("http://{address}/"))?;
    ensure!(answer.contains(CLIENT), "the backend does not see the client: {answer}");
    let neighbour = outside("ip", &["neigh", "show", "to", address, "dev", "lan"])?;
    let hardware = |node: Node| {
        let file =
            command::output(cluster.command_on(node, "ip").args(["-brief", "link", "show", "dev", "lan"]));
        file.unwrap_or_default().split_whitespace().nth(2).unwrap_or("none").to_owned()
    };
    let answering = cluster.nodes().find(|node| neighbour.contains(&hardware(*node)));
    answering.with_context(|| format!("no node has it: {neighbour}"))
}

fn make_network(cluster: &Cluster) -> Result<()> {
    remove_network(cluster)?;
    command::output(super::outside::command(cluster, "sh").args(["-c", BRIDGE]))?;
    for (at, node) in cluster.nodes().enumerate() {
        let (name, address) = (node.to_string(), format!("198.51.100.{}", 129 + at));
        command::output(cluster.command_on(node, "bash").args(["-c", JOIN, &name, &address]))?;
        let port = format!("ip link set lan-{name} master lan up");
        command::output(super::outside::command(cluster, "sh").args(["-c", &port]))?;
    }
    Ok(())
}

fn remove_network(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        command::output(
            cluster.command_on(node, "sh").args(["-c", "! ip link show lan || ip link delete lan"]),
        )?;
    }
    let bridge = "! ip link show lan || ip link delete lan";
    command::output(super::outside::command(cluster, "sh").args(["-c", bridge])).map(drop)
}

// === impl Processes ===

impl Processes {
    fn start(cluster: &Cluster, metallb: &MetalLb) -> Result<Self> {
        let mut started = Self(Vec::new());
        let mut controller = cluster.command(&metallb.controller.display().to_string());
        controller.args(["--webhook-mode=disabled", "--port=7473"]);
        started.add(cluster, controller, "metallb-controller")?;
        for node in cluster.nodes() {
            let mut speaker = cluster.command_on(node, &metallb.speaker.display().to_string());
            speaker.args([format!("--node-name={node}"), format!("--pod-name=speaker-{node}")]);
            started.add(cluster, speaker, &format!("metallb-speaker-{node}"))?;
        }
        Ok(started)
    }

    fn add(&mut self, cluster: &Cluster, mut program: Command, name: &str) -> Result<()> {
        let log = File::create(cluster.layout().log(name))?;
        program.args(["--namespace=metallb-system", "--log-level=debug"]);
        program.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.0.push(program.spawn().with_context(|| format!("cannot start {name}"))?);
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // What it was started by passes it on.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
