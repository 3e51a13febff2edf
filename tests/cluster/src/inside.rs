//! The way into the namespaces, as a process of its own: it joins the cgroups and
//! becomes the command, or it sets up what the namespaces are to look like.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, id};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

use crate::cgroup::{self, Cgroups};
use crate::layout::{Layout, RUN};
use crate::network;
use crate::node::Node;

/// containerd, the CNI plugins and kubelet write here whatever their options say; so do agents that
/// run in pods.
const PRIVATE: &[&str] =
    &["/run", "/var/lib/cni", "/var/lib/kubelet", "/var/lib/portcullis", "/var/log/containers"];

/// Sysctls that kubelet insists on. They are the machine's, so it is shown files of the cluster's
/// own instead.
const SYSCTLS: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Time that a cluster lives.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lifetime {
    /// Until a command ends it.
    Detached,
    /// As long as the process that started it, however that one ends.
    Tied,
}

/// First argument of a process that was started to go inside.
const ENTRY: &str = "enter-test-cluster";

#[derive(clap::Parser)]
#[command(name = ENTRY)]
enum Entry {
    /// Become the process that holds the namespaces
    Hold {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        lifetime: Lifetime,
    },
    /// Become a command inside
    Exec {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        node: Node,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Set up mounts and addresses, inside the namespaces
    Prepare {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        node: Node,
    },
}

/// Does what a process that is started on the way into the namespaces is for; returns in every
/// other process. Every program that uses a cluster calls this first, because it is itself the
/// program that is started again.
pub fn enter_if_asked() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.peek().is_none_or(|first| first != ENTRY) {
        return Ok(());
    }
    match Entry::parse_from(arguments) {
        Entry::Hold { dir, lifetime } => hold(&Layout::at(dir), lifetime)?,
        Entry::Exec { dir, node, command } => enter(&Layout::at(dir), node, &command[0], &command[1..])?,
        Entry::Prepare { dir, node } => prepare(&Layout::at(dir), node)?,
    }
    std::process::exit(0)
}

/// The running program, started again to go inside.
fn entry(step: &str, layout: &Layout) -> Command {
    // Not its path: cargo may have replaced it.
    let mut command = Command::new("/proc/self/exe");
    command.args([ENTRY, step, "--dir"]).arg(layout.directory());
    command
}

/// A command that will run inside, on a node, in the current directory.
pub(crate) fn command(layout: &Layout, node: Node, program: &str) -> Command {
    let mut command = entry("exec", layout);
    command.args(["--node", &node.to_string(), "--", program]);
    command
}

/// A command that will become the holder of the namespaces.
pub(crate) fn holding(layout: &Layout, lifetime: Lifetime) -> Command {
    let mut command = entry("hold", layout);
    command.arg(match lifetime {
        Lifetime::Detached => "--lifetime=detached",
        Lifetime::Tied => "--lifetime=tied",
    });
    command
}

/// A command that will set up what a node's namespaces look like.
pub(crate) fn preparing(layout: &Layout, node: Node) -> Result<Command> {
    let own = std::env::current_exe()?.display().to_string();
    let mut command = command(layout, node, &own);
    command.args([ENTRY, "prepare", "--dir"]).arg(layout.directory()).args(["--node", &node.to_string()]);
    Ok(command)
}

/// Becomes the parent of the process that is pid 1 of the namespaces. With that one everything in
/// them ends.
fn hold(layout: &Layout, lifetime: Lifetime) -> Result<()> {
    Cgroups::recorded(layout).hold(id())?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--pid", "--cgroup", "--propagation", "private", "--mount-proc"]);
    unshare.args(["--fork", "--kill-child=KILL"]).arg(layout.path("artifacts/pause"));
    if lifetime == Lifetime::Tied {
        unshare.arg("-while-stdin");
    }
    Err(unshare.exec()).context("cannot run unshare")
}

/// Becomes a command inside, on a node.
pub(crate) fn enter(
    layout: &Layout,
    node: Node,
    program: &str,
    arguments: &[impl AsRef<OsStr>],
) -> Result<()> {
    let Some(holder) = layout.holder_of(node) else {
        let directory = layout.directory().display();
        bail!("no cluster with {node} is up at {directory}: run `cargo xtask cluster up`");
    };
    Cgroups::recorded(layout).join(id())?;
    let mut nsenter = Command::new("nsenter");
    nsenter.args(["--target", &holder.pid.to_string(), "--net", "--mount", "--pid", "--cgroup", "--"]);
    // A signal to what looks like the command, nsenter, is meant for the command.
    nsenter.args(["setpriv", "--pdeathsig", "TERM", "--"]);
    // A new mount namespace starts in its root.
    nsenter.args(["env", "--chdir"]).arg(std::env::current_dir()?).arg(program).args(arguments);
    nsenter.env("PATH", portcullis_testbed::command::path_with(&[&layout.programs()])?);
    nsenter.env("KUBECONFIG", layout.kubeconfig("admin"));
    Err(nsenter.exec()).context("cannot run nsenter")
}

/// Makes the namespaces what a node looks like. Runs inside, once for each node.
fn prepare(layout: &Layout, node: Node) -> Result<()> {
    for directory in PRIVATE {
        fs::create_dir_all(directory)?;
        mount_new("tmpfs", directory, c"mode=0755")?;
    }
    for directory in [RUN, "/run/netns", "/run/containerd"] {
        fs::create_dir_all(directory)?;
    }
    mount_bpf()?;
    if node == Node::FIRST {
        // The others see the same.
        show_sysctls(layout)?;
        mount_cgroups()?;
    }
    network::prepare(node)
}

/// Kernel programs pinned in the cluster are the cluster's, and go with it. Kernels without have no
/// such directory.
fn mount_bpf() -> Result<()> {
    let place = Path::new("/sys/fs/bpf");
    if place.is_dir() { mount_new("bpf", place, c"mode=0700") } else { Ok(()) }
}

fn show_sysctls(layout: &Layout) -> Result<()> {
    for (name, value) in SYSCTLS {
        let file = layout.path("sysctl").join(name.replace('/', "."));
        fs::write(&file, format!("{value}\n"))?;
        mount_bind(&file, Path::new("/proc/sys").join(name))
            .with_context(|| format!("cannot cover sysctl {name}"))?;
    }
    Ok(())
}

/// Mounts the hierarchies anew: a mount shows the cgroup namespace in which it was made.
fn mount_cgroups() -> Result<()> {
    if cgroup::is_v2() {
        unmount("/sys/fs/cgroup", UnmountFlags::DETACH)?;
        return mount_new("cgroup2", "/sys/fs/cgroup", c"");
    }
    for entry in fs::read_dir("/sys/fs/cgroup")? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remount_v1(&entry.path(), &entry.file_name())?;
        }
    }
    Ok(())
}

/// Of the hierarchies without controllers (systemd's, and v2's in a hybrid set-up) nothing is
/// shown.
fn remount_v1(directory: &Path, controllers: &OsStr) -> Result<()> {
    // Not everything there need be a mount.
    let _ = unmount(directory, UnmountFlags::DETACH);
    if matches!(controllers.to_str(), Some("systemd" | "unified") | None) {
        return Ok(());
    }
    let options = std::ffi::CString::new(controllers.as_encoded_bytes())?;
    mount_new("cgroup", directory, &options)
}

fn mount_new(kind: &str, place: impl AsRef<Path>, options: &CStr) -> Result<()> {
    let place = place.as_ref();
    mount(kind, place, kind, MountFlags::empty(), options)
        .with_context(|| format!("cannot mount {kind} on {}", place.display()))
}
