//! Containers of a node: the configuration of containerd and kubelet, and the images that pods may
//! use.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::command;

use crate::inside;
use crate::layout::{Layout, RUN};
use crate::node::Node;

/// Debian's directory, and that of all others.
const CNI_PLUGINS: &[&str] = &["/usr/lib/cni", "/opt/cni/bin"];

pub(crate) fn configure(layout: &Layout, node: Node) -> Result<()> {
    let plugins = CNI_PLUGINS.iter().find(|directory| Path::new(directory).join("bridge").is_file());
    let plugins = plugins.context("no CNI plugins: run `cargo xtask setup --cluster`")?;
    let (name, [pods, ipv6_pods]) = (node.to_string(), node.pods());
    let values =
        [("NODE", name.as_str()), ("PODS", &pods), ("IPV6_PODS", &ipv6_pods), ("CNI_PLUGINS", plugins)];
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

pub(crate) fn answers(layout: &Layout, node: Node) -> bool {
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
