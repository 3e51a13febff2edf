//! Bringing a cluster up, in the order that its parts need one another, and taking it down.

use std::fs::{self, File};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use portcullis_testbed::command;
use portcullis_testbed::versions::CLUSTER_TOOLS;

use crate::artifacts::Artifacts;
use crate::containerd;
use crate::holder;
use crate::inside;
use crate::inside::Lifetime;
use crate::layout::Layout;
use crate::node::Node;
use crate::parts::{Part, ProxyMode};
use crate::{credentials, wait};

const TIMEOUT: Duration = Duration::from_secs(120);
const NEEDS: &[&str] = &["unshare", "nsenter", "setpriv", "ip"];

#[derive(Clone, Copy, clap::Args)]
pub struct Options {
    /// Number of nodes; without any there are API server and controllers only, and no pods
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=i64::from(Node::MOST)))]
    pub nodes: u8,
    /// Without kube-proxy: Services have addresses that nothing serves
    #[arg(long)]
    pub without_proxy: bool,
    /// The way in which kube-proxy has packets rewritten
    #[arg(long, value_enum, default_value_t, conflicts_with = "without_proxy")]
    pub proxy_mode: ProxyMode,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 1, without_proxy: false, proxy_mode: ProxyMode::default() }
    }
}

impl Options {
    fn nodes(&self) -> impl Iterator<Item = Node> {
        Node::some(self.nodes)
    }

    /// The control plane needs a place, too.
    fn places(&self) -> impl Iterator<Item = Node> {
        Node::some(self.nodes.max(1))
    }
}

/// A running cluster. One that this process started ends with it.
pub struct Cluster {
    layout: Layout,
    owned: Option<Owned>,
    _lock: Option<File>,
}

/// Ends the cluster when closed, even by the kernel.
struct Owned {
    _pipe: Option<ChildStdin>,
}

impl Cluster {
    /// `cluster up`: starts a cluster that outlives this command, unless there is one.
    pub fn up(layout: Layout, options: &Options) -> Result<()> {
        let artifacts = Artifacts::ensure()?;
        let _lock = lock(&layout)?;
        if is_up(&layout) {
            println!("cluster: already up at {}", layout.directory().display());
            return check_nodes(&layout, options);
        }
        start(&layout, options, Lifetime::Detached, &artifacts)?;
        fs::write(layout.ready(), "")?;
        Ok(())
    }

    /// The cluster that `cluster up` left running, or else one that ends with this process. No
    /// other command may use it meanwhile.
    pub fn obtain(layout: Layout, options: &Options) -> Result<Self> {
        let artifacts = Artifacts::ensure()?;
        let lock = Some(lock(&layout)?);
        if is_up(&layout) {
            println!("cluster: using the one at {}", layout.directory().display());
            check_nodes(&layout, options)?;
            return Ok(Self { layout, owned: None, _lock: lock });
        }
        let start = || start(&layout, options, Lifetime::Tied, &artifacts);
        // What is tested is the agent: a cluster that a loaded machine did not bring up gets a
        // second chance, and says so.
        let pipe = start().or_else(|error| {
            eprintln!("cluster: not up, trying once more: {error:#}");
            start()
        })?;
        Ok(Self { layout, owned: Some(Owned { _pipe: pipe }), _lock: lock })
    }

    /// A cluster that another command started.
    pub fn running(layout: Layout) -> Result<Self> {
        if layout.holder_of(Node::FIRST).is_none() {
            bail!("no cluster is up at {}: run `cargo xtask cluster up`", layout.directory().display());
        }
        Ok(Self { layout, owned: None, _lock: None })
    }

    /// `cluster down`: ends the cluster and removes all but its logs.
    pub fn down(layout: Layout) -> Result<()> {
        let _lock = lock(&layout)?;
        end(&layout)?;
        println!("cluster: down");
        Ok(())
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A command that will run inside, on the first node, as an administrator.
    pub fn command(&self, program: &str) -> Command {
        self.command_on(Node::FIRST, program)
    }

    pub fn command_on(&self, node: Node, program: &str) -> Command {
        inside::command(&self.layout, node, program)
    }

    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.layout.running_nodes()
    }

