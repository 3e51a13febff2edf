//! Bringing a cluster up, in the order that its parts need one another, and taking it down.

use std::fs::{self, File};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::artifacts::Artifacts;
use super::holder::{self, Lifetime};
use super::layout::Layout;
use super::parts::{Part, command_inside};
use super::process::Process;
use super::{credentials, node, output, wait};
use crate::shell;
use crate::versions::CLUSTER_TOOLS;

const PATIENCE: Duration = Duration::from_secs(120);
const NEEDS: &[&str] = &["unshare", "nsenter", "setpriv", "ip"];

#[derive(Clone, Copy, Default, clap::Args)]
pub(crate) struct Options {
    /// API server and controllers only: no node, so no pods
    #[arg(long)]
    pub(crate) without_node: bool,
    /// Without kube-proxy: Services have addresses that nothing serves
    #[arg(long)]
    pub(crate) without_proxy: bool,
}

/// A running cluster. One that this process started ends with it.
pub(crate) struct Cluster {
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
    pub(crate) fn up(layout: Layout, options: &Options) -> Result<()> {
        let artifacts = Artifacts::ensure()?;
        let _lock = lock(&layout)?;
        if is_up(&layout) {
            println!("cluster: already up at {}", layout.directory().display());
            return Ok(());
        }
        start(&layout, options, Lifetime::Detached, &artifacts)?;
        fs::write(layout.ready(), "")?;
        Ok(())
    }

    /// The cluster that `cluster up` left running, or else one that ends with this process. Nobody else may use it meanwhile.
    pub(crate) fn obtain(layout: Layout, options: &Options) -> Result<Self> {
        let artifacts = Artifacts::ensure()?;
        let lock = Some(lock(&layout)?);
        if is_up(&layout) {
            println!("cluster: using the one at {}", layout.directory().display());
            return Ok(Self { layout, owned: None, _lock: lock });
        }
        let pipe = start(&layout, options, Lifetime::Tied, &artifacts)?;
        Ok(Self { layout, owned: Some(Owned { _pipe: pipe }), _lock: lock })
    }

    /// A cluster that another command started.
    pub(crate) fn running(layout: Layout) -> Result<Self> {
        if Process::recorded(&layout.holder()).is_none() {
            bail!("no cluster is up at {}: run `cargo xtask cluster up`", layout.directory().display());
        }
        Ok(Self { layout, owned: None, _lock: None })
    }

    /// `cluster down`: ends the cluster and removes all but its logs.
    pub(crate) fn down(layout: Layout) -> Result<()> {
        let _lock = lock(&layout)?;
        end(&layout)?;
        println!("cluster: down");
        Ok(())
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A command that will run inside, as an administrator.
    pub(crate) fn command(&self, program: &str) -> Command {
        command_inside(&self.layout, program)
    }

    /// What kubectl prints.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl(&self.layout, arguments)
    }

    pub(crate) fn start(&self, part: &str) -> Result<()> {
        named(part)?.start(&self.layout)
    }

    pub(crate) fn stop(&self, part: &str) -> Result<()> {
        named(part)?.stop(&self.layout)
    }

    /// Makes an image archive usable by pods.
    pub(crate) fn import_image(&self, archive: &Path) -> Result<()> {
        node::import_image(&self.layout, archive)
    }

