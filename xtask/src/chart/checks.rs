//! `cargo xtask chart test`: what the chart installs serves traffic, and nothing of it is left when it is removed. Each check
//! looks at the cluster as an operator would.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{NAMESPACE, RELEASE, install};
use crate::cluster::{Check, Cluster, holds, output, wait};
use crate::shell;

const MANIFESTS: &str = "tests/chart/on-cluster.yaml";
const DEDICATED: &str = "tests/chart/dedicated.yaml";
/// Of the manifests.
const TESTED: &str = "chart-test";
/// The autoscaler looks every 15 s.
const SCALING: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);

const INSTALLED: &[(&str, Check)] = &[
    ("the agent runs without privileges, read-only, with few capabilities", agent_is_confined),
    ("the agent uses the kernel datapath", datapath_is_ebpf),
    ("the Gateway is Programmed and has its Service's address", gateway_is_programmed),
    ("a pod reaches the Gateway, and its address is kept", pod_reaches_the_gateway),
    ("the node reaches the Gateway", node_reaches_the_gateway),
    ("a connection outlives a new port", changes_keep_connections),
    ("a restarted agent serves again, on what the old one left", restart_keeps_everything),
    ("a Gateway has pods of its own, with the specification's autoscaler and disruption budget", pods_serve),
    ("a Gateway that goes takes its address with it", address_goes_with_the_gateway),
];

const REMOVED: &[(&str, Check)] = &[
    ("no program, map or pin is left", nothing_is_pinned),
    ("no VIP is left", no_vip_is_left),
    ("no nftables rule is left", no_rule_is_left),
    ("no object is left", no_object_is_left),
];

pub(super) fn run(cluster: &Cluster, binary: Option<&Path>) -> Result<()> {
    // What a killed run may have left.
    cluster.kubectl(&["delete", "namespace", TESTED, "--ignore-not-found"])?;
    install::install(cluster, &super::crds(), binary)?;
    let manifests = shell::root().join(MANIFESTS).display().to_string();
    cluster.kubectl(&["apply", "-f", &manifests])?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "-n", TESTED, "pod", "--all"])?;
    let mut failed = count_failed(cluster, INSTALLED);
    install::uninstall(cluster)?;
    failed += count_failed(cluster, REMOVED);
    cluster.kubectl(&["delete", "--ignore-not-found", "gatewayclass/example"])?;
    cluster.kubectl(&["delete", "--ignore-not-found", "-f", &manifests])?;
    println!("{} passed, {failed} failed", INSTALLED.len() + REMOVED.len() - failed);
    if failed > 0 {
        bail!("the chart does not do what it promises");
    }
    Ok(())
}

fn count_failed(cluster: &Cluster, checks: &[(&str, Check)]) -> usize {
    checks.iter().filter(|(name, check)| !holds(name, *check, cluster)).count()
}

// --- installed ---

/// As the kernel has it: bits 10 NET_BIND_SERVICE, 12 NET_ADMIN, 38 PERFMON, 39 BPF.
fn agent_is_confined(cluster: &Cluster) -> Result<()> {
    let status = output::of(cluster.command("cat").arg(format!("/proc/{}/status", agent_pid(cluster)?)))?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    ensure!(value("CapEff:") == "000000c000001400", "its capabilities are {}", value("CapEff:"));
    ensure!(value("NoNewPrivs:") == "1", "it may gain privileges");
    ensure!(value("Seccomp:") == "2", "it has no seccomp filter");
    let mounts = output::of(cluster.command("cat").arg(format!("/proc/{}/mounts", agent_pid(cluster)?)))?;
    let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).unwrap_or_default();
    ensure!(root.split(' ').nth(3).is_some_and(|options| options.starts_with("ro")), "its root: {root}");
    Ok(())
}

fn datapath_is_ebpf(cluster: &Cluster) -> Result<()> {
    let log = cluster.kubectl(&["logs", "--namespace", NAMESPACE, &format!("daemonset/{RELEASE}")])?;
    let line = log.lines().find(|line| line.contains("datapath:")).unwrap_or("no line about the datapath");
    ensure!(line.contains("ebpf: steer"), "{line}");
    Ok(())
}

fn gateway_is_programmed(cluster: &Cluster) -> Result<()> {
    let programmed = "--for=condition=Programmed";
    cluster.kubectl(&["wait", programmed, "--timeout=30s", "-n", TESTED, "gateway/web"])?;
    let (given, service) = (vip(cluster)?, field(cluster, "service/web-portcullis", "{.spec.clusterIP}")?);
    ensure!(given == service, "the Gateway's address is {given}, its Service's {service}");
    Ok(())
}

