//! `cargo xtask cluster`: a real Kubernetes of one or more nodes in namespaces of its own. Its Go
//! programs and configuration are next to this crate's sources, `docs/test-cluster.md` says how to
//! use it.
//!
//! Nothing here knows about the agent but the name of its API server tests; other tests start it
//! inside with [`Cluster::command`].

mod api_server;
mod artifacts;
mod boot;
mod cgroup;
mod checks;
mod containerd;
mod credentials;
mod holder;
mod inside;
mod layout;
mod network;
mod node;
mod parts;
mod pods;
mod process;
pub mod wait;

use std::path::PathBuf;

use anyhow::{Context, Result};
use portcullis_testbed::workspace;

use artifacts::Artifacts;
pub use artifacts::suite_version;
pub use boot::{Cluster, Options};
pub use checks::{Check, holds};
pub use inside::enter_if_asked;
pub use layout::Layout;
pub use node::Node;
pub use parts::ProxyMode;

/// Relative to the workspace.
const DEFAULT: &str = "target/cluster";

#[derive(clap::Parser)]
#[command(
    name = "cargo xtask cluster",
    about = "A real Kubernetes of one or more nodes in namespaces of its own"
)]
pub struct Args {
    /// Directory of the cluster's state; each directory is a cluster of its own [default:
    /// target/cluster]
    #[arg(long, global = true, env = "PORTCULLIS_CLUSTER")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Build the programs and images, unless they are in the cache
    Build,
    /// Start the cluster and leave it running; does nothing if it is up
    Up(Options),
    /// End every process of the cluster and remove its state but the logs
    Down,
    /// Run kubectl against the cluster, as its administrator
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run a command inside the cluster's namespaces, with KUBECONFIG set and kubectl in PATH
    Exec {
        /// Node to run it on
        #[arg(long, default_value_t = Node::FIRST)]
        node: Node,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Start a part of the control plane or node that was stopped: etcd, apiserver, kubelet …
    Start {
        part: String,
        #[arg(long, default_value_t = Node::FIRST)]
        node: Node,
    },
    /// Stop a part, as if it had crashed; pods and the other parts go on
    Stop {
        part: String,
        #[arg(long, default_value_t = Node::FIRST)]
        node: Node,
    },
    /// Install CRDs from a directory or file and wait until they are served
    Crds {
        #[arg(default_value = "deploy/crds")]
        path: PathBuf,
    },
    /// Make an image archive usable by pods
    Import { archive: PathBuf },
    /// Prove that the cluster works: node, pods, Services, CRDs, our fields
    Test,
    /// Run the tests of the agent's crates that need an API server
    ApiServerTests,
}

pub fn run(args: &Args) -> Result<()> {
    let layout = layout(args.dir.as_ref())?;
    match &args.command {
        Command::Build => Artifacts::ensure().map(drop),
        Command::Up(options) => Cluster::up(layout, options),
        Command::Down => Cluster::down(layout),
        Command::Kubectl { arguments } => inside::enter(&layout, Node::FIRST, "kubectl", arguments),
        Command::Exec { node, command } => inside::enter(&layout, *node, &command[0], &command[1..]),
        Command::Start { part, node } => Cluster::running(layout)?.start(part, *node),
        Command::Stop { part, node } => Cluster::running(layout)?.stop(part, *node),
        Command::Crds { path } => Cluster::running(layout)?.install_crds(path),
        Command::Import { archive } => Cluster::running(layout)?.import_image(archive),
        Command::Test => checks::run(layout),
        Command::ApiServerTests => api_server::test(layout),
    }
}

/// The given directory, or the default.
pub fn layout(directory: Option<&PathBuf>) -> Result<Layout> {
    let directory = match directory {
        Some(directory) => std::path::absolute(directory).context("--dir is not a path")?,
        None => workspace::root().join(DEFAULT),
    };
    Ok(Layout::at(directory))
}