    /// Installs the CRDs in a file or directory, and waits until the API server serves them.
    pub(crate) fn install_crds(&self, path: &Path) -> Result<()> {
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
    if file.try_lock().is_err() {
        bail!("another command is using the cluster at {}", layout.directory().display());
    }
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

/// Only a cluster that was left running on purpose, and came up whole, is up. Anything else is a leftover.
fn is_up(layout: &Layout) -> bool {
    layout.ready().exists() && Process::recorded(&layout.holder()).is_some()
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
    if Process::recorded(&layout.holder()).is_some() {
        println!("cluster: removing what a run that was killed left behind");
    }
    let boot = Boot { layout, start: Instant::now() };
    holder::end(layout)?;
    layout.recreate()?;
    layout.link_programs(artifacts.directory())?;
    credentials::create(layout)?;
    let pipe = holder::start(layout, lifetime)?;
    output::of(&mut prepare_inside(layout)?)?;
    boot.control_plane(options)?;
    if !options.without_node {
        boot.node()?;
    }
    Ok(pipe)
}

fn check_tools(options: &Options) -> Result<()> {
    let node: Vec<_> = CLUSTER_TOOLS.iter().map(|tool| tool.command).collect();
    let node = if options.without_node { &[] } else { node.as_slice() };
    let is_missing = |tool: &&&str| shell::find(tool).is_none();
    let missing: Vec<_> = NEEDS.iter().chain(node).filter(is_missing).copied().collect();
    if !missing.is_empty() {
        bail!("missing: {}; run `cargo xtask setup --cluster`", missing.join(", "));
    }
    Ok(())
}

fn prepare_inside(layout: &Layout) -> Result<Command> {
    let own = std::env::current_exe()?;
    let mut command = command_inside(layout, &own.display().to_string());
    command.args(["cluster", "prepare", "--dir"]).arg(layout.directory());
    Ok(command)
}

fn named(part: &str) -> Result<Part> {
    Part::from_str(part, false).map_err(anyhow::Error::msg).context("no such part")
}

fn kubectl(layout: &Layout, arguments: &[&str]) -> Result<String> {
    output::of(command_inside(layout, "kubectl").args(arguments))
        .with_context(|| format!("kubectl {}", arguments.join(" ")))
}

struct Boot<'a> {
    layout: &'a Layout,
    start: Instant,
}

impl Boot<'_> {
    fn control_plane(&self, options: &Options) -> Result<()> {
        if !options.without_node {
            node::configure(self.layout)?;
            Part::Containerd.start(self.layout)?;
        }
        Part::Etcd.start(self.layout)?;
        Part::Apiserver.start(self.layout)?;
        if !options.without_node {
            // Done while the API server starts.
            self.images()?;
        }
        self.until(Part::Apiserver, "API server ready", || self.answers(&["get", "--raw", "/readyz"]))?;
        Part::ControllerManager.start(self.layout)?;
        Part::Scheduler.start(self.layout)?;
        if !options.without_proxy {
            Part::Proxy.start(self.layout)?;
        }
        let account = ["get", "serviceaccount", "default", "--namespace=default"];
        self.until(Part::ControllerManager, "controllers working", || self.answers(&account))
    }

    fn images(&self) -> Result<()> {
        let layout = self.layout;
        self.until(Part::Containerd, "containerd ready", || node::containerd_answers(layout))?;
        node::import_images(layout)?;
        self.say("images imported");
        Ok(())
    }

    fn node(&self) -> Result<()> {
        Part::Kubelet.start(self.layout)?;
        let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        let is_ready = || {
            kubectl(self.layout, &["get", "node", node::NAME, "-o", ready])
                .is_ok_and(|status| status == "True")
        };
        self.until(Part::Kubelet, "node Ready", is_ready)
    }

    fn answers(&self, arguments: &[&str]) -> bool {
        kubectl(self.layout, arguments).is_ok()
    }

    /// Waits for something that a part is to bring about, as long as that part lives.
    fn until(&self, part: Part, what: &str, holds: impl Fn() -> bool) -> Result<()> {
        let poll = || match part.process(self.layout) {
            None => bail!("{what}: {}", part.last_words(self.layout)),
            Some(_) => Ok(holds().then_some(())),
        };
        wait::until(what, PATIENCE, poll).with_context(|| part.last_words(self.layout))?;
        self.say(what);
        Ok(())
    }

    fn say(&self, what: &str) {
        println!("cluster: {what} after {:.1} s", self.start.elapsed().as_secs_f32());
    }
}