    /// Output of kubectl.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl(&self.layout, arguments)
    }

    pub fn start(&self, part: &str, node: Node) -> Result<()> {
        named(part)?.start(&self.layout, node)
    }

    pub fn stop(&self, part: &str, node: Node) -> Result<()> {
        named(part)?.stop(&self.layout, node)
    }

    /// Has kube-proxy work in another mode on every node from now on, and waits until it does.
    pub fn set_proxy_mode(&self, mode: ProxyMode) -> Result<()> {
        fs::write(self.layout.proxy_mode(), mode.to_string())?;
        for node in self.nodes() {
            Part::Proxy.stop(&self.layout, node)?;
            Part::Proxy.start(&self.layout, node)?;
        }
        let answers = |node: Node, url: &str| {
            let asked = command::output(self.command_on(node, "curl").args(["-sS", "--fail", url]));
            asked.unwrap_or_default()
        };
        for node in self.nodes() {
            wait::until_true(&format!("kube-proxy in mode {mode} on {node}"), TIMEOUT, || {
                answers(node, "http://127.0.0.1:10249/proxyMode") == mode.to_string()
                    && !answers(node, "http://127.0.0.1:10256/healthz").is_empty()
            })?;
        }
        Ok(())
    }

    /// Makes an image archive usable by pods, on every node.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        self.nodes().try_for_each(|node| containerd::import_image(&self.layout, node, archive))
    }

    /// Installs the CRDs in a file or directory, and waits until the API server serves them.
    pub fn install_crds(&self, path: &Path) -> Result<()> {
        let path = path.display().to_string();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &path])?;
        self.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "--recursive=false",
            "-f",
            &path,
        ])?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.owned.take().is_some()
            && let Err(error) = end(&self.layout)
        {
            eprintln!("cluster: {error:#}");
        }
    }
}

/// Held until dropped, or until this process ends in whatever way.
fn lock(layout: &Layout) -> Result<File> {
    check_environment(layout)?;
    fs::create_dir_all(layout.directory())?;
    let file = File::options().create(true).append(true).open(layout.lock())?;
    // A child that a killed command was just starting has it until it becomes the program it is to
    // be.
    wait::until_true("the lock", Duration::from_secs(1), || file.try_lock().is_ok()).with_context(|| {
        format!("another command is using the cluster at {}", layout.directory().display())
    })?;
    Ok(file)
}

fn check_environment(layout: &Layout) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the test cluster needs root: it makes namespaces, mounts and cgroups");
    }
    if layout.directory().starts_with("/run") {
        bail!("--dir must not be below /run: the cluster has a /run of its own");
    }
    Ok(())
}

/// Only a cluster that was left running on purpose, and came up whole, is up. Anything else is a
/// leftover.
fn is_up(layout: &Layout) -> bool {
    layout.ready().exists() && layout.holder_of(Node::FIRST).is_some()
}

fn check_nodes(layout: &Layout, options: &Options) -> Result<()> {
    let (wanted, there) = (options.places().count(), layout.running_nodes().count());
    if there < wanted {
        bail!(
            "the cluster has {there} of {wanted} nodes: run `cargo xtask cluster down`, and `cargo xtask cluster up --nodes \
             {wanted}` if it is to stay"
        );
    }
    Ok(())
}

fn end(layout: &Layout) -> Result<()> {
    holder::end(layout)?;
    layout.clear()
}

fn start(
    layout: &Layout,
    options: &Options,
    lifetime: Lifetime,
    artifacts: &Artifacts,
) -> Result<Option<ChildStdin>> {
    check_tools(options)?;
    bring_up(layout, options, lifetime, artifacts).inspect_err(|_| {
        // The logs stay: they say why.
        if let Err(error) = holder::end(layout) {
            eprintln!("cluster: {error:#}");
        }
    })
}

fn bring_up(
    layout: &Layout,
    options: &Options,
    lifetime: Lifetime,
    artifacts: &Artifacts,
) -> Result<Option<ChildStdin>> {
    if layout.holder_of(Node::FIRST).is_some() {
        println!("cluster: removing what a run that was killed left behind");
    }
    let boot = Boot { layout, start: Instant::now() };
    holder::end(layout)?;
    layout.recreate(options.places())?;
    layout.link_programs(artifacts.directory())?;
    credentials::create(layout, options.nodes())?;
    let pipe = holder::start(layout, lifetime)?;
    options.places().try_for_each(|node| prepare(layout, node))?;
    boot.control_plane(options)?;
    boot.nodes(options)?;
    Ok(pipe)
}

