//! MetalLB's own programs, built once for a given `tests/chart/metallb/go.sum` and kept in the
//! cache.

use std::path::PathBuf;

use anyhow::Result;
use portcullis_testbed::{command, go, workspace};

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/chart/metallb";
const METALLB: &str = "go.universe.tf/metallb";

pub(super) struct MetalLb {
    pub(super) controller: PathBuf,
    pub(super) speaker: PathBuf,
    /// Directory of its CRDs.
    pub(super) crds: PathBuf,
}

pub(super) fn programs() -> Result<MetalLb> {
    let program = |name: &str| go::built(MODULE, &format!("{METALLB}/{name}"), &format!("metallb-{name}"));
    let (controller, speaker) = (program("controller")?, program("speaker")?);
    let module = workspace::root().join(MODULE);
    let source = command::output(go::command(&module).args(["list", "-m", "-f", "{{.Dir}}", METALLB]))?;
    Ok(MetalLb { controller, speaker, crds: PathBuf::from(source.trim()).join("config/crd/bases") })
}