fn pod_reaches_the_gateway(cluster: &Cluster) -> Result<()> {
    let url = format!("http://{}/from-a-pod", vip(cluster)?);
    let answer = wait::until("an answer to a pod", PATIENCE, || {
        let mut curl = cluster.command_of_pod(TESTED, "client", "curl")?;
        Ok(output::of(curl.args(["-sS", "--fail", "--max-time", "2", &url])).ok())
    })?;
    ensure!(answer.contains("/from-a-pod"), "unexpected answer: {answer}");
    let client = field(cluster, "pod/client", "{.status.podIP}")?;
    ensure!(answer.contains(&client), "the backend does not see the client {client}: {answer}");
    Ok(())
}

fn node_reaches_the_gateway(cluster: &Cluster) -> Result<()> {
    let url = format!("http://{}/from-the-node", vip(cluster)?);
    let answer = wait::until("an answer to the node", PATIENCE, || {
        let mut curl = cluster.command("curl");
        Ok(output::of(curl.args(["-sS", "--fail", "--max-time", "2", &url])).ok())
    })?;
    ensure!(answer.contains("/from-the-node"), "unexpected answer: {answer}");
    Ok(())
}

/// Asks twice over one connection, and waits for a line in between.
const TALK: &str = r#"
ask() {
    printf 'GET /%s HTTP/1.1\r\nHost: example\r\n\r\n' "$1" >&3
    while IFS= read -r -t 5 line <&3; do
        line=${line%$'\r'}
        case ${line,,} in http/*) echo "$line" ;; content-length:*) length=${line##* } ;; '') break ;; esac
    done
    read -r -t 5 -N "$length" body <&3
}
exec 3<>"/dev/tcp/$0/80" && ask first && read -r && ask second
"#;

fn changes_keep_connections(cluster: &Cluster) -> Result<()> {
    let vip = vip(cluster)?;
    let mut talk = cluster.command_of_pod(TESTED, "client", "bash")?;
    talk.args(["-c", TALK, &vip]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut talk = talk.spawn()?;
    let answers = talk.stdout.take().context("no output")?;
    let mut answers = BufReader::new(answers).lines();
    let first = answers.next().transpose()?.unwrap_or_default();
    let listener =
        r#"[{"op":"add","path":"/spec/listeners/-","value":{"name":"more","port":8080,"protocol":"HTTP"}}]"#;
    cluster.kubectl(&["patch", "-n", TESTED, "gateway/web", "--type=json", "--patch", listener])?;
    wait::until("an answer on the new port", PATIENCE, || {
        let mut curl = cluster.command_of_pod(TESTED, "client", "curl")?;
        let url = format!("http://{vip}:8080/");
        Ok(output::of(curl.args(["-sS", "--fail", "--max-time", "2", &url])).ok())
    })?;
    talk.stdin.take().context("no input")?.write_all(b"\n")?;
    let second = answers.next().transpose()?.unwrap_or_default();
    talk.wait()?;
    ensure!(first == "HTTP/1.1 200 OK" && second == first, "first {first:?}, after the change {second:?}");
    Ok(())
}

/// The manifests of GEP-1762 name a class `example` and no namespace.
fn pods_serve(cluster: &Cluster) -> Result<()> {
    let manifests = shell::root().join(DEDICATED).display().to_string();
    cluster.kubectl(&["apply", "--namespace", TESTED, "-f", &manifests])?;
    for (object, path, value) in [
        ("hpa/gateway", "{.status.conditions[?(@.type=='AbleToScale')].status}", "True"),
        ("deployment/gateway-example", "{.status.availableReplicas}", "2"),
        ("pdb/gateway", "{.status.expectedPods}", "2"),
        ("pdb/gateway", "{.status.currentHealthy}", "2"),
        ("gateway/gateway", "{.status.conditions[?(@.type=='Programmed')].status}", "True"),
    ] {
        wait::until_true(&format!("{object} {path} is {value}"), SCALING, || {
            field(cluster, object, path).is_ok_and(|found| found == value)
        })?;
    }
    let vip = field(cluster, "gateway/gateway", "{.status.addresses[0].value}")?;
    ensure!(!local_addresses(cluster)?.contains(&format!(" {vip}/")), "{vip} is served on the node, too");
    let url = format!("http://{vip}/from-a-pod");
    let answer = wait::until("an answer of the pods", PATIENCE, || {
        let mut curl = cluster.command_of_pod(TESTED, "client", "curl")?;
        Ok(output::of(curl.args(["-sS", "--fail", "--max-time", "2", "-H", "host: example.com", &url])).ok())
    })?;
    ensure!(answer.contains("/from-a-pod"), "unexpected answer: {answer}");
    Ok(())
}

fn address_goes_with_the_gateway(cluster: &Cluster) -> Result<()> {
    let gone = format!(" {}/32 ", vip(cluster)?);
    let stays = format!(" {}/32 ", field(cluster, "service/other-portcullis", "{.spec.clusterIP}")?);
    cluster.kubectl(&["delete", "-n", TESTED, "gateway/web"])?;
    wait::until_true("the address gone", PATIENCE, || {
        local_addresses(cluster).is_ok_and(|local| !local.contains(&gone) && local.contains(&stays))
    })?;
    let rules = output::of(cluster.command("nft").args(["list", "set", "ip", "portcullis", "vips"]))?;
    ensure!(!rules.contains(gone.trim().trim_end_matches("/32")), "{rules}");
    Ok(())
}

/// The pins are the same afterwards: programs and maps were taken over.
fn restart_keeps_everything(cluster: &Cluster) -> Result<()> {
    let before = pins(cluster)?;
    let daemon_set = format!("daemonset/{RELEASE}");
    cluster.kubectl(&["rollout", "restart", "--namespace", NAMESPACE, &daemon_set])?;
    cluster.kubectl(&["rollout", "status", "--timeout=120s", "--namespace", NAMESPACE, &daemon_set])?;
    ensure!(!before.is_empty() && pins(cluster)? == before, "the pins are not the same: before {before}");
    pod_reaches_the_gateway(cluster)
}

// --- removed ---

fn nothing_is_pinned(cluster: &Cluster) -> Result<()> {
    wait::until_true("agents gone", PATIENCE, || agent_pid(cluster).is_err())?;
    let left = pins(cluster)?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}

fn no_vip_is_left(cluster: &Cluster) -> Result<()> {
    let addresses = local_addresses(cluster)?;
    let left: Vec<_> = addresses.lines().filter(|line| line.contains("portcullis")).collect();
    ensure!(left.is_empty(), "{}", left.join("; "));
    Ok(())
}

fn no_rule_is_left(cluster: &Cluster) -> Result<()> {
    let tables = output::of(cluster.command("nft").args(["list", "tables"]))?;
    ensure!(!tables.contains("portcullis"), "{tables}");
    Ok(())
}

/// Namespaced objects where they could be, and everything cluster-wide that could be ours.
fn no_object_is_left(cluster: &Cluster) -> Result<()> {
    let name = "custom-columns=KIND:.kind,NAME:.metadata.name";
    let asked: &[&[&str]] = &[
        &["all,serviceaccounts,leases,roles,rolebindings", "--namespace", NAMESPACE],
        &["clusterroles,clusterrolebindings,gatewayclasses,xmeshes,customresourcedefinitions"],
        &["services,deployments,serviceaccounts", "--namespace", TESTED],
    ];
    let mut left = Vec::new();
    for arguments in asked {
        let listed = cluster.kubectl(&[&["get", "--no-headers", "-o", name], *arguments].concat())?;
        left.extend(
            listed
                .lines()
                .filter(|line| line.contains("portcullis") || line.contains("gateway-example"))
                .map(str::to_owned),
        );
    }
    ensure!(left.is_empty(), "{}", left.join("; "));
    Ok(())
}

// --- the cluster's words ---

fn vip(cluster: &Cluster) -> Result<String> {
    field(cluster, "gateway/web", "{.status.addresses[0].value}")
}

fn field(cluster: &Cluster, object: &str, path: &str) -> Result<String> {
    cluster.kubectl(&["get", "--namespace", TESTED, object, "-o", &format!("jsonpath={path}")])
}

fn local_addresses(cluster: &Cluster) -> Result<String> {
    output::of(cluster.command("ip").args(["address", "show", "dev", "lo"]))
}

/// Pins with their inodes, which differ if one was made anew.
fn pins(cluster: &Cluster) -> Result<String> {
    let find = ["/sys/fs/bpf", "-path", "*portcullis*", "-type", "f", "-printf", "%P %i\n"];
    let found = output::of(cluster.command("find").args(find))?;
    let mut lines: Vec<_> = found.lines().collect();
    lines.sort_unstable();
    Ok(lines.join("\n"))
}

/// The one in the node's network namespace, which pid 1 is in, too.
fn agent_pid(cluster: &Cluster) -> Result<String> {
    let on_node = ["--ns", "1", "--nslist", "net", "--exact", "--full", "/portcullis run"];
    let pids = output::of(cluster.command("pgrep").args(on_node))?;
    Ok(pids.lines().next().unwrap_or_default().to_owned())
}