fn check_tools(options: &Options) -> Result<()> {
    let node: Vec<_> = CLUSTER_TOOLS.iter().map(|tool| tool.command).collect();
    let node = if options.nodes == 0 { &[] } else { node.as_slice() };
    let is_missing = |tool: &&&str| command::find(tool).is_none();
    let missing: Vec<_> = NEEDS.iter().chain(node).filter(is_missing).copied().collect();
    if !missing.is_empty() {
        bail!("missing: {}; run `cargo xtask setup --cluster`", missing.join(", "));
    }
    Ok(())
}

/// Makes a node's namespaces, and makes them look like one.
fn prepare(layout: &Layout, node: Node) -> Result<()> {
    if node != Node::FIRST {
        holder::join(layout, node)?;
    }
    command::output(&mut inside::preparing(layout, node)?).map(drop)
}

fn named(part: &str) -> Result<Part> {
    Part::from_str(part, false).map_err(anyhow::Error::msg).context("no such part")
}

fn kubectl(layout: &Layout, arguments: &[&str]) -> Result<String> {
    command::output(inside::command(layout, Node::FIRST, "kubectl").args(arguments))
        .with_context(|| format!("kubectl {}", arguments.join(" ")))
}

struct Boot<'a> {
    layout: &'a Layout,
    start: Instant,
}

impl Boot<'_> {
    fn control_plane(&self, options: &Options) -> Result<()> {
        for node in options.nodes() {
            containerd::configure(self.layout, node)?;
            Part::Containerd.start(self.layout, node)?;
        }
        self.start(Part::Etcd)?;
        self.start(Part::Apiserver)?;
        // Done while the API server starts.
        options.nodes().try_for_each(|node| self.images(node))?;
        let ready = ["get", "--raw", "/readyz"];
        self.until(Part::Apiserver, Node::FIRST, "API server ready", || self.answers(&ready))?;
        self.start(Part::ControllerManager)?;
        self.start(Part::Scheduler)?;
        if !options.without_proxy {
            fs::write(self.layout.proxy_mode(), options.proxy_mode.to_string())?;
            options.places().try_for_each(|node| Part::Proxy.start(self.layout, node))?;
        }
        let account = ["get", "serviceaccount", "default", "--namespace=default"];
        self.until(Part::ControllerManager, Node::FIRST, "controllers working", || self.answers(&account))
    }

    fn images(&self, node: Node) -> Result<()> {
        let answers = || containerd::answers(self.layout, node);
        self.until(Part::Containerd, node, &format!("containerd ready on {node}"), answers)?;
        containerd::import_images(self.layout, node)?;
        self.say(&format!("images imported on {node}"));
        Ok(())
    }

    fn nodes(&self, options: &Options) -> Result<()> {
        options.nodes().try_for_each(|node| Part::Kubelet.start(self.layout, node))?;
        let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        let is_ready = |node: Node| {
            kubectl(self.layout, &["get", "node", &node.to_string(), "-o", ready])
                .is_ok_and(|status| status == "True")
        };
        options
            .nodes()
            .try_for_each(|node| self.until(Part::Kubelet, node, &format!("{node} Ready"), || is_ready(node)))
    }

    fn start(&self, part: Part) -> Result<()> {
        part.start(self.layout, Node::FIRST)
    }

    fn answers(&self, arguments: &[&str]) -> bool {
        kubectl(self.layout, arguments).is_ok()
    }

    /// Waits for something that a part is to bring about, as long as that part lives.
    fn until(&self, part: Part, node: Node, what: &str, holds: impl Fn() -> bool) -> Result<()> {
        let last_words = || part.last_words(self.layout, node);
        let poll = || match part.process(self.layout, node) {
            None => bail!("{what}: {}", last_words()),
            Some(_) => Ok(holds().then_some(())),
        };
        wait::until(what, TIMEOUT, poll).with_context(last_words)?;
        self.say(what);
        Ok(())
    }

    fn say(&self, what: &str) {
        println!("cluster: {what} after {:.1} s", self.start.elapsed().as_secs_f32());
    }
}
