//! The node: its addresses, the configuration of containerd and kubelet, and the images that pods may use.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::layout::{Layout, RUN};
use super::output;
use super::parts::command_inside;

pub(crate) const NAME: &str = "node";
/// The node's, the pods' and the Services' addresses exist in the cluster's own network namespace only. No route leads out.
pub(crate) const ADDRESS: &str = "10.250.0.1";
pub(crate) const PODS: &str = "10.244.0.0/24";
pub(crate) const SERVICES: &str = "10.96.0.0/16";

/// Debian's place, and everybody else's.
const CNI_PLUGINS: &[&str] = &["/usr/lib/cni", "/opt/cni/bin"];

pub(super) fn configure(layout: &Layout) -> Result<()> {
    let plugins = CNI_PLUGINS.iter().find(|directory| Path::new(directory).join("bridge").is_file());
    let plugins = plugins.context("no CNI plugins: run `cargo xtask setup --cluster`")?;
    layout.fill("containerd.toml", &layout.path("containerd.toml"), &[("CNI_PLUGINS", plugins)])?;
    layout.fill("cni.conflist", &layout.path("cni/pods.conflist"), &[("PODS", PODS)])?;
    layout.fill("kubelet.yaml", &layout.path("kubelet.yaml"), &[])
}

pub(super) fn containerd_answers(layout: &Layout) -> bool {
    output::of(&mut ctr(layout, &["version"])).is_ok()
}

/// Every image in the artifacts. Pods have fixed tags and pull nothing.
pub(super) fn import_images(layout: &Layout) -> Result<()> {
    for image in fs::read_dir(layout.path("artifacts/images")).context("no images were built")? {
        import_image(layout, &image?.path())?;
    }
    Ok(())
}

pub(super) fn import_image(layout: &Layout, archive: &Path) -> Result<()> {
    output::of(ctr(layout, &["images", "import"]).arg(archive))
        .with_context(|| format!("cannot import {}", archive.display()))?;
    Ok(())
}

fn ctr(layout: &Layout, arguments: &[&str]) -> Command {
    let mut command = command_inside(layout, "ctr");
    command.args(["--address", &format!("{RUN}/containerd.sock"), "--namespace", "k8s.io"]).args(arguments);
    command
}
