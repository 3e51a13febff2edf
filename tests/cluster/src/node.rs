//! The nodes: their names and addresses, the configuration of containerd and kubelet, and the
//! images that pods may use.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result};
use portcullis_testbed::command;

use crate::inside;
use crate::layout::{Layout, RUN};

/// All addresses exist in the cluster's own network namespaces only. No route leads out.
pub(crate) const PODS: &str = "10.244.0.0/16";
pub(crate) const SERVICES: &str = "10.96.0.0/16";

/// Debian's place, and everybody else's.
const CNI_PLUGINS: &[&str] = &["/usr/lib/cni", "/opt/cni/bin"];

/// By its number. The first one is where the control plane runs, and the way from any node to the
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node(u8);

impl Node {
    pub const FIRST: Self = Self(1);
    pub const SECOND: Self = Self(2);
    pub const MOST: u8 = 9;

    /// As many as that, the first one first.
    pub fn some(count: u8) -> impl Iterator<Item = Self> {
        (1..=count).map(Self)
    }

    /// Those that run. The first has namespaces even in a cluster where it is no node.
    pub(crate) fn running(layout: &Layout) -> impl Iterator<Item = Self> {
        Self::some(Self::MOST).take_while(|node| layout.holder_of(*node).is_some())
    }

    pub fn address(self) -> String {
        format!("10.250.0.{}", self.0)
    }

    /// Its pods' addresses.
    pub fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0 - 1)
    }
}

/// `node-1`.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node-{}", self.0)
    }
}

impl FromStr for Node {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::some(Self::MOST).find(|node| node.to_string() == text).ok_or("nodes are node-1 to node-9")
    }
}

pub(crate) fn configure(layout: &Layout, node: Node) -> Result<()> {
    let plugins = CNI_PLUGINS.iter().find(|directory| Path::new(directory).join("bridge").is_file());
    let plugins = plugins.context("no CNI plugins: run `cargo xtask setup --cluster`")?;
    let (name, pods) = (node.to_string(), node.pods());
    let values = [("NODE", name.as_str()), ("PODS", &pods), ("CNI_PLUGINS", plugins)];
    fs::create_dir(layout.of(node, "cni"))?;
    for (template, place) in [
        ("containerd.toml", "containerd.toml"),
        ("cni.conflist", "cni/pods.conflist"),
        ("kubelet.yaml", "kubelet.yaml"),
    ] {
        layout.fill(template, &layout.of(node, place), &values)?;
    }
    Ok(())
}

pub(crate) fn containerd_answers(layout: &Layout, node: Node) -> bool {
    command::output(&mut ctr(layout, node, &["version"])).is_ok()
}

/// Every image in the artifacts. Pods have fixed tags and pull nothing.
pub(crate) fn import_images(layout: &Layout, node: Node) -> Result<()> {
    for image in fs::read_dir(layout.path("artifacts/images")).context("no images were built")? {
        import_image(layout, node, &image?.path())?;
    }
    Ok(())
}

pub(crate) fn import_image(layout: &Layout, node: Node, archive: &Path) -> Result<()> {
    command::output(ctr(layout, node, &["images", "import"]).arg(archive))
        .with_context(|| format!("cannot import {} on {node}", archive.display()))?;
    Ok(())
}

fn ctr(layout: &Layout, node: Node, arguments: &[&str]) -> Command {
    let mut command = inside::command(layout, node, "ctr");
    command.args(["--address", &format!("{RUN}/containerd.sock"), "--namespace", "k8s.io"]).args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_name() {
        for node in Node::some(Node::MOST) {
            assert_eq!(node.to_string().parse(), Ok(node));
        }
        for name in ["node", "node-0", "node-10", "node-02"] {
            assert!(name.parse::<Node>().is_err(), "{name}");
        }
    }

    #[test]
    fn nodes_have_addresses_of_their_own() {
        assert_eq!(
            (Node::FIRST.address().as_str(), Node::FIRST.pods().as_str()),
            ("10.250.0.1", "10.244.0.0/24")
        );
        assert_eq!(
            (Node::SECOND.address().as_str(), Node::SECOND.pods().as_str()),
            ("10.250.0.2", "10.244.1.0/24")
        );
    }
}
