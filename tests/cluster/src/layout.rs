//! Files of a cluster: every path below its directory, and the directory that only its
//! processes see.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use portcullis_testbed::workspace;
use sha2::{Digest, Sha256};

use crate::node::Node;
use crate::process::Process;

/// Sockets and other short-lived files. `/run` is the cluster's own, so every cluster may use the
/// same short path: the path of a Unix socket is limited to 107 bytes.
pub(crate) const RUN: &str = "/run/portcullis-cluster";

const TEMPLATES: &str = "tests/cluster/conf";

#[derive(Clone)]
pub struct Layout {
    directory: PathBuf,
}

impl Layout {
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Of one node.
    pub(crate) fn of(&self, node: Node, name: &str) -> PathBuf {
        self.path(&node.to_string()).join(name)
    }

    pub fn log(&self, part: &str) -> PathBuf {
        self.path(&format!("logs/{part}.log"))
    }

    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.path(&format!("{user}.kubeconfig"))
    }

    pub(crate) fn pki(&self, name: &str) -> String {
        self.path("pki").join(name).display().to_string()
    }

    /// Held while a command changes the cluster, or for as long as a cluster tied to a command
    /// lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.path("lock")
    }

    /// The process that holds a node's namespaces. With the first one's everything ends.
    pub(crate) fn holder(&self, node: Node) -> PathBuf {
        self.of(node, "holder")
    }

    pub(crate) fn holder_of(&self, node: Node) -> Option<Process> {
        Process::recorded(&self.holder(node))
    }

    /// The nodes that run. The first has namespaces even in a cluster where it is no node.
    pub(crate) fn running_nodes(&self) -> impl Iterator<Item = Node> {
        Node::some(Node::MOST).take_while(|node| self.holder_of(*node).is_some())
    }

    /// kube-proxy's.
    pub(crate) fn proxy_mode(&self) -> PathBuf {
        self.path("proxy-mode")
    }

    /// There when the cluster came up whole.
    pub(crate) fn ready(&self) -> PathBuf {
        self.path("ready")
    }

    /// The cgroup directories that hold the cluster's processes, one a line.
    pub(crate) fn cgroups(&self) -> PathBuf {
        self.path("cgroups")
    }

    /// Programs, first in PATH of everything inside.
    pub(crate) fn programs(&self) -> PathBuf {
        self.path("bin")
    }

    /// A name for what must be named outside of the directory: different for every directory, the
    /// same every time.
    pub(crate) fn name(&self) -> String {
        let digest = Sha256::digest(self.directory.as_os_str().as_encoded_bytes());
        let short: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
        format!("portcullis-{short}")
    }

    /// Empties the directory, and makes what every start needs.
    pub(crate) fn recreate(&self, nodes: impl Iterator<Item = Node>) -> Result<()> {
        self.empty(&[])?;
        let names = ["bin", "logs", "pki", "pod-logs", "sysctl"].map(str::to_owned);
        for name in names.into_iter().chain(nodes.map(|node| node.to_string())) {
            fs::create_dir(self.path(&name))?;
        }
        Ok(())
    }

    /// Removes the state of a cluster that has ended. Its logs stay.
    pub(crate) fn clear(&self) -> Result<()> {
        self.empty(&["logs", "pod-logs"])
    }

    /// Never removes the lock: a process may be waiting for just that file.
    fn empty(&self, keep: &[&str]) -> Result<()> {
        for entry in fs::read_dir(&self.directory).context("cannot read the cluster's directory")? {
            let entry = entry?;
            let is_kept = keep.iter().any(|name| entry.file_name() == *name);
            if !is_kept && entry.path() != self.lock() {
                remove(&entry.path()).with_context(|| format!("cannot remove {}", entry.path().display()))?;
            }
        }
        Ok(())
    }

    /// Makes the built programs reachable: a running cluster keeps using those it was started with.
    pub(crate) fn link_programs(&self, artifacts: &Path) -> Result<()> {
        symlink(artifacts, self.path("artifacts"))?;
        symlink(artifacts.join("kubernetes"), self.programs().join("kubernetes"))?;
        // The program looks at the name it was started by.
        Ok(symlink(artifacts.join("kubernetes"), self.programs().join("kubectl"))?)
    }

    /// A configuration file from its template. `@STATE@` and `@RUN@` are always filled in, the rest
    /// is given.
    pub(crate) fn fill(&self, template: &str, place: &Path, values: &[(&str, &str)]) -> Result<()> {
        let source = workspace::root().join(TEMPLATES).join(template);
        let text =
            fs::read_to_string(&source).with_context(|| format!("no template {}", source.display()))?;
        let state = self.directory.display().to_string();
        let fixed = [("STATE", state.as_str()), ("RUN", RUN)];
        let fill = |text: String, (name, value): &(&str, &str)| text.replace(&format!("@{name}@"), value);
        let filled = fixed.iter().chain(values).fold(text, fill);
        fs::write(place, filled).with_context(|| format!("cannot write {}", place.display()))
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}
