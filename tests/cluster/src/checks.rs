//! `cargo xtask cluster test`: proves that the cluster is one. Each check uses the cluster as an
//! operator would.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::{command, workspace};

use crate::boot::{Cluster, Options};
use crate::layout::Layout;
use crate::node::Node;
use crate::parts::ProxyMode;
use crate::wait;

const MANIFESTS: &str = "tests/cluster/smoke";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pods are where the manifests want them.
const WHOLE: Options = Options { nodes: 2, without_proxy: false, proxy_mode: ProxyMode::Nftables };
const SMALL: Options = Options { nodes: 0, without_proxy: true, proxy_mode: ProxyMode::Nftables };

pub type Check = fn(&Cluster) -> Result<()>;

/// In this order: later ones use what earlier ones made.
const CHECKS: &[(&str, Check)] = &[
    ("the nodes are Ready, of the version in go.mod", nodes_are_ready),
    ("a pod runs on each node and becomes Ready", pods_run),
    ("a Service answers on its ClusterIP, from both nodes", service_answers_the_nodes),
    ("a pod on the other node reaches the Service", service_answers_a_pod),
    ("kubectl logs and exec reach both pods", logs_and_exec_work),
    ("our CRDs are served", crds_are_served),
    ("our additive fields are not pruned", additive_fields_are_kept),
    ("a field that no schema knows is pruned", unknown_fields_are_pruned),
    ("the API server can be stopped and started", api_server_restarts),
    ("a deleted pod's namespace is removed", deletion_cleans_up),
    ("what a killed run left behind is removed by the next", leftovers_are_removed),
    ("a second cluster runs next to this one and leaves nothing behind", second_cluster_is_apart),
];

pub(crate) fn run(layout: Layout) -> Result<()> {
    let cluster = Cluster::obtain(layout, &WHOLE)?;
    remove_smoke(&cluster)?;
    let failed = CHECKS.iter().filter(|(name, check)| !holds(name, *check, &cluster)).count();
    remove_smoke(&cluster)?;
    println!("{} passed, {failed} failed", CHECKS.len() - failed);
    if failed > 0 {
        bail!("the test cluster does not do what tests rely on");
    }
    Ok(())
}

/// Says how it went.
pub fn holds(name: &str, check: Check, cluster: &Cluster) -> bool {
    let start = Instant::now();
    let result = check(cluster);
    let seconds = start.elapsed().as_secs_f32();
    match &result {
        Ok(()) => println!("ok     {name} ({seconds:.1} s)"),
        Err(error) => println!("FAILED {name} ({seconds:.1} s): {error:#}"),
    }
    result.is_ok()
}

fn remove_smoke(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["delete", "namespace", "smoke", "--ignore-not-found"]).map(drop)
}

fn nodes_are_ready(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "nodes", "--all"])?;
    let versions = "jsonpath={.items[*].status.nodeInfo.kubeletVersion}";
    let versions = cluster.kubectl(&["get", "nodes", "-o", versions])?;
    let wanted = crate::artifacts::required("k8s.io/kubernetes")?;
    ensure!(versions == format!("{wanted} {wanted}"), "two kubelets should be {wanted}: {versions}");
    Ok(())
}

fn pods_run(cluster: &Cluster) -> Result<()> {
    apply(cluster, "pods.yaml")?;
    let ready = ["wait", "--for=condition=Ready", "--timeout=60s", "--namespace=smoke", "pod", "--all"];
    cluster.kubectl(&ready).map(drop)
}

fn service_answers_the_nodes(cluster: &Cluster) -> Result<()> {
    let ip = field(cluster, "service/echo", "{.spec.clusterIP}")?;
    for node in cluster.nodes() {
        let url = format!("http://{ip}/from-{node}");
        let answer = wait::until("an answer from the Service", TIMEOUT, || {
            Ok(command::output(cluster.command_on(node, "curl").args(["-sS", "--max-time", "2", &url])).ok())
        })?;
        ensure!(answer.contains(&format!("/from-{node}")), "unexpected answer: {answer}");
    }
    Ok(())
}

fn service_answers_a_pod(cluster: &Cluster) -> Result<()> {
    let url = format!("http://{}/from-a-pod", field(cluster, "service/echo", "{.spec.clusterIP}")?);
    let mut curl = cluster.command_of_pod("smoke", "client", "curl")?;
    let answer = command::output(curl.args(["-sS", "--max-time", "5", &url]))?;
    ensure!(answer.contains("/from-a-pod"), "unexpected answer: {answer}");
    Ok(())
}

fn logs_and_exec_work(cluster: &Cluster) -> Result<()> {
    let logs = cluster.kubectl(&["logs", "--namespace=smoke", "echo"])?;
    ensure!(logs.contains("Starting server"), "unexpected log: {logs}");
    // Its image holds one program only; that it runs and complains is the proof.
    let exec = cluster.kubectl(&["exec", "--namespace=smoke", "client", "--", "/pause", "-no-such-flag"]);
    let complaint = exec.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(complaint.contains("flag provided but not defined"), "exec does not reach the pod: {complaint}");
    Ok(())
}

