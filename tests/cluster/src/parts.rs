//! The programs that make the cluster, and their flags. Each part runs inside, logs to a file of
//! its own and can be stopped and started again.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::inside;
use crate::layout::Layout;
use crate::node::{self, Node};
use crate::process::Process;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Part {
    Etcd,
    Apiserver,
    ControllerManager,
    Scheduler,
    Proxy,
    Containerd,
    Kubelet,
}

/// The way in which kube-proxy has packets rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum ProxyMode {
    #[default]
    Nftables,
    Iptables,
    /// Needs a kernel with IPVS.
    Ipvs,
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        })
    }
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "apiserver",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::Proxy => "proxy",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
        }
    }

    /// Starts it inside, in the background. The control plane is on the first node.
    pub(crate) fn start(self, layout: &Layout, node: Node) -> Result<()> {
        if !self.is_of_every_node() && node != Node::FIRST {
            bail!("{} is on {}", self.name(), Node::FIRST);
        }
        if self.process(layout, node).is_some() {
            bail!("{} is running already", self.name());
        }
        let log = File::options().create(true).append(true).open(self.log(layout, node))?;
        let mut command = inside::command(layout, node, self.program());
        command.args(self.arguments(layout, node)).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {}", self.name()))?;
        let process = Process::of(i32::try_from(child.id())?).context("it ended at once")?;
        process.record(&layout.of(node, self.name()).with_extension("pid"))
    }

    /// Kills it: the way that tells it nothing.
    pub(crate) fn stop(self, layout: &Layout, node: Node) -> Result<()> {
        let Some(entered) = self.process(layout, node) else {
            bail!("{} is not running on {node}", self.name());
        };
        if let Some(program) = entered.child() {
            program.kill()?;
        }
        entered.kill()
    }

    /// The process that entered the namespaces for it and lives as long as it does.
    pub(crate) fn process(self, layout: &Layout, node: Node) -> Option<Process> {
        Process::recorded(&layout.of(node, self.name()).with_extension("pid"))
    }

    /// Its last words, for errors.
    pub(crate) fn last_words(self, layout: &Layout, node: Node) -> String {
        let path = self.log(layout, node);
        let log = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(15).collect();
        let lines: Vec<_> = lines.into_iter().rev().collect();
        format!("{}; the end of {}:\n{}", self.name(), path.display(), lines.join("\n"))
    }

    fn log(self, layout: &Layout, node: Node) -> PathBuf {
        let own = self.is_of_every_node().then(|| format!("-{node}"));
        layout.log(&format!("{}{}", self.name(), own.unwrap_or_default()))
    }

    fn is_of_every_node(self) -> bool {
        matches!(self, Self::Proxy | Self::Containerd | Self::Kubelet)
    }

    fn program(self) -> &'static str {
        if self == Self::Containerd { "containerd" } else { "kubernetes" }
    }

    fn arguments(self, layout: &Layout, node: Node) -> Vec<String> {
        let flags = match self {
            Self::Etcd => vec![format!("--data-dir={}", layout.path("etcd").display())],
            Self::Apiserver => apiserver(layout),
            Self::ControllerManager => controller_manager(layout),
            Self::Scheduler => controller("scheduler", layout),
            Self::Proxy => proxy(layout, node),
            Self::Containerd => vec![format!("--config={}", layout.of(node, "containerd.toml").display())],
            Self::Kubelet => kubelet(layout, node),
        };
        let part = (self != Self::Containerd).then(|| self.name().to_owned());
        part.into_iter().chain(flags).collect()
    }
}

fn apiserver(layout: &Layout) -> Vec<String> {
    let pki = |flag: &str, name: &str| format!("--{flag}={}", layout.pki(name));
    let mut flags = words(&[
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        "--external-hostname=localhost",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        // For kubectl logs and exec: the node's name means nothing to any resolver.
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--profiling=false",
    ]);
    flags.extend([
        format!("--advertise-address={}", Node::FIRST.address()),
        format!("--service-cluster-ip-range={}", node::SERVICES.join(",")),
        pki("tls-cert-file", "apiserver.crt"),
        pki("tls-private-key-file", "apiserver.key"),
        pki("client-ca-file", "ca.crt"),
        pki("service-account-key-file", "service-accounts.pub"),
        pki("service-account-signing-key-file", "service-accounts.key"),
        pki("token-auth-file", "tokens.csv"),
        pki("kubelet-client-certificate", "kubelet-client.crt"),
        pki("kubelet-client-key", "kubelet-client.key"),
    ]);
    flags
}

/// Flags that scheduler and controller manager have in common.
fn controller(user: &str, layout: &Layout) -> Vec<String> {
    let kubeconfig = layout.kubeconfig(user).display().to_string();
    let mut flags = words(&["--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false"]);
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        flags.push(format!("--{flag}={kubeconfig}"));
    }
    flags.push(format!("--cert-dir={}", layout.pki(user)));
    flags
}

fn controller_manager(layout: &Layout) -> Vec<String> {
    let pki = |flag: &str, name: &str| format!("--{flag}={}", layout.pki(name));
    let mut flags = controller("controller-manager", layout);
    flags.extend(words(&[
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=false",
        // Tests wait for EndpointSlices.
        "--endpointslice-updates-batch-period=50ms",
        "--concurrent-deployment-syncs=10",
        "--concurrent-endpoint-syncs=10",
        "--concurrent-service-endpoint-syncs=10",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]));
    flags.extend([
        format!("--cluster-cidr={}", node::PODS.join(",")),
        pki("service-account-private-key-file", "service-accounts.key"),
        pki("root-ca-file", "ca.crt"),
        pki("cluster-signing-cert-file", "ca.crt"),
        pki("cluster-signing-key-file", "ca.key"),
    ]);
    flags
}

fn proxy(layout: &Layout, node: Node) -> Vec<String> {
    let mut flags = words(&[
        "--metrics-bind-address=127.0.0.1:10249",
        "--healthz-bind-address=127.0.0.1:10256",
        // These sysctls are the machine's.
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    ]);
    let mode = fs::read_to_string(layout.proxy_mode());
    flags.extend([
        format!("--proxy-mode={}", mode.unwrap_or_else(|_| ProxyMode::default().to_string())),
        format!("--kubeconfig={}", layout.kubeconfig("admin").display()),
        format!("--hostname-override={node}"),
        format!("--cluster-cidr={}", node::PODS.join(",")),
    ]);
    flags
}

fn kubelet(layout: &Layout, node: Node) -> Vec<String> {
    vec![
        format!("--config={}", layout.of(node, "kubelet.yaml").display()),
        format!("--kubeconfig={}", layout.kubeconfig(&node.to_string()).display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={},{}", node.address(), node.ipv6_address()),
        format!("--root-dir={}", layout.of(node, "kubelet").display()),
        format!("--cert-dir={}", layout.of(node, "pki").display()),
    ]
}

fn words(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|&flag| flag.to_owned()).collect()
}