fn crds_are_served(cluster: &Cluster) -> Result<()> {
    cluster.install_crds(&workspace::root().join("deploy/crds"))?;
    let served =
        cluster.kubectl(&["api-resources", "--api-group=gateway.networking.k8s.io", "-o", "name"])?;
    for plural in ["gateways", "listenersets", "httproutes", "tlsroutes", "udproutes"] {
        let name = format!("{plural}.gateway.networking.k8s.io");
        ensure!(served.lines().any(|line| line == name), "{name} is not served");
    }
    Ok(())
}

fn additive_fields_are_kept(cluster: &Cluster) -> Result<()> {
    apply(cluster, "additive.yaml")?;
    for (object, path, value) in [
        ("gateway/parent", "{.spec.infrastructure.allowedChildren}", "Same"),
        ("gateway/child", "{.spec.infrastructure.attachTo}", "parent"),
        ("httproute/parent", "{.spec.rules[0].allowedRoutes}", "Same"),
        ("httproute/child", "{.spec.parentRefs[0].kind}", "HTTPRoute"),
    ] {
        let found = field(cluster, object, path)?;
        ensure!(found.contains(value), "{object} {path} is {found:?}, without {value}");
    }
    Ok(())
}

/// Else the check before would prove nothing.
fn unknown_fields_are_pruned(cluster: &Cluster) -> Result<()> {
    let patch = r#"{"spec":{"infrastructure":{"noSuchField":"x"}}}"#;
    cluster.kubectl(&["patch", "--namespace=smoke", "gateway/parent", "--type=merge", "-p", patch])?;
    let found = field(cluster, "gateway/parent", "{.spec.infrastructure.noSuchField}")?;
    ensure!(found.is_empty(), "an unknown field was kept");
    Ok(())
}

fn api_server_restarts(cluster: &Cluster) -> Result<()> {
    cluster.stop("apiserver", Node::FIRST)?;
    let ready = ["get", "--raw", "/readyz", "--request-timeout=2s"];
    ensure!(cluster.kubectl(&ready).is_err(), "the API server answers after it was stopped");
    cluster.start("apiserver", Node::FIRST)?;
    wait::until_true("the API server's return", TIMEOUT, || cluster.kubectl(&ready).is_ok())
}

fn deletion_cleans_up(cluster: &Cluster) -> Result<()> {
    let before = cluster.netns_names(Node::SECOND)?.len();
    cluster.kubectl(&["delete", "--namespace=smoke", "pod/client", "--timeout=60s"])?;
    wait::until_true("the end of the pod's namespace", TIMEOUT, || {
        cluster.netns_names(Node::SECOND).is_ok_and(|names| names.len() == before - 1)
    })
}

/// Kills `cluster up` half-way, in the directory that the next check uses.
fn leftovers_are_removed(cluster: &Cluster) -> Result<()> {
    let layout = second(cluster);
    let mut up = Command::new("/proc/self/exe");
    up.args(["up", "--nodes=0", "--dir"]).arg(layout.directory());
    let mut up = up.stdout(Stdio::null()).spawn()?;
    let leftover = wait::until("the second cluster's holder", TIMEOUT, || Ok(layout.holder_of(Node::FIRST)));
    up.kill()?;
    up.wait()?;
    let leftover = leftover?;
    ensure!(leftover.is_alive(), "killing the command ended the cluster: there is no leftover to remove");
    drop(Cluster::obtain(layout, &SMALL)?);
    ensure!(!leftover.is_alive(), "the leftover lives on");
    Ok(())
}

fn second_cluster_is_apart(cluster: &Cluster) -> Result<()> {
    let second = second(cluster);
    let other = Cluster::obtain(second.clone(), &SMALL)?;
    let nodes = other.kubectl(&["get", "nodes", "-o", "name"])?;
    ensure!(nodes.is_empty(), "the second cluster sees the first one's nodes: {nodes}");
    let holder = second.holder_of(Node::FIRST).context("the second cluster has no holder")?;
    drop(other);
    ensure!(!holder.is_alive(), "the second cluster's holder lives on");
    std::fs::remove_dir_all(second.directory()).context("cannot remove the second cluster's state")
}

fn second(cluster: &Cluster) -> Layout {
    Layout::at(cluster.layout().directory().with_extension("second"))
}

fn apply(cluster: &Cluster, manifest: &str) -> Result<()> {
    let path = workspace::root().join(MANIFESTS).join(manifest);
    cluster.kubectl(&["apply", "-f", &path_text(&path)]).map(drop)
}

/// One field of an object in our namespace.
fn field(cluster: &Cluster, object: &str, path: &str) -> Result<String> {
    cluster.kubectl(&["get", "--namespace=smoke", object, "-o", &format!("jsonpath={path}")])
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}
